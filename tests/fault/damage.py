"""Ways in which a disk, a crash or a hand can spoil a file."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

PAGE_BYTES = 4096


def tear(path: Path, chance: random.Random) -> None:
    """Cut it somewhere."""
    size = path.stat().st_size
    os.truncate(path, chance.randrange(size) if size else 0)


def flip(path: Path, chance: random.Random) -> None:
    """One bit somewhere."""
    data = bytearray(path.read_bytes())
    if data:
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        write_in_place(path, bytes(data))


def zero_page(path: Path, chance: random.Random) -> None:
    """One page, or the whole of a small file."""
    data = bytearray(path.read_bytes())
    start = chance.randrange(len(data) // PAGE_BYTES + 1) * PAGE_BYTES
    end = min(start + PAGE_BYTES, len(data))
    data[start:end] = bytes(end - start)
    write_in_place(path, bytes(data))


def zero_all(path: Path, chance: random.Random) -> None:
    """As a file looks whose size reached the disk and whose content did not."""
    write_in_place(path, bytes(path.stat().st_size))


def append_zeros(path: Path, chance: random.Random) -> None:
    """A tail that was allocated, but never written."""
    append(path, bytes(chance.randrange(1, 3 * PAGE_BYTES)))


def append_garbage(path: Path, chance: random.Random) -> None:
    """A tail of something else."""
    append(path, chance.randbytes(chance.randrange(1, 2 * PAGE_BYTES)))


def empty(path: Path, chance: random.Random) -> None:
    """As a file looks that was created and never synced."""
    os.truncate(path, 0)


def remove(path: Path, chance: random.Random) -> None:
    """It never was."""
    path.unlink()


def write_in_place(path: Path, data: bytes) -> None:
    """Over the old content, keeping the file."""
    with open(path, "r+b") as file:
        file.write(data)


def append(path: Path, data: bytes) -> None:
    with open(path, "ab") as file:
        file.write(data)


DAMAGES: dict[str, Callable[[Path, random.Random], None]] = {
    function.__name__: function
    for function in (
        tear,
        flip,
        zero_page,
        zero_all,
        append_zeros,
        append_garbage,
        empty,
        remove,
    )
}
