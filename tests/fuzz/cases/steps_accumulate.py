# seed 1: differs after INT@1 nothing: rank 0, train [1]: model fb69be9821bf instead of 78b8cd507cdf
#   loop: steps
#   accumulation: 2, by a counter
#
# ranks: 1
# may idle: yes
# kills: INT@1

import torch
from torch import nn
from slipway import Session
from probe import FOLDER, Samples, ended, objective, point, trace

torch.manual_seed(1)

data = Samples(12)
model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
waiting = 0
with Session(model=model, optimizer=optimizer, folder=FOLDER) as session:
    point("opened")
    for step in session.steps(9):
        point("train")
        batch = data[torch.randint(len(data), (3,)).tolist()]
        waiting += 1
        loss = objective(model(batch), batch)
        loss.backward()
        point("train, before the step")
        if waiting == 2:
            optimizer.step()
            optimizer.zero_grad()
            waiting = 0
        trace("train", step, batch=batch, loss=loss, model=model)
        point("train, after the step")
    point("after pass 0")
    point("after the loops")
trace("end", step=session.step, model=model, optimizer=optimizer)
ended()
