"""A Horovod script: its optimizer wraps torch's, and the session shares Horovod's world."""

import argparse

import horovod.torch as hvd
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from slipway import Session


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=6)
    args = parser.parse_args()
    hvd.init()
    torch.manual_seed(1)
    data = TensorDataset(torch.randn(160, 4))
    sampler = DistributedSampler(data, hvd.size(), hvd.rank())
    loader = DataLoader(data, 8, sampler=sampler)
    model = nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.2), nn.ReLU(), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    with Session(model=model, optimizer=optimizer, checkpoint_steps=7) as session:
        for _ in session.epochs(args.epochs):
            for (inputs,) in session.batches(loader):
                optimizer.zero_grad()
                loss = (model(inputs) - inputs).square().mean()
                loss.backward()
                optimizer.step()
                session.log(loss=loss)


if __name__ == "__main__":
    main()
