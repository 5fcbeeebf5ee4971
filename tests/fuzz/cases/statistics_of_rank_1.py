# seed 0: differs after 1:KILL@43 nothing again: rank 1, end []: model bc01d4f26f7d instead of 5051ea68e400
#   ranks: 2
#   model: batch norm
#
# ranks: 2
# kills: 1:KILL@43

import gc
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from slipway import Session
from probe import FOLDER, Samples, ended, objective, point, trace

dist.init_process_group("gloo")
torch.manual_seed(1)

data = Samples(24)
loader = DataLoader(data, 4, shuffle=True)
model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 1))
model = DistributedDataParallel(model)
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
gc.collect()
dist.destroy_process_group()
