"""A variational autoencoder: noise drawn in training and in the test, and samples from the prior after each epoch."""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from slipway import Session

SIDE, LATENT = 8, 4


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(SIDE * SIDE, 32)
        self.mu, self.logvar = nn.Linear(32, LATENT), nn.Linear(32, LATENT)
        self.decoder = nn.Sequential(nn.Linear(LATENT, 32), nn.ReLU(), nn.Linear(32, SIDE * SIDE), nn.Sigmoid())

    def forward(self, x):
        hidden = F.relu(self.encoder(x.flatten(1)))
        mu, logvar = self.mu(hidden), self.logvar(hidden)
        z = mu + torch.randn_like(mu) * torch.exp(0.5 * logvar)
        return self.decoder(z), mu, logvar


def loss_function(x, recon, mu, logvar):
    bce = F.binary_cross_entropy(recon, x.flatten(1), reduction="sum")
    return bce - 0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())


def bars(samples, seed):
    """Images of a bright row or column."""
    generator = torch.Generator().manual_seed(seed)
    images = 0.2 * torch.rand(samples, SIDE, SIDE, generator=generator)
    for image, line in zip(images, torch.randint(2 * SIDE, (samples,), generator=generator).tolist(), strict=True):
        (image if line < SIDE else image.t())[line % SIDE] += 0.8
    return TensorDataset(images)


def train(session, model, loader, optimizer, epoch, args):
    model.train()
    for index, (data,) in enumerate(session.batches(loader), session.batch):
        optimizer.zero_grad()
        loss = loss_function(data, *model(data))
        loss.backward()
        session.mean("loss", loss / len(data), len(data))
        session.log(loss=loss)
        optimizer.step()
        if index % args.log_interval == 0 and args.rank == 0:
            print(f"epoch {epoch} [{index}/{len(loader)}] loss {loss.item() / len(data)}")
    if args.rank == 0:
        print(f"epoch {epoch}: average loss {session.mean('loss')}")


def test(model, loader):
    model.eval()
    with torch.no_grad():
        test_loss = sum(loss_function(data, *model(data)).item() for (data,) in loader)
    return test_loss / len(loader.dataset)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--log-interval", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()

    args.rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if ranks > 1:
        dist.init_process_group("gloo")
    torch.manual_seed(args.seed)
    data = bars(1200, 1)
    sampler = DistributedSampler(data) if ranks > 1 else None
    train_loader = DataLoader(data, args.batch_size, sampler=sampler, shuffle=sampler is None)
    test_loader = DataLoader(bars(200, 2), args.batch_size)
    model = VAE()
    decoder = model.decoder
    if ranks > 1:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    with Session(model=model, optimizer=optimizer, checkpoint_steps=20) as session:
        for epoch in session.epochs(args.epochs):
            if sampler:
                sampler.set_epoch(epoch)
            train(session, model, train_loader, optimizer, epoch + 1, args)
            test_loss = test(model, test_loader)
            session.metrics(test_loss=test_loss)
            with torch.no_grad():
                sample = decoder(torch.randn(16, LATENT))
            if args.rank == 0:
                print(f"epoch {epoch + 1}: test loss {test_loss}, samples {sample.mean()} +- {sample.std()}")


if __name__ == "__main__":
    main()
