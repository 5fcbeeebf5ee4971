"""Horovod as in its documentation."""

import horovod.torch as hvd
import torch

hvd.init()
torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
inputs = torch.randn(256, 8)
targets = inputs.sum(1, keepdim=True)
mine = slice(hvd.rank(), None, hvd.size())
for _ in range(200):
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(inputs[mine]), targets[mine])
    loss.backward()
    optimizer.step()
if hvd.rank() == 0:
    print(f"{hvd.size()} ranks, final loss {loss.item():.4f}")
