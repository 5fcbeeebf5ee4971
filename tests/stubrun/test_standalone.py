"""``jobgen render --standalone``: a single file with the library inside works like a script beside its library."""

import re

import pytest

from jobgen.render.files import job_of
from jobgen.render.script import render
from stubs import DONE, JOIN, OUT_OF_TIME, ROOT, launches_of, payload_of

NAMES = {
    "ddp.job": ("ddp", "example"),
    "horovod-gloo.job": ("horovod-gloo", "example"),
    "horovod.job": ("horovod", "example"),
    "ddp.pbs": ("ddp", "pbs"),
    "ddp.sh": ("ddp-local", "laptop"),
}


@pytest.fixture
def standalone(project, monkeypatch):
    """Return a function that writes such a script into the project, where there is no library."""

    def standalone(name):
        path = project.folder / name
        monkeypatch.chdir(ROOT)
        path.write_text(render(job_of(*NAMES[name], []), path=name, standalone=True), encoding="utf-8")
        path.chmod(0o755)
        return path

    return standalone


@pytest.mark.parametrize("name", NAMES)
def test_standalone_script_trains_without_library(project, standalone, name):
    script = standalone(name)
    assert "source " not in [line.lstrip()[:7] for line in script.read_text().splitlines()]
    ended = project.run(script, "--epochs", "a b", **DONE)
    assert (ended.code, ended.notes) == (0, [])
    assert payload_of(ended)[-2:] == ["--epochs", "a b"]
    helpers = {path.name for path in (ended.run_dir / "lib").glob("[!._]*")}
    by_path = re.compile(r'(?:(?:bash|sh|python3) "\$lib/|(?:run_for_answer|start_server) \d+ )([\w.]+)')
    run_by_path = {
        name
        for path in (ROOT / "jobscripts" / "lib").iterdir()
        if path.is_file()
        for name in by_path.findall(path.read_text(encoding="utf-8"))
    }
    assert {"free_port.py", "stage.bash"} <= run_by_path
    assert {*run_by_path, "name_rank.sh", "rank_loop.bash", "podman_run.bash", "podman_init.sh"} <= helpers
    for path in (ended.run_dir / "lib").glob("[!._]*"):
        assert path.read_bytes() == (ROOT / "jobscripts" / "lib" / path.name).read_bytes()


# regression: realpath printed an error about the library's folder, which does not exist
def test_standalone_script_accepts_trusted_folder(project, standalone):
    ended = project.run(standalone("ddp.job"), SLIPWAY_TRUSTED_FOLDER=str(project.folder), **DONE)
    assert (ended.code, ended.notes) == (0, [])


@pytest.mark.parametrize("name", ["ddp.job", "ddp.pbs"])
def test_standalone_run_continues_in_next_job(project, standalone, name):
    script = standalone(name)
    first = project.run(script, SLIPWAY_DATA="my data", USE_CONTAINER="0", **OUT_OF_TIME)
    assert first.code == 75
    script.unlink()
    later = {"SLIPWAY_RUN_DIR": None, "USE_CONTAINER": None, "SLURM_JOB_ID": "4800", "PBS_JOBID": "4800.head"}
    second = project.run(first.run_dir / "job.sh", cwd=project.spool, **later, STUB_CODE="3")
    assert (second.code, second.env["TRAINER_ATTEMPT"]) == (3, "2")
    assert second.env["DATA"] == str(project.folder / "my data")
    assert second.of("apptainer") == []


def test_standalone_script_finds_staging_and_horovod_helpers(project, standalone):
    ended = project.run(standalone("ddp.job"), SLIPWAY_STAGE="1", BACKEND="horovod", **DONE)
    assert (ended.code, ended.env["HOROVOD_SIZE"]) == (0, "4")
    assert list((project.folder / "disk").iterdir()) == []
    own = project.run(standalone("ddp.job"), SLIPWAY_SCRIPT="my train.py", SLIPWAY_DEVICE="cpu", STUB_ON_TRAIN=JOIN)
    assert (own.code, own.notes) == (0, [])
    assert launches_of(own) == []
