"""ZIP archives of other programs: read as zipfile reads them; damage is reported by name."""

import pickle
import random
import re
import shutil
import subprocess
import zipfile

import pytest

from slipway.data.archive import Archive, ArchiveError, Names

CONTENTS = {
    "a/1.jpg": b"first",
    "a/ä ö.jpg": b"",
    "b/c/" + "long" * 60: bytes(range(256)) * 40,
    "b/PK\x05\x06": b"PK\5\6PK\1\2PK\3\4" * 9,
}


def write(path, *, method=zipfile.ZIP_STORED, comment=b"", contents=CONTENTS):
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.mkdir("a")
        for name, content in contents.items():
            archive.writestr(name, content)
        archive.comment = comment
    return path


def content(archive):
    return {archive.names[number]: archive.read(number) for number in range(len(archive))}


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize("comment", [b"", b"of mine", b"x" * 0xFFFF])
def test_members_written_by_zipfile_are_read(tmp_path, method, comment):
    archive = Archive(write(tmp_path / "a.zip", method=method, comment=comment))
    assert content(archive) == CONTENTS


@pytest.mark.skipif(not shutil.which("zip"), reason="no zip")
@pytest.mark.parametrize("options", [["-0"], ["-9"], ["-0", "--force-zip64"]])
def test_members_written_by_zip_command_are_read(tmp_path, options):
    for name in ("1.jpg", "ä.jpg"):
        (tmp_path / "a").mkdir(exist_ok=True)
        (tmp_path / "a" / name).write_bytes(name.encode() * 30)
    subprocess.run(["zip", "-qr", *options, "a.zip", "a"], cwd=tmp_path, check=True)
    assert content(Archive(tmp_path / "a.zip")) == {f"a/{name}": name.encode() * 30 for name in ("1.jpg", "ä.jpg")}


def test_archive_with_more_than_65535_members_is_read(tmp_path):
    path = write(tmp_path / "a.zip", contents={f"a/{number}": b"%d" % number for number in range(70000)})
    archive = Archive(path)
    assert len(archive) == 70000
    for number in (0, 65534, 65535, 65536, 69999):
        assert archive.read(number) == b"%d" % number


def test_zip64_members_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", 1000)  # so that four kilobytes suffice
    contents = {str(number): bytes([number]) * 2000 for number in range(4)}
    assert content(Archive(write(tmp_path / "a.zip", contents=contents))) == contents


def test_archive_appended_to_executable_is_read(tmp_path):
    path = write(tmp_path / "a.zip")
    path.write_bytes(b"#!/bin/sh\nexit\n" + path.read_bytes())
    assert content(Archive(path)) == CONTENTS


def test_archive_with_data_descriptors_is_read(tmp_path):
    with (tmp_path / "a.zip").open("wb") as file:
        file.seekable = lambda: False  # as for a pipe: sizes follow the data
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("a/b", b"content")
    assert content(Archive(tmp_path / "a.zip")) == {"a/b": b"content"}


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_flipped_byte_raises_only_for_its_member(tmp_path, method):
    path = write(tmp_path / "a.zip", method=method)
    at = zipfile.ZipFile(path).infolist()[3].header_offset + 30 + 242 + 20
    data = bytearray(path.read_bytes())
    data[at] ^= 4
    path.write_bytes(data)
    archive = Archive(path)
    with pytest.raises(ArchiveError, match="." if method == zipfile.ZIP_DEFLATED else "checksum"):
        archive.read(2)
    assert [archive.read(number) for number in (0, 1, 3)] == [CONTENTS[archive.names[number]] for number in (0, 1, 3)]


def test_damaged_byte_raises_and_never_returns_wrong_content(tmp_path):
    data = write(tmp_path / "whole.zip", contents={name: CONTENTS[name] for name in list(CONTENTS)[:2]}).read_bytes()
    generator = random.Random(1)
    for number in range(len(data)):
        damaged = bytearray(data)
        damaged[number] = generator.randrange(256)
        (tmp_path / "a.zip").write_bytes(damaged)
        try:
            found = content(Archive(tmp_path / "a.zip"))
        except ArchiveError:
            continue
        assert set(found.values()) <= set(CONTENTS.values())


def test_truncated_archive_is_refused(tmp_path):
    data = write(tmp_path / "whole.zip").read_bytes()
    for length in (0, 1, 21, 22, len(data) // 2, len(data) - 1):
        (tmp_path / "a.zip").write_bytes(data[:length])
        with pytest.raises(ArchiveError, match=r"a\.zip\b.*: \w"):
            Archive(tmp_path / "a.zip")


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_unsupported_compression_is_refused_with_member_name(tmp_path, method):
    with pytest.raises(ArchiveError, match=r"'a/1\.jpg'"):
        Archive(write(tmp_path / "a.zip", method=method))


@pytest.mark.parametrize("name", ["../a", "/a", "a/../b", "a//b", "./a", "."])
def test_absolute_or_unnormalized_member_path_is_refused(tmp_path, name):
    with pytest.raises(ArchiveError, match=f"'{re.escape(name)}'"):
        Archive(write(tmp_path / "a.zip", contents={"a/b": b"", name: b""}))


def test_member_names_without_utf8_flag_are_decoded(tmp_path):
    path = write(tmp_path / "a.zip", contents={"a/Z": b"1", "a/zz": b"2"})
    data = path.read_bytes()
    path.write_bytes(data.replace(b"a/Z", b"a/\x81").replace(b"a/zz", b"a/\xc3\xbc"))  # Windows and Unix
    assert [*Archive(path).names] == ["a/ü", "a/ü"]


@pytest.mark.parametrize("number", [10**6, 1 << 40, (1 << 63) - 1, 1 << 63, (1 << 64) - 1])
@pytest.mark.parametrize("field", [0, 1, 2])
def test_too_large_size_or_offset_raises_archive_error(tmp_path, monkeypatch, number, field):
    """Of sizes and offsets, of a member and of the directory."""
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", 10)
    data = write(tmp_path / "a.zip", contents={"a/1": bytes(1000), "a/2": bytes(1000)}).read_bytes()
    extra = data.rindex(b"PK\1\2") + 46 + len("a/2") + 4 + 8 * field
    for at in (extra, data.rindex(b"PK\6\6") + 32 + 8 * field):
        (tmp_path / "a.zip").write_bytes(data[:at] + number.to_bytes(8, "little") + data[at + 8 :])
        with pytest.raises(ArchiveError):
            content(Archive(tmp_path / "a.zip"))


def test_archive_truncated_after_opening_raises_archive_error(tmp_path):
    archive = Archive(write(tmp_path / "a.zip"))
    (tmp_path / "a.zip").write_bytes(b"PK")
    with pytest.raises(ArchiveError):
        archive.read(0)


def test_archive_can_be_pickled(tmp_path):
    archive = Archive(write(tmp_path / "a.zip"))
    assert content(pickle.loads(pickle.dumps(archive))) == CONTENTS  # noqa: S301 -- of our own


def test_names_are_a_sequence():
    words = ["", "ä", "a/b", "x" * 300, "\udcff"]
    names = Names(words)
    assert [*names] == words
    assert names[-1] == words[-1]
    assert [*names[1:4:2]] == words[1:4:2]
    with pytest.raises(IndexError):
        names[5]
