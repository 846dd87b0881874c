"""Shared memory with names: locked by a supervisor that lives, removed when it does not."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.brokers.shared_names import needs_names

from kbroker.ipc import named_memory
from kbroker.ipc.named_memory import INDEX, NamedMemory, is_running, named_runs, remove_run

pytestmark = pytest.mark.unit


@pytest.fixture
def nonce() -> Iterator[str]:
    chosen = os.urandom(4).hex()
    yield chosen
    for region in named_runs().get(chosen, []):
        os.unlink(named_memory.path_of(chosen, region))


def in_child(nonce: str, hold: bool) -> int:
    """The pid of a process that has made two regions and then waits or was killed."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        memory = NamedMemory(nonce)
        memory.create(INDEX, 4096)
        memory.create("status", 4096)
        os.write(writer, b"x")
        while hold:
            signal.pause()
        os.kill(os.getpid(), signal.SIGKILL)
    os.read(reader, 1)
    os.close(reader)
    os.close(writer)
    return pid


@needs_names
def test_run_of_a_supervisor_that_lives_is_not_removed(nonce: str) -> None:
    pid = in_child(nonce, hold=True)
    try:
        assert is_running(nonce)
        assert remove_run(nonce) == []
        assert sorted(named_runs()[nonce]) == [INDEX, "status"]
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)

    assert not is_running(nonce)
    assert sorted(remove_run(nonce)) == [INDEX, "status"]
    assert nonce not in named_runs()


@needs_names
def test_children_of_a_dead_supervisor_do_not_hold_its_lock(nonce: str) -> None:
    """They keep the mapping; with the lock, the run would look alive until the last has ended."""
    memory = NamedMemory(nonce)
    memory.create(INDEX, 4096)
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        memory.close_in_child()
        os.write(writer, b"x")
        signal.pause()
    os.read(reader, 1)
    os.close(reader)
    os.close(writer)
    try:
        assert is_running(nonce)
        os.close(memory._lock_fd)  # as the kernel does when the supervisor dies
        memory._lock_fd = -1
        assert not is_running(nonce)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        memory.remove()


@needs_names
def test_reader_cannot_keep_a_dead_run_by_a_lock(nonce: str) -> None:
    """Whoever may only read can only lock for reading."""
    os.waitpid(in_child(nonce, hold=False), 0)
    fd = named_memory.open_region(nonce, INDEX)
    try:
        flock = struct.pack("hhqqi4x", fcntl.F_RDLCK, 0, 0, 0, 0)
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, flock)
        assert sorted(remove_run(nonce)) == [INDEX, "status"]
    finally:
        os.close(fd)


def test_pipe_or_link_in_the_place_of_a_region_does_not_hang_or_lead_away(
    nonce: str, tmp_path: Path
) -> None:
    path = named_memory.path_of(nonce, INDEX)
    os.mkfifo(path)
    assert not is_running(nonce)
    os.unlink(path)
    (tmp_path / "other").write_bytes(b"x")
    os.symlink(tmp_path / "other", path)
    with pytest.raises(OSError) as caught:
        named_memory.open_region(nonce, INDEX)
    assert caught.value.errno == errno.ELOOP


@needs_names
def test_name_that_exists_is_an_os_error_and_stays(nonce: str) -> None:
    path = Path(named_memory.path_of(nonce, INDEX))
    path.write_bytes(b"another's")
    memory = NamedMemory(nonce)

    with pytest.raises(OSError):
        memory.create(INDEX, 4096)
    memory.remove()

    assert path.read_bytes() == b"another's"


def test_note_names_the_run_and_anything_else_is_none(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    path.touch()
    with path.open("r+b") as file:
        assert named_memory.noted_run(file.fileno()) is None
        named_memory.note_run(file.fileno(), "0123abcd")
        assert named_memory.noted_run(file.fileno()) == "0123abcd"
    for damaged in (b"kbroker-0123abcd", b"kbroker-../../xx\n", b"\0" * 40):
        path.write_bytes(damaged)
        with path.open("rb") as file:
            assert named_memory.noted_run(file.fileno()) is None
