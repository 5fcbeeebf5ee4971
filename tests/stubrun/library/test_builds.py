"""Jobs that build the image or the environment: clone, scratch folder, and replacement of earlier builds."""

import re

import pytest

from bash_library import assert_dies, assert_ended
from messages import slugs


@pytest.fixture
def build(place):
    """Return a function that writes a program of the clone."""

    def build(name, code=""):
        path = place / "build" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/bash\n{code}\n")
        path.chmod(0o755)

    return build


CHECK = "check_clone build/image"
CLONE = "mkdir -p build src/a/b/c .git; ln -s /bin/true build/image; "


@pytest.mark.parametrize(
    ("code", "slug"),
    [
        (CHECK, "no-clone"),
        (f"{CLONE}{CHECK}", ""),
        (f"{CLONE}lib=''; {CHECK}", ""),
    ],  # regression: stat printed an error about the last one
)
def test_check_clone_refuses_missing_clone(bash, code, slug):
    assert_ended(bash(code), slug, "build/image")


@pytest.mark.parametrize(
    "name",
    [
        *("build/image", "apptainer.def", "Dockerfile", "pyproject.toml", "src/a/b/c/d.py", ".git/config"),
        *("src/a/b/c", ".git"),
    ],
)
def test_clone_writable_by_others_is_refused(bash, place, name):
    spoil = f"rm build/image; touch build/image; chmod 755 build/image; touch {name}; chmod o+w {name}; "
    assert_dies(bash(f"{CLONE}{spoil}{CHECK}"), "writable-by-others", place / name)


SCRATCH = 'make_build_scratch; env | grep -c "disk/slipway-4711"; mkdir "$scratch/a"; chmod 0 "$scratch/a"; exit 5'
LEFT = "pid=$(run_build sh -c 'sleep 99 >/dev/null & echo $!; exit 3') || ! kill -0 \"$pid\" 2>/dev/null"


@pytest.mark.parametrize(
    ("code", "ended"),
    [
        (SCRATCH, (5, "3\n")),
        ("scratch=$PWD/disk/y; mkdir disk/y; trap remove_build_scratch EXIT; exit 3", (3, "")),
        ("SLIPWAY_LOCAL_DISK=$PWD/gone; make_build_scratch", (78, "")),
        (
            "make_build_scratch; terminate_build; kill_build; run_build sh -c 'echo $0; exit 3' a || echo $?",
            (0, "a\n3\n"),
        ),
        (f"make_build_scratch; {LEFT}", (0, "")),
    ],
    ids=["caches", "its end", "no disk", "exit code", "what has outlived the first process of a build that failed"],
)
def test_build_scratch_is_removed_and_exit_code_kept(bash, place, code, ended):
    assert bash(code)[:2] == ended
    assert list((place / "disk").iterdir()) == []


class TestImage:
    BUILT = 'echo new >"$IMAGE_FOLDER/slipway-$VARIANT.sif"'

    @pytest.mark.parametrize(
        ("built", "code", "ended"),
        [
            (BUILT, "scratch=$PWD/disk; build_image; cat i.sif; is_sif i.sif || echo no", (0, "new\nno\n")),
            ("exit 1", "scratch=$PWD/disk; build_image", (78, "")),
        ],
    )
    def test_image_is_moved_to_target_only_if_build_succeeds(self, bash, build, built, code, ended):
        build("image", built)
        done = bash(code, programs={"apptainer": ""})
        assert (done[:2], slugs(done.err)) == (ended, ["build-failed"] * (ended[0] == 78))

    def test_built_image_is_kept_if_move_fails(self, bash, build, place):
        build("image", self.BUILT)
        kept = bash("make_build_scratch; build_image", programs={"apptainer": "", "mv": "exit 1"})
        assert_dies(kept, "cannot-write", f"{place}/i.sif ", f"{place}/i.sif.4711.")
        assert [image.read_text() for image in place.glob("i.sif.4711.*/slipway-*.sif")] == ["new\n"]


BUILD_VENV = 'scratch=$PWD/disk/$RANDOM; mkdir "$scratch"; build_venv; ls venv/bin'


def test_previous_environment_is_listed_after_rebuild(bash, build, place):
    build("setup", 'mkdir -p "$VENV/bin"; ln -s /bin/true "$VENV/bin/trainer"')
    assert bash(BUILD_VENV)[:2] == (0, "trainer\n")
    code, _, err = bash(BUILD_VENV)
    older = re.escape(str(place / "venv.").replace("'", "'\\''"))
    assert (code, bool(re.search(rf"{older}\S+", err.splitlines()[-1]))) == (0, True)
    assert "venv.20260101" in bash("mkdir venv.20260101; list_older_venvs x").err


# regression: under PBS both printed sbatch
@pytest.mark.parametrize(
    ("scheduler", "command"),
    [
        ("slurm", "sbatch jobscripts/ddp.job"),
        ("pbs", "qsub -V jobscripts/ddp.pbs"),
        ("local", "bash jobscripts/ddp.sh"),
    ],
)
@pytest.mark.parametrize("task", ["venv", "image"])
def test_built_environment_or_image_is_used_by_command_of_scheduler(  # noqa: PLR0917 -- fixtures and columns
    bash, build, stub, task, scheduler, command
):
    stub("apptainer", "")
    build("setup", 'mkdir -p "$VENV/bin"; ln -s /bin/true "$VENV/bin/trainer"')
    build("image", 'echo image >"$IMAGE_FOLDER/slipway-$VARIANT.sif"')
    done = bash(f'scratch=$PWD/disk/own; mkdir "$scratch"; build_{task}', scheduler=scheduler)
    settings = {"venv": ["USE_CONTAINER=0", "SLIPWAY_VENV="], "image": ["SLIPWAY_IMAGE="]}[task]
    assert done.code == 0, done.err
    assert done.err.splitlines()[-1].endswith(f" {command}")
    assert all(f" {setting}" in done.err for setting in settings)


@pytest.mark.parametrize(
    ("code", "slug", "values"),
    [
        ("mkdir -p v/bin; ln -s /bin/false v/bin/trainer; scratch=disk; try_venv v", "build-failed", []),
        ("mkdir venv; build_venv", "file-exists", ["/venv ", "SLIPWAY_VENV"]),
    ],
    ids=["it does not work", "a folder that is no link"],
)
def test_broken_environment_or_existing_folder_is_refused(bash, build, code, slug, values):
    build("setup")
    assert_dies(bash(code), slug, *values)


@pytest.mark.parametrize(
    ("scheduler", "words"),
    [
        ("slurm", ["sbatch", "jobscripts/ddp.job"]),
        ("pbs", ["qsub", "-V", "jobscripts/ddp.pbs"]),
        ("local", ["bash", "jobscripts/ddp.sh"]),
    ],
)
def test_command_after_build_is_the_schedulers(bash, scheduler, words):
    assert bash("training_command", scheduler=scheduler).out.split() == words
