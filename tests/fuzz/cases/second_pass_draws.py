# seed 0: differs after TERM@9 nothing: rank 0, second [0, 1]: drawn 0.7374184727668762 instead of 0.19423240423202515
#   draws: torch
#   second pass: another loader
#
# ranks: 1
# kills: TERM@9

import torch
from torch import nn
from torch.utils.data import DataLoader
from slipway import Session
from probe import FOLDER, RANKS, Samples, draw, ended, objective, point, trace

torch.manual_seed(1)

data = Samples(12)
loader = DataLoader(data, 4, shuffle=True)
second_loader = DataLoader(Samples(8 * RANKS, first=50), 4, shuffle=True)
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
            drawn = draw("torch")
            trace("train", epoch, session.batch, batch=batch, loss=loss, model=model, drawn=drawn)
            point("train, after the step")
        point("after pass 0")
        for batch in session.batches(second_loader):
            point("second")
            loss = objective(model(batch), batch)
            loss.backward()
            point("second, before the step")
            optimizer.step()
            optimizer.zero_grad()
            drawn = draw("torch")
            trace("second", epoch, session.batch, batch=batch, loss=loss, model=model, drawn=drawn)
            point("second, after the step")
        point("after pass 1")
        point("end of epoch")
    point("after the loops")
trace("end", step=session.step, model=model, optimizer=optimizer)
ended()
