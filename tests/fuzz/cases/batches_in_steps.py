# seed 0: not refused: exit code(s) [0], without a word
#   loop: steps
#   refused: batches in steps
#
# ranks: 1
# refused: nested-loops

import torch
from torch import nn
from slipway import Session
from probe import FOLDER, Samples, ended, objective, point, table, trace

torch.manual_seed(1)

data = Samples(12)
model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with Session(model=model, optimizer=optimizer, folder=FOLDER) as session:
    point("opened")
    for step in session.steps(9):
        point("train")
        for batch in session.batches([table(3)]):
            pass
        loss = objective(model(batch), batch)
        loss.backward()
        point("train, before the step")
        optimizer.step()
        optimizer.zero_grad()
        trace("train", step, batch=batch, loss=loss, model=model)
        point("train, after the step")
    point("after pass 0")
    point("after the loops")
trace("end", step=session.step, model=model, optimizer=optimizer)
ended()
