"""The memory of the machine that measures."""

from __future__ import annotations

import pytest

from perf import machine

pytestmark = pytest.mark.unit


def test_touched_memory_is_free_again(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    monkeypatch.setattr(machine.mmap, "mmap", lambda _fd, size, flags: Mapped(sizes, size))

    assert machine.touch_free_memory(1 << 20) == 1 << 20

    assert sizes == [1 << 20, 0]


def test_little_free_memory_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "available_bytes", lambda: machine.KEPT_BYTES)

    assert machine.touch_free_memory() == 0


class Mapped:
    """A mapping that notes its size, and 0 when it is closed."""

    def __init__(self, sizes: list[int], size: int) -> None:
        self._sizes = sizes
        sizes.append(size)

    def close(self) -> None:
        self._sizes.append(0)
