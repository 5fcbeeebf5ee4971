"""A generative adversarial network: two models, two optimisers, noise drawn in the loop."""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from slipway import Session

NOISE = 4


def network(inputs, outputs):
    return nn.Sequential(nn.Linear(inputs, 16), nn.LeakyReLU(0.2), nn.Dropout(0.1), nn.Linear(16, outputs))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--workers", type=int, default=0)
    args = parser.parse_args()

    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    if ranks > 1:
        dist.init_process_group("gloo")
    torch.manual_seed(1)
    data = TensorDataset(torch.randn(180, 2) @ torch.tensor([[1.0, 0.5], [0.0, 1.0]]))
    sampler = DistributedSampler(data) if ranks > 1 else None
    loader = DataLoader(data, 8, sampler=sampler, shuffle=sampler is None, num_workers=args.workers)
    generator, discriminator = network(NOISE, 2), network(2, 1)
    if ranks > 1:
        generator = DistributedDataParallel(generator, find_unused_parameters=True)
        discriminator = DistributedDataParallel(discriminator, find_unused_parameters=True, broadcast_buffers=False)
    optimizer_g = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.999))
    optimizer_d = torch.optim.Adam(discriminator.parameters(), lr=1e-3, betas=(0.5, 0.999))
    criterion = nn.BCEWithLogitsLoss()
    models, optimizers = {"g": generator, "d": discriminator}, {"g": optimizer_g, "d": optimizer_d}
    with Session(model=models, optimizer=optimizers, checkpoint_steps=7) as session:
        for epoch in session.epochs(args.epochs):
            for (real,) in session.batches(loader):
                ones, zeros = torch.ones(len(real), 1), torch.zeros(len(real), 1)
                fake = generator(torch.randn(len(real), NOISE))
                optimizer_d.zero_grad()
                both = discriminator(torch.cat([real, fake.detach()]))
                loss_d = criterion(both, torch.cat([ones, zeros]))
                loss_d.backward()
                optimizer_d.step()
                optimizer_g.zero_grad()
                loss_g = criterion(discriminator(fake), ones)
                loss_g.backward()
                optimizer_g.step()
                session.log(loss_d=loss_d, loss_g=loss_g)
            print(f"epoch {epoch}: discriminator {loss_d.item():.3f}, generator {loss_g.item():.3f}")


if __name__ == "__main__":
    main()
