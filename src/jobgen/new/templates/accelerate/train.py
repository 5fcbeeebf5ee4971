"""Train a classifier with Accelerate; a run that was stopped or killed continues exactly."""

import argparse
import gc

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from slipway import Sampler, Session


def rings(samples, seed):
    """Return points in three concentric rings, labelled by ring."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(3, (samples,), generator=generator)
    angles = 2 * torch.pi * torch.rand(samples, generator=generator)
    radii = 1 + labels + 0.2 * torch.randn(samples, generator=generator)
    return TensorDataset(torch.stack([radii * angles.cos(), radii * angles.sin()], dim=1), labels)


def train(session, accelerator, model, loader, optimizer):
    model.train()
    for points, labels in session.batches(loader, device=accelerator.device):
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(points), labels)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        session.log(loss=loss)


@torch.no_grad()
def validate(session, accelerator, model, loader):
    model.eval()
    for points, labels in session.batches(loader, device=accelerator.device):
        output = model(points)
        correct = (output.argmax(dim=1) == labels).float().mean()
        session.mean("loss", nn.functional.cross_entropy(output, labels), len(labels))
        session.mean("accuracy", correct, len(labels))
    return session.mean("loss"), session.mean("accuracy")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=32, help="samples per rank and batch")
    parser.add_argument("--accumulate", type=int, default=1, help="batches per optimizer step")
    parser.add_argument("--lr", type=float, default=0.01)
    args = parser.parse_args()

    cuda = torch.cuda.is_available()
    accelerator = Accelerator(cpu=not cuda, gradient_accumulation_steps=args.accumulate)
    set_seed(0)

    # Not prepared: a loader with slipway.Sampler, and the scheduler, which steps once per epoch.
    training, validation = rings(4096, seed=1), rings(1024, seed=2)
    options = {"batch_size": args.batch_size, "num_workers": 1, "pin_memory": cuda}
    loader = DataLoader(training, sampler=Sampler(training), **options)
    validation_loader = DataLoader(validation, sampler=Sampler(validation, shuffle=False), **options)

    model = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs)
    model, optimizer = accelerator.prepare(model, optimizer)

    with Session(model=model, optimizer=optimizer, scheduler=scheduler, best="accuracy") as session:
        example = torch.ones(1, 2, device=accelerator.device)
        # Without this, three ranks or more resume with rounding errors: DDP regroups gradients after its first step.
        session.warm_up(lambda: model(example).sum().backward())
        for epoch in session.epochs(args.epochs):
            train(session, accelerator, model, loader, optimizer)
            loss, accuracy = validate(session, accelerator, model, validation_loader)
            scheduler.step()
            session.metrics(loss=loss, accuracy=accuracy)
            accelerator.print(f"epoch {epoch}: validation loss {loss:.4f}, accuracy {accuracy:.3f}", flush=True)
    gc.collect()  # without this, gloo ranks of torch 2.13 sometimes abort at exit
    accelerator.end_training()


if __name__ == "__main__":
    main()
