"""The default process group of the ranks, from its opening to its end."""

import torch
import torch.distributed as dist

from slipway.base.environment import World
from slipway.dist.torch_distributed import open_default_group


def test_process_group_is_destroyed_at_the_end(tmp_path):
    rendezvous = {"init_method": (tmp_path / "store").as_uri(), "master": None, "agent_restart": None}
    comm = open_default_group(World(), torch.device("cpu"), backend="gloo", timeout=60.0, **rendezvous)
    try:
        assert dist.is_initialized()
        comm.close()
        assert not dist.is_initialized()
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
