"""A classifier of digits: functions train and test, a learning rate that decays by epoch, no process group."""

import argparse

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from slipway import Session


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 8, 3)
        self.dropout = nn.Dropout(0.25)
        self.fc = nn.Linear(8 * 9, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv(x)), 2)
        return F.log_softmax(self.fc(self.dropout(x.flatten(1))), dim=1)


def train(session, model, loader, optimizer, epoch):
    model.train()
    for index, (data, target) in enumerate(session.batches(loader), session.batch):
        optimizer.zero_grad()
        loss = F.nll_loss(model(data), target)
        loss.backward()
        optimizer.step()
        if index % 10 == 0:
            print(f"epoch {epoch} [{index}/{len(loader)}] loss {loss.item():.4f}")


def test(model, loader):
    model.eval()
    with torch.no_grad():
        return sum(int((model(data).argmax(1) == target).sum()) for data, target in loader) / len(loader.dataset)


def digits(samples, seed):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(10, (samples,), generator=generator)
    return TensorDataset(torch.randn(samples, 1, 8, 8, generator=generator) + labels[:, None, None, None] / 5, labels)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=16)
    args = parser.parse_args()
    torch.manual_seed(1)
    train_loader = DataLoader(digits(410, 1), args.batch_size, shuffle=True)
    test_loader = DataLoader(digits(100, 2), 50)
    model = Net()
    optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.7)
    with Session(model=model, optimizer=optimizer, scheduler=scheduler, checkpoint_steps=9) as session:
        for epoch in session.epochs(args.epochs):
            train(session, model, train_loader, optimizer, epoch)
            accuracy = test(model, test_loader)
            print(f"epoch {epoch} accuracy {accuracy:.3f}")
            scheduler.step()


if __name__ == "__main__":
    main()
