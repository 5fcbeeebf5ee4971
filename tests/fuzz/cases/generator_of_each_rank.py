# seed 0: differs after 1:KILL@43 nothing: rank 1, train [1, 0]: drawn 0.40847320541999865 instead of 0.6743239305044936
#   ranks: 2
#   draws: generator of numpy, given, another on each rank
#
# ranks: 2
# kills: 1:KILL@43

import gc
import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from slipway import Session
from probe import FOLDER, RANK, Samples, ended, objective, point, trace

dist.init_process_group("gloo")
torch.manual_seed(1)

data = Samples(24)
loader = DataLoader(data, 4, shuffle=True)
model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1))
model = DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
own = np.random.default_rng(5 + RANK)
with Session(model=model, optimizer=optimizer, extra=own, folder=FOLDER) as session:
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
            drawn = own.random()
            trace("train", epoch, session.batch, batch=batch, loss=loss, model=model, drawn=drawn)
            point("train, after the step")
        point("after pass 0")
        point("end of epoch")
    point("after the loops")
trace("end", step=session.step, model=model, optimizer=optimizer, own=own)
ended()
gc.collect()
dist.destroy_process_group()
