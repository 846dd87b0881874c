"""A broker whose data-holding workers are stand-ins (``process_doubles``), and a client for it."""

from __future__ import annotations

import json
import socket
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.brokers.process_doubles import ANSWER

from kbroker.testing import Broker

DOUBLES = Path(__file__).with_name("process_doubles.py")


def double_broker(**settings: object) -> Broker:
    """A Broker that runs the stand-ins."""
    return Broker(command=[sys.executable, str(DOUBLES)], **settings)


def tell(broker: Broker, title: str, what: str) -> Path:
    """Leave an order for a stand-in; unlink the returned path to withdraw it."""
    path = broker.data_dir / f"{title}.{what}"
    path.touch()
    return path


class Client:
    """A connection; ``ask`` returns the pid of the network process that serves it."""

    def __init__(self, broker: Broker, timeout: float = 30.0) -> None:
        self._sock = socket.create_connection((broker.host, broker.port), timeout=timeout)

    def ask(self) -> int:
        self._sock.sendall(b"?")
        data = self._sock.recv(ANSWER.size, socket.MSG_WAITALL)
        if len(data) < ANSWER.size:
            raise ConnectionResetError("closed without a response")
        return int(ANSWER.unpack(data)[2])

    def is_closed(self, timeout: float) -> bool:
        """Whether the broker closes the connection within ``timeout`` without a request."""
        patience = self._sock.gettimeout()
        self._sock.settimeout(timeout)
        try:
            return self._sock.recv(1) == b""
        except TimeoutError:
            return False
        except OSError:
            return True
        finally:
            self._sock.settimeout(patience)

    def close(self) -> None:
        self._sock.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def fastest_stop(broker: Broker, stop: Callable[[], object]) -> float:
    """The best time of ``stop`` in three attempts, so that other load on the machine matters
    less.
    """
    taken: list[float] = []
    while len(taken) < 3 and not any(seconds < 2 for seconds in taken):
        if not broker.running:
            broker.start()
        started_at = time.monotonic()
        stop()
        taken.append(time.monotonic() - started_at)
    return min(taken)


def http_get(broker: Broker, path: str) -> tuple[int, str]:
    """Status and body of a GET from the exporter."""
    try:
        with urllib.request.urlopen(broker.metrics_url + path, timeout=30) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def health(broker: Broker) -> dict[str, Any]:
    """The health document."""
    document: dict[str, Any] = json.loads(http_get(broker, "/health")[1])
    return document
