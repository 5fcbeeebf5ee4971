"""SlipwayCallback in this process: contents of run folders, and exact resume of a stopped fit."""

import functools
import os
import random
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback, EarlyStopping, ModelCheckpoint
from lightning.pytorch.plugins import MixedPrecision
from lightning.pytorch.plugins.environments import SLURMEnvironment
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from messages import assert_warning, refused, slugs
from slipway import Stopped
from slipway.lightning import SlipwayCallback
from slipway.run.status import read_status
from slipway.script import identity

# the warnings come from Lightning and torch
pytestmark = [pytest.mark.usefixtures("agree_after_each_step"), pytest.mark.filterwarnings("ignore")]
BATCHES = 5


@pytest.fixture
def new_process(monkeypatch):
    """Return a function that makes the test count as a new process."""

    def begin():
        monkeypatch.setattr(identity, "process", identity.Process())
        torch.seed()

    begin()
    return begin


class Noisy(Dataset):
    """Samples with noise from all generators."""

    def __len__(self):
        return 2 * BATCHES

    def __getitem__(self, index):
        return torch.tensor([index + torch.rand(1).item() + random.random() + np.random.rand()])  # noqa: NPY002 -- the global one


class Stream(IterableDataset):
    """Samples of unknown number."""

    def __iter__(self):
        yield from (torch.tensor([float(index)]) for index in range(2 * BATCHES))


class Resumable(DataLoader):
    """A loader with a state, in the form that Lightning requires."""

    done = 0

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


class Killed(BaseException):
    """Ends a fit without saving."""


class Model(LightningModule):
    """Has dropout, and records its batches by epoch and the calls of its hooks."""

    build, dropout = torch.optim.AdamW, 0.5

    def __init__(self, end=None, *, plateau=False):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(1, 8), nn.Dropout(self.dropout), nn.Linear(8, 1))
        for tensor in self.parameters():
            nn.init.constant_(tensor, 0.1)
        self.end, self.plateau = end, plateau
        self.seen, self.calls, self.handlers = [], [], set()

    def training_step(self, batch, _index):
        self.seen.append((self.current_epoch, batch[:, 0].tolist()))
        self.handlers.add(getattr(signal.getsignal(signal.SIGUSR1), "__name__", None))
        if self.end and self.global_step + 1 == self.end[0]:
            if self.end[1] is Killed:
                raise Killed
            os.kill(os.getpid(), self.end[1])
        return self.layers(batch).square().mean()

    def validation_step(self, batch, _index):
        torch.rand(3)
        self.log("error", self.layers(batch).square().mean())

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


def validation():
    return DataLoader(torch.ones(4, 1), 2)


def numbers():
    """Return data without noise."""
    return torch.arange(2.0 * BATCHES)[:, None]


def fit(folder, *, seed=7, end=None, plateau=False, data=Noisy, workers=0, loader=DataLoader, **options):
    """Fit a model to its end or until ``end`` (a step, and a signal or ``Killed``); do not seed if ``seed`` is None."""
    if seed is not None:
        torch.manual_seed(seed)
    callback = options.pop("callback", None) or SlipwayCallback(folder=folder)
    path = options.pop("path", callback.ckpt_path)
    trainer = Trainer(
        max_epochs=options.pop("epochs", 3),
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[callback, *options.pop("callbacks", [])],
        **options,
    )
    model = Model(end, plateau=plateau)
    model.trainer_used = trainer
    train = loader(data(), 2, shuffle=data is Noisy, num_workers=workers)
    if not end:
        trainer.fit(model, train, validation(), ckpt_path=path)
        return model
    with pytest.raises(Killed if end[1] is Killed else Stopped) as ended:
        trainer.fit(model, train, validation(), ckpt_path=path)
    assert end[1] is Killed or ended.value.code == 75
    return model


def equal(one, other):
    return all(map(torch.equal, one.state_dict().values(), other.state_dict().values()))


def test_completed_fit_writes_checkpoint_per_epoch_and_verdict(tmp_path):
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


class TestStoppedFit:
    @pytest.mark.parametrize(
        ("ends", "options"),
        [
            ([(2, signal.SIGTERM)], {}),
            ([(3, signal.SIGTERM), (4, signal.SIGUSR1), (8, signal.SIGTERM), (14, signal.SIGTERM)], {}),
            ([(5, signal.SIGTERM)], {}),
            ([(7, Killed), (8, signal.SIGTERM), (13, Killed)], {}),
            ([(3, signal.SIGTERM), (8, signal.SIGTERM)], {"workers": 2}),
            ([(7, Killed), (9, signal.SIGTERM)], {"data": Stream}),
            ([(2, signal.SIGTERM), (3, signal.SIGTERM)], {"accumulate_grad_batches": 2}),
            ([(3, signal.SIGTERM), (12, signal.SIGTERM)], {"val_check_interval": 2}),
            ([(3, signal.SIGTERM)], {"check_val_every_n_epoch": 2}),
        ],
    )
    def test_resumed_fit_matches_weights_of_uninterrupted_fit(self, ends, options, tmp_path, new_process, caplog):
        whole = fit(tmp_path / "whole", **options)
        for end in [*ends, None]:
            new_process()
            last = fit(tmp_path / "run", end=end, **options)
        assert equal(last, whole)
        assert last.seen == whole.seen[len(whole.seen) - len(last.seen) :]
        assert set(slugs(caplog.text)) <= {"slow-resume"}

    @pytest.mark.parametrize(
        ("stop_at", "stopped_at", "options"),
        [(5, 5, {}), (10, 10, {}), (2, 3, {"epochs": 1, "val_check_interval": 2})],
        ids=["epoch", "second epoch", "within an epoch"],
    )
    def test_stop_during_validation_waits_for_its_end_or_next_batch(self, stop_at, stopped_at, options, tmp_path):
        options = {"num_sanity_val_steps": 0, **options}
        whole = fit(tmp_path / "whole", **options)
        first = fit(tmp_path / "run", end=(stop_at, signal.SIGUSR1), **options)
        assert read_status(tmp_path / "run").verdict == f"out-of-time {stopped_at} time-limit"
        second = fit(tmp_path / "run", **options)
        assert first.seen + second.seen == whole.seen
        assert first.calls + second.calls == whole.calls
        assert equal(second, whole)

    @pytest.mark.parametrize(("loader", "found"), [(DataLoader, ["slow-resume"]), (Resumable, ["lightning-inexact"])])
    def test_fit_stopped_within_epoch_resumes_with_remaining_batches(
        self, loader, found, *, tmp_path, caplog, monkeypatch
    ):
        monkeypatch.setattr(Model, "dropout", 0.0)  # other draws follow those of a loader that restores itself
        options = {"loader": loader, "data": numbers}
        whole = fit(tmp_path / "whole", **options)
        first, second = (fit(tmp_path / "run", end=end, **options) for end in ((7, signal.SIGUSR1), None))
        assert first.seen + second.seen == whole.seen
        assert equal(second, whole)
        assert slugs(caplog.text) == found

    def test_stop_waits_for_end_of_gradient_accumulation(self, tmp_path):
        fit(tmp_path, end=(4, signal.SIGUSR1), accumulate_grad_batches=2)
        assert read_status(tmp_path).step == 4
        saved = torch.load(tmp_path / "checkpoints" / "latest" / "lightning.ckpt", weights_only=False)
        assert saved["loops"]["fit_loop"]["epoch_loop.batch_progress"]["current"]["ready"] == 2

    def test_unseeded_fit_resumes_with_seed_of_first_attempt(self, tmp_path, new_process):
        first = fit(tmp_path / "run", seed=None, end=(3, signal.SIGTERM))
        seed = identity.read_recorded(tmp_path / "run")["seed"]
        new_process()
        second = fit(tmp_path / "run", seed=None)
        new_process()
        whole = fit(tmp_path / "whole", seed=seed)
        assert first.seen + second.seen == whole.seen
        assert equal(second, whole)

    def test_reduce_on_plateau_misses_stopped_epoch_and_warns(self, tmp_path, caplog):
        """As in Lightning; a warning says so."""

        def rate(model):
            return model.trainer_used.optimizers[0].param_groups[0]["lr"]

        whole = rate(fit(tmp_path / "whole", plateau=True))
        fit(tmp_path / "run", end=(BATCHES, signal.SIGUSR1), plateau=True)
        assert rate(fit(tmp_path / "run", plateau=True)) > whole
        assert slugs(caplog.text) == 3 * ["lightning-inexact"]

    def test_resuming_checkpoint_without_generators_warns(self, tmp_path, caplog, monkeypatch):
        monkeypatch.setattr(SlipwayCallback, "state_dict", lambda _self: {})  # as an earlier version did
        fit(tmp_path, end=(3, signal.SIGTERM))
        monkeypatch.undo()
        fit(tmp_path)
        assert_warning(caplog.text, "lightning-inexact", 3)


def test_early_stopped_fit_is_not_trained_further(tmp_path, new_process):
    def fit_early():
        return fit(tmp_path, epochs=9, callbacks=[EarlyStopping("error", patience=0, min_delta=100)])

    whole = fit_early()
    assert len(whole.seen) == 2 * BATCHES
    new_process()
    again = fit_early()
    assert again.seen == []
    assert equal(again, whole)


def test_folder_with_run_is_refused_without_ckpt_path(tmp_path):
    fit(tmp_path, epochs=1)
    before = sorted(tmp_path.rglob("*")), (tmp_path / "status.json").read_bytes()
    with refused("not-resumed", tmp_path, "ckpt_path=callback.ckpt_path"):
        fit(tmp_path, path=None)
    assert (sorted(tmp_path.rglob("*")), (tmp_path / "status.json").read_bytes()) == before


@pytest.mark.parametrize("damage", ["flipped", "truncated", "longer"])
def test_damaged_checkpoint_is_refused_and_previous_resumed_once_moved(damage, tmp_path):
    folder, (before, newest) = tmp_path / "run", [Path("checkpoints", f"step_{step:08d}") for step in (5, 10)]
    weight = fit(folder, epochs=2).layers[0].weight
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


def test_error_in_fit_is_recorded_and_reraised(tmp_path):
    class Failing(Callback):
        def on_train_batch_start(self, *_):
            raise ZeroDivisionError("by zero")

    with pytest.raises(ZeroDivisionError):
        fit(tmp_path, callbacks=[Failing()])
    assert read_status(tmp_path).reason == "unexpected-error: ZeroDivisionError: by zero"
    assert not (tmp_path / "lock").exists()


def test_lightning_under_slurm_neither_handles_signals_nor_requeues(tmp_path, monkeypatch):
    for name, value in {"NTASKS": "1", "JOB_ID": "7", "PROCID": "0", "LOCALID": "0", "NODEID": "0"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    monkeypatch.setenv("SLURM_JOB_NAME", "train")
    model = fit(tmp_path, end=(7, signal.SIGUSR1), plugins=[SLURMEnvironment(auto_requeue=True)])
    assert model.handlers == {"_note"}
    assert read_status(tmp_path).verdict == "out-of-time 7 time-limit"


def test_fast_dev_run_and_validate_need_no_run_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fit("run", fast_dev_run=True)
    assert [path.name for path in tmp_path.iterdir()] == []
    model = fit("run", epochs=1)
    model.trainer_used.validate(model, validation(), verbose=False)
    assert read_status(tmp_path / "run").state == "done"


@pytest.mark.parametrize(("momentum", "expected"), [(0.9, ["optimizer 0"]), (0.0, [])])
def test_fused_sgd_with_momentum_and_scaler_warns_once(momentum, expected, tmp_path, monkeypatch, caplog):
    build = functools.partial(torch.optim.SGD, momentum=momentum, fused=True)
    monkeypatch.setattr(Model, "build", staticmethod(build))
    fp16 = MixedPrecision("16-mixed", "cpu", scaler=torch.amp.GradScaler("cpu"))
    fit(tmp_path, epochs=2, plugins=[fp16])
    assert [record.args[0] for record in caplog.records if record.name == "slipway.checks.skipped_steps"] == expected


def test_invalid_callback_arguments_are_refused():
    with refused("session-arguments", "keep=0", code=78):
        SlipwayCallback(keep=0)


class TestSeveralFits:
    @pytest.mark.parametrize("same", [False, True])
    def test_each_fit_has_separate_folder_and_resumes_there(self, same, tmp_path, new_process, caplog):
        def folds(name, end=None):
            new_process()
            torch.manual_seed(3)
            callback = SlipwayCallback(folder=tmp_path / name)
            models = []
            for fold in range(3):
                callback = callback if same else SlipwayCallback(folder=tmp_path / name)
                ends = end if fold == 1 else None
                models.append(fit(None, seed=None, callback=callback, epochs=2, end=ends))
                if ends:
                    break
                assert callback.folder == tmp_path / name / (f"fit{fold + 1}" if fold else "")
            return models

        whole = folds("whole")
        assert [len(model.seen) for model in whole] == 3 * [2 * BATCHES]
        assert len({str(model.seen) for model in whole}) == 3
        folds("run", end=(3, signal.SIGTERM))
        assert read_status(tmp_path / "run" / "fit2").verdict == "stopped 3 signal"
        again = folds("run")
        assert [len(model.seen) for model in again] == [0, 2 * BATCHES - 3, 2 * BATCHES]
        assert all(map(equal, again, whole))
        assert set(slugs(caplog.text)) <= {"slow-resume"}

    # regression: the first fit's verdict ended the job as done
    def test_stop_of_second_fit_sets_verdict_of_job(self, tmp_path, new_process, monkeypatch):
        monkeypatch.setenv("RUN_DIR", str(tmp_path))
        for attempt, end in ((1, (3, signal.SIGUSR1)), (2, None)):
            new_process()
            monkeypatch.setenv("TRAINER_ATTEMPT", str(attempt))
            (tmp_path / "logs" / str(attempt)).mkdir(parents=True)
            for ends in (None, end):
                fit(None, seed=None, callback=SlipwayCallback(), epochs=1, end=ends)
        assert (tmp_path / "verdict.1").read_text() == "out-of-time 3 time-limit\n"
        assert not (tmp_path / "verdict.2").exists()
        assert read_status(tmp_path / "fit2").verdict == f"done {BATCHES} complete"

    def test_signal_after_last_step_stops_next_fit_before_training(self, tmp_path):
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

    def test_ckpt_path_of_another_fit_is_refused(self, tmp_path, new_process):
        callback = SlipwayCallback(folder=tmp_path)
        fit(None, callback=callback, epochs=1)
        path = str(tmp_path / "checkpoints" / "latest" / "lightning.ckpt")
        with refused("not-resumed", tmp_path / "fit2", path):
            fit(None, callback=callback, path=path)
        assert callback.ckpt_path is None

    def test_fit_after_failed_fit_gets_another_folder(self, tmp_path, new_process):
        fit(tmp_path, end=(7, Killed))
        assert fit(tmp_path, epochs=1).seen
        assert read_status(tmp_path / "fit2").state == "done"


class TestBestModel:
    def test_best_model_path_is_newest_without_model_checkpoint(self, tmp_path):
        callback = SlipwayCallback(folder=tmp_path)
        assert callback.best_model_path == ""
        model = fit(None, callback=callback, epochs=1)
        model.trainer_used.validate(model, validation(), ckpt_path="best", verbose=False)
        assert callback.best_model_path == str(tmp_path / "checkpoints" / "step_00000005" / "lightning.ckpt")

    def test_best_model_path_is_that_of_model_checkpoint(self, tmp_path):
        best = ModelCheckpoint(tmp_path / "best", monitor="error")
        callback = SlipwayCallback(folder=tmp_path / "run")
        fit(None, callback=callback, epochs=1, callbacks=[best])
        assert callback.best_model_path == best.best_model_path != ""
