"""Saving and restoring of checkpoints for tests."""

from ranks import CPU
from slipway.base.environment import read_environment
from slipway.checkpoint import stateful
from slipway.checkpoint.compile_cache import CompiledCode
from slipway.checkpoint.format import read_checkpoint
from slipway.checkpoint.header import Header, Position
from slipway.checkpoint.saver import Saver
from slipway.checkpoint.store import CheckpointStore
from slipway.dist.communicator import Alone
from slipway.state.named_objects import component


def saving_into(store):
    """Return a saver outside a job, which does not save code of torch.compile."""
    return Saver(store, CompiledCode(store.path.parent, read_environment({})))


def parts_of(given):
    """Return the components for ``given``, a model or several objects by name."""
    named = given if isinstance(given, dict) else {"model": given}
    return {name: component(name, value) for name, value in named.items()}


def through_disk(parts, folder):
    """Save components to ``folder`` and return the checkpoint read back."""
    saver = saving_into(CheckpointStore(folder, keep=1))
    saver.save(stateful.capture(parts, Header(Position(step=1))))
    saver.finish()
    return read_checkpoint(folder / "step_00000001")


def restore(given, checkpoint):
    """Restore a model, or objects by name, from a checkpoint."""
    stateful.restore(parts_of(given), checkpoint, Alone(CPU))


def copy_through_disk(source, target, folder):
    """Save a model, or objects by name, and restore them into others."""
    restore(target, through_disk(parts_of(source), folder))
