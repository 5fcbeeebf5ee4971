"""Accelerate as in its quick tour; on nodes without GPUs the job sets the variables with which it joins the ranks."""

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator()
torch.manual_seed(0)
inputs = torch.randn(256, 8)
data = TensorDataset(inputs, inputs.sum(1, keepdim=True))
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data, batch_size=32, shuffle=True))
for _ in range(100):
    for batch, target in loader:
        loss = torch.nn.functional.mse_loss(model(batch), target)
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
accelerator.print(f"{accelerator.num_processes} ranks, final loss {loss.item():.4f}")
accelerator.end_training()
