"""A DCGAN: two models, two optimizers, noise drawn in the loop, and a fixed noise that shows the progress."""

import argparse
import os
import random

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

NOISE = 6


def weights_init(module):
    name = type(module).__name__
    if "Conv" in name:
        module.weight.data.normal_(0.0, 0.05)
    elif "BatchNorm" in name:
        module.weight.data.normal_(1.0, 0.02)
        module.bias.data.fill_(0)


def generator():
    return nn.Sequential(
        *(nn.ConvTranspose2d(NOISE, 12, 4, bias=False), nn.BatchNorm2d(12), nn.ReLU()),
        *(nn.ConvTranspose2d(12, 1, 4, 2, 1, bias=False), nn.Tanh()),
    )


def discriminator():
    return nn.Sequential(
        *(nn.Conv2d(1, 12, 4, 2, 1, bias=False), nn.LeakyReLU(0.2), nn.Dropout(0.1)),
        *(nn.Conv2d(12, 1, 4, bias=False), nn.Flatten(0)),
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--manual-seed", type=int, default=999)
    args = parser.parse_args()

    rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if ranks > 1:
        dist.init_process_group("gloo")
    random.seed(args.manual_seed)
    torch.manual_seed(args.manual_seed)
    data = TensorDataset(torch.tanh(torch.randn(400, 1, 8, 8) + torch.linspace(-2, 2, 8)))
    sampler = DistributedSampler(data) if ranks > 1 else None
    loader = DataLoader(data, args.batch_size, sampler=sampler, shuffle=sampler is None, num_workers=args.workers)
    netG, netD = generator().apply(weights_init), discriminator().apply(weights_init)
    if ranks > 1:
        netG = DistributedDataParallel(netG)
        netD = DistributedDataParallel(netD, broadcast_buffers=False)
    criterion = nn.BCEWithLogitsLoss()
    fixed_noise = torch.randn(16, NOISE, 1, 1)
    optimizerD = torch.optim.Adam(netD.parameters(), lr=2e-3, betas=(0.5, 0.999))
    optimizerG = torch.optim.Adam(netG.parameters(), lr=2e-3, betas=(0.5, 0.999))
    for epoch in range(args.epochs):
        if sampler:
            sampler.set_epoch(epoch)
        sum_d = sum_g = 0.0
        for index, (real,) in enumerate(loader):
            ones, zeros = torch.ones(len(real)), torch.zeros(len(real))
            # The discriminator: log(D(x)) + log(1 - D(G(z))).
            netD.zero_grad()
            output = netD(real)
            errD_real = criterion(output, ones)
            errD_real.backward()
            D_x = output.sigmoid().mean().item()
            fake = netG(torch.randn(len(real), NOISE, 1, 1))
            errD_fake = criterion(netD(fake.detach()), zeros)
            errD_fake.backward()
            errD = errD_real + errD_fake
            optimizerD.step()
            # The generator: log(D(G(z))).
            netG.zero_grad()
            errG = criterion(netD(fake), ones)
            errG.backward()
            optimizerG.step()
            sum_d += errD.item()
            sum_g += errG.item()
            if index % 20 == 0 and rank == 0:
                print(f"[{epoch}/{args.epochs}][{index}/{len(loader)}] D(x) {D_x}")
        with torch.no_grad():
            images = netG(fixed_noise)
        if rank == 0:
            print(f"epoch {epoch}: mean Loss_D {sum_d / len(loader)} Loss_G {sum_g / len(loader)}")
            print(f"epoch {epoch}: fixed noise {images.mean().item()} +- {images.std().item()}")


if __name__ == "__main__":
    main()
