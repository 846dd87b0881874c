"""The names of shared memory at start and stop: a kill at any step leaves nothing after the next
start on the same data directory.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.brokers.shared_names import needs_names
from support.running.grids import some_of

from kbroker.config.loader import load
from kbroker.errors import ConfigError
from kbroker.ipc import named_memory
from kbroker.ipc.named_memory import named_runs, noted_run
from kbroker.supervisor import shared_memory
from kbroker.supervisor.launch import BrokerRun

pytestmark = pytest.mark.unit

# What the module of names calls at each step.
STEPS = {
    "open", "close", "unlink", "fchmod", "fchown", "posix_fallocate", "pwrite", "fcntl",
    "SharedMemory", "mmap", "rename", "ftruncate", "memfd_create",
}  # fmt: skip
FILES = ("named_memory.py", "shared_memory.py", "regions.py", "launch.py", "runtime_dir.py")


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder with a short path: sockets are in it."""
    path = tempfile.mkdtemp(prefix="kb-", dir="/tmp")
    yield Path(path)
    for name in Names(Path(path)).look():  # of a test that has failed
        os.unlink(named_memory.path_of(*name.split(".")))
    shutil.rmtree(path)


def opened(directory: Path, **settings: str) -> BrokerRun:
    overrides = {
        "log.dirs": str(directory / "data"),
        "runtime.dir": str(directory / "run"),
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "metrics.port": "-1",
        "num.io.threads": "1",
        "partition.table.slots": "64",
        "queued.max.request.bytes": "65536",
        "socket.request.max.bytes": "65536",
    }
    overrides |= {name.replace("_", "."): value for name, value in settings.items()}
    return BrokerRun(load(None, overrides)[0], None, overrides)


class Names:
    """The names of all runs in one place; other brokers on this machine have theirs."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._nonces: set[str] = set()

    def look(self) -> set[str]:
        """Those that exist. A run has its runtime directory before it has any."""
        found = {path.name for path in self._place.glob("**/run/*")}
        self._nonces |= {name.removeprefix(".new-").removeprefix("kbroker-") for name in found}
        for path in self._place.glob("**/data/.lock"):
            with path.open("rb") as file:
                self._nonces.add(noted_run(file.fileno()) or "")
        runs = named_runs()
        return {f"{nonce}.{region}" for nonce in self._nonces for region in runs.get(nonce, ())}


def in_child(work: Callable[[], None]) -> int:
    """The wait status of a fork that does it."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitpid(pid, 0)[1]


def kill_at(step: int) -> Callable[[Any, str, Any], None]:
    """A profiler that kills this process before its ``step``-th call of STEPS."""
    seen = 0

    def profile(frame: Any, event: str, what: Any) -> None:
        nonlocal seen
        if event != "c_call" or not frame.f_code.co_filename.endswith(FILES):
            return
        if getattr(what, "__name__", "") in STEPS:
            seen += 1
            if seen == step:
                os.kill(os.getpid(), signal.SIGKILL)

    return profile


@needs_names
@pytest.mark.parametrize("stride", some_of([1, 7], [7]))
def test_kill_at_any_step_leaves_nothing_after_the_next_start(place: Path, stride: int) -> None:
    opened(place).close()  # imports what a broker needs, once for all forks
    names, steps, kills, left = Names(place), 0, 0, 0

    def run(step: int) -> None:
        sys.setprofile(kill_at(step))
        opened(place).close()

    def start() -> None:
        broker = opened(place)
        assert broker.named is not None
        assert {name.partition(".")[0] for name in names.look()} == {broker.named.nonce}
        broker.close()

    while in_child(lambda: run(steps + stride)) != 0:  # noqa: B023
        steps += stride
        kills += 1
        left += bool(names.look())
        start()
        assert not names.look(), f"after a kill at step {steps}"

    assert steps > 60
    assert left > kills // 2  # most kills leave something


@needs_names
def test_start_on_a_copy_leaves_the_memory_of_the_original_alone(place: Path) -> None:
    """A copy of a data directory names the same run."""
    original = opened(place / "one")
    names = Names(place / "one")
    try:
        mine = names.look()
        assert mine
        lock = place / "one" / "data" / ".lock"
        copy = place / "two" / "data"
        copy.mkdir(parents=True)
        (copy / ".lock").write_bytes(lock.read_bytes())
        opened(place / "two").close()
        assert names.look() == mine
    finally:
        original.close()


@needs_names
def test_every_data_directory_names_the_run(place: Path) -> None:
    paths = [place / "a", place / "b"]
    broker = opened(place, log_dirs=",".join(map(str, paths)))
    try:
        for path in paths:
            with (path / ".lock").open("rb") as file:
                assert noted_run(file.fileno()) == broker.runtime.nonce
    finally:
        broker.close()


@pytest.mark.parametrize("why", ["no room", "no directory", "no package"])
def test_without_names_there_are_memfds_and_one_line(
    place: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, why: str
) -> None:
    names = Names(place)
    if why == "no room":

        def full(fd: int, offset: int, size: int) -> None:
            if size > 4096:
                raise OSError(28, "No space left on device")
            os.ftruncate(fd, size)

        monkeypatch.setattr(named_memory.os, "posix_fallocate", full)
    elif why == "no directory":
        monkeypatch.setattr(shared_memory, "DIRECTORY", str(place / "none"))
    else:
        monkeypatch.setattr(shared_memory, "has_package", lambda: False)
    with caplog.at_level(logging.INFO):
        broker = opened(place)
    try:
        assert broker.named is None
        assert not names.look()
        [line] = [r.getMessage() for r in caplog.records if "no shared memory" in r.getMessage()]
        assert "kbroker top" in line
        assert broker.processes.addresses
    finally:
        broker.close()


@needs_names
def test_access_is_the_owners_unless_it_is_set(place: Path) -> None:
    def access(**settings: str) -> tuple[int, int]:
        broker = opened(place, **settings)
        try:
            nonce = broker.runtime.nonce
            found = {
                (os.stat(path).st_mode & 0o7777, os.stat(path).st_gid)
                for path in (named_memory.path_of(nonce, region) for region in named_runs()[nonce])
            }
        finally:
            broker.close()
        [one] = found
        return one

    group = os.getegid()
    assert access() == (0o600, group)
    assert access(shared_memory_mode="0644") == (0o644, group)
    assert access(shared_memory_group=str(group)) == (0o640, group)
    assert access(shared_memory_group=str(group), shared_memory_mode="0600") == (0o600, group)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"shared_memory_group": "no-such-group-here"}, "a group of this machine"),
        ({"shared_memory_mode": "0666"}, "0600"),
    ],
)
def test_bad_access_is_refused(place: Path, settings: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        opened(place, **settings)
    assert not Names(place).look()
