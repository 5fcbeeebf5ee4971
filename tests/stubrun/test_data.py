"""Data as a folder, a squashfs image, a tar or another file: whole scripts with each kind."""

import gzip
import os
import zipfile
from pathlib import Path

import pytest

from messages import slugs
from stubs import DONE, JOIN, launches_of, payload_of
from tars import FILES, content_of, make_tar

SQUASHFS = b"hsqs" + bytes(1020)
"""Checked properties of a file."""
ALL = ["ddp.job", "ddp-mpirun.job", "horovod.job", "horovod-gloo.job", "single.job", "ddp.pbs", "ddp.sh"]


SEE = 'while [ "$1" != --data-dir ]; do shift; done; cp --recursive -- "$2" "$STUB_LOG.data"'
"""Code of a rank that keeps its data for the test, for STUB_ON_TRAIN."""


def data_dir_of(ended):
    words = payload_of(ended)
    return words[words.index("--data-dir") + 1]


@pytest.mark.parametrize("script", ALL)
class TestScripts:
    def test_squashfs_image_is_mounted_by_container(self, project, script):
        (project.folder / "my data.tar").write_bytes(SQUASHFS)  # whatever its name is
        see = 'ls -d "$DATA" >"$STUB_LOG.data"'
        ended = project.run(script, SLIPWAY_DATA="my data.tar", STUB_ON_TRAIN=see, **DONE)
        assert (ended.code, ended.notes) == (0, [])
        folder = Path(data_dir_of(ended))
        assert (folder.name, folder.parents[1]) == ("mounted", project.folder / "disk")
        assert ended.env["DATA"] == str(folder)
        assert Path(f"{project.log}.data").read_text() == f"{folder}\n"  # mount point on the node
        quoted = [str(path).replace('"', '""') for path in (project.folder / "my data.tar", folder)]
        mount = 'type=bind,"source={}","destination={}",image-src=/,ro'.format(*quoted)
        for words in ended.of("apptainer"):
            assert [word for word in words if "my data.tar" in word] == [mount]
        assert list((project.folder / "disk").iterdir()) == []

    def test_tar_is_unpacked_on_node(self, project, script):
        make_tar(project.folder / "my tar")  # whatever its name is
        ended = project.run(script, SLIPWAY_DATA="my tar", SLIPWAY_STAGE="1", STUB_ON_TRAIN=SEE, **DONE)
        assert (ended.code, len(ended.notes)) == (0, 1)
        assert content_of(Path(f"{project.log}.data")) == FILES
        folder = Path(data_dir_of(ended))
        assert (folder.name, folder.parents[1]) == ("data", project.folder / "disk")
        assert not [word for words in ended.of("apptainer") for word in words if "my tar" in word]
        assert list((project.folder / "disk").iterdir()) == []

    @pytest.mark.parametrize("way", [{"USE_CONTAINER": "0"}, {"SLIPWAY_STAGE": "1"}])
    def test_data_folder_is_used_in_place_or_staged(self, project, script, way):
        for name, content in FILES.items():
            (project.folder / "my data" / name).parent.mkdir(parents=True, exist_ok=True)
            (project.folder / "my data" / name).write_bytes(content)
        ended = project.run(script, SLIPWAY_DATA="my data", STUB_ON_TRAIN=SEE, **way, **DONE)
        assert ended.code == 0
        assert content_of(Path(f"{project.log}.data")) == FILES
        assert (data_dir_of(ended) == str(project.folder / "my data")) == ("USE_CONTAINER" in way)


@pytest.mark.parametrize("script", ["ddp.job", "ddp.pbs", "ddp.sh"])
@pytest.mark.parametrize(
    ("content", "way", "values"),
    [
        (SQUASHFS, {"USE_CONTAINER": "0"}, ["squashfs", "USE_CONTAINER=1", "unsquashfs"]),
        (SQUASHFS[:8], {"SLIPWAY_SCRIPT": "my train.py"}, ["damaged", "8 of 96", "squashfs"]),
        (gzip.compress(b"text" * 1000), {"SLIPWAY_STAGE": "1"}, ["folder", "ZIP", "squashfs", "tar", "(tar: "]),
    ],
    ids=["squashfs", "damaged", "another file"],
)
def test_unusable_data_are_refused_before_anything_is_written(project, script, content, way, values):
    """For the kinds see library/test_data_kinds.py."""
    (project.folder / "file").write_bytes(content)
    before = sorted(project.folder.rglob("*"))
    ended = project.run(script, SLIPWAY_DATA="file", **way)
    ended.assert_refused("bad-data-file", "SLIPWAY_DATA", f"{project.folder}/file ", *values)
    assert launches_of(ended) == []
    assert sorted(project.folder.rglob("*")) == before


@pytest.mark.parametrize("stage", ["0", "1"])
@pytest.mark.parametrize("container", ["0", "1"])
@pytest.mark.parametrize("own", [{}, {"SLIPWAY_SCRIPT": "my train.py"}], ids=["trainer", "script of the user"])
def test_zip_and_user_script_files_are_passed_unchanged(project, own, container, stage):
    path = project.folder / "my photos"  # whatever its name is
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("cat/0.png", b"pixels")
    content = b"tokens" if own else path.read_bytes()
    path.write_bytes(content)
    way = {"USE_CONTAINER": container, "SLIPWAY_DATA": "my photos", "SLIPWAY_STAGE": stage}
    ended = project.run("ddp.job", STUB_ON_TRAIN=f'cp -- "$DATA" "$STUB_LOG.data"; {JOIN}', **own, **way, **DONE)
    assert ended.code == 0, ended
    assert Path(f"{project.log}.data").read_bytes() == content
    assert (ended.env["DATA"] == str(path)) == (stage == "0")


@pytest.mark.parametrize("way", ["image", "tar"])
def test_resumed_job_unpacks_or_mounts_data_again(project, way):
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
def test_damaged_tar_is_reported_and_ends_job_before_training(project, harm):
    path = project.folder / "data.tar"
    make_tar(path, {f"{number}": os.urandom(3000) for number in range(30)}, mode="w:gz" if "gz" in harm else "w")
    whole = path.read_bytes()
    file = (512 + 3072) * 20  # where a file begins
    harmed = {
        "cut": whole[: len(whole) // 2 + 100],
        "no end": whole[:file],
        "flipped": whole[:file] + bytes(range(200)) + whole[file + 200 :],
        "cut.gz": whole[: len(whole) // 2],
    }
    path.write_bytes(harmed[harm])
    ended = project.run("ddp.job", SLIPWAY_DATA="data.tar", SLIPWAY_STAGE="1", **DONE)
    assert (ended.code, launches_of(ended)) == (78, [])
    said = [line for line in ended.err.splitlines() if line.startswith("stage: ")]
    assert {str(path) in line for line in said} == {True}
    assert slugs(ended.err) == ["staging-failed", "staging-failed"]  # of the node, of the job
    assert list((project.folder / "disk").iterdir()) == []
