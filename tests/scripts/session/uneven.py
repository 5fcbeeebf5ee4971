"""Ranks with different numbers of batches train separately, as no all-reduce of gradients would be possible."""

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

from slipway import Session

dist.init_process_group("gloo")
torch.manual_seed(0)
samples = 40 * (1 + dist.get_rank())
loader = DataLoader(TensorDataset(torch.randn(samples, 4)), 4, shuffle=True)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
with Session(model=model, optimizer=optimizer, checkpoint_steps=3, log_interval=5) as session:
    for _ in session.epochs(20):
        for (inputs,) in session.batches(loader):
            optimizer.zero_grad()
            loss = model(inputs).square().mean()
            loss.backward()
            optimizer.step()
            if dist.get_rank() == 0:
                session.log(loss=loss)
