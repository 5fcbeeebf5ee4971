# seed 0: says: error[no-state-dict]: Pass an object that has both, with tensors, numbers and text.
#   extra: counters
#
# ranks: 1

import torch
from torch import nn
from torch.utils.data import DataLoader
from slipway import Session
from probe import Counters, FOLDER, Samples, ended, objective, point, trace

torch.manual_seed(1)

data = Samples(12)
loader = DataLoader(data, 4, shuffle=True)
model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
counters = Counters(seen=0, best=9.0)
with Session(model=model, optimizer=optimizer, extra=counters, folder=FOLDER) as session:
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
            counters["seen"] += len(batch)
            counters["best"] = min(counters["best"], loss.item())
            trace("train", epoch, session.batch, batch=batch, loss=loss, model=model, counters=counters)
            point("train, after the step")
        point("after pass 0")
        point("end of epoch")
    point("after the loops")
trace("end", step=session.step, model=model, optimizer=optimizer, counters=counters)
ended()
