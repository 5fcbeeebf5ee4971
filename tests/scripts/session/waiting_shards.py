"""Two sharded models and two optimizers, one of which steps every third batch; until then its gradients wait.

    waiting_shards.py [BATCH]

BATCH is the number of the batch, over all attempts, in which rank 0 gets SIGTERM. Each rank prints a digest at the end.
"""

import hashlib
import os
import signal
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from slipway import Session


def main(stop):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    words, critic = (fully_shard(model, mesh=mesh) for model in (nn.Embedding(6, 4), nn.Linear(4, 1)))
    slow = torch.optim.Adam(words.parameters(), lr=0.1)
    fast = torch.optim.SGD(critic.parameters(), lr=0.1, momentum=0.9)
    optimizers = {"slow": slow, "fast": fast}
    with Session(model={"words": words, "critic": critic}, optimizer=optimizers, checkpoint_steps=1) as session:
        for _ in session.epochs(2):
            for batch in session.batches(range(8)):
                number = session.epoch * 8 + batch
                if rank == 0 and number == stop:
                    os.kill(os.getpid(), signal.SIGTERM)
                critic(words(torch.tensor([rank, number % 4]))).square().mean().backward()
                fast.step()
                fast.zero_grad()
                if number % 3 == 2:
                    slow.step()
                    slow.zero_grad()
    tensors = [parameter.to_local() for model in (words, critic) for parameter in model.parameters()]
    total = hashlib.sha256(b"".join(tensor.detach().numpy().tobytes() for tensor in tensors))
    print(f"digest of rank {rank}: {total.hexdigest()}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else -1)
