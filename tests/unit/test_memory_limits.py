"""Messages about memory limits after a process was killed."""

import re

import pytest

from slipway.base.memory_limits import describe_memory, describe_shared_memory

GIB = 1 << 30


@pytest.fixture
def root(tmp_path):
    """Return a root folder with /dev/shm, 3 GiB of available memory, and no control group."""
    for name in ("proc/self", "sys/fs/cgroup"):
        (tmp_path / name).mkdir(parents=True)
    write(tmp_path / "proc/meminfo", f"MemTotal: 99 kB\nMemAvailable:  {3 * GIB // 1024} kB\n")
    return tmp_path


def numbers(text):
    return [int(number) for number in re.findall(r"(?<!\S)\d+", text)]


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_machine_memory_is_reported_without_cgroup(root):
    (said,) = describe_memory(root)
    assert "machine" in said
    assert numbers(said) == [3072]


def test_size_of_dev_shm_is_reported():
    (said,) = describe_shared_memory()
    assert re.search(r" /dev/shm\b.* [\d.]+ .*[\d.]+ MiB\b", said)


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_nearest_cgroup_with_limit_is_reported(root, depth):
    write(root / "proc/self/cgroup", "0::/job/step/task\n")
    groups = [root / "sys/fs/cgroup" / name for name in ("job/step/task", "job/step", "job")]
    for number, group in enumerate(groups):
        write(group / "memory.max", f"{GIB}\n" if number >= depth else "max\n")
        write(group / "memory.current", "1048576\n")
        write(group / "memory.peak", f"{GIB - 1}\n")
        write(group / "memory.events", "low 0\nhigh 0\nmax 4\noom 1\noom_kill 2\n")
    said = describe_memory(root)[0]
    assert f" {groups[depth].name} " in said
    assert numbers(said) == [1024, 1023, 2]  # the limit, the peak, killed processes


def test_cgroup_v1_limit_is_reported(root):
    write(root / "proc/self/cgroup", "5:cpu,cpuacct:/\n4:memory:/slurm/job_7\n0::/\n")
    group = root / "sys/fs/cgroup/memory/slurm/job_7"
    write(group / "memory.limit_in_bytes", f"{2 * GIB}\n")
    write(group / "memory.max_usage_in_bytes", f"{GIB}\n")
    write(group / "memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n")
    said = describe_memory(root)[0]
    assert " job_7 " in said
    assert numbers(said) == [2048, 1024]
    write(group / "memory.limit_in_bytes", "9223372036854771712\n")
    assert len(describe_memory(root)) == 1, "not a limit"


def test_unreadable_memory_files_are_omitted(tmp_path):
    assert describe_memory(tmp_path) == []
