"""What a broker may leave behind after it has exited: only its data."""

from __future__ import annotations

import os
import socket
from contextlib import suppress

from support.brokers.shared_names import names_of_runs, nonces_of

from kbroker.testing import Broker, processes, wait_until

UNIX_SOCKETS = "/proc/net/unix"


class Leftovers:
    """Records what existed before a broker started, and all its processes.

    Call ``note`` whenever processes may have changed, ``check`` when it has ended.
    """

    def __init__(self) -> None:
        self._runs: set[str] = set()
        self._pids: set[int] = set()
        self._runtime_dir = ""
        self._address = ("", 0)

    def note(self, broker: Broker) -> None:
        """Remember its processes, its address and its runtime directory."""
        self._pids |= {broker.pid, *broker.pids.values()}
        self._runs |= nonces_of(broker)
        self._runtime_dir = str(broker.runtime_dir)
        self._address = (broker.host, broker.port)

    def check(self, *, killed: bool = False) -> None:
        """Raises AssertionError for anything left. killed: the supervisor could not remove the
        runtime directory's files, or the names of shared memory; the next start does.
        """
        wait_until(lambda: not self.alive(), 5, "all processes are gone")
        left = names_of_runs(self._runs)
        assert killed or not left, left
        assert not self._is_served(), f"{self._address} still takes connections"
        # A killed process counts as gone when its first thread is; its sockets close with the last.
        wait_until(lambda: not self._bound(), 5, "all Unix sockets are gone")
        if not killed and os.path.isdir(self._runtime_dir):
            assert os.listdir(self._runtime_dir) == []

    def alive(self) -> list[int]:
        """Processes that are still alive."""
        return [pid for pid in self._pids if processes.exists(pid)]

    def _bound(self) -> list[str]:
        with open(UNIX_SOCKETS, encoding="utf-8", errors="replace") as file:
            return [line for line in file if self._runtime_dir in line]

    def _is_served(self) -> bool:
        with suppress(OSError), socket.create_connection(self._address, timeout=1):
            return True
        return False
