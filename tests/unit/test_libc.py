"""Calls of the C library that Python lacks."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from support.running.sanitizer import measures_memory

from kbroker._ext.base.libc import keep_blocks, signal_at_parents_death, syncfs

pytestmark = pytest.mark.unit


def test_file_system_of_an_open_file_is_synced(tmp_path: Path) -> None:
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        syncfs(fd)
    finally:
        os.close(fd)


def test_descriptor_that_is_not_open_is_an_error() -> None:
    with pytest.raises(OSError, match="Bad file descriptor"):
        syncfs(-1)


@measures_memory
def test_glibc_takes_the_sizes_of_blocks() -> None:
    assert keep_blocks(64 << 20, 32 << 20) == (os.confstr("CS_GNU_LIBC_VERSION") is not None)


def test_process_is_told_of_the_death_of_its_parent() -> None:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        grandchild = os.fork()
        if grandchild == 0:
            signal_at_parents_death(signal.SIGKILL)
            os.write(writing, b"r")
            signal.pause()
        os.read(reading, 1)
        os.write(writing, b"e")
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)

    with open(reading, "rb") as pipe:
        assert pipe.read() == b"e", "the end comes when no process can write any more"


def test_number_that_is_no_signal_is_an_error() -> None:
    with pytest.raises(OSError, match="Invalid argument"):
        signal_at_parents_death(1000)
