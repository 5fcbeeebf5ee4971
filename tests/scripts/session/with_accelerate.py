import gc

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from slipway import Sampler, Session

accelerator = Accelerator(cpu=not torch.cuda.is_available(), gradient_accumulation_steps=2)
set_seed(0)  # for the first weights
inputs = torch.randn(4096, 8)
data = TensorDataset(inputs, inputs.sum(1, keepdim=True))
loader = DataLoader(data, batch_size=16, sampler=Sampler(data), num_workers=1)  # is not prepared
model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 50)
model, optimizer, scheduler = accelerator.prepare(model, optimizer, scheduler)

with Session(model=model, optimizer=optimizer, scheduler=scheduler) as session:
    for epoch in session.epochs(8):
        for batch, target in session.batches(loader):
            with accelerator.accumulate(model):
                loss = nn.functional.mse_loss(model(batch.to(accelerator.device)), target.to(accelerator.device))
                accelerator.backward(loss)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            session.mean("loss", loss, len(batch))
        accelerator.print(f"epoch {epoch}: loss {session.mean('loss'):.4f}")
gc.collect()  # without this, gloo ranks of torch 2.13 sometimes abort at exit
accelerator.end_training()  # destroys the process group
