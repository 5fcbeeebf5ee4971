"""An image classifier in the style of examples: enumerate, set_epoch, augmentation in workers, accumulation."""

import argparse
import os
import random
from contextlib import nullcontext

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from slipway import Session

CLASSES = 5


class Images(Dataset):
    def __init__(self, samples, *, augment):
        self.augment = augment
        generator = torch.Generator().manual_seed(7)
        self.labels = torch.randint(CLASSES, (samples,), generator=generator)
        self.images = torch.randn(samples, 1, 8, 8, generator=generator) + self.labels[:, None, None, None] / 2

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        image = self.images[index]
        if not self.augment:
            return image, self.labels[index]
        if random.random() < 0.5:
            image = image.flip(-1)
        image = image.roll(int(np.random.randint(-1, 2)), -1)
        return image + 0.1 * torch.randn(image.shape), self.labels[index]


def network():
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Dropout(0.2), nn.Linear(8 * 36, CLASSES)
    )


def validate(model, loader):
    model.eval()
    with torch.no_grad():
        correct = sum(int((model(images).argmax(1) == labels).sum()) for images, labels in loader)
    model.train()
    return correct / len(loader.dataset)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--samples", type=int, default=203)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--persistent", action="store_true")
    parser.add_argument("--context")
    parser.add_argument("--accumulate", type=int, default=1)
    args = parser.parse_args()

    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    if ranks > 1:
        dist.init_process_group("gloo")
    data = Images(args.samples, augment=True)
    sampler = DistributedSampler(data) if ranks > 1 else None
    options = {"num_workers": args.workers, "persistent_workers": args.persistent}
    if args.workers:
        options["multiprocessing_context"] = args.context
    loader = DataLoader(data, args.batch_size, sampler=sampler, shuffle=sampler is None, **options)
    validation = DataLoader(Images(args.samples // 3, augment=False), 16, **options)
    model = network()
    if ranks > 1:
        model = DistributedDataParallel(model, find_unused_parameters=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [1, 2])
    with Session(model=model, optimizer=optimizer, scheduler=scheduler, best="accuracy", checkpoint_steps=7) as session:
        for epoch in session.epochs(args.epochs):
            if sampler:
                sampler.set_epoch(epoch)
            for index, (images, labels) in enumerate(session.batches(loader, device="cpu"), session.batch):
                last = (index + 1) % args.accumulate == 0 or index + 1 == len(loader)
                with nullcontext() if last or ranks == 1 else model.no_sync():
                    loss = nn.functional.cross_entropy(model(images), labels) / args.accumulate
                    loss.backward()
                session.log(loss=loss)
                if last:
                    optimizer.step()
                    optimizer.zero_grad()
            scheduler.step()
            print(f"epoch {epoch}: validating", flush=True)
            accuracy = validate(model, validation)
            session.metrics(accuracy=accuracy)
            print(f"epoch {epoch}: accuracy {accuracy:.3f}")


if __name__ == "__main__":
    main()
