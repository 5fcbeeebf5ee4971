"""A saver of checkpoints for tests."""

from slipway.checkpoint.saver import Saver
from slipway.compiled import CompiledCode
from slipway.environment import read_environment


def saving_into(store):
    """Return a saver outside of a job, which keeps nothing of torch.compile."""
    return Saver(store, CompiledCode(store.path.parent, read_environment({})))
