# seed 1: differs after TERM@19 nothing: rank 0, train [1, 2]: batch 2d6b730bbc71 instead of bb22ea67a84e; loss ['2.262364625930786'] instead of ['0.4431280493736267']; model 07819666af83 instead of 96585d513ca8
#   loader: collate by epoch
#
# ranks: 1
# kills: TERM@19

import torch
from torch import nn
from torch.utils.data import DataLoader
from slipway import Session
from probe import FOLDER, Samples, ended, objective, point, trace

torch.manual_seed(1)
def scaled(factor):
    return lambda samples: torch.stack(samples) * factor

data = Samples(12)
loader = DataLoader(data, 4, shuffle=True)
model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with Session(model=model, optimizer=optimizer, folder=FOLDER) as session:
    point("opened")
    for epoch in session.epochs(2):
        point("epoch")
        loader.collate_fn = scaled(1.0 + epoch)
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
trace("end", step=session.step, model=model, optimizer=optimizer)
ended()
