"""PyTorch DDP as in a tutorial."""

import gc

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
inputs = torch.randn(256, 8)
targets = inputs.sum(1, keepdim=True)
mine = slice(dist.get_rank(), None, dist.get_world_size())
for _ in range(200):
    loss = torch.nn.functional.mse_loss(model(inputs[mine]), targets[mine])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
if dist.get_rank() == 0:
    print(f"{dist.get_world_size()} ranks, final loss {loss.item():.4f}")
gc.collect()  # otherwise ranks of torch 2.13 sometimes abort at exit with Gloo
dist.destroy_process_group()
