"""SlipwayCallback: a fit that is stopped ends as one that is not, and each fit of a process has a folder."""

import os
import random
import signal

import numpy as np
import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from messages import assert_warning, refused, slugs
from slipway import Stopped, identity
from slipway.lightning import SlipwayCallback
from slipway.status import read_status

pytestmark = [
    pytest.mark.usefixtures("agree_after_each_step"),
    pytest.mark.filterwarnings("ignore"),
]  # Lightning's and torch's
BATCHES = 5


@pytest.fixture
def new_process(monkeypatch):
    """Return a function after which the test is another process."""

    def begin():
        monkeypatch.setattr(identity, "process", identity.Process())
        torch.seed()

    begin()
    return begin


class Noisy(Dataset):
    """Samples with noise of all generators."""

    def __len__(self):
        return 2 * BATCHES

    def __getitem__(self, index):
        return torch.tensor([index + torch.rand(1).item() + random.random() + np.random.rand()])  # noqa: NPY002 -- the global one


class Stream(IterableDataset):
    """Samples whose number nobody knows."""

    def __iter__(self):
        yield from (torch.tensor([float(index)]) for index in range(2 * BATCHES))


class Model(LightningModule):
    """Keeps its batches, and has dropout."""

    def __init__(self, end=None):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(1, 8), nn.Dropout(0.5), nn.Linear(8, 1))
        for tensor in self.parameters():
            nn.init.constant_(tensor, 0.1)
        self.end, self.seen = end, []

    def training_step(self, batch, _index):
        self.seen.append(batch[:, 0].tolist())
        if self.end and self.global_step + 1 == self.end[0]:
            if self.end[1] is Killed:
                raise Killed
            os.kill(os.getpid(), self.end[1])
        return self.layers(batch).square().mean()

    def validation_step(self, batch, _index):
        torch.rand(3)
        self.log("error", self.layers(batch).square().mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


class Killed(BaseException):
    """Ends a fit; nothing is saved."""


def make(callback, *, epochs=3, callbacks=(), **options):
    return Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[callback, *callbacks],
        **options,
    )


def fit(folder, *, end=None, data=Noisy, workers=0, callback=None, sanity=2, path="of callback", **options):
    callback = callback or SlipwayCallback(folder=folder)
    loader = DataLoader(data(), 2, shuffle=data is Noisy, num_workers=workers)
    trainer, model = make(callback, num_sanity_val_steps=sanity, **options), Model(end)
    path = callback.ckpt_path if path == "of callback" else path
    validation = DataLoader(torch.ones(4, 1), 2)
    if end:
        with pytest.raises(Killed if end[1] is Killed else Stopped):
            trainer.fit(model, loader, validation, ckpt_path=path)
    else:
        trainer.fit(model, loader, validation, ckpt_path=path)
    return model


def equal(one, other):
    return all(map(torch.equal, one.state_dict().values(), other.state_dict().values()))


class TestAFitThatEnds:
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
    def test_it_ends_with_the_weights_of_a_fit_that_did_not(self, ends, options, tmp_path, new_process, caplog):
        torch.manual_seed(7)
        whole = fit(tmp_path / "whole", **options)
        for end in [*ends, None]:
            new_process()
            torch.manual_seed(7)
            last = fit(tmp_path / "run", end=end, **options)
        assert equal(last, whole)
        assert last.seen == whole.seen[len(whole.seen) - len(last.seen) :]
        assert set(slugs(caplog.text)) <= {"slow-resume"}

    def test_a_script_that_seeds_nothing_keeps_the_seed_of_its_first_attempt(self, tmp_path, new_process):
        first = fit(tmp_path / "run", end=(3, signal.SIGTERM))
        seed = identity.recorded_in(tmp_path / "run")["seed"]
        new_process()
        second = fit(tmp_path / "run")
        new_process()
        torch.manual_seed(seed)
        whole = fit(tmp_path / "whole")
        assert first.seen + second.seen == whole.seen
        assert equal(second, whole)

    def test_a_fit_that_has_stopped_early_trains_no_further(self, tmp_path, new_process):
        def early():
            return [EarlyStopping("error", patience=0, min_delta=100)]

        whole = fit(tmp_path, epochs=9, callbacks=early())
        assert len(whole.seen) == 2 * BATCHES
        new_process()
        again = fit(tmp_path, epochs=9, callbacks=early())
        assert again.seen == []
        assert equal(again, whole)

    def test_a_checkpoint_without_generators_is_warned_of(self, tmp_path, caplog, monkeypatch):
        monkeypatch.setattr(SlipwayCallback, "state_dict", lambda _self: {})  # as an earlier version
        fit(tmp_path, end=(3, signal.SIGTERM))
        monkeypatch.undo()
        fit(tmp_path)
        assert_warning(caplog.text, "lightning-inexact", 3)


class TestSeveralFitsOfAProcess:
    @pytest.mark.parametrize("same", [False, True])
    def test_each_has_a_folder_and_is_continued_there(self, same, tmp_path, new_process, caplog):
        def folds(end=None):
            new_process()
            torch.manual_seed(3)
            callback = SlipwayCallback(folder=tmp_path / name)
            models = []
            for fold in range(3):
                callback = callback if same else SlipwayCallback(folder=tmp_path / name)
                models.append(fit(None, callback=callback, epochs=2, end=end if fold == 1 else None))
                if end and fold == 1:
                    break
                assert callback.folder == tmp_path / name / (f"fit{fold + 1}" if fold else "")
            return models

        name = "whole"
        whole = folds()
        assert [len(model.seen) for model in whole] == 3 * [2 * BATCHES]
        assert len({str(model.seen) for model in whole}) == 3
        name = "run"
        folds(end=(3, signal.SIGTERM))
        assert read_status(tmp_path / "run" / "fit2").verdict == "stopped 3 signal"
        again = folds()
        assert [len(model.seen) for model in again] == [0, 2 * BATCHES - 3, 2 * BATCHES]
        assert all(map(equal, again, whole))
        assert set(slugs(caplog.text)) <= {"slow-resume"}

    # once: the job was done, by the verdict of the first fit
    def test_a_stop_of_the_second_one_reaches_the_job(self, tmp_path, new_process, monkeypatch):
        monkeypatch.setenv("RUN_DIR", str(tmp_path))
        for attempt, end in ((1, (3, signal.SIGUSR1)), (2, None)):
            new_process()
            monkeypatch.setenv("TRAINER_ATTEMPT", str(attempt))
            (tmp_path / "logs" / str(attempt)).mkdir(parents=True)
            for ends in (None, end):
                fit(None, callback=SlipwayCallback(), epochs=1, end=ends)
        assert (tmp_path / "verdict.1").read_text() == "out-of-time 3 time-limit\n"
        assert not (tmp_path / "verdict.2").exists()
        assert read_status(tmp_path / "fit2").verdict == f"done {BATCHES} complete"

    def test_a_path_of_another_fit_is_refused(self, tmp_path, new_process):
        callback = SlipwayCallback(folder=tmp_path)
        fit(None, callback=callback, epochs=1)
        path = str(tmp_path / "checkpoints" / "latest" / "lightning.ckpt")
        with refused("not-resumed", tmp_path / "fit2", path):
            fit(None, callback=callback, path=path)
        assert callback.ckpt_path is None

    def test_a_fit_after_one_that_has_failed_has_another_folder(self, tmp_path, new_process):
        fit(tmp_path, end=(7, Killed))
        assert fit(tmp_path, epochs=1).seen
        assert read_status(tmp_path / "fit2").state == "done"


class TestTheBestModel:
    def test_without_another_callback_it_is_the_newest_as_in_lightning(self, tmp_path):
        callback = SlipwayCallback(folder=tmp_path)
        assert callback.best_model_path == ""
        trainer, model = make(callback, epochs=1), Model()
        trainer.fit(model, DataLoader(Noisy(), 2), DataLoader(torch.ones(4, 1), 2))
        trainer.validate(model, DataLoader(torch.ones(4, 1), 2), ckpt_path="best", verbose=False)
        assert callback.best_model_path == str(tmp_path / "checkpoints" / "step_00000005" / "lightning.ckpt")

    def test_beside_a_model_checkpoint_it_is_the_one_that_this_picks(self, tmp_path):
        best = ModelCheckpoint(tmp_path / "best", monitor="error")
        callback = SlipwayCallback(folder=tmp_path / "run")
        trainer, model = make(callback, epochs=1, callbacks=[best]), Model()
        trainer.fit(model, DataLoader(Noisy(), 2), DataLoader(torch.ones(4, 1), 2))
        assert callback.best_model_path == best.best_model_path != ""
