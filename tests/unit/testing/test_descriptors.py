"""The descriptors that tests leave behind."""

from __future__ import annotations

import gc
import os

import pytest
from support.running import descriptors
from support.running.descriptors import OF_GARBAGE_MAX

pytestmark = [pytest.mark.unit, pytest.mark.own_process]


@pytest.fixture(autouse=True)
def begin(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without what earlier tests of this process have left."""
    gc.collect()
    monkeypatch.setattr(descriptors, "_collected_at", descriptors.lowest_free() + OF_GARBAGE_MAX)


class Cycle:
    """Holds a file until garbage is collected."""

    def __init__(self) -> None:
        self.itself = self
        self.file = open(os.devnull, "rb")


def test_many_descriptors_of_garbage_are_closed() -> None:
    before = len(os.listdir("/proc/self/fd"))

    for _ in range(2 * OF_GARBAGE_MAX):
        Cycle()
    descriptors.close_those_of_garbage()

    assert len(os.listdir("/proc/self/fd")) <= before


def test_descriptors_in_use_are_no_reason_to_collect_again(monkeypatch: pytest.MonkeyPatch) -> None:
    collected: list[None] = []
    monkeypatch.setattr("gc.collect", lambda: collected.append(None))
    files = [open(os.devnull, "rb") for _ in range(2 * OF_GARBAGE_MAX)]

    descriptors.close_those_of_garbage()
    descriptors.close_those_of_garbage()

    assert len(collected) == 1 and files
