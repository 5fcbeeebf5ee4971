import gc
import os

import torch
import torch.distributed as dist
from lightning.fabric import Fabric
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from slipway import Sampler, Session

local, ranks = (int(os.environ.get(name, "1")) for name in ("LOCAL_WORLD_SIZE", "WORLD_SIZE"))
fabric = Fabric(devices=local, num_nodes=ranks // local)
fabric.launch()
fabric.seed_everything(0)  # for the first weights
inputs = torch.randn(4096, 8)
data = TensorDataset(inputs, inputs.sum(1, keepdim=True))
loader = DataLoader(data, batch_size=32, sampler=Sampler(data), num_workers=1)  # is not set up
model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
model, optimizer = fabric.setup(model, optimizer)

with Session(model=model, optimizer=optimizer) as session:
    for epoch in session.epochs(5):
        for batch, target in session.batches(loader):
            loss = nn.functional.mse_loss(model(batch.to(fabric.device)), target.to(fabric.device))
            optimizer.zero_grad()
            fabric.backward(loss)
            optimizer.step()
            session.mean("loss", loss, len(batch))
        fabric.print(f"epoch {epoch}: loss {session.mean('loss'):.4f}")
gc.collect()  # without this, gloo ranks of torch 2.13 sometimes abort at exit
if dist.is_initialized():
    dist.destroy_process_group()
