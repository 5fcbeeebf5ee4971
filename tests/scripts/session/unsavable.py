"""An optimizer whose state cannot be saved after its first step; the ranks train independently."""

import torch
import torch.distributed as dist
from torch import nn

from slipway import Session, SessionError


class Noted(torch.optim.SGD):
    """SGD that keeps an object for each parameter."""

    def step(self, closure=None):
        super().step(closure)
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter]["note"] = object()


def main():
    dist.init_process_group("gloo")
    model = nn.Linear(2, 1)
    optimizer = Noted(model.parameters(), 0.1)
    with Session(model=model, optimizer=optimizer) as session:
        for _ in session.epochs(1):
            for _ in session.batches(range(1000)):
                optimizer.zero_grad()
                model(torch.ones(1, 2)).sum().backward()
                optimizer.step()


if __name__ == "__main__":
    try:
        main()
    except SessionError as error:
        print(f"rank {dist.get_rank()}: {error.slug} {error.exit_code}", flush=True)
        raise
