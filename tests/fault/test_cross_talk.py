"""No client gets another's bytes, even if clients are disconnected or processes killed (exam
S13). Every other client speaks TLS.
"""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path

import pytest
from fault.history import parse_value, value_of
from fault.load import read_log
from fault.wire_client import WireClient, batch_of, produce_request, request_frame
from support.pace import hold
from support.secured import SecuredClient, Site, address_of

from kbroker.record.batch import iterate_batches
from kbroker.testing import Broker, wait_until

pytestmark = [pytest.mark.fault, pytest.mark.timeout(180)]

CLIENTS, CLIENTS_MAX = 50, 200
# Half an hour at scale 20.
SECONDS, SECONDS_OF_SCALE, SECONDS_MAX = 3, 90, 4 * 3600
KINDS = ("network", "io")


class Marked:
    """A client with a topic of its own: writes values with its name, and reads them."""

    def __init__(self, broker: Broker, number: int, seed: int, site: Site) -> None:
        self._listener = ("PLAINTEXT", "SSL")[number % 2]
        self._context = site.client_context() if number % 2 else None
        self.name = f"client{number}"
        self.problems: list[str] = []
        self.written = self.read = self.cut = 0
        self._broker = broker
        self._chance = random.Random(seed + number)
        self._number = 0
        self._offset = 0

    def run(self, stopping: threading.Event) -> None:
        """Connect, write, read and disconnect, again and again."""
        while not stopping.is_set():
            try:
                with self._connect() as client:
                    for _ in range(self._chance.randrange(1, 40)):
                        self._step(client)
                    self._break_off(client)
            except TimeoutError:
                self.problems.append(f"{self.name}: a request hangs")
                return
            except OSError:
                self.cut += 1
                hold(0.01)
            except Exception as error:  # bytes that are not a response to the request
                self.problems.append(f"{self.name}: {type(error).__name__}: {error}")
                return

    def _connect(self) -> WireClient:
        address = address_of(self._broker, self._listener)
        return SecuredClient(address, 10, self.name, context=self._context)

    def _step(self, client: WireClient) -> None:
        if self._chance.random() < 0.5:
            response = client.produce(self.name, {0: self._batch()})[0]
            self.written += response.error_code == 0
        else:
            self._read(client)

    def _batch(self) -> bytes:
        count = self._chance.choice((1, 3))
        size = self._chance.choice((30, 300, 20_000))
        values = [value_of(self.name, 0, self._number + i, size) for i in range(count)]
        self._number += count
        return batch_of(values)

    def _read(self, client: WireClient) -> None:
        response = client.fetch(self.name, 0, self._offset, max_wait_ms=5)
        if response.error_code:
            return
        for batch in iterate_batches(bytes(response.records or b""), partial_tail=True):
            batch.check()
            for record in batch.records():
                key = parse_value(record.value)
                if key is None or key[0] != self.name:
                    self.problems.append(f"{self.name} read {record.value!r:.60}")
                self.read += 1
            self._offset = batch.next_offset

    def _break_off(self, client: WireClient) -> None:
        """Leave responses unread and requests half sent."""
        request = request_frame(
            produce_request(self.name, {0: self._batch()}, timeout_ms=5000), 8, 9, self.name
        )
        kind = self._chance.randrange(3)
        if kind == 0:
            client.socket.sendall(request * 5)
        elif kind == 1:
            client.socket.sendall(request[: self._chance.randrange(len(request))])


def test_clients_get_their_own_bytes_only(seed: int, scale: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    stopping = threading.Event()
    site = Site(tmp_path)
    clients = min(CLIENTS * scale, CLIENTS_MAX)
    seconds = SECONDS if scale == 1 else min(SECONDS_OF_SCALE * scale, SECONDS_MAX)
    settings = site.settings("PLAINTEXT", "SSL") | {"log.segment.bytes": "500000"}
    with Broker(settings) as broker:
        with WireClient((broker.host, broker.port)) as client:
            for number in range(clients):
                client.create_topic(f"client{number}")
        marked = [Marked(broker, number, seed, site) for number in range(clients)]
        threads = [threading.Thread(target=one.run, args=(stopping,)) for one in marked]
        for thread in threads:
            thread.start()
        try:
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                hold(chance.uniform(0.5, 1.5))
                kind, index = chance.choice(KINDS), chance.randrange(2)
                pid = broker.kill(kind, index)
                title = f"{kind}-{index}"
                wait_until(lambda t=title, p=pid: broker.pids.get(t, p) != p, 20, f"new {title}")
            wait_until(
                lambda: all(one.problems or (one.written and one.read) for one in marked),
                60,
                "every client has written and read",
            )
        finally:
            stopping.set()
            for thread in threads:
                thread.join(60)
        assert not [thread for thread in threads if thread.is_alive()]
        problems = [problem for one in marked for problem in one.problems]
        assert not problems, problems[:10]
        for one in marked:  # also what nobody read
            for record in read_log(broker, 1, one.name)[one.name, 0]:
                key = parse_value(record.value)
                assert key is not None and key[0] == one.name, (one.name, record.offset)
