"""Print the memory that a GPU needs to train each size of model of train.py (docs/howto/language-model.md).

Computed on tensors without data, on a machine without GPUs. Not counted: the CUDA context, the workspaces of libraries,
and the allocator's rounding; leave a tenth of the GPU for them.
"""

import argparse
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore
from train import SIZES, make_config
from transformers import AutoModelForCausalLM, LlamaConfig

VOCABULARY, SEQUENCE, GPUS = 128_256, 4096, (1, 4, 8, 64)
CPU = torch.device("cpu")


@contextmanager
def ranks(count):
    """Yield the mesh of rank 0 among ``count`` ranks that do not communicate; rank 0 has the largest shards."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=count)
    yield init_device_mesh("cpu", (count,))
    dist.destroy_process_group()


def sharded(config, mesh):
    """Return the model, sharded as in train.py, and its optimizer."""
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for part in [*model.get_decoder().layers, model]:
        fully_shard(part, mesh=mesh, mp_policy=policy)
    return model, torch.optim.AdamW(model.parameters())


def local_bytes(tensors):
    """Return the bytes of the shards of this rank."""
    return sum(getattr(tensor, "_local_tensor", tensor).nbytes for tensor in tensors)


def states(model, optimizer):
    """Return the bytes of parameters, gradients and optimizer state after a step."""
    parameters = [*model.parameters()]
    moments = [tensor for state in optimizer.state.values() for tensor in state.values()]
    return tuple(map(local_bytes, (parameters, [parameter.grad for parameter in parameters], moments)))


def states_of(config, count):
    """Return the bytes of parameters, gradients and optimizer state on rank 0 of ``count``, computed on meta."""
    with ranks(count) as mesh, torch.device("meta"):
        model, optimizer = sharded(config, mesh)
        for parameter in model.parameters():
            parameter.grad = torch.empty_like(parameter)
        optimizer.step()
        return states(model, optimizer)


def working_memory(config, count, *, checkpointing, sequences=1):
    """Return the bytes of all other tensors at the peak of a step: activations, and parameters of layers in bf16."""
    with ranks(count) as mesh, FakeTensorMode():
        model, optimizer = sharded(config, mesh)
        if checkpointing:
            model.activation_checkpointing_enable()
        tokens = torch.zeros(sequences, config.max_position_embeddings, dtype=torch.int64)
        with FSDPMemTracker(model, optimizer) as tracker:
            model(tokens, labels=tokens, use_cache=False).loss.backward()
        peak = tracker.get_tracker_snapshot("peak")[CPU]
    return peak["Total"] - peak["Sharded Param"] - peak["Sharded Grad"]


def deep(compute, config):
    """Return ``compute(config)`` for a deep model, from those of two shallow ones: each further layer adds the same."""
    shallow, deeper = 4, 6
    low, high = (
        compute(LlamaConfig(**{**config.to_dict(), "num_hidden_layers": layers})) for layers in (shallow, deeper)
    )
    return low + (config.num_hidden_layers - shallow) * (high - low) // (deeper - shallow)


def gigabytes(count):
    """Return bytes as gigabytes, below 10 with two digits."""
    return f"{count / 1e9:,.0f} GB" if count >= 1e10 else f"{count / 1e9:.2g} GB"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sizes", nargs="*", choices=[[], *SIZES], metavar="SIZE", help="default: all but tiny")
    args = parser.parse_args()
    print("| `--size` | parameters | 1 GPU | 4 GPUs | 8 GPUs | 64 GPUs | activations | not checkpointed |")
    print("|---|---|---|---|---|---|---|---|")
    for size in args.sizes or [size for size in SIZES if size != "tiny"]:
        config = make_config(size, vocabulary=VOCABULARY, end=0, sequence=SEQUENCE)
        parameters = deep(lambda shape: states_of(shape, 1)[0], config) // 4
        cells = [deep(lambda shape, count=count: sum(states_of(shape, count)), config) for count in GPUS]
        cells += [
            deep(lambda shape, each=each: working_memory(shape, 8, checkpointing=each), config)
            for each in (True, False)
        ]
        print(f"| {size} | {parameters / 1e9:.2f}B |", " | ".join(map(gigabytes, cells)), "|")


if __name__ == "__main__":
    main()
