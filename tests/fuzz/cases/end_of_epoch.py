# seed 1: differs after INT@1 nothing: rank 0, train [1, 0]: loss ['0.048841338604688644'] instead of ['0.049157675355672836']; model 7909667a4189 instead of 45d3f0f4aad8
#   second optimiser: at the end of an epoch
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
            optimizer.step()
            optimizer.zero_grad()
            trace("train", epoch, session.batch, batch=batch, loss=loss, model=model)
            point("train, after the step")
        point("after pass 0")
        second.step()
        second.zero_grad()
        point("end of epoch")
    point("after the loops")
trace("end", step=session.step, model=model, optimizer=optimizer, second=second)
ended()
