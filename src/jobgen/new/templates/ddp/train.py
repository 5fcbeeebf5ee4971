"""Train a classifier with DistributedDataParallel; a run that was stopped or killed continues exactly."""

import argparse
import gc

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from slipway import Sampler, Session


def rings(samples, seed):
    """Return points in three concentric rings, labelled by ring."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(3, (samples,), generator=generator)
    angles = 2 * torch.pi * torch.rand(samples, generator=generator)
    radii = 1 + labels + 0.2 * torch.randn(samples, generator=generator)
    return TensorDataset(torch.stack([radii * angles.cos(), radii * angles.sin()], dim=1), labels)


def train(session, model, loader, optimizer, device):
    model.train()
    for points, labels in session.batches(loader, device=device):
        loss = nn.functional.cross_entropy(model(points), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        session.log(loss=loss)


@torch.no_grad()
def validate(session, model, loader, device):
    model.eval()
    for points, labels in session.batches(loader, device=device):
        output = model(points)
        correct = (output.argmax(dim=1) == labels).float().mean()
        session.mean("loss", nn.functional.cross_entropy(output, labels), len(labels))
        session.mean("accuracy", correct, len(labels))
    return session.mean("loss"), session.mean("accuracy")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=32, help="samples per rank and step")
    parser.add_argument("--lr", type=float, default=0.01)
    args = parser.parse_args()

    cuda = torch.cuda.is_available()
    gpu = dist.get_node_local_rank() % max(1, torch.cuda.device_count())
    device = torch.device("cuda", gpu) if cuda else torch.device("cpu")
    dist.init_process_group("nccl" if cuda else "gloo")
    torch.manual_seed(0)

    training, validation = rings(4096, seed=1), rings(1024, seed=2)
    options = {"batch_size": args.batch_size, "num_workers": 1, "pin_memory": cuda}
    loader = DataLoader(training, sampler=Sampler(training), **options)
    validation_loader = DataLoader(validation, sampler=Sampler(validation, shuffle=False), **options)

    layers = nn.Linear(2, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 3)
    model = DistributedDataParallel(nn.Sequential(*layers).to(device), device_ids=[gpu] if cuda else None)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs)

    with Session(model=model, optimizer=optimizer, scheduler=scheduler, best="accuracy") as session:
        example = torch.ones(1, 2, device=device)
        # Without this, three ranks or more resume with rounding errors: DDP regroups gradients after its first step.
        session.warm_up(lambda: model(example).sum().backward())
        for epoch in session.epochs(args.epochs):
            train(session, model, loader, optimizer, device)
            loss, accuracy = validate(session, model, validation_loader, device)
            scheduler.step()
            session.metrics(loss=loss, accuracy=accuracy)
            if session.is_root:
                print(f"epoch {epoch}: validation loss {loss:.4f}, accuracy {accuracy:.3f}", flush=True)
    gc.collect()  # without this, gloo ranks of torch 2.13 sometimes abort at exit
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
