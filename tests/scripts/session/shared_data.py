"""Trains on data that each rank splits or draws with its own seed, or that no sampler divides among the ranks."""

import gc
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset, random_split

from slipway import Sampler, Session

dist.init_process_group("gloo")
of_rank = torch.Generator().manual_seed(dist.get_rank())
of_all = torch.Generator().manual_seed(0)
splits, draws = os.environ["UNSEEDED"] == "split", os.environ["UNSEEDED"] == "samples"
data = TensorDataset(torch.randn(24, 1, generator=of_rank if draws else of_all))
data, _ = random_split(data, [16, 8], generator=of_rank if splits else of_all)
match os.environ["SAMPLER"]:
    case "torch":
        loader = DataLoader(data, batch_size=2, sampler=DistributedSampler(data))
    case "slipway":
        loader = DataLoader(data, batch_size=2, sampler=Sampler(data))
    case order:
        loader = DataLoader(data, batch_size=2, shuffle=order == "shuffle")
model = DistributedDataParallel(torch.nn.Linear(1, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
with Session(model=model, optimizer=optimizer, timeout=60) as session:
    for _ in session.epochs(2):
        for (inputs,) in session.batches(loader):
            model(inputs).sum().backward()
            optimizer.step()
        for _ in session.batches(DataLoader(data, batch_size=2)):  # each rank validates on the whole set
            pass
gc.collect()
dist.destroy_process_group()
