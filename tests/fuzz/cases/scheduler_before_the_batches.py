# seed 1: differs after TERM@19 nothing: rank 0, train [1, 2]: model b771fef8032a instead of 3e7edf8e83bc
#   scheduler: by epoch, before it
#
# ranks: 1
# kills: TERM@19

import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader
from slipway import Session
from probe import FOLDER, Samples, ended, objective, point, trace

torch.manual_seed(1)

data = Samples(12)
loader = DataLoader(data, 4, shuffle=True)
model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = lr_scheduler.StepLR(optimizer, 1, 0.5)
with Session(model=model, optimizer=optimizer, scheduler=scheduler, folder=FOLDER) as session:
    point("opened")
    for epoch in session.epochs(2):
        point("epoch")
        if epoch:
            scheduler.step()
        for batch in session.batches(loader):
            point("train")
            loss = objective(model(batch), batch)
            loss.backward()
            point("train, before the step")
            optimizer.step()
            optimizer.zero_grad()
            trace("train", epoch, session.batch, batch=batch, loss=loss, model=model)
            point("train, after the step")
        point("after pass 0")
        point("end of epoch")
    point("after the loops")
trace("end", step=session.step, model=model, optimizer=optimizer, scheduler=scheduler)
ended()
