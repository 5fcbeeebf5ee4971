"""Expected texts of some scripts, so that reviews show template changes; all spec and site pairs against rules.

The committed scripts are compared with the output of the commands in their headers.

`SLIPWAY_WRITE_GOLDEN=1 pytest tests/golden` rewrites the expected texts.
"""

import os
import re
import subprocess
from pathlib import Path

import pytest

from jobgen.base.errors import JobgenError
from jobgen.cli import main
from jobgen.render.files import job_of, stale_scripts
from jobgen.render.header import origin_of
from jobgen.render.script import render, render_shell
from jobgen.render.standalone import with_library
from jobgen.render.template import fill
from jobgen.schedulers import scheduler_names, scheduler_of
from messages import refused

ROOT = Path(__file__).resolve().parents[2]
EXPECTED = Path(__file__).parent / "expected"
SPECS = sorted(path.stem for path in (ROOT / "jobscripts" / "specs").glob("*.toml"))
SITES = sorted(path.stem for path in (ROOT / "jobscripts" / "sites").glob("*.toml"))
SUFFIXES = {scheduler_of(name).suffix for name in scheduler_names()}
COMMITTED = sorted(path for path in (ROOT / "jobscripts").glob("*.*") if path.suffix in SUFFIXES)
GOLDEN = [
    "ddp@amd",
    "ddp@torque",
    "image_build@modules-proxies",
    "shell@laptop",
    "shell@modules-proxies",
    "split@example,placement=node-by-node",
    "split@gpu-per-task,placement=per-rank",
]
"""SPEC@SITE[,SETTING]: together with the committed scripts, these cover each scheduler, launcher, placement, backend,
accelerator, way to resume and task.
"""


def pair_of(script):
    """Return SPEC@SITE of a committed script, from the command in its header."""
    return "@".join(re.findall(r"jobscripts/(?:specs|sites)/([\w-]+)\.toml", origin_of(script.read_text())))


@pytest.fixture(autouse=True)
def in_the_project(monkeypatch):
    monkeypatch.chdir(ROOT)


def text_of(pair, *, standalone=False):
    """Return the script, or nothing if the spec cannot run at the site."""
    spec, _, rest = pair.partition("@")
    site, *settings = rest.split(",")
    try:
        job = job_of(spec, site, settings, standalone=standalone)
        if job.spec.task == "shell":
            text = render_shell(job, words=[], given={})
            return with_library(text) if standalone else text  # for shellcheck: it is never submitted so
        return render(job, path=spec + scheduler_of(job.site.scheduler).suffix, standalone=standalone)
    except JobgenError:
        return ""


@pytest.mark.parametrize("pair", GOLDEN)
def test_rendered_script_equals_expected_text(pair):
    path = EXPECTED / pair
    if os.environ.get("SLIPWAY_WRITE_GOLDEN"):
        path.write_text(text_of(pair), encoding="utf-8")
    assert text_of(pair) == path.read_text(encoding="utf-8")


def test_no_expected_file_is_unused():
    assert sorted(path.name for path in EXPECTED.iterdir()) == GOLDEN


def test_expected_and_committed_scripts_cover_every_part():
    texts = "\n".join(path.read_text() for path in [*EXPECTED.iterdir(), *COMMITTED])
    parts = ["#SBATCH", "#PBS", "srun --", '"${mpirun[@]}"', "ssh_each_node 0", "--mpi=pmix", "torchrun --nnodes"]
    parts += [
        "trim_container_command --nv",
        "trim_container_command --rocm",
        "finish requeue",
        "finish chain",
        "finish none",
    ]
    parts += [f"launch_{backend}()" for backend in ("ddp", "horovod", "single")]
    parts += ["load_modules 1", "--gpus-per-task=", "srun_node_by_node", "SLIPWAY_DEVICES_PER_RANK:=2"]
    parts += ["build_image", "build_venv", "choose_container", "--selftest"]
    assert [part for part in parts if part not in texts] == []


@pytest.fixture(scope="module")
def rendered(tmp_path_factory):
    """Return every spec at every site where it can run, both plain and standalone, in files of one folder."""
    os.chdir(ROOT)
    folder = tmp_path_factory.mktemp("rendered")
    changed = [pair for pair in GOLDEN if "," in pair]
    for pair in [*(f"{spec}@{site}" for spec in SPECS for site in SITES), *changed]:
        text = text_of(pair)
        if text:
            (folder / pair).write_text(text)
            if "build" not in pair:  # those need a clone
                (folder / f"{pair}.standalone").write_text(text_of(pair, standalone=True))
    return folder


def examples(rendered):
    """Return the standalone scripts of the expected texts and of the committed scripts."""
    pairs = [*GOLDEN, *map(pair_of, COMMITTED)]
    return [path for pair in pairs if (path := rendered / f"{pair}.standalone").exists()]


def test_most_spec_and_site_pairs_can_be_rendered(rendered):
    assert len(list(rendered.iterdir())) > 150


def test_every_rendered_script_is_valid_bash(rendered):
    for path in rendered.iterdir():
        subprocess.run(["bash", "-n", path], check=True)


LIBRARY = {path.name: path.read_text() for path in sorted((ROOT / "jobscripts" / "lib").iterdir()) if path.is_file()}
DEFAULT = r': "\$\{(\w+):='
"""The line of a setting."""


def code_of(text):
    """Return Bash code without its comments."""
    return re.sub(r"(?m)(^|\s)#.*$", "", text)


def reached(script):
    """Return the code of a standalone script without functions that it never calls."""
    functions = dict(re.findall(r"(?ms)^([a-z_]+)\(\) \{\n(.*?)^\}", script))
    found, new = set(), [re.sub(r"(?ms)^[a-z_]+\(\) \{\n.*?^\}", "", script)]
    texts = []
    while new:
        texts.append(new.pop())
        for name in set(re.findall(r"[a-z_]+", texts[-1])) & functions.keys() - found:
            found.add(name)
            new.append(functions[name])
    return "\n".join(texts)


def test_header_mentions_only_what_script_uses(rendered):
    """Settings, variables, files of the library, and programs that start ranks."""
    scripts = {path: path.read_text() for path in sorted(rendered.iterdir()) if path.suffix != ".standalone"}
    anywhere = {name for text in scripts.values() for name in re.findall(DEFAULT, text)}
    library = code_of("\n".join(LIBRARY.values()))
    read = {"".join(names) for names in re.findall(r"\$\{?(\w+)|\b([A-Z_]+)=", library)}
    checked = 0
    for path, text in scripts.items():
        header, _, body = text.partition("\n# Generated:")
        code, settings = code_of(body), set(re.findall(DEFAULT, body))
        if "\n# Submit:" not in header and "\n# Start:" not in header:
            continue  # of a shell
        names = set(re.findall(r"(?<![\w.])[A-Z][A-Z_]*_[A-Z]+\b|\bTMPDIR\b|\bDATA\b", header))
        files = set(re.findall(r"\b\w+\.(?:sh|py)\b", header)) & LIBRARY.keys()
        files -= {"sitecustomize.py"}  # of which Python knows the name
        programs = set(re.findall(r"\b(?:torchrun|mpirun|srun)\b", header.partition("\n# Stop:")[2]))
        missing = {name for name in names if name in anywhere and name not in settings}
        missing |= {name for name in names - anywhere if name not in read and f"${name}" not in code}
        missing |= {name for name in names if name.startswith("MASTER_") and name not in body}
        missing |= {name for name in files if name not in code and name not in library}
        missing |= {name for name in programs if name not in code}
        assert missing == set(), path.name
        checked += 1
    assert checked > 80


def test_each_setting_of_script_is_read_by_its_code(rendered):
    for path in examples(rendered):
        code = code_of(reached(path.read_text()))
        rest = re.sub(rf"(?m)^{DEFAULT}.*$", "", code)
        unread = [name for name in re.findall(DEFAULT, code) if not re.search(rf"\$\{{?{name}\b", rest)]
        assert unread == [], path.name


@pytest.mark.prove
def test_shellcheck_reports_nothing_for_standalone_scripts(rendered):
    """In a standalone script shellcheck sees the whole code: each variable must be assigned somewhere."""
    rules = ["--norc", "--exclude=SC1090,SC1091,SC2015,SC2016,SC2034,SC2329"]  # as in jobscripts/.shellcheckrc
    done = subprocess.run(["shellcheck", *rules, *examples(rendered)], capture_output=True, text=True, check=False)
    found = [line for line in re.findall(r"SC\d+ .*", done.stdout) if "hare " not in line]
    assert (done.returncode, found) == (0, []), done.stdout[:3000]


def test_script_lines_are_short_and_use_no_eval(rendered):
    for path in rendered.glob("*[!e]"):
        text = path.read_text()
        assert max(map(len, text.splitlines())) <= 100, path.name
        assert not re.search(r"(^|[^-\w])eval |\| head", text.replace("--no-eval", "")), path.name


def test_committed_scripts_match_commands_in_their_headers(capsys):
    assert stale_scripts([str(ROOT / "jobscripts")]) == []
    assert main(["check"]) == 0
    assert capsys.readouterr() == ("", "")


def test_check_reports_edited_script(tmp_path, capsys):
    script = tmp_path / "ddp.job"
    script.write_text((ROOT / "jobscripts" / "ddp.job").read_text().replace("--nodes=2", "--nodes=3"))
    assert main(["check", str(tmp_path)]) == 1
    assert str(script) in capsys.readouterr().err


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.name)
def test_committed_script_is_executable_and_has_origin(path):
    text = path.read_text(encoding="utf-8")
    assert text.startswith("#!/usr/bin/env bash\n# ")
    assert os.access(path, os.X_OK)
    assert origin_of(text).startswith("jobgen render jobscripts/specs/")
    assert origin_of(text).endswith(f"--output jobscripts/{path.name}")


@pytest.mark.parametrize("path", [path for path in COMMITTED if path.suffix == ".job"], ids=lambda path: path.name)
def test_every_sbatch_directive_has_comment(path):
    directives = [line for line in path.read_text().splitlines() if line.startswith("#SBATCH")]
    assert len(directives) >= 6
    assert [line for line in directives if " # " not in line] == []


@pytest.mark.parametrize("path", [path for path in COMMITTED if path.suffix == ".pbs"], ids=lambda path: path.name)
def test_every_pbs_directive_has_comment_above(path):
    lines = path.read_text().splitlines()
    directives = [number for number, line in enumerate(lines) if line.startswith("#PBS")]
    assert len(directives) >= 3
    assert [lines[number] for number in directives if not lines[number - 1].startswith("# ")] == []


def test_misspelled_template_placeholder_is_reported_with_file(tmp_path, monkeypatch):
    monkeypatch.setattr("jobgen.render.template.TEMPLATES", tmp_path)
    (tmp_path / "job.bash").write_text("@{naem}\n")
    with refused("incomplete-install", "job.bash", "@{naem}", "'name'"):
        fill("job.bash", {"name": "x"})
    with refused("cannot-read", tmp_path / "none.bash"):
        fill("none.bash", {})
