"""A ZooKeeper store in a test: created, waited for, closed."""

from __future__ import annotations

import select
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kbroker.config.loader import BrokerConfig
from kbroker.ipc.pending import Pending
from kbroker.metastore.session_file import SessionFile
from kbroker.metastore.store import SessionState
from kbroker.metastore.zookeeper import ZooKeeperStore
from kbroker.metastore.zookeeper_settings import settings_of

PATIENCE_S = 60.0


class ZooKeeperBench:
    """A store driven by this thread. ``states``: the reported session states."""

    def __init__(self, connect: str, directory: Path, **named: str) -> None:
        values = {name.replace("_", "."): text for name, text in named.items()}
        config = BrokerConfig({"zookeeper.connect": connect, **values})
        self.settings = settings_of(config)
        self.file = SessionFile(str(directory), connect)
        self.open()

    def open(self, **more: Any) -> None:
        """Create the store, and wait for its session."""
        self.store = ZooKeeperStore(self.settings, self.file, **{"top_paths": (), **more})
        self.states: list[SessionState] = []
        self.store.watch_session(self.states.append)
        self.until(lambda: self.states[-1] == SessionState.CONNECTED)

    def until(self, condition: Callable[[], object]) -> None:
        """Drive the store until the condition holds."""
        deadline, poll = time.monotonic() + PATIENCE_S, select.poll()
        poll.register(self.store.fd, select.POLLIN)
        while not condition():
            assert time.monotonic() < deadline, f"not within {PATIENCE_S:g} s; {self.states}"
            if poll.poll(50):
                self.store.drain()
            self.store.settle(time.monotonic_ns() // 1_000_000)

    def settle(self, pending: Pending[Any]) -> None:
        self.until(lambda: pending.done)

    def wait(self, pending: Pending[Any]) -> Any:
        """The value, or the error."""
        self.settle(pending)
        if pending.error is not None:
            raise pending.error
        return pending.value

    def close(self) -> None:
        self.wait(self.store.close())

    def next_session(self) -> None:
        """Close the store, and open another on the same tree."""
        self.close()
        self.open()
