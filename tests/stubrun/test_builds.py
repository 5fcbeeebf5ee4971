"""venv_build.job and image_build.job, in a project with stub build scripts; and refusals of build/setup."""

import platform
import shutil
import signal
import subprocess
import sys
import threading
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from messages import assert_error, assert_names
from support import pins

ROOT = Path(__file__).resolve().parents[2]
SETUP = """#!/bin/bash
env >"$HOME/seen"
mkdir -p "$VENV/bin"
[ "$STUB" != setup ] || exit 1
late() { while mkdir -p "$VENV/late" "$TMPDIR/late"; do touch "$HOME/slow"; done; }
[ "$STUB" != slow ] || { (trap "" TERM; late) & wait; }
printf '#!/bin/bash\\necho "no torch"; [ "$STUB" != trainer ]\\n' >"$VENV/bin/trainer"
printf '#!/bin/bash\\necho "no libmpi" >&2; [ "$STUB" != horovod ]\\n' >"$VENV/bin/python"
chmod +x "$VENV/bin/trainer" "$VENV/bin/python"
echo "$1" >"$VENV/level"
"""
IMAGE = """#!/bin/bash
env >"$HOME/seen"
[ "$STUB" != image ] || exit 1
trap "" TERM
while [ "$STUB" = slow ] && mkdir -p "$IMAGE_FOLDER/late" "$SCRATCH/late"; do touch "$HOME/slow"; done
mkdir -p "${IMAGE_FOLDER:=dist}"
[ "$STUB" != pair ] || touch "$HOME/$SLURM_JOB_ID"
echo "${SLURM_JOB_ID/4711/new}" >"$IMAGE_FOLDER/slipway-$VARIANT.sif"
until [ "$STUB" != pair ] || [ -e "$HOME/102" -a -e "$HOME/103" ]; do sleep 0.02; done
"""


@pytest.fixture(params=["plain", "a b 'c' \"d\""])
def place(request, tmp_path):
    """Return a project folder, the second time with a hostile name."""
    folder = tmp_path / request.param
    for name, text in {"build/setup": SETUP, "build/image": IMAGE, "bin/apptainer": "#!/bin/bash\n"}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    (folder / "disk").mkdir()
    return folder


@pytest.fixture
def run(place):
    def run(script, *, stub="", start=False, **env):
        fixed = {
            "PATH": f"{place}/bin:/usr/bin:/bin",
            "HOME": str(place),
            "SLIPWAY_LOCAL_DISK": str(place / "disk"),
            "SLURM_JOB_ID": "4711",
            "STUB": stub,
        }
        words = [ROOT / "jobscripts" / script]
        if start:
            return subprocess.Popen(words, cwd=place, env=fixed | env, stderr=subprocess.PIPE)
        return subprocess.run(
            words, cwd=place, env=fixed | env, capture_output=True, text=True, timeout=600, check=False
        )

    return run


def seen(place):
    return dict(line.split("=", 1) for line in (place / "seen").read_text().splitlines() if "=" in line)


def assert_refused(done, slug, *values):
    """Assert exit code 78 and a one-line error that names these values."""
    assert (done.returncode, len(done.stderr.splitlines())) == (78, 1), done.stderr
    assert_error(done.stderr, slug, *values)


def environments(place):
    return sorted(path.name for path in place.glob(".venv*"))


class TestVenv:
    def test_link_points_to_new_venv_and_old_venv_is_kept(self, run, place):
        done = run("venv_build.job")
        assert (done.returncode, len(done.stderr.splitlines())) == (0, 1)
        assert str(place / ".venv") in done.stderr
        first = (place / ".venv").readlink().name
        assert (place / ".venv" / "level").read_text() == "train\n"
        done = run("venv_build.job", SLIPWAY_HOROVOD="1")
        assert (place / ".venv" / "level").read_text() == "horovod\n"
        assert environments(place) == sorted({".venv", first, (place / ".venv").readlink().name})
        assert first in done.stderr.splitlines()[-1]

    @pytest.mark.parametrize(
        ("stub", "values"),
        [("setup", []), ("trainer", ["no torch"]), ("horovod", ["Horovod", "no libmpi"])],
    )
    def test_failed_venv_build_changes_nothing(self, run, place, stub, values):
        run("venv_build.job")
        before = environments(place)
        assert_refused(run("venv_build.job", stub=stub, SLIPWAY_HOROVOD="1"), "build-failed", *values)
        assert environments(place) == before
        assert list((place / "disk").iterdir()) == []

    def test_existing_folder_is_refused_and_left_unchanged(self, run, place):
        (place / ".venv").mkdir()
        assert_refused(run("venv_build.job"), "file-exists", place / ".venv", "SLIPWAY_VENV")
        assert list((place / ".venv").iterdir()) == []

    @pytest.mark.parametrize("target", ["elsewhere", "/gone"])
    def test_foreign_link_is_refused_and_left_unchanged(self, run, place, target):
        (place / ".venv").symlink_to(target)
        assert_refused(run("venv_build.job"), "file-exists", place / ".venv", "SLIPWAY_VENV")
        assert (place / ".venv").readlink() == Path(target)

    # regression: it replaced whatever had its temporary link's name, and lost the environment if that was a folder
    def test_existing_file_named_like_temporary_link_is_kept(self, run, place):
        (place / ".venv.new").mkdir()
        assert run("venv_build.job").returncode == 0
        assert (place / ".venv" / "level").exists()
        (place / ".venv.new").rmdir()
        (place / ".venv.new").write_text("mine")
        assert run("venv_build.job").returncode == 0
        assert (place / ".venv.new").read_text() == "mine"

    def test_venv_build_ignores_home_folder_and_pythonpath(self, run, place):
        run("venv_build.job", PYTHONPATH="/somewhere", SLIPWAY_WHEELHOUSE="wheels")
        env = seen(place)
        for name in ("TMPDIR", "XDG_CACHE_HOME", "PIP_CACHE_DIR"):
            assert env[name].startswith(str(place / "disk")), name
        assert ("PYTHONPATH" in env, env["WHEELHOUSE"], env["VARIANT"]) == (False, f"{place}/wheels", "cuda")

    def test_site_nccl_requires_cuda_home(self, run, place):
        own = {"SLIPWAY_HOROVOD": "1", "SLIPWAY_NCCL_PATH": "/nccl"}
        assert_refused(run("venv_build.job", **own), "no-cuda-home", "SLIPWAY_NCCL_PATH", "CUDA_HOME")
        run("venv_build.job", **own, CUDA_HOME="/cuda")
        names = ("CUDA_COMPILER", "HOROVOD_NCCL_HOME", "HOROVOD_CUDA_HOME")
        assert [seen(place)[name] for name in names] == ["", "/nccl", "/cuda"]


@pytest.mark.parametrize(
    ("script", "missing", "slug", "values"),
    [
        ("venv_build.job", "build/setup", "no-clone", ["build/setup"]),
        ("image_build.job", "bin/apptainer", "no-container-runtime", ["apptainer", platform.node()]),
    ],
)
def test_missing_build_script_or_runtime_is_refused(run, place, script, missing, slug, values):  # noqa: PLR0917
    (place / missing).unlink()
    assert_refused(run(script), slug, *values)


@pytest.mark.parametrize(
    ("script", "bad", "slug"),
    [
        ("venv_build.job", {"SLIPWAY_HOROVOD": "yes"}, "bad-value"),
        ("venv_build.job", {"SLIPWAY_VARIANT": "a b"}, "bad-value"),
        ("venv_build.job", {"SLIPWAY_WHEELHOUSE": "a\nb"}, "bad-value"),
        ("image_build.job", {"SLIPWAY_VARIANT": "../x"}, "bad-value"),
        ("image_build.job", {"SLIPWAY_BUILD_ARGS": "A=1\nB=2"}, "bad-value"),
    ],
)
def test_invalid_build_setting_is_refused_before_anything_is_written(run, place, script, bad, slug):
    before = sorted(place.rglob("*"))
    assert_refused(run(script, **bad), slug, *bad)
    assert sorted(place.rglob("*")) == before


# regression: they built where others could replace what is run; jobs refuse such a local disk
@pytest.mark.parametrize(
    ("script", "setting", "name"),
    [
        ("venv_build.job", "SLIPWAY_LOCAL_DISK", ""),
        ("venv_build.job", "SLIPWAY_VENV", "new/.venv"),
        ("image_build.job", "SLIPWAY_IMAGE", "x.sif"),
    ],
)
def test_nothing_is_built_in_world_writable_folder(  # noqa: PLR0917 -- fixtures and columns
    run, place, open_folder, script, setting, name
):
    open_folder.chmod(0o777)
    path = open_folder / name
    env = {setting: str(path)}
    done = run(script, **env)
    assert done.returncode == 78
    assert_error(done.stderr, "writable-by-others", open_folder, path)
    assert [path for path in open_folder.rglob("*") if path.name != "new"] == []
    assert not (place / "seen").exists()
    assert run(script, **env, SLIPWAY_TRUSTED_FOLDER=str(open_folder)).returncode == 0


# regression: they were removed, and surviving processes of the build created them again
@pytest.mark.parametrize(("script", "number"), [("venv_build.job", signal.SIGTERM), ("image_build.job", signal.SIGHUP)])
def test_signal_ends_build_before_cleanup(run, place, tmp_path, script, number):
    lib = tmp_path / "lib"
    shutil.copytree(ROOT / "jobscripts" / "lib", lib)
    text = (lib / "build.bash").read_text()
    assert "--kill-after=10 " in text
    (lib / "build.bash").write_text(text.replace("--kill-after=10 ", "--kill-after=0.3 "))
    build = run(script, stub="slow", start=True, SLIPWAY_LIB=str(lib))
    while not (place / "slow").exists():
        assert build.poll() is None, build.communicate()
        time.sleep(0.01)
    build.send_signal(number)
    build.communicate(timeout=600)
    assert build.returncode == 128 + number
    (place / "slow").unlink()
    time.sleep(0.1)
    left = [path.name for path in place.iterdir() if path.name.startswith((".venv", "slipway.sif"))]
    assert (left, [*(place / "disk").iterdir()], (place / "slow").exists()) == ([], [], False)


class TestImage:
    def test_image_replaces_old_image_only_when_complete(self, run, place):
        old = b"#!/usr/bin/env run-singularity\n\0SIF_MAGIC\0"
        (place / "slipway.sif").write_bytes(old)
        assert_error(run("image_build.job", stub="image").stderr, "build-failed")
        assert (place / "slipway.sif").read_bytes() == old
        done = run("image_build.job", SLIPWAY_BASE_IMAGE="docker-archive:base.tar")
        assert (done.returncode, len(done.stderr.splitlines())) == (0, 1)
        assert str(place / "slipway.sif") in done.stderr
        assert (place / "slipway.sif").read_text() == "new\n"
        assert list((place / "disk").iterdir()) == []

    # regression: both used dist/, and one took the other's image
    def test_concurrent_builds_in_one_clone_keep_separate_images(self, run, place):
        with ThreadPoolExecutor() as pool:
            started = [
                pool.submit(run, "image_build.job", stub="pair", SLURM_JOB_ID=job, SLIPWAY_IMAGE=f"{job}.sif")
                for job in ("102", "103")
            ]
            assert [each.result().returncode for each in started] == [0, 0]
        assert {path.name: path.read_text() for path in place.glob("*.sif*")} == {
            "102.sif": "102\n",
            "103.sif": "103\n",
        }
        assert not (place / "dist").exists()

    def test_image_build_caches_are_outside_home_folder(self, run, place):
        run("image_build.job", SLIPWAY_VARIANT="cpu", SLIPWAY_BASE_IMAGE="docker-archive:base.tar")
        env = seen(place)
        for name in ("SCRATCH", "TMPDIR", "XDG_CACHE_HOME", "PIP_CACHE_DIR"):
            assert env[name].startswith(str(place / "disk")), name
        assert [env[name] for name in ("ROUTES", "VARIANT", "BASE_IMAGE")] == [
            "registry",
            "cpu",
            "docker-archive:base.tar",
        ]

    # regression: an existing file of that name was replaced, or the result could not be moved there
    @pytest.mark.parametrize(
        ("image", "slug"),
        [
            ("empty", "file-exists"),
            ("thesis.tex", "file-exists"),
            ("short", "file-exists"),
            ("disk", "file-exists"),
            ("none/x.sif", "cannot-write"),
            ("docker://a/b", "bad-value"),
        ],
    )
    def test_invalid_image_path_is_refused_before_build(self, run, place, image, slug):
        files = {"empty": "", "thesis.tex": "\\documentclass{thesis}\n" * 9, "short": "SIF_MAGIC"}
        for name, text in files.items():
            (place / name).write_text(text)
        assert_refused(run("image_build.job", SLIPWAY_IMAGE=image), slug, image, "SLIPWAY_IMAGE")
        assert {name: (place / name).read_text() for name in files} == files
        assert not (place / "seen").exists()


@pytest.mark.parametrize(
    ("mark", "env", "values"),
    [
        (None, {}, ["/theirs ", "build/setup", "VENV"]),
        ("cpu", {"VARIANT": "cuda"}, ["/theirs ", "cpu", "cuda", "VENV"]),
        ("cpu", {"WHEELHOUSE": "/nowhere"}, ["/nowhere", "`make wheelhouse`"]),
    ],
)
def test_setup_refuses_other_existing_environment(tmp_path, mark, env, values):
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    if mark:
        (theirs / ".setup-variant").write_text(f"{mark}\n")
    before = list(theirs.iterdir())
    fixed = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "VENV": str(theirs), "PYTHON": sys.executable}
    done = subprocess.run(
        [ROOT / "build" / "setup", "train"], env=fixed | env, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 1
    assert_names(done.stderr.splitlines()[-1], "setup: ", *values)
    assert list(theirs.iterdir()) == before


# regression: build/test, which puts .venv/bin first in PATH, removed the Python of an activated environment
# or of one under another name
def test_setup_rebuilds_activated_venv_with_outside_python(tmp_path):
    venv, outside = tmp_path / "venv", tmp_path / "bin"
    for folder, text in {
        venv / "bin": "exit 1",
        outside: 'printf "%s\\n" "$*" >>"$HOME/calls"; [ "$2" != venv ]',
    }.items():
        folder.mkdir(parents=True)
        (folder / "python3").write_text(f"#!/bin/bash\n{text}\n")
        (folder / "python3").chmod(0o755)
    (venv / ".setup-variant").write_text("cpu\n")
    (tmp_path / "link").symlink_to(tmp_path)
    activated = f"{tmp_path}/link/venv/bin:{venv}/bin:{venv}/bin"
    env = {"PATH": f"{activated}:{outside}:/usr/bin:/bin", "HOME": str(tmp_path), "VENV": str(venv)}
    subprocess.run([ROOT / "build" / "setup", "train"], env=env, capture_output=True, timeout=600, check=False)
    assert f"-m venv {venv}" in (tmp_path / "calls").read_text().splitlines()


PYTHON = """#!/bin/bash
if [ "$2" = venv ]; then mkdir -p "$3/bin" && exec cp "$0" "$3/bin/python"; fi
printf '%s\\n' "$*" >>"$HOME/calls"
"""


@pytest.mark.parametrize("variant", sorted(path.stem for path in (ROOT / "containers" / "pins").glob("*.env")))
def test_wheelhouse_downloads_all_locked_packages(tmp_path, variant):
    (tmp_path / "python3").write_text(PYTHON)
    (tmp_path / "python3").chmod(0o755)
    folder = tmp_path / "wheel house"
    env = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "PYTHON": str(tmp_path / "python3")}
    done = subprocess.run(
        [ROOT / "build" / "wheelhouse", folder],
        env=env | {"VARIANT": variant, "HOROVOD": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    calls = (tmp_path / "calls").read_text().splitlines()
    downloads = [call for call in calls if " pip " in call]
    assert all(call.startswith(f"-m pip download --dest {folder} ") for call in downloads)
    wanted = ["torch===", "torchvision==", f"locks/{variant}.txt", "locks/build.txt", "source.txt"]
    wanted += [f"locks/{variant}-build.txt"] if variant != "cpu" else []
    assert all(any(word in call for call in downloads) for word in wanted), calls
    # regression: it printed a script for Slurm, also under PBS
    assert done.stdout.splitlines()[-1].endswith(" jobgen submit venv_build --site SITE")


@pytest.fixture
def index():
    """Return the address of a package index without packages, and the list of requests to it."""
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            self.send_error(404)

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever).start()
        yield f"http://127.0.0.1:{server.server_port}/simple", asked
        server.shutdown()


def write_wheel(folder, name, version):
    """Write a wheel of a package that contains only its version."""
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}/__init__.py": f"__version__ = {version!r}\n",
        f"{name}/extension.py": "",  # of torchvision; containers/install adds lines to it
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": "",
    }
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        for path, text in files.items():
            wheel.writestr(path, text)


def test_setup_installs_pytorch_of_variant_from_folder_without_index(tmp_path, index):
    """With the real venv and pip, up to the locked packages: only the original wheels have their hashes."""
    variant = "cuda12"
    (wheels := tmp_path / "wheel house").mkdir()
    for each in ("cpu", "cuda", "cuda12"):
        for name in ("torch", "torchvision"):
            write_wheel(wheels, name, pins(each)[f"{name.upper()}_VERSION"])
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "df").write_text("#!/bin/sh\necho 99999\n")  # enough for any variant
    (tmp_path / "bin" / "df").chmod(0o755)
    url, asked = index
    env = {"PATH": f"{tmp_path}/bin:/usr/bin:/bin", "HOME": str(tmp_path), "PIP_CONFIG_FILE": "/dev/null"}
    env |= {"PIP_INDEX_URL": url, "TORCH_INDEX": url, "PYTHON": sys.executable, "VARIANT": variant}
    venv = tmp_path / "environment"
    env |= {"VENV": str(venv), "WHEELHOUSE": str(wheels)}
    words = [ROOT / "build" / "setup", "train"]
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 1
    assert_names(done.stderr.splitlines()[-1], "30-packages: ", f"{variant}.txt")
    show = "import sys, torch, torchvision; print(sys.prefix, torch.__version__, torchvision.__version__)"
    versions = [pins(variant)[f"{name}_VERSION"] for name in ("TORCH", "TORCHVISION")]
    assert subprocess.check_output([venv / "bin" / "python", "-c", show], text=True).split() == [str(venv), *versions]
    assert asked == []
