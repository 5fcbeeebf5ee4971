"""Horovod, over its own Gloo controller or over MPI."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from trainer.backends.base import pick_device
from trainer.config import Settings
from trainer.errors import ConfigError
from trainer.world import World

try:
    import horovod.torch as hvd
except ImportError as error:
    raise ConfigError(
        f"--backend horovod needs Horovod built for this torch, and it cannot be imported ({error}): "
        "`build/setup horovod` builds it, and so do the images."
    ) from error


class HorovodBackend:
    """One rank of Horovod's world."""

    name = "horovod"

    def __init__(self, settings: Settings) -> None:
        """Join it, waiting for all ranks."""
        if settings.model.sync_bn:
            raise ConfigError("model.sync_bn needs --backend ddp: Horovod cannot convert a model's batch norm layers.")
        if settings.model.channels_last:
            raise ConfigError("model.channels_last needs another --backend: Horovod sends contiguous gradients only.")
        hvd.init()
        self.world = World(hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size())
        self.device = pick_device(settings.launch.device, local_rank=self.world.local_rank)
        self._micro_steps = settings.train.grad_accum_steps
        self._compression = hvd.Compression.fp16 if settings.run.fp16_compression else hvd.Compression.none

    def prepare(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        rehearse: Callable[[nn.Module], None],  # noqa: ARG002 -- Horovod lays its buffers anew at every step
    ) -> tuple[nn.Module, Optimizer]:
        """Wrap the optimiser, whose hooks reduce each gradient during the last backward pass of a step.

        Its state is still empty here and resuming fills it on all ranks: ``broadcast_optimizer_state`` would send it
        pickled, after a step of its own that leaves momentum and step counts behind.
        """
        self.broadcast(list(model.state_dict().values()))
        return model, hvd.DistributedOptimizer(
            optimizer,
            named_parameters=model.named_parameters(),
            compression=self._compression,
            backward_passes_per_step=self._micro_steps,
        )

    def accumulate(self, replica: nn.Module) -> AbstractContextManager[None]:  # noqa: ARG002
        """Horovod itself counts the backward passes of a step, and ``synchronize`` sends what a short step left."""
        return nullcontext()

    @contextmanager
    def reduced_gradients(self, optimizer: Any) -> Iterator[None]:
        """Wait for the reductions of what ``prepare`` returned; the step within must not wait again."""
        optimizer.synchronize()
        with optimizer.skip_synchronize():
            yield

    def total(self, values: Tensor) -> Tensor:
        """All-reduce ``values``."""
        return hvd.allreduce(values, name="total", op=hvd.Sum)

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        """Send all at once."""
        for handle in [
            hvd.broadcast_async_(tensor, root_rank=0, name=f"broadcast.{index}") for index, tensor in enumerate(tensors)
        ]:
            hvd.synchronize(handle)

    def close(self) -> None:
        """Shut down once all ranks have come here."""
        hvd.barrier()
        hvd.shutdown()
