"""Exact evaluation: compared with a loop over single samples in plain torch."""

import math

import numpy as np
import pytest
import torch

from learners import new_learner
from slipway.dist.communicator import Alone
from trainer.config.settings import DataConfig, ModelConfig, Settings, TrainConfig
from trainer.data.base import InMemoryDataset
from trainer.data.loader import Loader
from trainer.data.sets import open_data
from trainer.engine.evaluation import Evaluation, evaluate
from trainer.parallel.device import CPU

MEAN_STD = (torch.tensor([0.5], dtype=torch.float64), torch.tensor([0.25], dtype=torch.float64))


def learner_for(dataset, *, arch="mlp", dtype="float64"):
    config = Settings(model=ModelConfig(arch=arch), train=TrainConfig(dtype=dtype))
    return new_learner(
        config,
        Alone(torch.device("cpu")),
        shape=dataset.shape,
        classes=len(dataset.classes),
        mean_std=dataset.mean_std,
        samples_per_epoch=1,
    )


def evaluated(learner, dataset, *, batch_size=100, limit=None):
    loader = Loader(dataset, workers=0, device=CPU, warn=print)
    return evaluate(learner, loader, batch_size=batch_size, limit=len(dataset) if limit is None else limit)


def one_by_one(learner, images, labels, mean, std):
    """Return confusion matrix, mean loss, and counts of top 1 and top 5, one sample at a time."""
    classes = learner.model[-1].out_features
    confusion, loss, top5 = np.zeros((classes, classes), int), 0.0, 0
    with torch.no_grad():
        for image, label in zip(images, labels.tolist(), strict=True):
            logits = learner.model(((image.double() / 255 - mean.view(-1, 1, 1)) / std.view(-1, 1, 1))[None])[0]
            loss -= math.log(logits.softmax(0)[label])
            ranked = sorted(range(classes), key=logits.__getitem__, reverse=True)
            confusion[label, ranked[0]] += 1
            top5 += label in ranked[:5]
    return confusion, loss / len(images), top5


@pytest.fixture(scope="module")
def digits():
    return open_data(DataConfig()).validation


def test_evaluation_matches_per_sample_loop(digits):
    learner = learner_for(digits)
    confusion, loss, top5 = one_by_one(learner, digits.images, digits.labels, *digits.mean_std)
    result = evaluated(learner, digits)
    assert result.confusion.tolist() == confusion.tolist()
    assert result.loss == pytest.approx(loss, rel=1e-12)
    assert result.accuracy == np.trace(confusion) / 359
    assert result.top5 == top5 / 359
    assert 0 < result.accuracy < result.top5 < 1, "a random model must have both correct and wrong predictions"
    assert (result.samples, result.bad) == (359, 0)


@pytest.mark.parametrize("batch_size", [1, 7, 358, 1000])
def test_evaluation_is_independent_of_batch_size(digits, batch_size):
    learner = learner_for(digits)
    reference, result = evaluated(learner, digits), evaluated(learner, digits, batch_size=batch_size)
    assert torch.equal(result.confusion, reference.confusion)
    assert result.in_top5 == reference.in_top5
    assert result.loss == pytest.approx(reference.loss, rel=1e-12)


def test_evaluation_limit_takes_first_samples(digits):
    learner = learner_for(digits)
    confusion, _, _ = one_by_one(learner, digits.images[:50], digits.labels[:50], *digits.mean_std)
    assert evaluated(learner, digits, limit=50, batch_size=20).confusion.tolist() == confusion.tolist()


def test_top5_is_1_with_fewer_than_five_classes():
    images = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (9, 1, 8, 8), dtype=np.uint8))
    dataset = InMemoryDataset(images, torch.arange(9) % 3, ("a", "b", "c"), MEAN_STD)
    result = evaluated(learner_for(dataset), dataset)
    assert result.top5 == 1
    assert result.confusion.sum(1).tolist() == [3, 3, 3]


def test_evaluation_leaves_model_unchanged_and_in_training_mode(digits):
    learner = learner_for(digits, arch="resnet18", dtype="float32")
    before = {name: value.clone() for name, value in learner.model.state_dict().items()}
    evaluated(learner, digits)
    assert learner.model.training
    assert all(torch.equal(value, before[name]) for name, value in learner.model.state_dict().items())


@pytest.mark.parametrize("arch", ["mnist-cnn", "resnet18"])
def test_evaluation_disables_dropout_and_fixes_batch_norm(digits, arch):
    learner = learner_for(digits, arch=arch, dtype="float32")
    first, again = evaluated(learner, digits, batch_size=359), evaluated(learner, digits, batch_size=50)
    assert torch.equal(first.confusion, again.confusion)
    assert first.loss == pytest.approx(again.loss, rel=1e-4)


class Broken(InMemoryDataset):
    """Samples 1, 4 and 5 cannot be decoded."""

    def fetch(self, ids, draws):
        fetched = super().fetch(ids, draws)
        bad = [place for place, sample in enumerate(ids) if sample in {1, 4, 5}]
        fetched.images[bad] = 0
        return fetched._replace(bad=bad, reasons=["broken"] * len(bad))


def test_undecodable_samples_are_only_counted_as_bad(digits):
    dataset = Broken(digits.images[:8], digits.labels[:8], digits.classes, digits.mean_std)
    learner, intact = learner_for(dataset), [0, 2, 3, 6, 7]
    confusion, loss, _ = one_by_one(learner, dataset.images[intact], dataset.labels[intact], *dataset.mean_std)
    result = evaluated(learner, dataset, batch_size=3)
    assert (result.bad, result.samples) == (3, 5)
    assert result.confusion.tolist() == confusion.tolist()
    assert result.loss == pytest.approx(loss, rel=1e-12)


def test_evaluation_metrics_are_zero_without_decoded_samples():
    nothing = Evaluation(
        confusion=torch.zeros(3, 3, dtype=torch.int64), loss_sum=0.0, in_top5=0, bad=7, predicted=torch.tensor([])
    )
    assert (nothing.samples, nothing.loss, nothing.accuracy, nothing.top5) == (0, 0, 0, 0)
