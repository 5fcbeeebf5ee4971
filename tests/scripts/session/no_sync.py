"""Two optimizers, one of which steps every third batch; until then its gradients wait and differ by rank.

    no_sync.py [BATCH]

BATCH is the number of the batch, over all attempts, in which rank 0 gets SIGTERM. Each rank prints a digest at the end.
"""

import contextlib
import hashlib
import os
import signal
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from slipway import Session


def main(stop):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    words = DistributedDataParallel(nn.Embedding(6, 4), gradient_as_bucket_view=True)
    critic = DistributedDataParallel(nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 1)))
    models = {"words": words, "critic": critic}
    slow = torch.optim.Adam(words.parameters(), lr=0.1)
    fast = torch.optim.SGD(critic.parameters(), lr=0.1, momentum=0.9)
    with Session(model=models, optimizer={"slow": slow, "fast": fast}, checkpoint_steps=1) as session:
        for _ in session.epochs(2):
            for batch in session.batches(range(8)):
                number = session.epoch * 8 + batch
                if rank == 0 and number == stop:
                    os.kill(os.getpid(), signal.SIGTERM)
                is_last = number % 3 == 2
                with contextlib.nullcontext() if is_last else words.no_sync():
                    critic(words(torch.tensor([rank, number % 4]))).square().mean().backward()
                fast.step()
                fast.zero_grad(set_to_none=False)
                if is_last:
                    slow.step()
                    slow.zero_grad()
    tensors = [*words.parameters(), *critic.state_dict().values()]  # statistics too, which differ after the last batch
    total = hashlib.sha256(b"".join(tensor.detach().numpy().tobytes() for tensor in tensors))
    print(f"digest of rank {rank}: {total.hexdigest()}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else -1)
