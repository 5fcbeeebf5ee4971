# seed 1: differs after INT@1 nothing: rank 0, train [0, 1]: model e51861d59f51 instead of 0e0d61098179
#   second optimiser: by turns, each zeroes its own gradients
#
# ranks: 1
# kills: INT@1

import torch
from torch import nn
from torch.utils.data import DataLoader
from slipway import Session
from probe import FOLDER, Samples, ended, objective, point, trace

torch.manual_seed(1)

data = Samples(12)
loader = DataLoader(data, 4, shuffle=True)
model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1))
parameters = list(model.parameters())
optimizer = torch.optim.SGD(parameters[:2], lr=0.1)
second = torch.optim.SGD(parameters[2:], lr=0.05, momentum=0.9)
with Session(model=model, optimizer={"optimizer": optimizer, "second": second}, folder=FOLDER) as session:
    point("opened")
    for epoch in session.epochs(2):
        point("epoch")
        for batch in session.batches(loader):
            point("train")
            loss = objective(model(batch), batch)
            loss.backward()
            point("train, before the step")
            now = (optimizer, second)[session.batch % 2]
            now.step()
            now.zero_grad()
            trace("train", epoch, session.batch, batch=batch, loss=loss, model=model)
            point("train, after the step")
        point("after pass 0")
        point("end of epoch")
    point("after the loops")
trace("end", step=session.step, model=model, optimizer=optimizer, second=second)
ended()
