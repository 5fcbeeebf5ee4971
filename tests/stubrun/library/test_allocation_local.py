"""Resources of a job on this machine: cores, and GPUs as torch counts them."""

import os
import shlex

import pytest

from bash_library import ANSWER, assert_dies


def test_find_allocation_of_this_machine(bash):
    show = 'find_allocation; echo "${nodes[@]} $nnodes $gpus_per_node $cpus"; ((first_port < 30000))'
    assert bash(show, scheduler="local") == (0, f"127.0.0.1 1 1 {len(os.sched_getaffinity(0))}\n", "")


@pytest.mark.parametrize(
    ("settings", "counted", "plan"),
    [
        ("", "0 no GPU", "0 2 2 1"),
        ("", "1 torch", "1 1 1 1"),
        ("", "8 torch", "8 8 8 1"),
        ("SLIPWAY_DEVICE=cpu", "8 torch", "0 2 2 1"),
        ("SLIPWAY_DEVICE=cuda", "8 torch", "8 8 8 1"),
        ("SLIPWAY_DEVICE=cuda", "0 no GPU", ""),
        ("SLIPWAY_RANKS_PER_NODE=3", "8 torch", "3 3 3 1"),
        ("SLIPWAY_RANKS_PER_NODE=3", "0 no GPU", "0 3 3 1"),
        ("SLIPWAY_RANKS_PER_NODE=3", "2 torch", ""),
        ("SLIPWAY_DEVICES_PER_RANK=3", "8 torch", "6 2 2 3"),
        ("SLIPWAY_DEVICES_PER_RANK=3", "2 torch", ""),
        ("SLIPWAY_DEVICES_PER_RANK=3", "0 no GPU", "0 2 2 3"),
        ("SLIPWAY_RANKS_PER_NODE=4 SLIPWAY_DEVICES_PER_RANK=3", "8 torch", ""),
        ("BACKEND=single", "8 torch", "1 1 1 1"),
        ("BACKEND=single SLIPWAY_DEVICES_PER_RANK=2", "8 torch", "2 1 1 2"),
        ("BACKEND=single", "0 no GPU", "0 1 1 1"),
        ("", "0 no\nGPU", "0 2 2 1"),  # as a one-line error
        ("", "x torch", ""),
        ("", "nodes[$(id)] torch", ""),
        ("", "2", ""),
    ],
)
def test_count_ranks_of_this_machine(bash, stub, settings, counted, plan):
    words = shlex.join(counted.split(" ", 1))
    stub("python3", ANSWER + f'echo an image says hello; answer "$2" {words}; echo 7')
    show = f"nnodes=1 USE_CONTAINER=0 SLIPWAY_DEVICE=auto {settings}; count_ranks; "
    show += 'echo "$gpus_per_node $ranks_per_node $world_size $devices_per_rank"'
    code, out, err = bash(show, scheduler="local", PYTHONPATH="/somewhere")
    said = [line for line in out.splitlines() if line not in {"an image says hello", "7"}]
    assert (code, said) == ((0, [plan]) if plan else (78, [])), err
    assert len(err.splitlines()) == 1


def test_failed_gpu_count_ends_job_with_broken_gpu_error(bash, stub):
    stub("python3", ANSWER + 'answer "$2" 2 torch; echo why >&2; exit 78')
    counted = bash("USE_CONTAINER=0; count_gpus", scheduler="local")
    assert_dies(counted, "broken-gpu", "SLIPWAY_DEVICE=cpu", lines=2)
