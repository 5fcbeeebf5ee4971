"""Tars of data for the tests, and the contents of a folder."""

import io
import tarfile

FILES = {"train/a/1": b"one", "train/b/2": b"two", "val/a/3": b"three"}


def make_tar(path, files=FILES, *, top="aerial/", mode="w", modes=None):
    """Write a tar of files, whose names begin with ``top``, and of folders with these ``modes``."""
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
    """Return the files below a folder, by relative name."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
