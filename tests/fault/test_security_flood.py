"""Connections as fast as an address can open them, beside others' (exam S5)."""

from __future__ import annotations

import socket
import subprocess
import threading
import time
from contextlib import suppress

import pytest
from support.clients.wire_client import WireClient
from support.faults.hostile_harness import nothing_dies

from kbroker.testing import Broker

pytestmark = [pytest.mark.fault, pytest.mark.timeout(300)]

SECONDS = 3
RATE = 100


def own_address() -> str:
    """An IPv4 address of this machine that is not loopback."""
    found = subprocess.run(["hostname", "-I"], capture_output=True, text=True).stdout.split()
    addresses = [address for address in found if "." in address and not address.startswith("127.")]
    if not addresses:
        pytest.skip("this machine has no address but loopback")
    return addresses[0]


class Flood:
    """Connects and asks, again and again, until told to stop."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.served = self.tried = 0
        self._address = address
        self._lock = threading.Lock()

    def run(self, stopping: threading.Event) -> None:
        while not stopping.is_set():
            served = False
            with (
                suppress(OSError),
                WireClient(self._address, 5, from_host=self._address[0]) as client,
            ):
                client.metadata()
                served = True
            with self._lock:
                self.tried += 1
                self.served += served


def test_flood_from_one_address_delays_no_other(scale: int) -> None:
    """Its connections above max.connection.creation.rate.per.ip are closed; others are served."""
    flooder = own_address()
    settings = {
        "listeners": "PLAINTEXT://0.0.0.0:0",
        "max.connection.creation.rate": "100000",
        "max.connection.creation.rate.per.ip": str(RATE),
    }
    stopping = threading.Event()
    with Broker(settings) as broker:
        port = int(broker.bootstrap.rpartition(":")[2])
        flood = Flood((flooder, port))
        threads = [threading.Thread(target=flood.run, args=(stopping,)) for _ in range(4)]
        with nothing_dies(broker):
            began = time.monotonic()
            for thread in threads:
                thread.start()
            good = 0
            while time.monotonic() < began + SECONDS * scale or flood.tried <= flood.served:
                assert time.monotonic() < began + SECONDS * scale + 60, "the flood is too slow"
                with WireClient(("127.0.0.1", port), 30) as client:
                    client.metadata()
                good += 1
            stopping.set()
            for thread in threads:
                thread.join()
            took = time.monotonic() - began
        assert good > 0
        assert flood.served <= RATE * (took + 2), (flood.served, took)
        assert "max.connection.creation.rate.per.ip" in broker.log_text
        with socket.create_connection((flooder, port), timeout=30):
            pass  # it may connect again
