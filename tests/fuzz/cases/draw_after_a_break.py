# seed 920640: differs after INT@9 nothing: rank 0, after_training [0]: drawn ['0.5375731587409973', '0.01381864883976014', '0.6736655665642576'] instead of ['0.10089802742004395', '0.7738316294711548', '0.2808193877992028']
#   second pass: another loader
#   exit: break
#   after the batches: a draw
#
# ranks: 1
# kills: INT@9

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
            trace("train", epoch, session.batch, batch=batch, loss=loss, model=model)
            point("train, after the step")
            if session.batch == 2:
                break
        point("after pass 0")
        trace("after_training", epoch, drawn=[draw("torch"), draw("numpy"), draw("python")])
        for batch in session.batches(second_loader):
            point("second")
            loss = objective(model(batch), batch)
            loss.backward()
            point("second, before the step")
            optimizer.step()
            optimizer.zero_grad()
            trace("second", epoch, session.batch, batch=batch, loss=loss, model=model)
            point("second, after the step")
            if session.batch == 2:
                break
        point("after pass 1")
        point("end of epoch")
    point("after the loops")
trace("end", step=session.step, model=model, optimizer=optimizer)
ended()
