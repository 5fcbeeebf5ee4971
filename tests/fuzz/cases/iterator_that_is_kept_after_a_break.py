# seed 960199: differs after TERM@15 nothing: rank 0, train [1, 2]: batch 264d507998da instead of 306a57a0940b
#   iteration: next
#   exit: break
#
# ranks: 1
# kills: TERM@15

import torch
from torch import nn
from torch.utils.data import DataLoader
from slipway import Session
from probe import FOLDER, Samples, ended, objective, point, trace

torch.manual_seed(1)

data = Samples(15)
loader = DataLoader(data, 5, shuffle=True)
held_out = DataLoader(Samples(6, first=200), 2)
model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
with Session(model=model, optimizer=optimizer, folder=FOLDER) as session:
    point("opened")
    for epoch in session.epochs(3):
        point("epoch")
        batches = iter(session.batches(loader))
        while (batch := next(batches, None)) is not None:
            point("train")
            loss = objective(model(batch), batch)
            loss.backward()
            point("train, before the step")
            optimizer.step()
            optimizer.zero_grad()
            trace("train", epoch, session.batch, batch=batch, loss=loss, model=model)
            point("train, after the step")
            if session.batch == 2:
                break
        point("after pass 0")
        error = 0.0
        with torch.no_grad():
            for held in held_out:
                point("validating")
                error += objective(model(held), held).item()
        session.metrics(error=error)
        point("end of epoch")
trace("end", step=session.step, model=model, optimizer=optimizer)
ended()
