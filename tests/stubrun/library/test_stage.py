"""Data that a node copies to, or unpacks on, its local disk: jobscripts/lib/stage.bash."""

import contextlib
import os
import subprocess
import sys
import tarfile

import pytest

from bash_library import LIB, run, wait_until
from messages import assert_error, assert_names
from stubs import GONE
from tars import FILES, content_of, make_tar


@pytest.fixture
def scratch(place):
    """Return the scratch folder of a job."""
    (place / "scratch").mkdir()
    return place / "scratch"


@pytest.fixture
def stage(scratch, tmp_path):
    """Return a function that stages as a node does."""

    def stage(*words, **env):
        path = f"{tmp_path}/bin:/usr/bin:/bin:{sys.prefix}/bin"  # the last for tar's bzip2 and xz
        return run("bash", str(LIB / "stage.bash"), str(scratch), *map(str, words), PATH=path, **env)

    return stage


@pytest.fixture
def data(place):
    """Return a folder with a file."""
    (place / "data").mkdir()
    (place / "data" / "new").write_text("x")
    return place / "data"


class TestCopy:
    def test_files_and_folders_are_copied_under_their_names(self, place, data, scratch, stage):
        (data / "-x").write_text("x")
        (place / "link").symlink_to("data/-x")
        done = stage(
            "copy", data, scratch / "0", "copy", place / "link", scratch / "1", "copy", data / "-x", scratch / "2"
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert content_of(scratch).items() >= {"0/data/-x": b"x", "1/link": b"x", "2/-x": b"x"}.items()
        assert not (scratch / "1" / "link").is_symlink()
        assert (scratch / "0").stat().st_mode & 0o77 == 0

    @pytest.mark.parametrize(
        ("size", "program", "code"),
        [
            (1, "df", "printf 'Avail\\n0\\n'"),
            (10_000_000, "lfs", '[ "$1" != quota ] || echo " /scratch 99000 0 100000 - 1 0 0 -"'),  # a quota
        ],
    )
    def test_too_small_disk_is_reported_before_copy(self, data, stub, scratch, stage, size, program, code):  # noqa: PLR0917 -- fixtures
        (data / "new").write_bytes(bytes(size))
        stub(program, code)
        done = stage("copy", data, scratch / "d")
        assert done.returncode == 1
        assert_names(done.stderr, "stage: ", scratch, " 0 MB", "SLIPWAY_LOCAL_DISK")
        assert list(scratch.iterdir()) == []

    def test_missing_source_is_reported(self, place, scratch, stage):
        done = stage("copy", place / "gone", scratch / "d")
        assert (done.returncode, "gone" in done.stderr) == (1, True)

    @pytest.mark.parametrize("target", ["gone", "link", "..", "gone/below"])
    def test_dangling_or_cyclic_link_is_reported_before_copy(self, place, data, scratch, stage, target):
        (place / "b" / "c").mkdir(parents=True)
        (place / "b" / "c" / "link").symlink_to(target)
        done = stage("copy", data, scratch / "a", "copy", place / "b", scratch / "b")
        assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
        assert_error(done.stderr, "staging-failed", place / "b", "/b/c/link")
        assert not (scratch / "a").exists()

    def test_link_to_outside_is_copied_as_target(self, place, data, scratch, stage):
        (place / "outside" / "below").mkdir(parents=True)
        (place / "outside" / "below" / "file").write_text("x")
        (data / "folder").symlink_to(place / "outside")
        assert stage("copy", data, scratch / "d").returncode == 0
        assert content_of(scratch / "d" / "data") == {"folder/below/file": b"x", "new": b"x"}
        assert not any(path.is_symlink() for path in scratch.rglob("*"))

    # regression: it continued after 10 minutes, removed the other's reservation, and ended with mkdir's error
    @pytest.mark.parametrize("kind", ["copy", "unpack"])
    def test_scratch_locked_by_other_process_is_left_unchanged(self, data, stub, scratch, stage, kind):
        (scratch / "d").mkdir()
        (scratch / "reserved").write_text("x")
        stub("flock", "exit 1")
        done = stage(kind, data, scratch / "d")
        assert done.returncode == 1
        assert_error(done.stderr, "staging-failed", scratch)
        assert content_of(scratch) == {"reserved": b"x"}
        stub("flock", "exit 127")  # there is none, so nothing to wait for
        (scratch / "d.part").mkdir()
        assert_error(stage(kind, data, scratch / "d").stderr, "staging-failed", scratch / "d")

    def test_repeated_stage_copies_only_unfinished_data(self, data, scratch, stage):
        (scratch / "d" / "data").mkdir(parents=True)  # as after SIGKILL
        (scratch / "d" / "data" / "old").touch()
        (scratch / "reserved").touch()
        assert stage("copy", data, scratch / "d").returncode == 0
        assert content_of(scratch / "d") == {"data/new": b"x"}
        assert sorted(path.name for path in scratch.iterdir()) == ["d", "staged"]
        (data / "new").unlink()
        assert stage("copy", data, scratch / "d").returncode == 0
        assert content_of(scratch / "d") == {"data/new": b"x"}


class TestOneDisk:
    """Two jobs that stage 6 MB each on a disk of 10 MB, whose free space a stub ``df`` computes from its files."""

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
            words = ["bash", LIB / "stage.bash", scratch, "copy", place / "data", scratch / "d"]
            env = {"PATH": f"{tmp_path}/bin:/usr/bin:/bin", "DISKS": str(place / "disk")}
            started.append(subprocess.Popen(words, env=env, stderr=subprocess.PIPE, text=True))
            return started[-1]

        yield start
        (tmp_path / "go").touch()
        for process in started:
            process.communicate()

    # what one job will need counts as used for another; if the file system reserves nothing, the second one waits
    @pytest.mark.parametrize("fallocate", [None, "exit 1", 'touch -- "$3"'])
    def test_second_job_fails_if_first_job_needs_disk_space(self, place, tmp_path, start, stub, fallocate):
        if fallocate:
            stub("fallocate", fallocate)
        first = start("first")
        wait_until((tmp_path / "copying").exists)
        second = start("second")
        with contextlib.suppress(subprocess.TimeoutExpired):
            second.wait(0.5)  # while the first has copied nothing
        (tmp_path / "go").touch()
        assert (first.wait(GONE), second.wait(GONE)) == (0, 1)
        assert_error(second.stderr.read(), "staging-failed", place / "disk" / "second", "SLIPWAY_LOCAL_DISK")
        assert (place / "disk/first/d/data").stat().st_size == 6_000_000
        assert not (place / "disk/second/d").exists()
        assert not list(place.glob("disk/*/reserved"))

    def test_both_jobs_stop_before_disk_is_full_without_locks(self, place, tmp_path, start, stub):
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
    def unpack(self, scratch, stage):
        """Return a function that unpacks a tar as a node does, and returns the result and the data."""
        return lambda path: (stage("unpack", path, scratch / "data", TAR_OPTIONS="--absolute-names"), scratch / "data")

    @pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2", "w:xz"])
    def test_single_top_folder_of_tar_becomes_data_folder(self, place, scratch, unpack, mode):
        done, data = unpack(make_tar(place / "x", mode=mode))
        assert (done.returncode, done.stderr) == (0, "")
        assert content_of(data) == FILES
        assert sorted(path.name for path in scratch.iterdir()) == ["data", "staged"]
        assert all(path.stat().st_mode & 0o77 == 0 for path in data.rglob("*"))
        assert all(path.stat().st_uid == os.getuid() for path in data.rglob("*"))

    @pytest.mark.parametrize("files", [{"train/x": b"x", "val/x": b"x"}, {"one.npz": b"x"}])
    def test_tar_without_single_top_folder_is_unpacked_whole(self, place, unpack, files):
        done, data = unpack(make_tar(place / "x", files, top=""))
        assert (done.returncode, content_of(data)) == (0, files)

    # torchvision's layout, MNIST/raw: --data-dir is the folder around it
    def test_tar_of_dot_keeps_its_subfolders(self, place, unpack):
        (place / "in" / "MNIST" / "raw").mkdir(parents=True)
        (place / "in" / "MNIST" / "raw" / "x").write_text("x")
        subprocess.run(["tar", "--create", "--file", "x.tar", "--directory", "in", "."], cwd=place, check=True)
        done, data = unpack(place / "x.tar")
        assert (done.returncode, content_of(data)) == (0, {"MNIST/raw/x": b"x"})

    def test_read_only_top_folder_is_moved(self, place, unpack):
        done, data = unpack(make_tar(place / "x", modes={"": 0o555, "train": 0o555}))
        assert (done.returncode, done.stderr) == (0, "")
        assert content_of(data) == FILES

    @pytest.mark.parametrize(
        ("members", "code"),
        [
            ([("{}/x", tarfile.REGTYPE, "")], 0),
            ([("../../outside/x", tarfile.REGTYPE, "")], 1),
            ([("link", tarfile.SYMTYPE, "{}"), ("link/x", tarfile.REGTYPE, "")], 1),
            ([("link", tarfile.LNKTYPE, "{}/there")], 1),
        ],
        ids=["absolute", "dots", "link", "hard link"],
    )
    def test_tar_cannot_write_outside_target(self, place, tmp_path, unpack, members, code):
        outside = tmp_path / "outside"
        outside.mkdir()
        (outside / "there").write_text("mine")
        with tarfile.open(place / "x", "w") as tar:
            for name, kind, target in members:
                member = tarfile.TarInfo(name.replace("{}", str(outside)))
                member.type, member.linkname = kind, target.replace("{}", str(outside))
                tar.addfile(member)
        assert min(unpack(place / "x")[0].returncode, 1) == code
        assert {path.name: path.read_text() for path in outside.iterdir()} == {"there": "mine"}

    def test_unpack_stops_before_disk_is_full(self, place, stub, scratch, unpack):
        make_tar(place / "x", {str(number): bytes(100_000) for number in range(300)}, mode="w:gz")
        # a gigabyte, of which less is left each time
        stub("df", f'n=$(cat "{place.parent}/n" 2>/dev/null || echo 200000); echo $((n - 80000)) >"{place.parent}/n"; '
             'case $* in *avail*) echo Avail; echo "$n" ;; *) echo 1K-blocks; echo 1000000 ;; esac')  # fmt: skip
        stub("tar", 'case $* in *extract*) exec sleep 5 ;; esac; exec /usr/bin/tar "$@"')
        done, data = unpack(place / "x")
        assert done.returncode == 1
        assert_names(done.stderr, "stage: ", scratch, place / "x", "SLIPWAY_LOCAL_DISK")
        assert not data.exists()

    def test_tar_name_with_colon_is_not_a_remote_host(self, place, unpack):
        assert unpack(make_tar(place / "a:b"))[0].returncode == 0
