"""A generative adversarial network: two models, two optimisers, noise drawn on the device."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from slipway import Session

NOISE = 4


def network(inputs, outputs):
    return nn.Sequential(nn.Linear(inputs, 16), nn.LeakyReLU(0.2), nn.Dropout(0.1), nn.Linear(16, outputs))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    device = parser.parse_args().device
    torch.manual_seed(1)
    loader = DataLoader(TensorDataset(torch.randn(120, 2)), 8, shuffle=True)
    models = {"g": network(NOISE, 2).to(device), "d": network(2, 1).to(device)}
    optimizers = {name: torch.optim.Adam(model.parameters(), lr=1e-3) for name, model in models.items()}
    criterion = nn.BCEWithLogitsLoss()
    with Session(model=models, optimizer=optimizers, checkpoint_steps=7) as session:
        for _ in session.epochs(3):
            for (batch,) in session.batches(loader):
                real = batch.to(device)
                ones, zeros = torch.ones(len(real), 1, device=device), torch.zeros(len(real), 1, device=device)
                fake = models["g"](torch.randn(len(real), NOISE, device=device))
                optimizers["d"].zero_grad()
                both = models["d"](torch.cat([real, fake.detach()]))
                loss_d = criterion(both, torch.cat([ones, zeros]))
                loss_d.backward()
                optimizers["d"].step()
                optimizers["g"].zero_grad()
                loss_g = criterion(models["d"](fake), ones)
                loss_g.backward()
                optimizers["g"].step()
                session.log(loss_d=loss_d, loss_g=loss_g)


if __name__ == "__main__":
    main()
