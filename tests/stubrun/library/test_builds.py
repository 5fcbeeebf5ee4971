"""Jobs that build the image or the environment: the clone, the scratch folder, and what takes the place of what."""

import re

import pytest

from bash_library import assert_dies


@pytest.fixture
def build(place):
    """Return a function that writes a program of the clone."""

    def build(name, code=""):
        path = place / "build" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/bash\n{code}\n")
        path.chmod(0o755)

    return build


@pytest.mark.parametrize("before", ["", "lib=''; "])  # once: stat complained
def test_a_clone(bash, build, place, before):
    assert_dies(bash("check_clone build/image"), "no-clone", "build/image", place)
    build("image")
    assert bash(f"{before}check_clone build/image") == (0, "", "")


@pytest.mark.parametrize(
    "name",
    [
        "build/image",
        "apptainer.def",
        "Dockerfile",
        "pyproject.toml",
        "src/a/b/c/d.py",
        ".git/config",
        "src/a/b/c",
        ".git",
    ],
)
def test_a_clone_that_others_can_write(bash, build, place, name):
    build("image")
    (place / "src" / "a" / "b" / "c").mkdir(parents=True)
    (place / ".git").mkdir()
    path = place / name
    path.touch()
    path.chmod(path.stat().st_mode | 0o002)
    assert_dies(bash("check_clone build/image"), "writable-by-others", path)


def test_make_build_scratch_and_remove_build_scratch(bash, place):
    run = 'make_build_scratch; env | grep -c "disk/slipway-4711"; mkdir -p "$scratch/a"; '
    run += 'chmod 0 "$scratch/a"; exit 5'
    code, out, _ = bash(run)
    assert (code, out) == (5, "3\n")
    assert list((place / "disk").iterdir()) == []
    assert bash("scratch=$PWD/disk/y; mkdir disk/y; trap remove_build_scratch EXIT; exit 3")[0] == 3
    assert bash("SLIPWAY_LOCAL_DISK=$PWD/gone; make_build_scratch")[0] == 78


def test_run_build_end_build_and_kill_build(bash):
    run = "make_build_scratch; end_build; kill_build; run_build sh -c 'echo $0; exit 3' a || echo $?"
    assert bash(run)[:2] == (0, "a\n3\n")
    # what has outlived the first process of a build that failed
    left = "pid=$(run_build sh -c 'sleep 99 >/dev/null & echo $!; exit 3') || ! kill -0 \"$pid\" 2>/dev/null"
    assert bash(f"make_build_scratch; {left}")[0] == 0


class TestImage:
    BUILT = 'echo new >"$IMAGE_FOLDER/slipway-$VARIANT.sif"'

    @pytest.fixture(autouse=True)
    def apptainer(self, stub):
        stub("apptainer", "")

    def test_it_takes_its_name(self, bash, build):
        build("image", self.BUILT)
        assert bash("scratch=$PWD/disk; build_image; cat i.sif")[:2] == (0, "new\n")
        assert bash("is_sif i.sif").code == 1

    def test_what_has_been_built_is_not_lost_if_it_cannot(self, bash, build, stub, place):
        build("image", self.BUILT)
        stub("mv", "exit 1")
        kept = bash("make_build_scratch; build_image")
        assert_dies(kept, "cannot-write", f"{place}/i.sif ", f"{place}/i.sif.4711.")
        [image] = place.glob("i.sif.4711.*/slipway-*.sif")
        assert image.read_text() == "new\n"

    def test_a_build_that_fails(self, bash, build):
        build("image", "exit 1")
        assert_dies(bash("scratch=$PWD/disk; build_image"), "build-failed")


class TestEnvironment:
    @pytest.fixture(autouse=True)
    def setup(self, build):
        build("setup", 'mkdir -p "$VENV/bin"; ln -s /bin/true "$VENV/bin/trainer"')

    def test_the_one_before_is_named(self, bash, place):
        run = 'scratch=$PWD/disk/$RANDOM; mkdir "$scratch"; build_venv; ls venv/bin'
        assert bash(run)[:2] == (0, "trainer\n")
        code, _, err = bash(run)
        older = re.escape(str(place / "venv.").replace("'", "'\\''"))
        assert (code, bool(re.search(rf"{older}\S+", err.splitlines()[-1]))) == (0, True)
        assert "venv.20260101" in bash("mkdir venv.20260101; list_older_venvs x").err

    def test_one_that_does_not_work(self, bash):
        broken = bash("mkdir -p v/bin; ln -s /bin/false v/bin/trainer; scratch=disk; try_venv v")
        assert_dies(broken, "build-failed")

    def test_a_folder_that_is_no_link_is_not_replaced(self, bash, place):
        foreign = bash("mkdir venv; build_venv")
        assert_dies(foreign, "file-exists", f"{place}/venv ", "SLIPWAY_VENV")
