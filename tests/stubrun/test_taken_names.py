"""Environment variables with names that job scripts use themselves: path to a user's folder, or a PID."""

import re
import shutil
import subprocess

import pytest

from messages import assert_warning, slugs
from stubs import DONE, SCRIPTS, STUBS

LIB = SCRIPTS / "lib"
SOURCES = [*LIB.glob("*.*sh"), *SCRIPTS.glob("*.job"), *SCRIPTS.glob("*.pbs"), *SCRIPTS.glob("*.sh")]
NAMES = {
    name
    for path in SOURCES
    for found in re.findall(r"\$\{?[#!]?([a-z][a-z0-9_]*)|(?<![\w-])([a-z][a-z0-9_]*)\+?=", path.read_text())
    for name in found
    if name
}
"""Each lower-case name that library and scripts read or set, and words of their messages and awk programs."""
OF_STUBS = {"name", "node", "array", "task", "part", "restarts", "lines", "number", "state", "code", "torchruns"}
"""Variables that bin/stub sets before it records what ranks inherit."""
TERM_AT_ONCE = 'kill -TERM "$STUB_SCRIPT_PID"; sleep 0.2'


@pytest.fixture
def poison(request, project):
    """Return a value that does harm wherever it is read; it must be intact at the end."""
    if request.param == "folder":
        mine = project.spool / "mine-7c1e"
        mine.mkdir()
        (mine / "thesis").touch()
        yield str(mine)
        assert (mine / "thesis").exists()
        assert list(mine.iterdir()) == [mine / "thesis"]
    else:
        with subprocess.Popen(["sleep", "600"], start_new_session=True) as process:
            yield str(process.pid)
            alive = process.poll() is None
            process.kill()
        assert alive


def assert_unread(ended, poison):
    """Assert that no variable was read, and that ranks see a user's values, or nothing."""
    words = re.compile(rf"(?<!\d){re.escape(poison)}(?!\d)")
    assert not [call for call in ended.calls if any(words.search(word) for word in call)], ended
    assert not words.search(ended.err), ended
    for path in ended.run_dir.rglob("*"):
        assert not path.is_file() or not words.search(path.read_text(errors="replace")), path
    changed = {name: ended.env[name] for name in NAMES - OF_STUBS if ended.env.get(name, poison) != poison}
    assert changed == {}


@pytest.mark.parametrize(
    ("script", "poison"),
    [("ddp.job", "folder"), ("ddp.sh", "folder"), ("ddp.pbs", "process"), ("ddp-ranks.job", "process")],
    indirect=["poison"],
)
def test_job_ignores_user_variables_with_script_names(project, poison, script):
    mine = {"http_proxy": "http://proxy:3128", "my_own": "mine", "BASHOPTS": "localvar_inherit"}
    ended = project.run(script, **dict.fromkeys(NAMES, poison), **mine, **DONE)
    assert ended.code == 0
    assert_warning(ended.err, "taken-name", "scratch", "server")
    assert_unread(ended, poison)
    assert (ended.env["http_proxy"], ended.env["my_own"]) == (mine["http_proxy"], "mine")
    assert "scratch" not in ended.env


@pytest.mark.parametrize(
    ("script", "env", "code", "poison"),
    [
        ("ddp.job", {"STUB_ON_SCONTROL": TERM_AT_ONCE}, 75, "folder"),
        ("ddp.sh", {"STUB_PREFLIGHT": "78"}, 78, "folder"),
        ("single.job", {"STUB_PREFLIGHT": "78"}, 78, "process"),
    ],
    indirect=["poison"],
)
def test_failed_job_ignores_user_variables_with_script_names(project, poison, script, env, code):
    ended = project.run(script, **dict.fromkeys(NAMES, poison), **env)
    assert ended.code == code
    assert_unread(ended, poison)


@pytest.mark.parametrize("poison", ["folder"], indirect=True)
def test_build_ignores_user_variables_with_script_names(project, poison):
    (project.folder / "build").mkdir()
    (project.folder / "build" / "image").touch(0o755)
    shutil.copytree(STUBS, project.spool / "bin", symlinks=True, ignore=shutil.ignore_patterns("apptainer"))
    path = f"{project.spool / 'bin'}:/usr/bin:/bin"
    ended = project.run("image_build.job", **dict.fromkeys(NAMES, poison), PATH=path)
    assert (ended.code, slugs(ended.err)[-1]) == (78, "no-container-runtime")
    assert_unread(ended, poison)


def test_every_library_variable_is_in_own_names_or_local():
    """Add a new one to OWN_NAMES, or make it local."""
    text = (LIB / "job.bash").read_text()
    known = set(
        re.findall(r"\w+", " ".join(re.findall(r"^readonly (?:OWN|SCRIPT)_NAMES=\(([^)]*)", text, re.MULTILINE)))
    )
    library = "".join(path.read_text() for path in LIB.glob("*.bash") if not path.read_text().startswith("#!"))
    library = re.sub(r"(?m)(^|\s)#.*", "", library).replace("\\\n", " ")
    private = {word for words in re.findall(r"\blocal ([^;\n]*)", library) for word in re.findall(r"[a-z]\w*", words)}
    read = set(re.findall(r"\$\{[#!]?([a-z]\w*)|\$([a-z]\w*)", library))
    assert {name for found in read for name in found if name} - private - known == set()
