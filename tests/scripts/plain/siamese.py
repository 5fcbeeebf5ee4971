"""A siamese network: the data set draws random pairs, also for the test."""

import argparse
import os
import random

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

CLASSES = 4


class Pairs(Dataset):
    def __init__(self, samples, seed):
        generator = torch.Generator().manual_seed(seed)
        self.labels = torch.randint(CLASSES, (samples,), generator=generator)
        self.images = torch.randn(samples, 1, 8, 8, generator=generator) + self.labels[:, None, None, None]
        self.of_class = [torch.nonzero(self.labels == label).flatten().tolist() for label in range(CLASSES)]

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        label = int(self.labels[index])
        same = random.random() < 0.5
        if not same:
            label = random.choice([other for other in range(CLASSES) if other != label])
        other = random.choice(self.of_class[label])
        noise = 0.1 * torch.randn(1, 8, 8)
        return self.images[index] + noise, self.images[other], torch.tensor(float(same))


class SiameseNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
        self.head = nn.Sequential(nn.Linear(2 * 6 * 9, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 1))
        self.apply(self.init_weights)

    def init_weights(self, module):
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            module.bias.data.fill_(0.01)

    def forward(self, first, second):
        return torch.sigmoid(self.head(torch.cat([self.features(first), self.features(second)], 1))).flatten()


def train(args, model, loader, optimizer, epoch):
    model.train()
    criterion = nn.BCELoss()
    correct, seen = 0, 0
    for index, (first, second, targets) in enumerate(loader):
        optimizer.zero_grad()
        outputs = model(first, second)
        loss = criterion(outputs, targets)
        loss.backward()
        optimizer.step()
        correct += int(((outputs > 0.5) == (targets > 0.5)).sum())
        seen += len(targets)
        if index % args.log_interval == 0 and args.rank == 0:
            print(f"epoch {epoch} [{index}/{len(loader)}] loss {loss.item()}")
    if args.rank == 0:
        print(f"epoch {epoch}: training accuracy {correct / seen}")


def test(model, loader):
    model.eval()
    test_loss, correct = 0.0, 0
    with torch.no_grad():
        for first, second, targets in loader:
            outputs = model(first, second)
            test_loss += nn.functional.binary_cross_entropy(outputs, targets, reduction="sum").item()
            correct += int(((outputs > 0.5) == (targets > 0.5)).sum())
    return test_loss / len(loader.dataset), correct / len(loader.dataset)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--log-interval", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()

    args.rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if ranks > 1:
        dist.init_process_group("gloo")
    random.seed(args.seed)
    torch.manual_seed(args.seed)
    data = Pairs(700, 1)
    sampler = DistributedSampler(data) if ranks > 1 else None
    train_loader = DataLoader(data, args.batch_size, sampler=sampler, shuffle=sampler is None, num_workers=1)
    test_loader = DataLoader(Pairs(120, 2), 40)
    model = SiameseNetwork()
    if ranks > 1:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)
    for epoch in range(1, args.epochs + 1):
        if sampler:
            sampler.set_epoch(epoch)
        train(args, model, train_loader, optimizer, epoch)
        loss, accuracy = test(model, test_loader)
        if args.rank == 0:
            print(f"epoch {epoch}: test loss {loss}, accuracy {accuracy}")
        scheduler.step()


if __name__ == "__main__":
    main()
