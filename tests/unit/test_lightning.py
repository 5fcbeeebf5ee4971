"""SlipwayCallback in this process: what Lightning's Trainer leaves in the run folder, and where it goes on."""

import functools
import os
import signal
from pathlib import Path

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.plugins import MixedPrecision
from lightning.pytorch.plugins.environments import SLURMEnvironment
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from messages import refused, slugs
from slipway import Stopped
from slipway.lightning import SlipwayCallback
from slipway.status import read_status

pytestmark = [
    pytest.mark.usefixtures("agree_after_each_step"),
    pytest.mark.filterwarnings("ignore"),
]  # Lightning's and torch's own
BATCHES = 5


class Model(LightningModule):
    """Keeps the first sample of each batch, and the calls of its hooks."""

    build = torch.optim.AdamW

    def __init__(self, stop_at=None, *, plateau=False):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(1, 1)
        self.stop_at, self.plateau = stop_at, plateau
        self.seen, self.calls, self.handlers = [], [], set()

    def training_step(self, batch, _index):
        self.seen.append((self.current_epoch, int(batch[0][0])))
        self.handlers.add(getattr(signal.getsignal(signal.SIGUSR1), "__name__", None))
        if self.global_step + 1 == self.stop_at:
            os.kill(os.getpid(), signal.SIGUSR1)
        return self.layer(batch[0]).square().mean()

    def validation_step(self, batch, _index):
        self.log("error", self.layer(batch[0]).square().mean())

    def on_validation_epoch_end(self):
        self.calls.append(("validated", self.current_epoch))

    def on_train_epoch_end(self):
        self.calls.append(("ended", self.current_epoch))

    def configure_optimizers(self):
        optimizer = self.build(self.parameters(), lr=0.01)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        if self.plateau:
            scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=10)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "monitor": "error"}}


class Resumable(DataLoader):
    """A loader with a state, as Lightning asks for it."""

    def __init__(self, data):
        super().__init__(data, 2)
        self.done = 0

    def __iter__(self):
        skip, self.done = self.done, 0
        for number, batch in enumerate(super().__iter__()):
            if number >= skip:
                self.done = (number + 1) % BATCHES
                yield batch

    def state_dict(self):
        return {"done": self.done}

    def load_state_dict(self, state):
        self.done = state["done"]


def fit(folder, *, stop_at=None, epochs=3, loader=DataLoader, plateau=False, resume=True, callbacks=(), **options):
    data = TensorDataset(torch.arange(2.0 * BATCHES)[:, None])
    callback = SlipwayCallback(folder=folder)
    trainer = Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        callbacks=[callback, *callbacks],
        **options,
    )
    model = Model(stop_at, plateau=plateau)
    model.trainer_used = trainer
    train = loader(data) if loader is Resumable else loader(data, 2)
    trained = (model, train, DataLoader(data, 5))
    path = callback.ckpt_path if resume else None
    if stop_at:
        with pytest.raises(Stopped) as stopped:
            trainer.fit(*trained, ckpt_path=path)
        assert stopped.value.code == 75
    else:
        trainer.fit(*trained, ckpt_path=path)
    return model


def equal(one, other):
    return all(map(torch.equal, one.state_dict().values(), other.state_dict().values()))


def test_a_run_that_is_done_leaves_a_checkpoint_for_each_epoch_and_a_verdict(tmp_path):
    before = signal.getsignal(signal.SIGTERM)
    model = fit(tmp_path, epochs=4)
    assert read_status(tmp_path).verdict == "done 20 complete"
    names = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert names == ["latest", "step_00000010", "step_00000015", "step_00000020"]
    saved = torch.load(tmp_path / "checkpoints" / "latest" / "lightning.ckpt", weights_only=False)
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in saved["state_dict"].items())
    assert not (tmp_path / "lock").exists()
    assert signal.getsignal(signal.SIGTERM) is before
    assert fit(tmp_path, epochs=4).seen == []
    assert read_status(tmp_path).verdict == "done 20 complete"
    assert len(fit(tmp_path, epochs=5).seen) == BATCHES


@pytest.mark.parametrize("stop_at", [BATCHES, 2 * BATCHES])
def test_a_stop_at_the_end_of_an_epoch_waits_for_its_validation_and_is_exact(stop_at, tmp_path):
    whole = fit(tmp_path / "whole")
    first = fit(tmp_path / "run", stop_at=stop_at)
    assert read_status(tmp_path / "run").verdict == f"out-of-time {stop_at} time-limit"
    second = fit(tmp_path / "run")
    assert first.seen + second.seen == whole.seen
    assert first.calls + second.calls == whole.calls
    assert equal(second, whole)


@pytest.mark.parametrize("loader", [DataLoader, Resumable])
def test_a_stop_in_mid_epoch_goes_on_with_the_batches_that_are_left(loader, tmp_path, caplog):
    whole = fit(tmp_path / "whole", loader=loader)
    first, second = fit(tmp_path / "run", stop_at=7, loader=loader), fit(tmp_path / "run", loader=loader)
    assert first.seen + second.seen == whole.seen
    assert equal(second, whole)
    assert slugs(caplog.text) == (["slow-resume"] if loader is DataLoader else [])


def test_what_comes_after_the_last_step_of_a_fit_stops_the_next_one_before_it_trains(tmp_path):
    class Ask(Callback):
        def on_train_epoch_end(self, *_):
            os.kill(os.getpid(), signal.SIGUSR1)

    fit(tmp_path / "1", epochs=1, callbacks=[Ask()])
    drawn = torch.rand(2).tolist()
    assert read_status(tmp_path / "1").verdict == "done 5 complete"
    with pytest.raises(Stopped):
        fit(tmp_path / "2", epochs=1)
    assert read_status(tmp_path / "2").verdict == "stopped 0 time-limit"
    fit(tmp_path / "1", epochs=1)
    assert torch.rand(2).tolist() == drawn
    assert len(fit(tmp_path / "2", epochs=1).seen) == BATCHES


def test_a_stop_waits_for_an_optimiser_step(tmp_path):
    fit(tmp_path, stop_at=4, accumulate_grad_batches=2)
    assert read_status(tmp_path).step == 4
    saved = torch.load(tmp_path / "checkpoints" / "latest" / "lightning.ckpt", weights_only=False)
    assert saved["loops"]["fit_loop"]["epoch_loop.batch_progress"]["current"]["ready"] == 2


def test_reduce_on_plateau_misses_the_epoch_of_a_stop(tmp_path, caplog):
    """Lightning's; a warning says so."""

    def rate(model):
        return model.trainer_used.optimizers[0].param_groups[0]["lr"]

    whole = rate(fit(tmp_path / "whole", plateau=True))
    fit(tmp_path / "run", stop_at=BATCHES, plateau=True)
    assert rate(fit(tmp_path / "run", plateau=True)) > whole
    assert slugs(caplog.text) == 3 * ["lightning-inexact"]


def test_a_stop_where_a_validation_is_due_waits_for_the_next_batch(tmp_path):
    whole = fit(tmp_path / "whole", epochs=1, val_check_interval=2)
    first = fit(tmp_path / "run", epochs=1, val_check_interval=2, stop_at=2)
    second = fit(tmp_path / "run", epochs=1, val_check_interval=2)
    assert read_status(tmp_path / "run").start_step == 3
    assert first.calls + second.calls == whole.calls
    assert equal(second, whole)


def test_a_folder_that_holds_a_run_is_not_begun_anew(tmp_path):
    fit(tmp_path, epochs=1)
    before = sorted(tmp_path.rglob("*")), (tmp_path / "status.json").read_bytes()
    with refused("not-resumed", tmp_path, "ckpt_path=callback.ckpt_path"):
        fit(tmp_path, resume=False)
    assert (sorted(tmp_path.rglob("*")), (tmp_path / "status.json").read_bytes()) == before


@pytest.mark.parametrize("damage", ["flipped", "truncated", "longer"])
def test_a_damaged_checkpoint_is_refused_and_once_it_is_moved_away_the_one_before_is_resumed(damage, tmp_path):
    folder, (before, newest) = tmp_path / "run", [Path("checkpoints", f"step_{step:08d}") for step in (5, 10)]
    weight = fit(folder, epochs=2).layer.weight
    path = folder / newest / "lightning.ckpt"
    content = bytearray(path.read_bytes())
    if damage == "flipped":
        content[content.index(weight.detach().numpy().tobytes())] ^= 1  # which torch.load returns as it is
    path.write_bytes(content[:-100] if damage == "truncated" else content + b"x" * 70_000 * (damage != "flipped"))
    with refused("damaged-checkpoint", path, folder / before / "lightning.ckpt", code=78) as caught:
        fit(folder)
    assert caught.value.raised_on_all_ranks
    (folder / newest).rename(tmp_path / "elsewhere")
    assert fit(folder).seen[0][0] == 1


def test_an_error_is_recorded_and_passes_through(tmp_path):
    class Failing(Callback):
        def on_train_batch_start(self, *_):
            raise ZeroDivisionError("by zero")

    with pytest.raises(ZeroDivisionError):
        fit(tmp_path, callbacks=[Failing()])
    assert read_status(tmp_path).reason == "unexpected-error: ZeroDivisionError: by zero"
    assert not (tmp_path / "lock").exists()


def test_under_slurm_lightning_neither_takes_the_signals_nor_requeues(tmp_path, monkeypatch):
    for name, value in {"NTASKS": "1", "JOB_ID": "7", "PROCID": "0", "LOCALID": "0", "NODEID": "0"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    monkeypatch.setenv("SLURM_JOB_NAME", "train")
    model = fit(tmp_path, stop_at=7, plugins=[SLURMEnvironment(auto_requeue=True)])
    assert model.handlers == {"_note"}
    assert read_status(tmp_path).verdict == "out-of-time 7 time-limit"


def test_other_stages_need_no_run_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fit("run", fast_dev_run=True)
    assert [path.name for path in tmp_path.iterdir()] == []
    model = fit("run", epochs=1)
    model.trainer_used.validate(model, DataLoader(TensorDataset(torch.ones(4, 1)), 2), verbose=False)
    assert read_status(tmp_path / "run").state == "done"


@pytest.mark.parametrize(("momentum", "expected"), [(0.9, ["optimizer 0"]), (0.0, [])])
def test_a_fused_sgd_under_a_scaler_is_warned_of_once(momentum, expected, tmp_path, monkeypatch, caplog):
    build = functools.partial(torch.optim.SGD, momentum=momentum, fused=True)
    monkeypatch.setattr(Model, "build", staticmethod(build))
    fp16 = MixedPrecision("16-mixed", "cpu", scaler=torch.amp.GradScaler("cpu"))
    fit(tmp_path, epochs=2, plugins=[fp16])
    assert [record.args[0] for record in caplog.records if record.name == "slipway.skipping"] == expected


def test_arguments_that_make_no_sense_are_refused():
    with refused("session-arguments", "keep=0", code=78):
        SlipwayCallback(keep=0)
