# seed 930141: differs after KILL@22 nothing: metrics.jsonl: {'kind': 'validation', 'step': 2, 'epoch': 1.75, 'lr': 0.1, 'error': 0.6810274720191956} instead of {'kind': 'validation', 'step': 1, 'epoch': 1.25, 'lr': 0.1, 'error': 0.7429741024971008}
#   samples: 14 by 4
#   accumulation: 3, by position
#   validation: within the body, recorded
#   checkpoints: each step
#
# ranks: 1
# may idle: yes
# kills: KILL@22

import torch
from torch import nn
from torch.utils.data import DataLoader
from slipway import Session
from probe import FOLDER, Samples, draw, ended, objective, point, table, trace

torch.manual_seed(1)

data = Samples(14)
loader = DataLoader(data, 4, shuffle=True)
model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with Session(model=model, optimizer=optimizer, folder=FOLDER, checkpoint_steps=1) as session:
    point("opened")
    for epoch in session.epochs(2):
        point("epoch")
        for batch in session.batches(loader):
            point("train")
            loss = objective(model(batch), batch)
            loss.backward()
            point("train, before the step")
            if (session.batch + 1) % 3 == 0:
                optimizer.step()
                optimizer.zero_grad()
            if session.batch % 2:
                with torch.no_grad():
                    held = table(3, 200)
                    session.metrics(error=objective(model(held), held))
            trace("train", epoch, session.batch, batch=batch, loss=loss, model=model)
            point("train, after the step")
        point("after pass 0")
        point("end of epoch")
    point("after the loops")
    trace("after", drawn=[draw("torch"), draw("numpy"), draw("python")])
trace("end", step=session.step, model=model, optimizer=optimizer, drawn=[draw("torch"), draw("numpy"), draw("python")])
ended()
