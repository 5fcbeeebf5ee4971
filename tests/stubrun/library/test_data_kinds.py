"""The kind of SLIPWAY_DATA by content: a folder, a ZIP archive, a squashfs image, a tar, or another file."""

import gzip
import random
import re
import shutil
import tempfile
from pathlib import Path

import pytest

from bash_library import assert_dies


def archive(kind):
    """Return an archive with an empty file."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "root").mkdir()
        Path(folder, "root", "one").touch()
        return Path(shutil.make_archive(f"{folder}/archive", kind, f"{folder}/root")).read_bytes()


TAR = archive("tar")
ZIP = archive("zip")
SQUASHFS = b"hsqs" + bytes(200)
CUT_SQUASHFS = b"hsqs" + bytes(36) + (10**12).to_bytes(8, "little") + bytes(200)
READ = 'check_data; echo "$data_kind"'


@pytest.mark.parametrize(
    ("call", "content", "kind"),
    [
        ("kind_of_data x.tar", SQUASHFS, "squashfs"),
        ("kind_of_squashfs x.tar", SQUASHFS, "squashfs"),
        ("kind_of_data x.tar", TAR, "tar"),
        ("kind_of_data x.tar", gzip.compress(TAR), "tar"),
        ("kind_of_data x.tar", ZIP, "zip"),
        ("kind_of_zip x.tar", ZIP, "zip"),
        ("kind_of_data x.tar", b"not a tar", "file"),
        ("kind_of_data x.tar", b"", "file"),
    ],
)
def test_data_kind_is_detected_by_content(bash, place, call, content, kind):
    (place / "x.tar").write_bytes(content)
    assert bash(call, TAR_OPTIONS="--wildcards").out == f"{kind}\n"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (bytes(10240), r"file( tar: .*)?"),
        (gzip.compress(b"not a tar\n" * 900), r"file tar: .*"),
        (gzip.compress(random.Random(1).randbytes(9000))[:20], r"file .*unexpected end.*"),  # by gzip
        (ZIP[:-30], r"damaged .*\bZIP\b.*"),
        (CUT_SQUASHFS, r"damaged \D*248\D*1000000000000\D*"),
    ],
    ids=["empty tar", "text.gz", "cut.gz", "cut.zip", "cut.sqsh"],
)
def test_reason_for_unknown_or_damaged_data_is_printed(bash, place, content, said):
    (place / "x").write_bytes(content)
    assert re.fullmatch(said + "\n", bash('kind_of_data "$PWD/x"').out)


def test_folder_named_tar_has_kind_folder(bash):
    assert bash("mkdir folder.tar; kind_of_data folder.tar").out == "folder\n"


@pytest.fixture
def files(place):
    """Write a file of each kind, named after it."""
    contents = {"image": SQUASHFS, "tar": TAR, "zip": ZIP, "cut": ZIP[:-30], "file": b"x"}
    for name, content in contents.items():
        (place / name).write_bytes(content)


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(
    ("settings", "container", "kind"),
    [
        ("SLIPWAY_DATA=", "1", ""),
        ("SLIPWAY_DATA=$PWD", "0", "folder"),
        ("SLIPWAY_DATA=image", "1", "squashfs"),
        ("SLIPWAY_DATA=tar SLIPWAY_STAGE=1", "0", "tar"),
        ("SLIPWAY_DATA=zip", "0", "zip"),
        ("SLIPWAY_DATA=file SLIPWAY_SCRIPT=x.py", "1", "file"),
    ],
)
def test_usable_data_are_accepted(bash, settings, container, kind):
    assert bash(f"{settings}; mounts_squashfs=1 inspect_data; {READ}", USE_CONTAINER=container) == (0, f"{kind}\n", "")


IMAGE = ["squashfs", "unsquashfs"]


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(
    ("name", "container", "runtime", "values"),
    [
        ("image", "0", "apptainer", [*IMAGE, "USE_CONTAINER=1"]),
        ("image", "1", "podman", [*IMAGE, "tar"]),
        ("image", "1", "pyxis", [*IMAGE, "tar"]),
        ("tar", "0", "apptainer", ["tar", "SLIPWAY_STAGE=1"]),
        ("cut", "0", "apptainer", ["damaged", "ZIP"]),
        ("file", "0", "apptainer", ["folder", "ZIP", "squashfs", "tar"]),
    ],
)
def test_unusable_data_are_refused(bash, name, container, runtime, values):
    refused = bash(f"SLIPWAY_DATA={name}; {READ}", USE_CONTAINER=container, runtime=runtime)
    assert_dies(refused, "bad-data-file", "SLIPWAY_DATA:", f" {name} ", *values)
    assert ("USE_CONTAINER=1" in refused.err) == ("USE_CONTAINER=1" in values)


def test_missing_data_are_refused(bash):
    assert_dies(bash(f"SLIPWAY_DATA=gone; {READ}"), "no-data", "SLIPWAY_DATA:", " gone ")
