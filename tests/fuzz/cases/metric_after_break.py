# seed 900008: differs after INT@31: checkpoints/latest/manifest.json: metric: None instead of {'name': 'error', 'value': 4.72642982006073, 'maximize': False}
#   validation: plain, list
#   exit: break
#   best: by validation
#
# ranks: 1
# kills: INT@31

import torch
from torch import nn
from torch.utils.data import DataLoader
from slipway import Session
from probe import FOLDER, Samples, ended, objective, point, table, trace

torch.manual_seed(1)

data = Samples(12)
loader = DataLoader(data, 4, shuffle=True)
held_out = table(6, 200).split(2)
model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with Session(model=model, optimizer=optimizer, folder=FOLDER, best="error", minimize=True) as session:
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
            if session.batch == 2:
                break
        point("after pass 0")
        model.eval()
        error = 0.0
        with torch.no_grad():
            for held in held_out:
                point("validating")
                error += objective(model(held), held).item()
        model.train()
        trace("validated", epoch, error=error)
        session.metrics(error=error)
        point("end of epoch")
    point("after the loops")
trace("end", step=session.step, model=model, optimizer=optimizer)
ended()
