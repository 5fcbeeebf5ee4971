# An epoch that the resumed run leaves out.
#
# ranks: 1
# kills: KILL@6

import torch
from torch import nn
from slipway import Session
from probe import FOLDER, ended, objective, point, table, trace

torch.manual_seed(1)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with Session(model=model, optimizer=optimizer, folder=FOLDER, checkpoint_steps=1) as session:
    for epoch in session.epochs(2):
        for number in session.batches(range(4)):
            point("train")
            if session.resumed and number == 3:
                break
            batch = table(3, number)
            loss = objective(model(batch), batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            trace("train", epoch, number, loss=number)
ended()
