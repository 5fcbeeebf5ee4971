"""Hugging Face Accelerate, without `accelerate launch`: the variables are there."""

import torch
from accelerate import Accelerator

accelerator = Accelerator(cpu=True)
torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
inputs = torch.randn(256, 8)
data = torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True))
model, optimizer, loader = accelerator.prepare(model, optimizer, torch.utils.data.DataLoader(data, batch_size=16))
for _ in range(50):
    for inputs, targets in loader:
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
accelerator.print(f"{accelerator.num_processes} ranks, final loss {loss.item():.4f}")
accelerator.end_training()
