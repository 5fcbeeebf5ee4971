"""The usage line at the end of a script (for each script: test_scripts.py), with stubs of its GPUs."""

import re
import shutil
import subprocess

import pytest

from messages import messages
from stubs import DONE, JOIN, OUT_OF_TIME, ROOT, USED, changed_library

ENDS = [
    (DONE, 0),
    (OUT_OF_TIME, 75),
    ({"STUB_VERDICT": "stopped 9 user"}, 75),
    ({"STUB_VERDICT": "failed 9 diverged: the loss"}, 1),
    ({"STUB_CODE": "9"}, 9),
    ({"SLIPWAY_SCRIPT": "my train.py", "STUB_ON_TRAIN": JOIN, "STUB_CODE": "3"}, 3),
]


@pytest.mark.parametrize(("script", "env", "code"), [*(("ddp.job", *end) for end in ENDS), ("ddp.pbs", *ENDS[1])])
def test_usage_line_is_printed_once_before_final_message(project, script, env, code):
    ended = project.run(script, **env)
    assert ended.code == code
    assert len(USED.findall(ended.err)) == 1
    last = [line for line in ended.err.splitlines() if messages(line) or "job.sh" in line]
    assert (code in {0, 3, 9}) or last
    assert all(ended.err.index(USED.search(ended.err)[0]) < ended.err.index(line) for line in last)


@pytest.mark.parametrize("env", [{"STUB_PREFLIGHT": "78"}, {"SLIPWAY_DATA": "missing"}, {"STUB_ON_GETENT": "exit 2"}])
def test_no_usage_line_if_no_rank_started(project, env):
    ended = project.run("ddp.job", **env)
    assert (ended.code, USED.findall(ended.err)) == (78, [])
    assert list(project.folder.rglob("account.json")) == []


@pytest.fixture
def drivers(tmp_path):
    """Return a folder with stubs of libcuda and NVML for two GPUs."""
    compiler = shutil.which("cc") or pytest.skip("needs cc")
    for name in ("libcuda", "libnvidia-ml"):
        source = ROOT / "tests" / "unit" / f"{name}.c"
        subprocess.check_call([compiler, "-shared", "-fPIC", "-o", tmp_path / f"{name}.so.1", source])
    return tmp_path


@pytest.mark.parametrize("script", ["ddp.sh", "ddp.job", "horovod-srun.job", "ddp.pbs"])
def test_gpu_usage_is_sampled_while_ranks_run(project, drivers, script):
    """From the launch in the script, through the container's command line, to the usage line."""
    library = changed_library(project, "gpu_usage.py", "INTERVAL = 10.0", "INTERVAL = 0.2")
    seen = 'n=0; until ls "$RUN_DIR/logs/1/"gpus.* >/dev/null 2>&1 || [ $((n += 1)) = 200 ]; do sleep 0.05; done'
    ended = project.run(
        script,
        SLIPWAY_LIB=str(library),
        LD_LIBRARY_PATH=str(drivers),
        STANDIN_GPUS="1",
        STANDIN_CUDA="12020 80 80",
        STANDIN_TORCH="12.8",
        STANDIN_NVML="0000:01:00.0 80 1024 81559 0;0000:02:00.0 90 31744 81559 0;",
        SLIPWAY_RANKS_PER_NODE="2",
        STUB_LOCAL_RANK="0",
        STUB_ON_TRAIN=f"{seen}; sleep 0.5",
        **DONE,
    )
    assert ended.code == 0, ended
    [line] = USED.findall(ended.err)
    count = "" if script == "ddp.sh" else r" \(2 of 4 .*\)"  # the stubs start one node
    assert re.search(rf" x 2 GPUs x \d+ s = \d\.\d+ GPU-hours; .*85 %.*31 of 80 GiB.*{count}$", line), line
    assert project.started[-1].left() == {}
