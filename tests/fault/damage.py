"""Damage to a file by a disk, a crash or a human."""

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
    """Like a file whose size reached the disk, but not its content."""
    write_in_place(path, bytes(path.stat().st_size))


def append_zeros(path: Path, chance: random.Random) -> None:
    """A tail that was allocated, but never written."""
    append(path, bytes(chance.randrange(1, 3 * PAGE_BYTES)))


def append_garbage(path: Path, chance: random.Random) -> None:
    """A tail of other data."""
    append(path, chance.randbytes(chance.randrange(1, 2 * PAGE_BYTES)))


def empty(path: Path, chance: random.Random) -> None:
    """Like a file that was created and never synced."""
    os.truncate(path, 0)


def remove(path: Path, chance: random.Random) -> None:
    """Like a file that never existed."""
    path.unlink()


def _neighbour(path: Path, chance: random.Random) -> Path:
    """Another file of the same type in its directory, or itself."""
    return chance.choice(sorted(path.parent.glob(f"*{path.suffix or path.name}")) or [path])


def swap(path: Path, chance: random.Random) -> None:
    """Swap the names of two files of the same type."""
    other = _neighbour(path, chance)
    if other.is_file() and path.is_file():
        mine, others = path.read_bytes(), other.read_bytes()
        path.write_bytes(others)
        other.write_bytes(mine)


def misfile(path: Path, chance: random.Random) -> None:
    """Under another name: that of an existing file or a new one."""
    other = _neighbour(path, chance)
    digits = path.name.partition(".")[0]
    if chance.random() < 0.5 and digits.isdigit():
        base = chance.choice([0, 1, int(digits) + 1, 10**6, 2**63 - 1, 2**63, 10**20 - 1])
        other = path.with_name(f"{base:020}{path.suffix}")
    if other != path and not other.is_dir():
        other.write_bytes(path.read_bytes())
        if chance.random() < 0.5:
            path.unlink()


def make_directory(path: Path, chance: random.Random) -> None:
    """A directory with its name."""
    path.unlink()
    path.mkdir()


def shuffle(path: Path, chance: random.Random) -> None:
    """Two parts of it are exchanged, like misdirected blocks."""
    data = path.read_bytes()
    if len(data) > 2:
        one, two, three = sorted(chance.sample(range(len(data) + 1), 3))
        path.write_bytes(data[:one] + data[two:three] + data[one:two] + data[three:])


def long_numbers(path: Path, chance: random.Random) -> None:
    """Replace the numbers in a text by very long ones."""
    data = path.read_bytes()
    digit = b"%d" % chance.randrange(10)
    path.write_bytes(data.replace(digit, digit * chance.choice([2, 10, 19, 5000])))


def rewrite_field(path: Path, chance: random.Random) -> None:
    """Four bytes become a very large or very small number."""
    data = bytearray(path.read_bytes())
    if len(data) >= 4:
        at = chance.randrange(len(data) - 3)
        value = chance.choice([b"\x7f\xff\xff\xff", b"\x80\0\0\0", b"\xff\xff\xff\xff", bytes(4)])
        data[at : at + 4] = value
        path.write_bytes(bytes(data))


def write_in_place(path: Path, data: bytes) -> None:
    """Overwrite the old content, keeping the file."""
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
# Those, and mistakes of a human who restores files.
ALL_DAMAGES: dict[str, Callable[[Path, random.Random], None]] = DAMAGES | {
    function.__name__: function
    for function in (
        swap,
        misfile,
        make_directory,
        shuffle,
        long_numbers,
        rewrite_field,
    )
}
