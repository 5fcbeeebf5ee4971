# seed 0: fails: exit code(s) [1]: exec(compile(Path(first).read_bytes(), first, "exec"), vars(module))  # noqa: S102
#     ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
#   File "/dev/shm/slipway-fuzz-1x6mkm2v/0/script.py", line 28, in <module>
#     assert batch[0, 0] <= 0
#            ^^^^^^^^^^^^^^^^
# AssertionError
#   loader: subclass that negates
#
# ranks: 1
# may say: slow-resume

import torch
from torch import nn
from torch.utils.data import DataLoader
from slipway import Session
from probe import FOLDER, Samples, ended, objective, point, trace

torch.manual_seed(1)
class Negated(DataLoader):
    def _get_iterator(self):
        return iter([-batch for batch in super()._get_iterator()])

data = Samples(12)
loader = Negated(data, 4)
model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with Session(model=model, optimizer=optimizer, folder=FOLDER) as session:
    point("opened")
    for epoch in session.epochs(2):
        point("epoch")
        for batch in session.batches(loader):
            point("train")
            assert batch[0, 0] <= 0
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
