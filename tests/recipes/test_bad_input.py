"""Bad input gets a one-line error (what, where, what to do), and leaves nothing half-made."""

import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from messages import assert_names
from support import ROOT, unshared

NOTICE = re.compile(r"build/(debs: fetching|base: .*; making) ")
"""Standard error of a successful build contains such lines too."""


VARIANTS = " ".join(sorted(path.stem for path in (ROOT / "containers" / "pins").glob("*.env")))


def answer(*words: str | Path, tree: Path = ROOT, limit: float = 120, **env: str) -> str:
    """Run a command that must fail and return its one-line error."""
    done = subprocess.run(
        words, cwd=tree, env=os.environ | env, capture_output=True, text=True, timeout=limit, check=False
    )
    assert done.returncode != 0
    assert not list((tree / "dist").glob("*.part")), "a half-written image is left behind"
    (line,) = [line for line in done.stderr.splitlines() if not NOTICE.match(line)]
    return line


@pytest.mark.parametrize(
    ("env", "values"),
    [
        ({"VARIANT": "rocm"}, ["rocm", VARIANTS]),
        ({"ROUTES": "podman"}, ["ROUTES", "podman", "docker", "apptainer", "registry"]),
        ({"BUILD_ARGS": "TORHC=1"}, ["BUILD_ARGS", "TORHC", "BASE_IMAGE CUDA_VERSION HOROVOD_"]),
    ],
)
def test_unknown_settings_of_make_image_are_refused(env, values):
    assert_names(answer("build/image", **env), "image: ", *values)


def test_make_image_reports_too_little_scratch_space():
    script = "mount -t tmpfs -o size=8m none /mnt && SCRATCH=/mnt/scratch exec build/image"
    line = answer(*unshared("mount"), "sh", "-c", script)
    needed = re.search(r"^image: .*/mnt/scratch .*\b8 MB .*\b(\d+) MB .*SCRATCH ", line)
    assert needed, line
    assert int(needed[1]) > 8


def test_debs_reports_missing_network(tmp_path):
    env = {"SLIPWAY_CACHE": str(tmp_path / "cache"), "SCRATCH": str(tmp_path / "scratch")}
    line = answer(*unshared("net"), "build/debs", "docker-registry", **env)
    assert_names(line, "build/debs: ", "docker-registry", "/etc/apt", ": E: ")


@pytest.mark.parametrize("words", [[], ["--suite"], ["--suite", "sid"]])
def test_debs_without_packages_prints_usage(words):
    assert answer("build/debs", *words) == "build/debs: usage: build/debs [--suite SUITE] PACKAGE..."


def test_compute_node_does_not_count_as_complete_slurm(tmp_path):
    for name in ("bash", "dirname"):
        (tmp_path / name).symlink_to(shutil.which(name))
    (tmp_path / "slurmd").symlink_to("/bin/true")
    assert_names(answer("build/slurm", PATH=str(tmp_path), SYSTEM="0"), "slurm-wlm munge ")


def test_nonexistent_torch_pin_is_reported(tree):
    pins = tree / "containers" / "pins" / "cpu.env"
    pins.write_text(pins.read_text().replace("TORCH_VERSION=2.", "TORCH_VERSION=99."))
    script = 'python() { /bin/false; }; export -f python; exec "$0"'  # pip's own messages come before ours
    line = answer("bash", "-c", script, tree / "containers/install/20-torch.sh", VARIANT="cpu")
    assert_names(line, "20-torch: ", "torch 99.", "PIP_FIND_LINKS")


def test_run_without_image_suggests_make_image():
    assert_names(answer("build/run", "none.sif", "true"), "run: ", "none.sif", "`make image`")


def test_pull_without_image_url_is_refused():
    assert_names(answer("build/pull", "pytorch"), "pull: ", "IMAGE=docker://")


@pytest.fixture(scope="module")
def scratch(tmp_path_factory) -> str:
    """Return a SCRATCH only for these tests: a build prunes the layers of earlier ones."""
    return str(tmp_path_factory.mktemp("scratch"))


WRITER = 'mkdir -p "$SCRATCH/slipway-work" && while :; do mkdir -p "$SCRATCH/slipway-work/$RANDOM/$RANDOM"; done'
RECIPES = f"""#!/bin/bash
for _ in 1 2 3 4; do bash -c '{WRITER}' "$SCRATCH/writer" 2>/dev/null & done
echo + waiting
wait
"""


@pytest.fixture
def open_tree(tree):
    """Return the tree with a build/recipes that only writes, in a folder that every user may write."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        copy = Path(folder) / "tree"
        shutil.copytree(tree, copy)
        (copy / "build" / "recipes").write_text(RECIPES)
        for path in (Path(folder), copy):
            path.chmod(0o777)
        for pins in copy.glob("containers/pins/*.env"):
            pins.write_text("BUILD_SPACE_MB=1\n")
        yield copy


@pytest.mark.parametrize("user", [[], ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_interrupted_build_ends_before_its_scratch_folder_is_removed(open_tree, user, number):
    scratch = open_tree / "scratch"
    words = [*user, "env", "--default-signal=INT", open_tree / "build/image"]
    env = os.environ | {"SCRATCH": str(scratch)}
    with subprocess.Popen(words, env=env, stdout=subprocess.PIPE, text=True) as build:
        while "+ waiting" not in build.stdout.readline():
            assert build.poll() is None
        time.sleep(0.2)
        build.send_signal(number)
        assert build.wait(30) == 128 + number
        assert not processes(str(scratch))
        assert not (scratch / "slipway-work").exists()


def test_build_keeps_partial_files_of_other_variants(open_tree):
    (open_tree / "build" / "recipes").write_text("#!/bin/bash\n")
    (open_tree / "dist").mkdir()
    ours, others = open_tree / "dist" / "slipway-cuda-docker.sif.part", open_tree / "dist" / "slipway-cuda12.sif.part"
    ours.touch()
    others.touch()
    env = os.environ | {"VARIANT": "cuda", "SCRATCH": str(open_tree / "scratch")}
    subprocess.run([open_tree / "build/image"], env=env, check=True)
    assert (ours.exists(), others.exists()) == (False, True)


def test_concurrent_builds_write_to_folder_one_at_a_time(open_tree):
    recipes = '#!/bin/bash\nset -e\nmkdir "$IMAGE_FOLDER/busy"\nsleep 0.2\nrmdir "$IMAGE_FOLDER/busy"\n'
    (open_tree / "build" / "recipes").write_text(recipes)
    builds = [
        subprocess.Popen([open_tree / "build/image"], env=os.environ | {"SCRATCH": str(open_tree / name)})
        for name in ("one", "two")
    ]
    assert [build.wait(30) for build in builds] == [0, 0]


def test_build_works_on_disk_without_locks(open_tree):
    (open_tree / "build" / "recipes").write_text("#!/bin/bash\n")
    (open_tree / "bin").mkdir()
    (open_tree / "bin" / "flock").write_text('#!/bin/bash\n[ "${*: -1}" = 9 ] || exit 71\n')
    (open_tree / "bin" / "flock").chmod(0o755)
    env = os.environ | {"PATH": f"{open_tree}/bin:{os.environ['PATH']}", "SCRATCH": str(open_tree / "scratch")}
    subprocess.run([open_tree / "build/image"], env=env, check=True)


def test_relative_scratch_path_is_made_absolute(open_tree):
    (open_tree / "build" / "recipes").write_text('#!/bin/bash\nprintf "%s" "$SCRATCH"\n')
    words = [open_tree / "build/image"]
    seen = subprocess.check_output(words, cwd=open_tree / "src", env=os.environ | {"SCRATCH": "scratch"}, text=True)
    assert seen == str(open_tree / "src" / "scratch")


def broken(script: Path) -> None:
    script.write_text(f'#!/bin/bash\necho "{script.name[:2]}-broken: on purpose" >&2\nexit 3\n')


@pytest.mark.parametrize(
    ("base", "values"),
    [
        ("docker-archive:/nowhere/base.tar", [" /nowhere/base.tar", "BASE_IMAGE"]),
        ("localhost/nowhere:1", ["localhost/nowhere:1: "]),
    ],
)
def test_missing_base_image_is_reported(scratch, base, values):
    assert_names(answer("build/image", BASE_IMAGE=base, SCRATCH=scratch), "build/base: ", *values)


def test_build_reports_missing_network(base_archive, scratch):
    line = answer(*unshared("net"), "build/image", BASE_IMAGE=base_archive, SCRATCH=scratch)
    assert_names(line, "image: ", "buildah: Dockerfile", "Horovod", "10-system: ", "apt-get")


@pytest.mark.parametrize(("route", "step"), [("docker", "buildah: Dockerfile"), ("apptainer", "apptainer.def")])
def test_build_with_failing_install_script_leaves_no_image(stubs, base_archive, scratch, route, step):
    broken(stubs / "containers" / "install" / "60-sbom.sh")
    line = answer("build/image", tree=stubs, ROUTES=route, BASE_IMAGE=base_archive, SCRATCH=scratch)
    assert_names(line, "image: ", step, "60-broken: on purpose", f"{scratch}/build-cpu.log")
    assert not list((stubs / "dist").iterdir())


@pytest.mark.parametrize("route", ["docker", "apptainer"])
def test_image_that_fails_smoke_test_is_removed(stubs, base_archive, scratch, route):
    (stubs / "containers" / "smoke.sh").write_text('#!/bin/bash\necho "smoke: on purpose" >&2\nexit 1\n')
    line = answer("build/image", tree=stubs, ROUTES=route, BASE_IMAGE=base_archive, SCRATCH=scratch)
    assert_names(line, "image: ", ": smoke: on purpose", f"{scratch}/build-cpu.log")
    assert not list((stubs / "dist").iterdir())


def processes(word: str) -> list[Path]:
    """Return the living processes whose command line holds ``word``."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if word.encode() in path.read_bytes():
                found.append(path)
        except OSError:  # it has just ended
            continue
    return found


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_stopped_build_leaves_no_processes_mounts_or_files(stubs, base_archive, scratch, number):
    script = f"#!/bin/bash\necho + waiting\nexec -a {scratch}/waiting sleep 600\n"
    (stubs / "containers" / "install" / "10-system.sh").write_text(script)
    env = os.environ | {"BASE_IMAGE": base_archive, "SCRATCH": scratch}
    # A shell cannot trap what was ignored when it started, as SIGINT is in the background of another one.
    words = ["env", "--default-signal=INT", stubs / "build/image"]
    with subprocess.Popen(words, env=env, stdout=subprocess.PIPE, text=True) as build:
        while "+ waiting" not in build.stdout.readline():
            assert build.poll() is None
        assert processes(scratch)
        build.send_signal(number)
        assert build.wait(30) in (128 + number, -number)
    deadline = time.monotonic() + 10
    while processes(scratch) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not processes(scratch)
    assert scratch not in Path("/proc/mounts").read_text()
    if number != signal.SIGKILL:  # the next build removes what is left then
        assert not (Path(scratch) / "slipway-work").exists()
