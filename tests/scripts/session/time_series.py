"""Sine waves continued by an LSTM that LBFGS trains, in float64, on the whole data set at each step."""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from slipway import Session


class Sequence(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.width = width
        self.first, self.second = nn.LSTMCell(1, width), nn.LSTMCell(width, width)
        self.linear = nn.Linear(width, 1)

    def forward(self, inputs, future=0):
        outputs = []
        first, second = ([torch.zeros(len(inputs), self.width, dtype=inputs.dtype)] * 2 for _ in range(2))
        for value in inputs.split(1, dim=1):
            first = self.first(value, first)
            second = self.second(first[0], second)
            outputs.append(self.linear(second[0]))
        for _ in range(future):
            first = self.first(outputs[-1], first)
            second = self.second(first[0], second)
            outputs.append(self.linear(second[0]))
        return torch.cat(outputs, dim=1)


class Counters(dict):
    state_dict = dict.copy
    load_state_dict = dict.update


def waves(count, length, seed):
    generator = torch.Generator().manual_seed(seed)
    shifts = torch.randint(-80, 80, (count, 1), generator=generator)
    return torch.sin((torch.arange(length) + shifts) / 4.0).double()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--width", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if ranks > 1:
        dist.init_process_group("gloo")
    torch.manual_seed(args.seed)
    data, test_data = waves(16, 25, seed=1)[rank::ranks], waves(4, 25, seed=2)
    inputs, targets = data[:, :-1], data[:, 1:]
    seq = Sequence(args.width).double()
    if ranks > 1:
        seq = DistributedDataParallel(seq)
    criterion = nn.MSELoss()
    optimizer = torch.optim.LBFGS(seq.parameters(), lr=0.8, max_iter=8, history_size=10)
    history = Counters(losses=[])
    with Session(model=seq, optimizer=optimizer, extra=history, checkpoint_steps=2) as session:
        for step in session.steps(args.steps):

            def closure():
                optimizer.zero_grad()
                loss = criterion(seq(inputs), targets)
                loss.backward()
                loss = loss.detach()
                if ranks > 1:  # LBFGS decides by it, on all ranks alike
                    dist.all_reduce(loss)
                    loss /= ranks
                return loss

            history["losses"].append(optimizer.step(closure).item())
            session.log(loss=history["losses"][-1])
            with torch.no_grad():
                output = seq(test_data[:, :-1], future=10)
                test_loss = criterion(output[:, :-10], test_data[:, 1:]).item()
            if rank == 0:
                print(f"step {step}: loss {history['losses'][-1]}, test loss {test_loss}, then {output[0, -1].item()}")
            session.metrics(test_loss=test_loss)
    losses = history["losses"]
    if rank == 0:
        print(f"mean loss of all steps {sum(losses) / len(losses)}, the lowest {min(losses)}")


if __name__ == "__main__":
    main()
