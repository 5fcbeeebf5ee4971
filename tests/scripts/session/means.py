"""Epoch means over ranks with different numbers of batches; only rank 0 prints and records them."""

import json
import os
import signal
import time
from pathlib import Path

import torch
import torch.distributed as dist

from slipway import Session

dist.init_process_group("gloo")
rank = dist.get_rank()
stop_at = json.loads(os.environ.get("STOP_AT", "[]"))
torch.manual_seed(0)
losses = torch.rand(7 + 2 * rank)
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
with Session(model=model, optimizer=optimizer, checkpoint_steps=1, best="loss", minimize=True) as session:
    for epoch in session.epochs(3):
        for batch, loss in enumerate(session.batches(losses), session.batch):
            optimizer.zero_grad()
            model(loss.view(1, 1)).sum().backward()
            optimizer.step()
            session.mean("loss", loss + epoch, weight=3)
            if [rank, epoch, batch] == stop_at:
                os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.01)
        trained = session.mean("loss")
        for loss in session.batches(losses[:2]):
            session.mean("loss", loss - epoch)
        if session.is_root:
            with Path(session.folder, "means.jsonl").open("a") as file:
                print(json.dumps([epoch, trained, session.mean("loss")]), file=file)
            if epoch == 1:
                session.metrics(loss=session.mean("loss"))
    if session.is_root:
        session.metrics(loss=session.mean("loss"))
