# seed 1: differs after TERM@19 nothing: rank 0, train [1, 2]: batch d92df397c7e1 instead of f0f6a0b56189; loss ['0.2503614127635956'] instead of ['0.170680433511734']; model 1f9616785678 instead of 3127c998398f
#   noise: numpy
#   loader: iterable
#   workers: 1, persistent
#
# ranks: 1
# may say: slow-resume
# kills: TERM@19

import torch
from torch import nn
from torch.utils.data import DataLoader
from slipway import Session
from probe import FOLDER, Samples, Stream, ended, objective, point, trace

torch.manual_seed(1)

data = Samples(12, noise="numpy")
loader = DataLoader(Stream(data), 4, num_workers=1, persistent_workers=True)
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
        point("end of epoch")
    point("after the loops")
trace("end", step=session.step, model=model, optimizer=optimizer)
ended()
