"""Random access to the files in a ZIP archive, with little memory per file.

Each member is read by one call and checked against its CRC-32. In addition to its name, the index holds 48 bytes per
member and no Python objects, so that processes can share it: ``zipfile`` creates an object of 600 bytes per member, and
a data set may have millions. The format is PKWARE's APPNOTE 6.3.10; section numbers below refer to it.
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
"""Local header, before a member's data, 4.3.7."""
ENTRY = struct.Struct("<4s6H3I5H2I")
"""A member's header in the central directory, 4.3.12."""
END = struct.Struct("<4s4H2IH")
"""End of the central directory, 4.3.16."""
END_64 = struct.Struct("<4sQ2H2I4Q")
"""End of the central directory of a large archive, 4.3.14."""
LOCATOR_64 = struct.Struct("<4sIQI")
"""Locator of END_64, 4.3.15; this module expects END_64 directly before the locator."""
LONGEST_COMMENT = 0xFFFF
MAX_DEFLATE_RATIO = 1040
"""Maximum compression ratio: 1,032 for deflate (zlib's technical details), plus a margin."""
STORED, DEFLATED = 0, 8
"""Compression methods, 4.4.5."""
ENCRYPTED, UTF_8 = 1 << 0, 1 << 11
"""Bits of a member's flags, 4.4.4."""
OLD_NAMES = "cp437"
"""Encoding of names without the flag UTF_8, appendix D; Unix programs nevertheless write UTF-8."""
IN_EXTRA = 0xFFFFFFFF
"""Placeholder of a number that does not fit; the number is in the extra field with the tag EXTRA_64, 4.5.3."""
EXTRA_64 = 1
SLACK = 64
"""Bytes by which a local header's name and extra field may exceed the member's name before a read takes two calls."""


class ArchiveError(Exception):
    """The file is not an archive, or a member is damaged."""


class Names(Sequence[str]):
    """Sequence of names, stored as one byte string."""

    def __init__(self, names: Iterable[str]) -> None:
        """Store ``names``."""
        text, self._ends = bytearray(), array("Q", [0])
        for name in names:
            text += _bytes(name)
            self._ends.append(len(text))
        self._text = bytes(text)

    def __len__(self) -> int:
        """Return the number of names."""
        return len(self._ends) - 1

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Names: ...
    def __getitem__(self, index: int | slice) -> str | Names:
        """Return one name, or the names of a slice."""
        if isinstance(index, slice):
            return Names(self[i] for i in range(*index.indices(len(self))))
        index = range(len(self))[index]
        return _text(self._text[self._ends[index] : self._ends[index + 1]])


class Member(NamedTuple):
    """A member's entry in the central directory."""

    name: str
    flags: int
    method: int
    """Compression method."""
    crc: int
    stored: int
    """Bytes in the archive."""
    size: int
    """Bytes after decompression."""
    offset: int
    """Position of its local header, in bytes."""


FACTS = 5
"""Numbers that an Archive stores per member: all fields except name and flags."""


class Archive:
    """The regular files in a ZIP archive, in the order of its central directory; stored or deflated, not encrypted."""

    def __init__(self, path: Path) -> None:
        """Read the central directory.

        Raises:
            OSError: if the file cannot be read.
            ArchiveError: if the file is not an archive or is incomplete, or if a member cannot be read or its name is
                not a path below a folder.
        """
        self.path = path
        self._table = array("Q")
        self._file = open_regular(path)
        try:
            self.names = Names(self._add(members(self._file)))
        except (struct.error, ValueError) as error:
            raise ArchiveError(f"{path} is damaged, or not a ZIP archive: {error}") from error

    def __len__(self) -> int:
        """Return the number of members."""
        return len(self.names)

    def read(self, index: int) -> bytes:
        """Return a member's content.

        Raises:
            OSError: if the archive cannot be read.
            ArchiveError: if the member is damaged.
        """
        method, crc, stored, size, offset = self._facts(index)
        descriptor = self._file.fileno()
        guess = LOCAL.size + len(_bytes(self.names[index])) + SLACK
        read = os.pread(descriptor, guess + stored, offset)
        if len(read) < LOCAL.size or not read.startswith(b"PK\3\4"):
            raise ArchiveError("it is not at the offset in the archive's directory")
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
        """Return the state without the open file, for a spawned process."""
        return {name: value for name, value in vars(self).items() if name != "_file"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore the state and open the file again."""
        vars(self).update(state)
        self._file = open_regular(self.path)

    def _add(self, found: Iterable[Member]) -> Iterator[str]:
        """Add the regular files among ``found`` to the index, and yield their names."""
        for member in found:
            if member.name.endswith("/"):
                continue
            if not {"", ".", ".."}.isdisjoint(member.name.split("/")):
                raise ArchiveError(f"{self.path}: the name {member.name!r} is not a path below a folder.")
            if member.flags & ENCRYPTED or member.method not in {STORED, DEFLATED}:
                raise ArchiveError(
                    f"{self.path}: {member.name!r} is encrypted, or compressed by a method other than deflate: write "
                    "the archive with trainer pack or zip -0."
                )
            self._table.extend((member.method, member.crc, member.stored, member.size, member.offset))
            yield member.name

    def _facts(self, index: int) -> array[int]:
        """Return method, crc, stored, size and offset of a member."""
        return self._table[index * FACTS : (index + 1) * FACTS]


def members(file: BinaryIO) -> Iterator[Member]:
    """Yield the members, folders included, of an archive that is open for reading.

    Raises:
        ValueError, struct.error: if the file is not an archive, or is incomplete.
    """
    length = os.fstat(file.fileno()).st_size
    count, size, offset, ends = _find_directory(file, length)
    if (shift := ends - size - offset) < 0:  # shift: bytes before the archive, as in a self-extracting program
        raise ValueError("its central directory would begin before the file")
    file.seek(offset + shift)
    for _ in range(count):
        member = _read_entry(file, shift)
        if member.offset + LOCAL.size + member.stored > length or member.size > MAX_DEFLATE_RATIO * member.stored:
            raise ValueError(f"{member.name!r} would be larger than the file")
        yield member


def _read_entry(file: BinaryIO, shift: int) -> Member:
    """Return the next member of the central directory, with ``shift`` bytes added to its offset."""
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
    """Yield ``numbers``, replacing each placeholder IN_EXTRA by its value in the extra field."""
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
    """Return the central directory's number of members, then its size, recorded offset and actual end in bytes."""
    begin = max(0, length - END.size - LONGEST_COMMENT)
    file.seek(begin)
    tail = file.read()
    at = tail.rfind(b"PK\5\6")
    if at < 0:
        raise ValueError("it has no central directory, as after an interrupted copy")
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
