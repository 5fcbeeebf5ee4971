"""A cross-validation of two folds, each a session in its own folder; MODE sets how the second one first ends."""

import os
import signal
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from slipway import Sampler, Session

root, mode = Path(os.environ["RUN_DIR"]), sys.argv[1]
is_first = os.environ.get("TRAINER_ATTEMPT") == "1"
inputs = torch.randn(320, 4, generator=torch.Generator().manual_seed(1))
data = TensorDataset(inputs, inputs.sum(1, keepdim=True))
for fold in range(2):
    torch.manual_seed(fold)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(data, batch_size=4, sampler=Sampler(data))
    with Session(model=model, optimizer=optimizer, folder=root / f"fold{fold}", checkpoint_steps=4) as session:
        for epoch in session.epochs(3):
            for x, y in session.batches(loader):
                optimizer.zero_grad()
                nn.functional.mse_loss(model(x), y).backward()
                optimizer.step()
                if is_first and fold == 1 and (epoch, session.batch) >= (1, 10):
                    if mode == "killed":
                        os.kill(os.getpid(), signal.SIGKILL)
                    (root / "in-fold1").touch()
                    while not (root / "STOP").exists():
                        time.sleep(0.01)
                    time.sleep(0.05)  # for the check of STOP, once per second
    torch.save(model.state_dict(), root / f"fold{fold}.pt")
