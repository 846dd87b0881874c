"""A broker of this user on this machine, seen through the memory that its processes share.

It is asked nothing, so all of this works while it is stuck, or stopped. The regions have no names;
the supervisor's descriptors lead to them (``/proc/<pid>/fd``), which the kernel opens for the
broker's user and for root. They are mapped privately: what this process would write stays here.
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Iterator
from typing import Any

from kbroker import __version__
from kbroker.cli.arguments import Failed
from kbroker.hosting.slots import JOURNAL_NAME, Slot, read_journal
from kbroker.ipc.process_kinds import ProcessKind
from kbroker.ipc.process_table import Address, ProcessTable
from kbroker.metrics.slots import Counters
from kbroker.supervisor.runtime_dir import LOCK_NAME, STATUS_NAME

_REGION = "/memfd:kbroker-"
_GONE = " (deleted)"
_TITLE = b"kbroker: supervisor"


def broker_pids() -> list[int]:
    """The supervisors that this user may look into."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/cmdline", "rb") as file:
                is_one = file.read(len(_TITLE)) == _TITLE
            if is_one and _descriptors(int(name)):
                found.append(int(name))
        except OSError:
            continue  # it has ended, or belongs to somebody else
    return sorted(found)


def runtime_dir_of(pid: int) -> str:
    """The runtime directory of that supervisor. Raises KeyError, OSError."""
    return os.path.dirname(_descriptors(pid)[LOCK_NAME][0])


class AttachedBroker:
    """status: what the supervisor has written into ``broker.json``. Raises Failed."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        try:
            places = _descriptors(pid)
            self.runtime_dir = os.path.dirname(places[LOCK_NAME][0])
            with open(os.path.join(self.runtime_dir, STATUS_NAME), encoding="utf-8") as file:
                self.status: dict[str, Any] = json.load(file)
            version = self.status.get("version")
            if version != __version__:
                raise Failed(
                    f"the broker is kbroker {version or 'of an older version'}, this is "
                    f"{__version__}: use the command of its version"
                )
            self._regions = {
                name: _mapped(f"/proc/{pid}/fd/{fd}") for name, (_, fd) in places.items()
                if name != LOCK_NAME and not name.startswith(("arena", "group-offsets"))
            }  # fmt: skip
        except KeyError:
            raise Failed(f"process {pid} is no supervisor of a kbroker") from None
        except (OSError, ValueError) as error:
            raise Failed(f"cannot look into process {pid}: {error}") from error
        addresses = [_address(title) for title in self.status["processes"]]
        self.processes = ProcessTable(self.region("processes"), addresses)
        self.counters = {
            address: Counters(self.region("counters"), row)
            for row, address in enumerate(addresses)
        }  # fmt: skip
        self.listeners = list(self.status["listeners"])

    def region(self, name: str) -> mmap.mmap:
        """One of ``SharedRegions``, by its name in /proc."""
        return self._regions[name]

    def slots(self) -> dict[str, dict[int, Slot]]:
        """The slots of replicas, by topic and partition."""
        try:
            return read_journal(os.path.join(self.runtime_dir, JOURNAL_NAME))
        except OSError:
            return {}  # it has ended

    @property
    def is_running(self) -> bool:
        return os.path.exists(os.path.join(self.runtime_dir, STATUS_NAME))


def _address(title: str) -> Address:
    kind, _, index = title.rpartition("-")
    [found] = [one for one in ProcessKind if one.title == kind]
    return Address(found, int(index))


def _descriptors(pid: int) -> dict[str, tuple[str, str]]:
    """Regions, and the lock of the runtime directory: name -> where it leads, descriptor."""
    found = {}
    for fd, target in _links(pid):
        if target.startswith(_REGION):
            found[target.removeprefix(_REGION).removesuffix(_GONE)] = target, fd
        elif os.path.basename(target) == LOCK_NAME and os.path.exists(
            os.path.join(os.path.dirname(target), STATUS_NAME)
        ):
            found[LOCK_NAME] = target, fd
    return found if LOCK_NAME in found and "processes" in found else {}


def _links(pid: int) -> Iterator[tuple[str, str]]:
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            yield fd, os.readlink(f"/proc/{pid}/fd/{fd}")
        except OSError:
            continue  # closed meanwhile


def _mapped(path: str) -> mmap.mmap:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return mmap.mmap(fd, os.fstat(fd).st_size, access=mmap.ACCESS_COPY)
    finally:
        os.close(fd)
