# seed 1: differs after TERM@37 nothing: rank 0, second [1, 1]: batch 3775d32130b6 instead of 4ec1e5234437; loss ['0.012147216126322746'] instead of ['0.0027311856392771006']; model 24a798b988ae instead of 3ac27537158f
#   noise: python
#   second pass: the same loader
#
# ranks: 1
# kills: TERM@37

import torch
from torch import nn
from torch.utils.data import DataLoader
from slipway import Session
from probe import FOLDER, Samples, ended, objective, point, trace

torch.manual_seed(1)

data = Samples(12, noise="python")
loader = DataLoader(data, 4, shuffle=True)
model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with Session(model=model, optimizer=optimizer, folder=FOLDER) as session:
    point("opened")
    for epoch in session.epochs(2):
        point("epoch")
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
        for batch in session.batches(loader):
            point("second")
            loss = objective(model(batch), batch)
            loss.backward()
            point("second, before the step")
            optimizer.step()
            optimizer.zero_grad()
            trace("second", epoch, session.batch, batch=batch, loss=loss, model=model)
            point("second, after the step")
        point("after pass 1")
        point("end of epoch")
    point("after the loops")
trace("end", step=session.step, model=model, optimizer=optimizer)
ended()
