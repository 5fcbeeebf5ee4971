"""Devices of a rank and of its pipeline stages."""

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch

from messages import refused
from slipway.base.environment import Launcher, read_environment
from trainer.config.settings import Launch, ModelConfig, Settings
from trainer.parallel import ddp, device
from trainer.parallel.device import pick_device, ranks_for_gpus, require_gpus, stage_devices
from trainer.parallel.strategy import torch_backend


@pytest.fixture
def gpus(monkeypatch):
    """Make torch report this number of GPUs."""

    def see(count):
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
        monkeypatch.setattr(device, "check_gpus", lambda: None)

    return see


def settings(split=None, **launch):
    return Settings(model=ModelConfig(split=split), launch=Launch(**launch))


@pytest.mark.parametrize(
    ("count", "split", "launch", "local_rank", "launcher", "expected"),
    [
        (4, None, {}, 3, Launcher.TORCHRUN, [3]),
        (1, None, {}, 0, Launcher.TORCHRUN, [0]),
        (1, None, {}, 3, Launcher.OTHER, [0]),  # bound to its task
        (4, "b", {}, 1, Launcher.TORCHRUN, [2, 3]),
        (2, "b", {}, 1, Launcher.OTHER, [0, 1]),  # likewise
        (8, "b", {"devices_per_rank": 4}, 1, Launcher.TORCHRUN, [4, 6]),
        (4, "b,c,d", {"devices_per_rank": 2}, 1, Launcher.TORCHRUN, [2, 2, 3, 3]),
        (4, None, {"devices_per_rank": 2}, 1, Launcher.TORCHRUN, [2]),
    ],
)
def test_rank_gets_consecutive_devices_for_its_stages(  # noqa: PLR0917 -- parameters of a test
    gpus, count, split, launch, local_rank, launcher, expected
):
    gpus(count)
    mine = settings(split, **launch)
    first = pick_device(mine, local_rank, launcher)
    assert [found.index for found in stage_devices(mine, first)] == expected


@pytest.mark.parametrize("launcher", [{}, {"TORCHELASTIC_RUN_ID": "x"}])
def test_rank_joins_with_gpu_of_its_local_rank(gpus, monkeypatch, launcher):
    gpus(2)
    joined = []
    monkeypatch.setattr(ddp, "open_default_group", lambda world, gpu, **_: joined.append((world.rank, str(gpu))))
    second_node = {"WORLD_SIZE": "4", "MASTER_ADDR": "a", "MASTER_PORT": "1", **launcher}
    for rank, local_rank in ((2, 0), (3, 1)):
        environment = read_environment({**second_node, "RANK": str(rank), "LOCAL_RANK": str(local_rank)})
        ddp.DDPStrategy(settings()).join(environment, nullcontext())
    assert joined == [(2, "cuda:0"), (3, "cuda:1")]


@pytest.mark.parametrize(
    ("count", "split", "launch", "slug", "values"),
    [
        (1, None, {}, "too-few-gpus", [" 1 "]),
        (3, "b", {}, "too-few-gpus", [" 1 ", " 2 ", " 3"]),
        (2, "b", {"stage_devices": "cuda:0"}, "bad-stage-devices", [" 1 ", " 2 "]),
        (2, "b", {"stage_devices": "cuda:0,cuda:2"}, "bad-stage-devices", [" 2 ", " cuda:2."]),
        (2, "b", {"stage_devices": "cuda:0,gpu1"}, "bad-stage-devices", ["'gpu1'", "cpu", "cuda:0"]),
        (2, "b", {"stage_devices": "cuda:0,cuda"}, "bad-stage-devices", ["'cuda'", "cpu", "cuda:0"]),
        (2, "b", {"stage_devices": "cuda:0,cuda:1", "device": "cpu"}, "bad-stage-devices", [" 0 ", " cuda:0."]),
        (0, "b", {"device": "cuda"}, "no-gpu", ["--device cuda"]),
    ],
)
def test_too_few_or_invalid_devices_are_refused(gpus, count, split, launch, slug, values):  # noqa: PLR0917 -- parameters of a test
    gpus(count)
    if named := launch.get("stage_devices"):
        values = [*values, f"--stage-devices {named}"]
    with refused(slug, *values):
        pick_device(settings(split, **launch), 1, Launcher.TORCHRUN)
    with refused(slug, *values):
        require_gpus(settings(split, **launch), 2)


@pytest.mark.parametrize(
    ("count", "split", "launch", "ranks"),
    [
        (2, None, {}, 2),
        (5, None, {"devices_per_rank": 2}, 2),
        (0, None, {}, 8),
        (1, None, {"device": "cpu"}, 8),
        (1, "b", {"stage_devices": "cpu,cuda:0"}, 8),
    ],
)
def test_sufficient_devices_are_accepted(gpus, count, split, launch, ranks):
    gpus(count)
    require_gpus(settings(split, **launch), ranks)


@pytest.mark.parametrize("amp", ["bf16", "fp16"])
def test_amp_with_gpu_and_cpu_stages_is_refused(gpus, amp):
    gpus(1)
    mine = settings("b", stage_devices="cuda:0,cpu")
    mine = replace(mine, train=replace(mine.train, amp=amp))
    with refused("conflicting-settings", f"--amp {amp}", "--stage-devices cuda:0,cpu", "--amp none"):
        pick_device(mine, 0, Launcher.OTHER)
    pick_device(replace(mine, launch=Launch(stage_devices="cuda:0,cuda:0")), 0, Launcher.OTHER)


def test_stage_devices_option_assigns_stages(gpus):
    gpus(2)
    mine = settings("b", stage_devices="cuda:1,cpu")
    first = pick_device(mine, 0, Launcher.OTHER)
    assert list(map(str, (first, *stage_devices(mine, first)))) == ["cuda:1", "cuda:1", "cpu"]
    on_cpu = replace(mine, launch=Launch(device="cpu"))
    assert stage_devices(on_cpu, pick_device(on_cpu, 0, Launcher.OTHER)) == [torch.device("cpu")] * 2


@pytest.mark.parametrize(
    ("count", "split", "launch", "ranks"),
    [
        (4, None, {}, 4),
        (4, "b", {}, 2),
        (5, None, {"devices_per_rank": 2}, 2),
    ],
)
def test_number_of_ranks_follows_number_of_gpus(gpus, count, split, launch, ranks):
    gpus(count)
    assert ranks_for_gpus(settings(split, **launch)) == ranks


@pytest.mark.parametrize(
    ("count", "split", "launch", "values"),
    [
        (0, None, {}, [" 0 "]),
        (4, None, {"device": "cpu"}, [" 0 "]),
        (1, "b", {}, [" 2 GPUs", " 1 "]),
    ],
)
def test_automatic_number_of_ranks_without_gpus_is_refused(gpus, count, split, launch, values):
    gpus(count)
    with refused("no-gpu", "--nproc-per-node 2", *values):
        ranks_for_gpus(settings(split, **launch))


@pytest.mark.parametrize(
    ("device", "chosen", "backend"),
    [("cuda:1", "auto", "nccl"), ("cpu", "auto", "gloo"), ("cuda", "gloo", "gloo"), ("cpu", "mpi", "mpi")],
)
def test_torch_backend_is_nccl_on_gpu_and_gloo_on_cpu(device, chosen, backend):
    assert torch_backend(chosen, torch.device(device)) == backend
