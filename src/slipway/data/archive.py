"""Files in a ZIP archive, by number and in any order, by processes that share what is known of them.

A member is read by one call and checked against its CRC-32. Besides its name, 48 bytes are kept of each, and no Python
object: ``zipfile`` makes one of 600 bytes, and a set may have millions. The format is PKWARE's APPNOTE 6.3.10; the
sections named below are its.
"""

from __future__ import annotations

import os
import struct
import zlib
from array import array
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, overload

from slipway.base.bounded_read import open_regular

LOCAL = struct.Struct("<4s5H3I2H")
"""The header before a member's data, 4.3.7."""
ENTRY = struct.Struct("<4s6H3I5H2I")
"""The header of a member in the central directory, 4.3.12."""
END = struct.Struct("<4s4H2IH")
"""The end of the central directory, 4.3.16."""
END_64 = struct.Struct("<4sQ2H2I4Q")
"""The same of large archives, 4.3.14."""
LOCATOR_64 = struct.Struct("<4sIQI")
"""Where that stands, 4.3.15: here, right before."""
LONGEST_COMMENT = 0xFFFF
MOST_FROM_A_BYTE = 1040
"""Bytes that a compressed one can stand for: 1,032 of deflate (zlib's technical details), and a little."""
STORED, DEFLATED = 0, 8
"""Methods of compression, 4.4.5."""
ENCRYPTED, UTF_8 = 1 << 0, 1 << 11
"""Bits of a member's flags, 4.4.4."""
OLD_NAMES = "cp437"
"""Encoding of names without the latter, appendix D; but programs of Unix write UTF-8 there."""
IN_EXTRA = 0xFFFFFFFF
"""In place of a number that does not fit: it is in the extra field with this tag, 4.5.3."""
EXTRA_64 = 1
SLACK = 64
"""Bytes for which a local header's extra field may be longer than that in the central directory before a member takes
two calls to read."""


class ArchiveError(Exception):
    """The file is no archive, or a member of it is damaged."""


class Names(Sequence[str]):
    """Names, held as one string of bytes."""

    def __init__(self, names: Iterable[str]) -> None:
        """Hold ``names``."""
        text, self._ends = bytearray(), array("Q", [0])
        for name in names:
            text += _bytes(name)
            self._ends.append(len(text))
        self._text = bytes(text)

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._ends) - 1

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Names: ...
    def __getitem__(self, index: int | slice) -> str | Names:
        """Return one name, or some."""
        if isinstance(index, slice):
            return Names(self[i] for i in range(*index.indices(len(self))))
        index = range(len(self))[index]
        return _text(self._text[self._ends[index] : self._ends[index + 1]])


class Member(NamedTuple):
    """What the central directory says of a member."""

    name: str
    flags: int
    method: int
    """Of compression."""
    crc: int
    stored: int
    """Bytes in the archive."""
    size: int
    offset: int
    """Of its local header, in bytes."""


FACTS = 5
"""Numbers that an Archive keeps of each member: all but its flags."""


class Archive:
    """The regular files in a ZIP archive, in the order of its central directory; stored or deflated, not encrypted."""

    def __init__(self, path: Path) -> None:
        """Read the central directory.

        Raises:
            OSError: if the file cannot be read.
            ArchiveError: if it is no archive, or not whole, or has members that cannot be read, or whose names are no
                paths below a folder.
        """
        self.path = path
        self._table = array("Q")
        self._file = open_regular(path)
        try:
            self.names = Names(self._add(members(self._file)))
        except (struct.error, ValueError) as error:
            raise ArchiveError(f"{path} is damaged, or no ZIP archive: {error}") from error

    def __len__(self) -> int:
        """Return the number of members."""
        return len(self.names)

    def read(self, index: int) -> bytes:
        """Return the content of a member.

        Raises:
            OSError: if the archive cannot be read.
            ArchiveError: if the member is damaged.
        """
        method, crc, stored, size, offset = self._facts(index)
        descriptor = self._file.fileno()
        guess = LOCAL.size + len(_bytes(self.names[index])) + SLACK
        read = os.pread(descriptor, guess + stored, offset)
        if len(read) < LOCAL.size or not read.startswith(b"PK\3\4"):
            raise ArchiveError("it is not where the archive's directory says")
        *_, name, extra = LOCAL.unpack_from(read)
        begin = LOCAL.size + name + extra
        data = read[begin : begin + stored]
        if len(data) < stored:
            data += os.pread(descriptor, stored - len(data), offset + begin + len(data))
        if method == DEFLATED:
            try:
                data = zlib.decompressobj(-zlib.MAX_WBITS).decompress(data, size + 1)
            except zlib.error as error:
                raise ArchiveError(f"it cannot be decompressed: {error}") from error
        if len(data) != size or zlib.crc32(data) != crc:
            raise ArchiveError("its checksum is wrong")
        return data

    def __getstate__(self) -> dict[str, Any]:
        """Return what goes to a process that is spawned."""
        return {name: value for name, value in vars(self).items() if name != "_file"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Open the file again there."""
        vars(self).update(state)
        self._file = open_regular(self.path)

    def _add(self, found: Iterable[Member]) -> Iterator[str]:
        """Keep what is needed to read the regular files among ``found``, and yield their names."""
        for member in found:
            if member.name.endswith("/"):
                continue
            if not {"", ".", ".."}.isdisjoint(member.name.split("/")):
                raise ArchiveError(f"{self.path}: the name {member.name!r} is no path below a folder.")
            if member.flags & ENCRYPTED or member.method not in {STORED, DEFLATED}:
                raise ArchiveError(
                    f"{self.path}: {member.name!r} is encrypted, or compressed by another method than deflate: write "
                    "the archive by trainer pack, or zip -0."
                )
            self._table.extend((member.method, member.crc, member.stored, member.size, member.offset))
            yield member.name

    def _facts(self, index: int) -> array[int]:
        """Return method, crc, stored, size and offset of a member."""
        return self._table[index * FACTS : (index + 1) * FACTS]


def members(file: BinaryIO) -> Iterator[Member]:
    """Yield the members of an archive that is open for reading, folders too.

    Raises:
        ValueError: if it is no archive, or not whole.
        struct.error: likewise.
    """
    length = os.fstat(file.fileno()).st_size
    count, size, offset, ends = _find_directory(file, length)
    if (shift := ends - size - offset) < 0:  # bytes in front of the archive, as of a program that unpacks itself
        raise ValueError("its central directory would begin before it")
    file.seek(offset + shift)
    for _ in range(count):
        member = _read_entry(file, shift)
        if member.offset + LOCAL.size + member.stored > length or member.size > MOST_FROM_A_BYTE * member.stored:
            raise ValueError(f"{member.name!r} would be larger than the file")
        yield member


def _read_entry(file: BinaryIO, shift: int) -> Member:
    """Return the next member of the central directory; offsets are ``shift`` bytes more than it says."""
    fields = ENTRY.unpack(file.read(ENTRY.size))
    magic, _, _, flags, method, _, _, crc, stored, size, name_length, extra_length, comment_length, *_, offset = fields
    if magic != b"PK\1\2":
        raise ValueError("its central directory is damaged")
    rest = file.read(name_length + extra_length + comment_length)
    if IN_EXTRA in (size, stored, offset):
        size, stored, offset = _large(rest[name_length : name_length + extra_length], size, stored, offset)
    name = _decoded(rest[:name_length], flags)
    return Member(name, flags, method, crc, stored, size, offset + shift)


def _large(extra: bytes, *numbers: int) -> Iterator[int]:
    """Yield ``numbers``, those that did not fit from the extra field."""
    position = 0
    while position < len(extra):
        tag, length = struct.unpack_from("<2H", extra, position)
        position += 4
        if tag == EXTRA_64:
            break
        position += length
    for number in numbers:
        if number != IN_EXTRA:
            yield number
        else:
            yield struct.unpack_from("<Q", extra, position)[0]
            position += 8


def _find_directory(file: BinaryIO, length: int) -> tuple[int, int, int, int]:
    """Return the central directory's number of members, size, offset as it is said, and where it ends, in bytes."""
    begin = max(0, length - END.size - LONGEST_COMMENT)
    file.seek(begin)
    tail = file.read()
    at = tail.rfind(b"PK\5\6")
    if at < 0:
        raise ValueError("it has no central directory, as after a copy that was interrupted")
    *_, count, size, offset, _ = END.unpack_from(tail, at)
    ends = begin + at
    file.seek(max(0, ends - LOCATOR_64.size - END_64.size))
    large, locator = file.read(END_64.size), file.read(LOCATOR_64.size)
    if large.startswith(b"PK\6\6") and locator.startswith(b"PK\6\7"):
        *_, count, size, offset = END_64.unpack(large)
        ends -= LOCATOR_64.size + END_64.size
    return count, size, offset, ends


def _decoded(name: bytes, flags: int) -> str:
    try:
        return name.decode()
    except UnicodeDecodeError:
        if flags & UTF_8:
            raise
        return name.decode(OLD_NAMES)


def _bytes(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")
