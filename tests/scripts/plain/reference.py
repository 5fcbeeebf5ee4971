"""Image training in the style of reference scripts: warm-up, averaged weights, mixup, a metric logger, evaluation."""

import argparse
import os
import random
from collections import defaultdict, deque

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, Dataset, DistributedSampler, default_collate

CLASSES = 5


class SmoothedValue:
    def __init__(self):
        self.deque, self.total, self.count = deque(maxlen=10), 0.0, 0

    def update(self, value, n=1):
        self.deque.append(value)
        self.total += value * n
        self.count += n

    def synchronize(self):
        if dist.is_initialized():
            both = torch.tensor([self.total, self.count], dtype=torch.float64)
            dist.all_reduce(both)
            self.total, self.count = both.tolist()

    @property
    def median(self):
        return torch.tensor([*self.deque]).median().item()

    @property
    def global_avg(self):
        return self.total / self.count


class MetricLogger:
    def __init__(self):
        self.meters = defaultdict(SmoothedValue)

    def update(self, n=1, **values):
        for name, value in values.items():
            self.meters[name].update(value, n)

    def log_every(self, iterable, interval, header):
        for index, item in enumerate(iterable):
            yield item
            if index % interval == 0:
                meters = ", ".join(f"{name} {m.median} ({m.global_avg})" for name, m in self.meters.items())
                print_on_root(f"{header} [{index}/{len(iterable)}] {meters}")


class Images(Dataset):
    def __init__(self, samples, seed, *, augment):
        self.augment = augment
        generator = torch.Generator().manual_seed(seed)
        self.labels = torch.randint(CLASSES, (samples,), generator=generator)
        self.images = torch.randn(samples, 1, 8, 8, generator=generator) + self.labels[:, None, None, None] / 2

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        image = self.images[index]
        if self.augment and random.random() < 0.5:
            image = image.flip(-1)
        return image, self.labels[index]


def mixup(batch):
    images, labels = default_collate(batch)
    labels = nn.functional.one_hot(labels, CLASSES).float()
    share = float(torch._sample_dirichlet(torch.tensor([0.2, 0.2]))[0])
    mixed = (share * each + (1 - share) * each.roll(1, 0) for each in (images, labels))
    return tuple(mixed)


def print_on_root(text):
    if int(os.environ.get("RANK", "0")) == 0:
        print(text)


def accuracy(output, target):
    return (output.argmax(1) == target).float().mean().item()


def train_one_epoch(model, model_ema, criterion, optimizer, loader, epoch, args):
    model.train()
    metric_logger = MetricLogger()
    for index, (image, target) in enumerate(metric_logger.log_every(loader, args.print_freq, f"Epoch: [{epoch}]")):
        output = model(image)
        loss = criterion(output, target)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if index % args.ema_steps == 0:
            model_ema.update_parameters(model)
            if epoch < args.lr_warmup_epochs:
                model_ema.n_averaged.fill_(0)  # the average begins after the warm-up
        metric_logger.update(n=len(image), loss=loss.item(), acc1=accuracy(output, target.argmax(1)))
    metric_logger.meters["loss"].synchronize()
    print_on_root(f"Epoch: [{epoch}] loss {metric_logger.meters['loss'].global_avg}")


def evaluate(model, criterion, loader, name):
    model.eval()
    metric_logger = MetricLogger()
    with torch.inference_mode():
        for image, target in loader:
            output = model(image)
            metric_logger.update(n=len(image), loss=criterion(output, target).item(), acc1=accuracy(output, target))
    for meter in metric_logger.meters.values():
        meter.synchronize()
    acc1, loss = (metric_logger.meters[each].global_avg for each in ("acc1", "loss"))
    print_on_root(f"Test: {name} acc1 {acc1}, loss {loss}")
    return acc1


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--lr-warmup-epochs", type=int, default=2)
    parser.add_argument("--ema-steps", type=int, default=4)
    parser.add_argument("--ema-decay", type=float, default=0.9)
    parser.add_argument("--print-freq", type=int, default=10)
    args = parser.parse_args()

    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        dist.init_process_group("gloo")
    torch.manual_seed(0)
    dataset, dataset_test = Images(600, 1, augment=True), Images(150, 2, augment=False)
    train_sampler = DistributedSampler(dataset) if dist.is_initialized() else None
    test_sampler = DistributedSampler(dataset_test, shuffle=False) if dist.is_initialized() else None
    data_loader = DataLoader(
        dataset,
        batch_size=args.batch_size,
        sampler=train_sampler,
        shuffle=train_sampler is None,
        num_workers=args.workers,
        collate_fn=mixup,
        drop_last=True,
    )
    data_loader_test = DataLoader(dataset_test, batch_size=50, sampler=test_sampler)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Dropout(0.2), nn.Linear(8 * 36, CLASSES)
    )
    model_without_ddp = model
    if dist.is_initialized():
        model = DistributedDataParallel(model)
        model_without_ddp = model.module
    model_ema = AveragedModel(model_without_ddp, multi_avg_fn=get_ema_multi_avg_fn(args.ema_decay), use_buffers=True)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, nesterov=True)
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.01, total_iters=args.lr_warmup_epochs)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs - args.lr_warmup_epochs)
    scheduler = torch.optim.lr_scheduler.SequentialLR(optimizer, [warmup, cosine], [args.lr_warmup_epochs])
    best = 0.0
    for epoch in range(args.epochs):
        if train_sampler:
            train_sampler.set_epoch(epoch)
        train_one_epoch(model, model_ema, criterion, optimizer, data_loader, epoch, args)
        scheduler.step()
        acc1 = evaluate(model, criterion, data_loader_test, "")
        best = max(best, acc1, evaluate(model_ema, criterion, data_loader_test, "EMA"))
    print_on_root(f"best acc1 {best}")


if __name__ == "__main__":
    main()
