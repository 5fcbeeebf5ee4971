"""Modules that are seeded before they draw random numbers, and the numbers that they draw."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torchvision import models

from learners import new_learner
from ranks import CPU
from slipway.dist.communicator import Alone
from trainer.config.settings import ModelConfig, Settings
from trainer.engine.layer_seeding import FAMILIES, ModuleSeeder
from trainer.model import build_model

SMALLEST = {
    "alexnet": ["alexnet"],
    "convnext": ["convnext_tiny"],
    "densenet": ["densenet121"],
    "efficientnet": ["efficientnet_v2_s"],
    "googlenet": ["googlenet"],
    "inception": ["inception_v3"],
    "maxvit": ["maxvit_t"],
    "mnasnet": ["mnasnet0_5"],
    "mobilenetv2": ["mobilenet_v2"],
    "mobilenetv3": ["mobilenet_v3_small"],
    "regnet": ["regnet_y_400mf"],
    "resnet": ["resnet18", "resnet50"],
    "shufflenetv2": ["shufflenet_v2_x0_5"],
    "squeezenet": ["squeezenet1_1"],
    "swin_transformer": ["swin_t", "swin_v2_t"],
    "vgg": ["vgg11_bn"],
    "vision_transformer": ["vit_b_16"],
}
"""Models of each of torchvision's files, such that each class of the file occurs."""
OWN_DRAWS = ["densenet121", "swin_t", "swin_v2_t"]
"""Models that call ``F.dropout`` themselves, with probability 0 by default."""
PROBABILITIES = ("p", "dropout", "drop_rate", "attention_dropout")


def hooked(model, **options):
    """Return the names of the modules on which a seeder registers hooks."""
    seeder = ModuleSeeder(model, seed=0, rank=0, **options)
    found = {name for name, module in model.named_modules() if module._forward_pre_hooks}
    seeder.close()
    return found


class Draws(TorchDispatchMode):
    """Records each random draw of a model: the last called module of ``names``, and the number of draws since."""

    def __init__(self, model, names):
        super().__init__()
        self.found, self._last, self._count = [], None, 0
        for name in names:
            model.get_submodule(name).register_forward_pre_hook(lambda *_, name=name: self._seed(name))

    def _seed(self, name):
        self._last, self._count = name, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if torch.Tag.nondeterministic_seeded in func.tags:
            self.found.append((self._last, self._count))
            self._count += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("arch", "probability"),
    [*((arch, 0) for names in SMALLEST.values() for arch in names), *((arch, 0.1) for arch in OWN_DRAWS)],
)
def test_torchvision_models_draw_as_with_hooks_on_all_modules(arch, probability):
    edge = {"maxvit_t": 224, "inception_v3": 96}.get(arch, 64)
    with torch.device("cpu" if arch.startswith("regnet") else "meta"):  # which reads a tensor
        model = build_model(ModelConfig(arch=arch), shape=(3, edge, edge), classes=10).to("meta")
    for module in model.modules():
        for name in PROBABILITIES:
            if getattr(module, name, None) == 0:
                setattr(module, name, probability)
    every, needed = (hooked(model, user_defined=value) for value in (True, False))
    with Draws(model, every) as expected, Draws(model, needed) as found:
        model(torch.empty(2, 3, edge, edge, device="meta"))
    assert found.found == expected.found
    assert None not in {last for last, _ in expected.found}


def test_every_family_of_torchvision_is_known():
    files = {models.get_model_builder(name).__module__.rpartition(".")[2] for name in models.list_models(models)}
    assert files == SMALLEST.keys() == {*FAMILIES, "densenet", "swin_transformer"}


def test_layers_with_probability_0_are_not_seeded():
    with torch.device("meta"):
        model = build_model(ModelConfig(arch="vit_b_16"), shape=(3, 32, 32), classes=10)
    assert hooked(model, user_defined=False) == set()
    model.encoder.layers[3].self_attention.dropout = model.encoder.layers[5].mlp[2].p = 0.1
    names = {"encoder.layers.encoder_layer_3.self_attention", "encoder.layers.encoder_layer_5.mlp.2"}
    assert hooked(model, user_defined=False) == names


def test_recurrent_layers_with_dropout_are_seeded():
    model = torch.nn.ModuleList(torch.nn.GRU(3, 3, 2, dropout=probability) for probability in (0.0, 0.5))
    assert hooked(model, user_defined=True) == {"1"}


@pytest.mark.parametrize(
    ("arch", "expected"),
    [
        ("mlp", set()),
        ("mnist-cnn", {"dropout1", "dropout2"}),
        ("resnet18", set()),
        ("squeezenet1_1", {"classifier.0"}),
        (
            "toy_model:build",  # user-defined: its own code may draw anywhere
            {"", *(f"blocks.{number}{part}" for number in (0, 1, 3) for part in ("", ".depth")), "blocks.2", "head.0"},
        ),
    ],
)
def test_only_modules_that_may_draw_are_seeded(arch, expected):
    settings = Settings(model=ModelConfig(arch=arch))
    learner = new_learner(settings, Alone(CPU), shape=(3, 32, 32), classes=10, samples_per_epoch=1)
    assert {name for name, module in learner.model.named_modules() if module._forward_pre_hooks} == expected
