"""Reads what a Linux program or library needs of the system that runs it: its machine, its libraries and their versions."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Dict, Iterator, List, NamedTuple, Set, Tuple

_MACHINES = {62: "x86_64", 183: "aarch64"}
_PT_LOAD, _PT_DYNAMIC = 1, 2
_DT_NULL, _DT_NEEDED, _DT_STRTAB, _DT_VERNEED, _DT_VERNEEDNUM = 0, 1, 5, 0x6FFFFFFE, 0x6FFFFFFF


class NotElfError(ValueError):
    """The file is not a 64-bit little-endian ELF file."""


class Needs(NamedTuple):
    """machine as in platform tags (x86_64), libraries by name (libc.so.6), versions of symbols by name (GLIBC_2.34)."""

    machine: str
    libraries: Set[str]
    versions: Set[str]


def needs(path: Path) -> Needs:
    """Reads the needs of a file. Raises NotElfError for anything but a 64-bit little-endian ELF file."""
    data = path.read_bytes()
    if data[:6] != b"\x7fELF\x02\x01" or len(data) < 64:
        raise NotElfError("%s is not a 64-bit little-endian ELF file" % path)
    machine = struct.unpack_from("<H", data, 18)[0]
    name = _MACHINES.get(machine, "machine%d" % machine)
    segments = list(_segments(data))
    dynamic = [segment for segment in segments if segment[0] == _PT_DYNAMIC]
    if not dynamic:
        return Needs(name, set(), set())
    table = list(_dynamic(data, dynamic[0][1]))
    one: Dict[int, int] = dict(table)
    strings = _offset(segments, one[_DT_STRTAB])
    libraries = {_text(data, strings + value) for tag, value in table if tag == _DT_NEEDED}
    versions: Set[str] = set()
    if _DT_VERNEED in one:
        versions = set(_versions(data, _offset(segments, one[_DT_VERNEED]), one[_DT_VERNEEDNUM], strings))
    return Needs(name, libraries, versions)


def _segments(data: bytes) -> Iterator[Tuple[int, int, int, int]]:
    """Yields type, offset in the file, address and size in the file of each segment."""
    start = struct.unpack_from("<Q", data, 32)[0]
    size, count = struct.unpack_from("<HH", data, 54)
    for index in range(count):
        kind, _, offset, address, _, length = struct.unpack_from("<IIQQQQ", data, start + index * size)
        yield kind, offset, address, length


def _offset(segments: List[Tuple[int, int, int, int]], address: int) -> int:
    for kind, offset, start, length in segments:
        if kind == _PT_LOAD and start <= address < start + length:
            return offset + address - start
    raise NotElfError("address %#x lies in no segment" % address)


def _dynamic(data: bytes, offset: int) -> Iterator[Tuple[int, int]]:
    while True:
        tag, value = struct.unpack_from("<QQ", data, offset)
        if tag == _DT_NULL:
            return
        yield tag, value
        offset += 16


def _versions(data: bytes, offset: int, count: int, strings: int) -> Iterator[str]:
    for _ in range(count):
        _, entries, _, first, following = struct.unpack_from("<HHIII", data, offset)
        entry = offset + first
        for _ in range(entries):
            _, _, _, name, step = struct.unpack_from("<IHHII", data, entry)
            yield _text(data, strings + name)
            entry += step
        offset += following


def _text(data: bytes, offset: int) -> str:
    return data[offset : data.index(b"\0", offset)].decode("utf-8")
