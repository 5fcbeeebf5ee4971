# seed 0: says: warning[epoch-without-batches]: the steps of an epoch without session.batches count as one
#   loop: one step an epoch
#   scaler: given
#
# ranks: 1

import torch
from torch import nn
from slipway import Session
from probe import FOLDER, Samples, ended, objective, point, trace

torch.manual_seed(1)

data = Samples(12)
model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=3)
with Session(model=model, optimizer=optimizer, scaler=scaler, folder=FOLDER) as session:
    point("opened")
    for epoch in session.epochs(5):
        point("epoch")
        point("train")
        batch = data[torch.randint(len(data), (3,)).tolist()]
        loss = objective(model(batch), batch)
        scaler.scale(loss).backward()
        point("train, before the step")
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        trace("train", epoch, batch=batch, loss=loss, model=model)
        point("train, after the step")
        point("after pass 0")
        point("end of epoch")
    point("after the loops")
trace("end", step=session.step, model=model, optimizer=optimizer, scaler=scaler)
ended()
