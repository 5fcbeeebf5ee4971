"""Resume of sharded models that use more of FSDP: LoRA, CPU offload, compiled blocks, bf16, accumulation and others."""

import json
import shutil

import pytest

from session_runs import finish, saved_step

FAST = ["lora offload compile accumulate", "tied"]
OTHERS = [
    "lora",
    "offload",
    "compile",
    "checkpoint-wrapper",
    "bf16",
    "accumulate",
    "compile-sharded",
    "compile-wrapper",
    "checkpoint",
    "accumulate-reduced",
]
OTHERS += ["bf16 checkpoint-wrapper compile-sharded tied accumulate-reduced"]


def states(folder):
    return [json.loads(line) for line in folder.with_name(f"{folder.name}.states").read_text().splitlines()]


@pytest.mark.parametrize("features", [*FAST, *(pytest.param(each, marks=pytest.mark.prove) for each in OTHERS)])
def test_resumed_run_is_exact(features, tmp_path):
    folder, elsewhere, words = tmp_path / "run", tmp_path / "elsewhere", features.split()
    finish("sharded_features", 2, [*words, "--whole", "--stop-at", "1"], folder)
    stop, whole, stopped = saved_step(folder), states(tmp_path / "run.whole"), states(folder)
    shutil.copytree(folder, elsewhere, symlinks=True)
    assert 1 <= stop < whole[-1][1]  # within the epoch
    assert stopped == whole[: stop + 1]
    assert len({digest for _, _, digest in whole}) == len(whole)
    opened = ["opened", stop, stopped[-1][2]]

    finish("sharded_features", 2, words, folder)
    assert states(folder) == [*stopped, opened, *whole[stop + 1 :]]

    finish("sharded_features", 3, words, elsewhere)
    first, *after = states(elsewhere)
    assert first == opened
    assert [step for _, step, _ in after] == [*range(stop + 1, saved_step(elsewhere) + 1)] != []
