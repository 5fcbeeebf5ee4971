"""Models by name, for images of any size and any number of classes, and initial weights."""

import pickle
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn
from torchvision.models import get_model

from messages import refused
from trainer.config.settings import ModelConfig
from trainer.model import SMALL, build_model
from trainer.model.torchvision_models import torchvision_builders


def built(arch, shape, classes=10, weights=""):
    return build_model(ModelConfig(arch=arch, weights=str(weights)), shape=shape, classes=classes)


def refuse(path, *values):
    """Assert that weights of ``path`` are refused with a one-line error that names it and ``values``."""
    with refused("bad-weights", f"--weights {path} ", *values) as error:
        built("mlp", (1, 8, 8), weights=path)
    assert "\n" not in str(error.value)


def differing(model, state):
    """Return the names of the tensors of ``model`` that differ from ``state``."""
    return [name for name, value in model.state_dict().items() if not torch.equal(value, state[name])]


def require_trainable(model, shape, classes):
    """Assert that ``model`` maps two images to logits and that each parameter gets a gradient."""
    assert model.training
    logits = model(torch.randn(2, *shape))
    assert logits.shape == (2, classes)
    logits.logsumexp(1).sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name


class TestSmallModels:
    @pytest.mark.parametrize("arch", SMALL)
    @pytest.mark.parametrize(
        ("shape", "classes"), [((1, 8, 8), 10), ((3, 6, 6), 2), ((1, 28, 28), 47), ((4, 9, 17), 3)]
    )
    def test_small_models_accept_any_image_shape_and_class_count(self, arch, shape, classes):
        require_trainable(built(arch, shape, classes), shape, classes)

    def test_mnist_cnn_matches_pytorch_example(self):
        model = built("mnist-cnn", (1, 28, 28))
        layers = "conv1 conv2 dropout1 dropout2 fc1 fc2"
        assert [name for name, _ in model.named_children()] == layers.split()
        assert sum(parameter.numel() for parameter in model.parameters()) == 1_199_882
        assert model.fc1.in_features == 9216
        assert (model.dropout1.p, model.dropout2.p) == (0.25, 0.5)
        images = torch.randn(2, 1, 28, 28)
        hidden = F.max_pool2d(F.relu(model.conv2(F.relu(model.conv1(images)))), 2).flatten(1)
        assert torch.equal(model.eval()(images), model.fc2(F.relu(model.fc1(hidden))))

    def test_mlp_layer_sizes_are_512_128_64_32(self):
        linear = [layer for layer in built("mlp", (3, 10, 10), 7) if isinstance(layer, nn.Linear)]
        assert [layer.in_features for layer in linear] == [300, 512, 128, 64, 32]
        assert linear[-1].out_features == 7

    @pytest.mark.parametrize("shape", [(1, 5, 8), (1, 8, 5)])
    def test_images_too_small_for_mnist_cnn_are_refused(self, shape):
        with refused("image-size", "mnist-cnn", " 6 ", "mlp"):
            built("mnist-cnn", shape)


class TestTorchvisionModels:
    @pytest.mark.parametrize(
        "arch",
        [
            "resnet18",
            "mobilenet_v3_small",
            pytest.param("densenet121", marks=pytest.mark.slow),
            pytest.param("googlenet", marks=pytest.mark.slow),
        ],
    )
    @pytest.mark.parametrize(("shape", "classes"), [((1, 8, 8), 10), ((3, 32, 32), 7)])
    def test_torchvision_models_train_on_small_images(self, arch, shape, classes):
        require_trainable(built(arch, shape, classes), shape, classes)

    @pytest.mark.parametrize(
        ("arch", "shape", "classes"), [("vit_b_16", (1, 16, 16), 10), ("vit_b_32", (3, 32, 32), 3)]
    )
    def test_vit_accepts_images_divisible_by_patch_size(self, arch, shape, classes):
        require_trainable(built(arch, shape, classes), shape, classes)

    def test_resnet_stem_keeps_resolution_of_small_images(self):
        small, large = (dict(built("resnet18", (1, edge, edge)).named_modules()) for edge in (32, 64))
        assert (small["conv1"].stride, small["conv1"].kernel_size, small["conv1"].in_channels) == ((1, 1), (3, 3), 1)
        assert isinstance(small["maxpool"], nn.Identity)
        assert (large["conv1"].stride, large["conv1"].kernel_size, large["conv1"].in_channels) == ((2, 2), (7, 7), 1)
        assert isinstance(large["maxpool"], nn.MaxPool2d)

    def test_model_for_large_rgb_images_equals_torchvision(self):
        ours = built("resnet18", (3, 64, 64), 1000)
        theirs = torchvision_builders()["resnet18"]((3, 224, 224), 1000)
        assert str(ours) == str(theirs)
        assert sum(parameter.numel() for parameter in ours.parameters()) == 11_689_512

    @pytest.mark.parametrize(
        ("arch", "shape", "reason"),
        [
            ("vit_b_16", (1, 8, 8), "patch size"),
            ("vit_b_16", (3, 32, 48), "square"),
            ("alexnet", (1, 8, 8), "too small"),
            ("inception_v3", (3, 64, 64), "Kernel size"),
            ("maxvit_t", (3, 32, 32), "invalid for input"),
        ],
    )
    def test_unsupported_image_size_is_refused_before_training(self, arch, shape, reason):
        with refused("image-size", f"{arch} ", f" {shape[1]} ", f" {shape[2]}") as error:
            built(arch, shape)
        assert reason in str(error.value)
        assert "\n" not in str(error.value)

    @pytest.mark.parametrize(
        ("arch", "nearest"), [("resnet81", "resnet18"), ("mnist_cnn", "mnist-cnn"), ("vit_b16", "vit_b_16")]
    )
    def test_unknown_arch_is_refused_and_nearest_suggested(self, arch, nearest):
        with refused("unknown-name", f"'{arch}'", f"'{nearest}'", "mlp", "resnet50"):
            built(arch, (1, 8, 8))

    def test_only_torchvision_classifiers_are_available(self):
        names = torchvision_builders()
        assert len(names) >= 80
        assert not {"fcn_resnet50", "fasterrcnn_resnet50_fpn", "raft_small"} & set(names)


class TestWeights:
    SHAPE = (1, 8, 8)

    @pytest.fixture(params=[".safetensors", ".pt"])
    def saved(self, tmp_path, request):
        """Return a function that saves a state dict in either file format."""

        def save(state):
            path = tmp_path / f"weights{request.param}"
            if request.param == ".pt":
                torch.save(state, path)
            else:
                save_file(state, path)
            return path

        return save

    @pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.", "module._orig_mod."])
    @pytest.mark.parametrize(("classes", "new"), [(10, []), (3, ["9.weight", "9.bias"])])
    def test_weights_load_with_any_wrapper_prefix_and_class_count(self, saved, prefix, classes, new):
        state = built("mlp", self.SHAPE, 10).state_dict()
        path = saved({f"{prefix}{name}": value for name, value in state.items()})
        assert differing(built("mlp", self.SHAPE, classes, weights=path), state) == new

    def test_weights_load_from_nested_model_state_dict(self, tmp_path):
        state = built("mlp", self.SHAPE).state_dict()
        nested = {f"module.{name}": value for name, value in state.items()}
        torch.save({"epoch": 3, "model_state_dict": nested}, tmp_path / "weights.pt")
        assert differing(built("mlp", self.SHAPE, weights=tmp_path / "weights.pt"), state) == []

    @pytest.mark.parametrize("arch", ["resnet18", "mobilenet_v3_small"])
    def test_only_last_layer_is_reinitialized_for_other_class_count(self, saved, arch):
        state = built(arch, self.SHAPE, 10).state_dict()
        model = built(arch, self.SHAPE, 3, weights=saved(state))
        assert [name.rpartition(".")[2] for name in differing(model, state)] == ["weight", "bias"]

    def test_torchvision_weights_load_for_64_pixel_images(self, tmp_path):
        state = get_model("resnet101").state_dict()
        torch.save(state, tmp_path / "resnet101.pt")
        model = built("resnet101", (3, 64, 64), 21, weights=tmp_path / "resnet101.pt")
        assert differing(model, state) == ["fc.weight", "fc.bias"]

    def test_mismatched_tensors_are_listed(self, saved):
        state = built("mlp", self.SHAPE).state_dict()
        state |= {"3.weight": torch.zeros(2, 2), "stranger": torch.zeros(1)}
        del state["5.bias"]
        refuse(saved(state), " 3 ", "3.weight, 5.bias, stranger")

    def test_weights_of_other_model_are_refused(self, saved):
        refuse(saved(built("mnist-cnn", self.SHAPE).state_dict()), " 18 ", "1.weight")

    def test_pickled_object_in_weights_is_refused_and_not_executed(self, tmp_path):
        path, trace = tmp_path / "weights.pt", tmp_path / "executed"
        torch.save({"weight": Trap(trace)}, path)
        refuse(path, "Weights only load failed")
        assert not trace.exists()

    @pytest.mark.parametrize("content", [[torch.zeros(1)], {"epoch": 3}, {"model": {"weight": 3}}])
    def test_weights_file_without_state_dict_is_refused(self, tmp_path, content):
        torch.save(content, tmp_path / "weights.pt")
        refuse(tmp_path / "weights.pt", "state_dict")

    @pytest.mark.parametrize("name", ["weights.pt", "weights.safetensors"])
    def test_missing_weights_file_is_refused(self, tmp_path, name):
        refuse(tmp_path / name, "o such file")

    @pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
    @pytest.mark.parametrize(
        "data", [b"", b"\x80", b"\x80\x02.", b"PK\x03\x04", b"no weights", b"\x80\x02X\x01\0\0\0\xff."]
    )
    def test_corrupt_weights_file_is_refused(self, tmp_path, suffix, data):
        (tmp_path / f"weights{suffix}").write_bytes(data)
        refuse(tmp_path / f"weights{suffix}")


class Trap:
    """Creates a file if it is unpickled without safety."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


def test_unsafe_unpickling_executes_trap(tmp_path):
    pickle.loads(pickle.dumps(Trap(tmp_path / "executed"))).close()  # noqa: S301 -- that is the point
    assert (tmp_path / "executed").exists()


def test_torchvision_imports_in_isolated_python():
    """Its wheel may be built for CUDA although torch is not: containers/install/torchvision_on_cpu.py."""
    code = "import torchvision; torchvision.models.resnet18(); print(torchvision.ops.box_iou.__name__)"
    assert subprocess.check_output([sys.executable, "-I", "-c", code], text=True) == "box_iou\n"
