# A counter that is lost, and is said to be restored.
#
# ranks: 1
# kills: TERM@9 KILL@3

import torch
from torch import nn
from slipway import Session
from probe import FOLDER, ended, objective, point, table, trace

torch.manual_seed(1)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
seen = 0
with Session(model=model, optimizer=optimizer, folder=FOLDER, checkpoint_steps=1) as session:
    for epoch in session.epochs(2):
        for number in session.batches(range(4)):
            point("train")
            batch, seen = table(3, number), seen + 1
            loss = objective(model(batch), batch) / seen
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            trace("train", epoch, number, loss=loss)
            point("after the step")
trace("end", model=model)
ended()
