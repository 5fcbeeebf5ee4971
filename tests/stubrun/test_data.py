"""Data as a folder, a squashfs image or a tar: what scripts do with each, and what a node's copy of it is."""

import contextlib
import gzip
import io
import os
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path

import pytest

from messages import assert_error, assert_names, slugs
from stubs import DONE, GONE, HOSTILE, SCRIPTS, launches_of, payload_of

LIB = SCRIPTS / "lib"
SQUASHFS = b"hsqs" + bytes(1020)
"""What is looked at of one."""
KINDS = ["folder", "ZIP", "squashfs", "tar"]
FILES = {"train/a/1": b"one", "train/b/2": b"two", "val/a/3": b"three"}
ALL = ["ddp.job", "ddp-mpirun.job", "horovod.job", "horovod-gloo.job", "single.job", "ddp.pbs", "ddp.sh"]


def make_tar(path, files=FILES, *, top="aerial/", mode="w", modes=None):
    """Write a tar of files, whose names begin with ``top``; ``modes``: of those that are to have another one."""
    with tarfile.open(path, mode) as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(top + name)
            member.size = len(content)
            member.uid = member.gid = 4711
            tar.addfile(member, io.BytesIO(content))
        for name, bits in (modes or {}).items():
            member = tarfile.TarInfo(top + name)
            member.type, member.mode = tarfile.DIRTYPE, bits
            tar.addfile(member)
    return path


def content_of(folder):
    """Return the files below a folder, by their names in it."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


SEE = 'while [ "$1" != --data-dir ]; do shift; done; cp --recursive -- "$2" "$STUB_LOG.data"'
"""What a rank does that keeps its data for the test, with STUB_ON_TRAIN."""


def data_dir_of(ended):
    words = payload_of(ended)
    return words[words.index("--data-dir") + 1]


@pytest.mark.parametrize("script", ALL)
class TestScripts:
    def test_a_squashfs_image_is_mounted_by_the_container_and_nothing_else_changes(self, project, script):
        (project.folder / "my data.tar").write_bytes(SQUASHFS)  # whatever the name says
        see = 'ls -d "$DATA" >"$STUB_LOG.data"'
        ended = project.run(script, SLIPWAY_DATA="my data.tar", STUB_ON_TRAIN=see, **DONE)
        assert (ended.code, ended.notes) == (0, [])
        folder = Path(data_dir_of(ended))
        assert (folder.name, folder.parents[1]) == ("mounted", project.folder / "disk")
        assert ended.env["DATA"] == str(folder)
        assert Path(f"{project.log}.data").read_text() == f"{folder}\n"  # on the node there is where to mount it
        quoted = [str(path).replace('"', '""') for path in (project.folder / "my data.tar", folder)]
        mount = 'type=bind,"source={}","destination={}",image-src=/,ro'.format(*quoted)
        for words in ended.of("apptainer"):
            assert [word for word in words if "my data.tar" in word] == [mount]
        assert list((project.folder / "disk").iterdir()) == []

    def test_a_tar_is_unpacked_on_the_node(self, project, script):
        make_tar(project.folder / "my tar")  # whatever the name says
        ended = project.run(script, SLIPWAY_DATA="my tar", SLIPWAY_STAGE="1", STUB_ON_TRAIN=SEE, **DONE)
        assert (ended.code, len(ended.notes)) == (0, 1)
        assert content_of(Path(f"{project.log}.data")) == FILES
        folder = Path(data_dir_of(ended))
        assert (folder.name, folder.parents[1]) == ("data", project.folder / "disk")
        assert not [word for words in ended.of("apptainer") for word in words if "my tar" in word]
        assert list((project.folder / "disk").iterdir()) == []

    @pytest.mark.parametrize("way", [{"USE_CONTAINER": "0"}, {"SLIPWAY_STAGE": "1"}])
    def test_a_folder_is_used_as_before(self, project, script, way):
        for name, content in FILES.items():
            (project.folder / "my data" / name).parent.mkdir(parents=True, exist_ok=True)
            (project.folder / "my data" / name).write_bytes(content)
        ended = project.run(script, SLIPWAY_DATA="my data", STUB_ON_TRAIN=SEE, **way, **DONE)
        assert ended.code == 0
        assert content_of(Path(f"{project.log}.data")) == FILES
        assert (data_dir_of(ended) == str(project.folder / "my data")) == ("USE_CONTAINER" in way)


@pytest.mark.parametrize("script", ["ddp.job", "ddp.pbs", "ddp.sh"])
class TestRefusals:
    """In one line, with 78, before anything has been written."""

    @pytest.fixture(autouse=True)
    def files(self, project):
        (project.folder / "image").write_bytes(SQUASHFS)
        (project.folder / "cut").write_bytes(SQUASHFS[:8])
        make_tar(project.folder / "tar")
        (project.folder / "zip").write_bytes(b"PK\3\4" + bytes(600))
        (project.folder / "7z").write_bytes(b"7z\xbc\xaf\x27\x1c" + bytes(600))
        (project.folder / "text.gz").write_bytes(gzip.compress(b"text" * 1000))
        before = sorted(project.folder.rglob("*"))
        yield
        assert sorted(project.folder.rglob("*")) == before

    @pytest.mark.parametrize(
        ("name", "way", "values"),
        [
            ("image", {"USE_CONTAINER": "0"}, ["squashfs", "USE_CONTAINER=1", "unsquashfs"]),
            ("cut", {"SLIPWAY_SCRIPT": "my train.py"}, ["damaged", "8 of 96", "squashfs"]),
            ("tar", {}, ["tar", "SLIPWAY_STAGE=1"]),
            ("tar", {"USE_CONTAINER": "0", "SLIPWAY_SCRIPT": "my train.py"}, ["tar", "SLIPWAY_STAGE=1"]),
            ("zip", {}, ["damaged", "ZIP"]),
            ("7z", {}, KINDS),
            ("7z", {"SLIPWAY_STAGE": "1"}, KINDS),
            ("text.gz", {"SLIPWAY_STAGE": "1"}, [*KINDS, "(tar: "]),
        ],
    )
    def test_what_cannot_be_used_is_told(self, project, script, name, way, values):
        ended = project.run(script, SLIPWAY_DATA=name, **way)
        ended.assert_refused("bad-data-file", "SLIPWAY_DATA", f"{project.folder}/{name} ", *values)
        assert launches_of(ended) == []


@pytest.mark.parametrize("stage", ["0", "1"])
def test_a_script_of_ones_own_gets_any_other_file_as_it_is(project, stage):
    (project.folder / "tokens.bin").write_bytes(b"tokens")
    see = 'cp -- "$DATA" "$STUB_LOG.data"; echo 4 >"$RUN_DIR/logs/$TRAINER_ATTEMPT/world.node1.7"'
    own = {"SLIPWAY_SCRIPT": "my train.py", "SLIPWAY_DATA": "tokens.bin", "SLIPWAY_STAGE": stage}
    ended = project.run("ddp.job", STUB_ON_TRAIN=see, **own)
    assert ended.code == 0, ended
    assert Path(f"{project.log}.data").read_bytes() == b"tokens"
    assert (ended.env["DATA"] == str(project.folder / "tokens.bin")) == (stage == "0")


@pytest.mark.parametrize("stage", ["0", "1"])
@pytest.mark.parametrize("container", ["0", "1"])
def test_the_trainer_gets_a_zip_archive_as_it_is(project, container, stage):
    with zipfile.ZipFile(project.folder / "my photos", "w") as archive:  # whatever the name says
        archive.writestr("cat/0.png", b"pixels")
    way = {"USE_CONTAINER": container, "SLIPWAY_DATA": "my photos", "SLIPWAY_STAGE": stage}
    ended = project.run("ddp.job", STUB_ON_TRAIN='cp -- "$DATA" "$STUB_LOG.data"', **way, **DONE)
    assert ended.code == 0, ended
    assert Path(f"{project.log}.data").read_bytes() == (project.folder / "my photos").read_bytes()
    assert (data_dir_of(ended) == str(project.folder / "my photos")) == (stage == "0")


@pytest.mark.parametrize("way", ["image", "tar"])
def test_the_kept_script_unpacks_or_mounts_again(project, way):
    (project.folder / "image").write_bytes(SQUASHFS)
    make_tar(project.folder / "tar")
    first = project.run("ddp.job", SLIPWAY_DATA=way, SLIPWAY_STAGE="1", STUB_VERDICT="stopped 3 user")
    assert first.code == 75
    again = project.run(
        first.run_dir / "job.sh", SLIPWAY_RUN_DIR=None, SLURM_JOB_ID="4712", STUB_ON_TRAIN='ls "$DATA"', **DONE
    )
    assert again.code == 0, again
    assert data_dir_of(again) != data_dir_of(first)
    assert data_dir_of(again).startswith(f"{project.folder}/disk/slipway-4712.")


@pytest.mark.parametrize("harm", ["cut", "no end", "flipped", "cut.gz"])
def test_a_damaged_tar_is_named_and_ends_the_job_before_training(project, harm):
    path = project.folder / "data.tar"
    make_tar(path, {f"{number}": os.urandom(3000) for number in range(30)}, mode="w:gz" if "gz" in harm else "w")
    whole = path.read_bytes()
    path.write_bytes(
        {
            "cut": whole[: len(whole) // 2 + 100],
            "no end": whole[: (512 + 3072) * 20],  # between two files
            "flipped": whole[: (512 + 3072) * 20] + bytes(range(200)) + whole[(512 + 3072) * 20 + 200 :],
            "cut.gz": whole[: len(whole) // 2],
        }[harm]
    )
    ended = project.run("ddp.job", SLIPWAY_DATA="data.tar", SLIPWAY_STAGE="1", **DONE)
    assert ended.code == 78
    assert launches_of(ended) == []
    said = [line for line in ended.err.splitlines() if line.startswith("stage: ")]
    assert said != []
    assert all(f"{path}" in line for line in said)
    assert slugs(ended.err) == ["staging-failed", "staging-failed"]  # of the node, of the job
    assert list((project.folder / "disk").iterdir()) == []


def run(*words, **env):
    return subprocess.run(
        words, capture_output=True, text=True, env={"PATH": "/usr/bin:/bin", **env}, timeout=600, check=False
    )  # fmt: skip


@pytest.fixture
def place(tmp_path):
    """Return a folder with a hostile name."""
    folder = tmp_path / HOSTILE
    (folder / "scratch").mkdir(parents=True)
    return folder


@pytest.fixture
def stub(tmp_path):
    """Return a function that puts a program of some lines of sh first on PATH."""

    def stub(name, code):
        path = tmp_path / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{code}\n")
        path.chmod(0o755)

    return stub


@pytest.fixture
def stage(place, tmp_path):
    """Return a function that stages as a node does."""

    def stage(*words, **env):
        path = f"{tmp_path}/bin:/usr/bin:/bin:{sys.prefix}/bin"  # the last for tar's bzip2 and xz
        return run("bash", str(LIB / "stage.bash"), str(place / "scratch"), *map(str, words), PATH=path, **env)

    return stage


class TestCopy:
    def test_each_is_copied_by_its_name(self, place, stage):
        (place / "in put").mkdir()
        (place / "in put" / "-x").write_text("x")
        (place / "file").write_text("y")
        (place / "link").symlink_to("file")
        words = []
        for number, name in enumerate(("in put", "file", "link")):
            words += ["copy", place / name, place / "scratch" / str(number)]
        done = stage(*words)
        assert (done.returncode, done.stderr) == (0, "")
        assert (place / "scratch/0/in put/-x").read_text() == "x"
        assert (place / "scratch/2/link").read_text() == "y"
        assert not (place / "scratch/2/link").is_symlink()
        assert (place / "scratch/0").stat().st_mode & 0o77 == 0

    def test_a_disk_that_is_too_small_is_told_before_copying(self, place, stub, stage):
        (place / "data").write_text("x")
        stub("df", "printf 'Avail\\n0\\n'")
        done = stage("copy", place / "data", place / "scratch" / "d")
        assert done.returncode == 1
        assert_names(done.stderr, "stage: ", place / "scratch", " 0 MB", "SLIPWAY_LOCAL_DISK")
        assert list((place / "scratch").iterdir()) == []

    def test_a_quota_that_leaves_too_little_is_too_small_a_disk(self, place, stub, stage):
        (place / "data").write_bytes(bytes(10_000_000))
        stub("lfs", '[ "$1" != quota ] || echo " /scratch 99000 0 100000 - 1 0 0 -"')
        done = stage("copy", place / "data", place / "scratch" / "d")
        assert done.returncode == 1
        assert_names(done.stderr, "stage: ", place / "scratch", " 0 MB", "SLIPWAY_LOCAL_DISK")
        assert list((place / "scratch").iterdir()) == []

    def test_what_is_missing_is_told(self, place, stage):
        done = stage("copy", place / "gone", place / "scratch" / "d")
        assert done.returncode == 1
        assert "gone" in done.stderr

    @pytest.mark.parametrize("target", ["gone", "link", "..", "gone/below"])
    def test_a_link_without_an_end_is_named_before_anything_is_copied(self, place, stage, target):
        (place / "a").mkdir()
        (place / "a" / "file").touch()
        (place / "b" / "c").mkdir(parents=True)
        (place / "b" / "c" / "link").symlink_to(target)
        words = [word for name in "ab" for word in ("copy", place / name, place / "scratch" / name)]
        done = stage(*words)
        assert done.returncode == 1
        assert len(done.stderr.splitlines()) == 1
        assert_error(done.stderr, "staging-failed", place / "b", "/b/c/link")
        assert not (place / "scratch" / "a").exists()

    def test_a_link_that_leads_outside_is_copied_as_what_is_there(self, place, stage):
        (place / "outside" / "below").mkdir(parents=True)
        (place / "outside" / "below" / "file").write_text("x")
        (place / "data").mkdir()
        (place / "data" / "folder").symlink_to(place / "outside")
        assert stage("copy", place / "data", place / "scratch" / "d").returncode == 0
        assert content_of(place / "scratch/d/data") == {"folder/below/file": b"x"}
        assert not any(path.is_symlink() for path in (place / "scratch").rglob("*"))

    # once: it went on after 10 minutes, removed what the other one had reserved, and ended with mkdir's own error
    @pytest.mark.parametrize("kind", ["copy", "unpack"])
    def test_a_folder_that_another_process_holds_for_too_long_is_left_to_it(self, place, stub, stage, kind):
        (place / "data").mkdir()
        (place / "scratch" / "d").mkdir(parents=True)
        (place / "scratch" / "reserved").write_text("x")
        stub("flock", "exit 1")
        done = stage(kind, place / "data", place / "scratch" / "d")
        assert done.returncode == 1
        assert_error(done.stderr, "staging-failed", place / "scratch")
        assert content_of(place / "scratch") == {"reserved": b"x"}
        stub("flock", "exit 127")  # there is none, so nobody waits
        (place / "scratch" / "d.part").mkdir()
        assert_error(stage(kind, place / "data", place / "scratch" / "d").stderr, "staging-failed", place / "scratch/d")

    def test_a_step_that_is_run_again_copies_where_it_was_not_done_and_only_there(self, place, stage):
        (place / "data").mkdir()
        (place / "data" / "new").write_text("x")
        (place / "scratch" / "d" / "data").mkdir(parents=True)  # as after SIGKILL
        (place / "scratch" / "d" / "data" / "old").touch()
        (place / "scratch" / "reserved").touch()
        assert stage("copy", place / "data", place / "scratch" / "d").returncode == 0
        assert content_of(place / "scratch/d") == {"data/new": b"x"}
        assert sorted(path.name for path in (place / "scratch").iterdir()) == ["d", "staged"]
        (place / "data" / "new").unlink()
        assert stage("copy", place / "data", place / "scratch" / "d").returncode == 0
        assert content_of(place / "scratch/d") == {"data/new": b"x"}


class TestOneDisk:
    """Two jobs that stage 6 MB each on a disk of 10 MB, whose free space ``df`` says by what is there."""

    @pytest.fixture
    def start(self, place, tmp_path, stub):
        """Return a function that starts a job's staging; ``cp`` waits for a file ``go``."""
        (place / "data").write_bytes(bytes(6_000_000))
        stub(
            "df",
            """used=$(du --summarize --block-size=1K --total "$DISKS"/* | tail --lines=1 | cut --fields=1)
            case $* in *avail*) echo Avail; echo $((10000 - used)) ;; *) echo 1K-blocks; echo 10000 ;; esac""",
        )
        stub(
            "cp",
            f"""touch "{tmp_path}/copying"
            while [ ! -e "{tmp_path}/go" ]; do sleep 0.05; done
            exec /usr/bin/cp --sparse=never "$@" """,
        )
        started = []

        def start(job):
            scratch = place / "disk" / job
            scratch.mkdir(parents=True)
            words = ["copy", str(place / "data"), str(scratch / "d")]
            command = ["bash", str(LIB / "stage.bash"), str(scratch), *words]
            path = f"{tmp_path}/bin:/usr/bin:/bin"
            started.append(
                subprocess.Popen(
                    command, env={"PATH": path, "DISKS": str(place / "disk")}, stderr=subprocess.PIPE, text=True
                )
            )
            return started[-1]

        yield start
        (tmp_path / "go").touch()
        for process in started:
            process.communicate()

    def until_it_copies(self, tmp_path):
        deadline = time.monotonic() + GONE
        while not (tmp_path / "copying").exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def assert_one_only(self, place, first, second):
        assert first.wait(GONE) == 0
        assert second.wait(GONE) == 1
        assert_error(second.stderr.read(), "staging-failed", place / "disk" / "second", "SLIPWAY_LOCAL_DISK")
        assert (place / "disk/first/d/data").stat().st_size == 6_000_000
        assert not (place / "disk/second/d").exists()
        assert not list(place.glob("disk/*/reserved"))

    def test_what_one_job_will_need_is_taken_for_another(self, place, tmp_path, start):
        first = start("first")
        self.until_it_copies(tmp_path)
        second = start("second")
        with contextlib.suppress(subprocess.TimeoutExpired):
            second.wait(0.5)  # while the first has copied nothing
        (tmp_path / "go").touch()
        self.assert_one_only(place, first, second)

    @pytest.mark.parametrize("fallocate", ["exit 1", 'touch -- "$3"'])
    def test_one_job_after_another_where_the_file_system_reserves_nothing(
        self, place, tmp_path, start, stub, fallocate
    ):
        stub("fallocate", fallocate)
        first = start("first")
        self.until_it_copies(tmp_path)
        second = start("second")
        with contextlib.suppress(subprocess.TimeoutExpired):
            second.wait(0.5)  # it waits for the first
        (tmp_path / "go").touch()
        self.assert_one_only(place, first, second)

    def test_without_locks_too_both_stop_before_the_disk_is_full(self, place, tmp_path, start, stub):
        for name in ("fallocate", "flock"):
            stub(name, "exit 69")
        stub(
            "cp",
            f"""touch "{tmp_path}/copying$PPID"
            while [ $(ls "{tmp_path}" | grep --count copying) != 2 ]; do sleep 0.05; done
            while [ $# -gt 2 ]; do shift; done
            head --bytes=5M "$1" >"$2/part"
            exec sleep 5""",
        )
        jobs = [start("first"), start("second")]
        assert {job.wait(GONE) for job in jobs} == {1}
        for job in jobs:
            assert_error(job.stderr.read(), "staging-failed", place / "data", "SLIPWAY_LOCAL_DISK")


class TestUnpack:
    @pytest.fixture
    def unpack(self, place, stage):
        """Return a function that unpacks a tar as a node does, and what of the scratch folder it must not touch."""

        def unpack(path, **env):
            done = stage("unpack", path, place / "scratch" / "data", **env)
            return done, place / "scratch" / "data"

        return unpack

    @pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2", "w:xz"])
    def test_one_folder_is_what_the_data_are(self, place, unpack, mode):
        done, data = unpack(make_tar(place / "x", mode=mode))
        assert (done.returncode, done.stderr) == (0, "")
        assert content_of(data) == FILES
        assert sorted(path.name for path in (place / "scratch").iterdir()) == ["data", "staged"]
        assert all(path.stat().st_mode & 0o77 == 0 for path in data.rglob("*"))
        assert all(path.stat().st_uid == os.getuid() for path in data.rglob("*"))

    @pytest.mark.parametrize("names", [["train", "val"], ["one.npz"]])
    def test_otherwise_all_that_it_holds_is(self, place, unpack, names):
        files = {f"{name}/x" if "." not in name else name: b"x" for name in names}
        done, data = unpack(make_tar(place / "x", files, top=""))
        assert done.returncode == 0
        assert content_of(data) == files

    # torchvision's layout, MNIST/raw: --data-dir is the folder around it
    def test_a_tar_of_a_folder_by_the_name_of_dot_is_that_folder(self, place, unpack):
        (place / "in" / "MNIST" / "raw").mkdir(parents=True)
        (place / "in" / "MNIST" / "raw" / "x").write_text("x")
        subprocess.run(["tar", "--create", "--file", "x.tar", "--directory", "in", "."], cwd=place, check=True)
        done, data = unpack(place / "x.tar")
        assert done.returncode == 0
        assert content_of(data) == {"MNIST/raw/x": b"x"}

    def test_a_folder_that_may_not_be_written_is_moved(self, place, unpack):
        mortal = {"TAR_OPTIONS": "--absolute-names"}  # which must not count
        done, data = unpack(make_tar(place / "x", modes={"": 0o555, "train": 0o555}), **mortal)
        assert (done.returncode, done.stderr) == (0, "")
        assert content_of(data) == FILES

    def test_it_writes_nowhere_else(self, place, tmp_path, unpack):
        outside = tmp_path / "outside"
        outside.mkdir()
        evil = {
            "absolute": [tarfile.TarInfo(f"{outside}/x")],
            "dots": [tarfile.TarInfo("../../outside/x")],
            "link": [tarfile.TarInfo("link"), tarfile.TarInfo("link/x")],
            "hard link": [tarfile.TarInfo("link")],
        }
        evil["link"][0].type, evil["link"][0].linkname = tarfile.SYMTYPE, str(outside)
        evil["hard link"][0].type, evil["hard link"][0].linkname = tarfile.LNKTYPE, str(outside / "there")
        (outside / "there").write_text("mine")
        for name, members in evil.items():
            with tarfile.open(place / "x", "w") as tar:
                for member in members:
                    tar.addfile(member)
            done, _ = unpack(place / "x", TAR_OPTIONS="--absolute-names")
            assert (done.returncode == 0) == (name == "absolute"), name
            assert [path.name for path in outside.iterdir()] == ["there"], name
            subprocess.run(["rm", "-rf", *(place / "scratch").iterdir()], check=True)

    def test_a_disk_that_becomes_full_is_told_before_it_is(self, place, stub, unpack):
        make_tar(place / "x", {str(number): bytes(100_000) for number in range(300)}, mode="w:gz")
        # a gigabyte, of which less is left each time
        stub("df", f'n=$(cat "{place.parent}/n" 2>/dev/null || echo 200000); echo $((n - 80000)) >"{place.parent}/n"; '
             'case $* in *avail*) echo Avail; echo "$n" ;; *) echo 1K-blocks; echo 1000000 ;; esac')  # fmt: skip
        stub("tar", 'case $* in *extract*) exec sleep 5 ;; esac; exec /usr/bin/tar "$@"')
        done, data = unpack(place / "x")
        assert done.returncode == 1
        assert_names(done.stderr, "stage: ", place / "scratch", place / "x", "SLIPWAY_LOCAL_DISK")
        assert not data.exists()

    def test_a_name_with_a_colon_is_no_host(self, place, unpack):
        assert unpack(make_tar(place / "a:b"))[0].returncode == 0
