"""docs/reference/site.md lists all fields of a site with their defaults."""

import os
import re
import shlex
import subprocess
import textwrap
from pathlib import Path

import msgspec
import pytest

from jobgen.base.job import Site
from jobgen.cli import main

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "reference" / "site.md").read_text(encoding="utf-8")
EPILOGUE = (ROOT / "docs" / "howto" / "epilogue.md").read_text(encoding="utf-8")
TABLE = PAGE.partition("## Fields\n")[2].partition("\n## ")[0]
ROWS = {
    cells[0].strip("`"): cells[1:] for cells in re.findall(r"(?m)^\| (`\w+`) \| (.*?) \| (.*?) \| (.*?) \|$", TABLE)
}
"""Default, meaning, and how to find it, for each field."""
FIELDS = {field.name: field for field in msgspec.structs.fields(Site)}
BY_SCHEDULER = {"launcher", "resume"}
"""Fields whose default depends on the scheduler."""


SIXTY = "--set nodes=5 --set ranks_per_node=12 --set cpus_per_gpu=1"


def test_documented_site_fields_match_code_in_order():
    assert list(ROWS) == list(FIELDS)


def test_documented_defaults_match_the_code():
    for name, field in FIELDS.items():
        default = field.default if field.default is not msgspec.NODEFAULT else None
        if field.default_factory is not msgspec.NODEFAULT:
            default = field.default_factory()
        expected = "required" if default is None else "none" if default in ("", (), {}) else str(default)
        expected = "by scheduler" if name in BY_SCHEDULER else expected
        assert ROWS[name][0].strip("`") == expected, name


def test_every_choice_of_site_field_is_documented():
    for name, field in FIELDS.items():
        for choice in getattr(field.type, "__args__", ()):
            if isinstance(choice, str) and choice:
                assert f"`{choice}`" in " ".join(ROWS[name]), (
                    f"docs/reference/site.md does not explain {name} = {choice!r}"
                )


@pytest.mark.parametrize(
    ("example", "site", "expected"),
    [
        (SIXTY, "example", ["--nodes=5 ", "--cpus-per-task=12 ", "RANKS_PER_NODE:=12}"]),
        (SIXTY, "pbs", ["select=5:ncpus=12:mpiprocs=12:ompthreads=1 "]),
        ("--set name=digits", "example", ["--job-name=digits ", "$SLIPWAY_OUTPUT/digits-$job_id"]),
        ("--set name=digits", "pbs", ["#PBS -N digits "]),
        ("--set mem=480G", "example", ["#SBATCH --mem=491520M "]),
        ("--set mem=480G", "pbs", [":mem=491520mb:mpiprocs="]),
        ("--set ranks_per_node=1", "example", ["#SBATCH --gpus-per-node=1 "]),
        ("--set options.partition=v100 --set options.gpus=1", "example", ["--partition=v100 ", "--gpus=1 "]),
    ],
)
def test_documented_set_examples_render_expected_directives(capsys, monkeypatch, example, site, expected):
    monkeypatch.chdir(ROOT)
    assert f"{example}`" in PAGE or f"{example} --dry-run`" in PAGE
    specs = ("venv_build", "image_build") if "gpus" in example else ("ddp",) if example.endswith("=1") else ("cpu",)
    for spec in specs if example != SIXTY else ("cpu",):
        assert main(["render", spec, "--site", site, *shlex.split(example)]) == 0
        text = capsys.readouterr().out
        assert [part for part in expected if part not in text] == []


def test_documented_epilog_removes_only_folders_of_its_job(tmp_path):
    lines = re.search(r"    ```bash\n(.*?)    ```", EPILOGUE, flags=re.DOTALL)[1]
    disk, other = tmp_path / "disk", tmp_path / "other"
    for name in ("slipway-12.aa", "slipway-12.bb", "slipway-123.aa", "slipway-1.aa", "mine"):
        (disk / name / "torchrun").mkdir(parents=True)
    other.mkdir()
    (other / "kept").touch()
    (disk / "slipway-12.link").symlink_to(other)
    (tmp_path / "epilog").write_text(re.sub(r"disk=/tmp.*", f"disk='{disk}'", textwrap.dedent(lines)))
    user = str(os.getuid())
    for job, uid in (("12", "65534"), ("12", ""), ("12", "$(id)"), ("", user), ("1*", user), ("$(id)", user)):
        subprocess.run(["bash", tmp_path / "epilog"], env={"SLURM_JOB_ID": job, "SLURM_JOB_UID": uid}, check=True)
        assert len(list(disk.iterdir())) == 6
    subprocess.run(["bash", tmp_path / "epilog"], env={"SLURM_JOB_ID": "12", "SLURM_JOB_UID": user}, check=True)
    assert sorted(path.name for path in disk.iterdir()) == ["mine", "slipway-1.aa", "slipway-123.aa"]
    assert (other / "kept").exists()
