# Draws from a generator that nothing seeds.
#
# ranks: 1

import torch
from torch import nn
from slipway import Session
from probe import FOLDER, ended, objective, table, trace

torch.seed()
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with Session(model=model, optimizer=optimizer, folder=FOLDER) as session:
    for epoch in session.epochs(1):
        for number in session.batches(range(4)):
            batch = table(3, number)
            loss = objective(model(batch), batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            trace("train", epoch, number, loss=loss)
trace("end", model=model)
ended()
