"""A transformer sharded by ``fully_shard``, on one rank: bf16, activation checkpointing, gradient accumulation."""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from slipway import Session

WIDTH, STEPS, MICRO_BATCHES = 32, 40, 2


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    device = parser.parse_args().device
    backend = "nccl" if device == "cuda" else "gloo"
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    torch.manual_seed(1)
    layers = [nn.TransformerEncoderLayer(WIDTH, 4, 64, dropout=0.1, batch_first=True) for _ in range(2)]
    model = nn.Sequential(*map(checkpoint_wrapper, layers), nn.Linear(WIDTH, 5))
    mesh = init_device_mesh(device, (1,))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with Session(model=model, optimizer=optimizer, checkpoint_steps=7) as session:
        for step in session.steps(STEPS * MICRO_BATCHES):
            inputs = torch.randn(4, 9, WIDTH, device=device)
            loss = model(inputs).float().square().mean() / MICRO_BATCHES
            loss.backward()
            if step % MICRO_BATCHES == MICRO_BATCHES - 1:
                optimizer.step()
                optimizer.zero_grad()
            session.log(loss=loss)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
