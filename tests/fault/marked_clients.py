"""Clients of exam S13, some of them in a process of their own: together in one, two hundred would
mostly wait for each other.

    python -m fault.marked_clients PLAINTEXT_PORT SSL_PORT CA_FILE SEED FIRST END

Each has a topic of its own, named like itself, to which it writes values with its name, and from
which it reads them. Prints "ready" when each has written and read. Ends when its standard input
does, with a line for each problem.
"""

from __future__ import annotations

import random
import ssl
import sys
import threading
import time
from pathlib import Path

from support.clients.wire_client import WireClient, batch_of, produce_request
from support.faults.history import parse_value, value_of
from support.network.frames import request_frame
from support.running.pace import hold
from support.security.secured import HOST, SecuredClient

from kbroker.record.batch import iterate_batches
from kbroker.testing import wait_until

# No step of a client takes as long, which is how long clients wait by default (request.timeout.ms).
# Processes that are killed each second, some of them before they serve again, take several.
STEP_S = 30.0


class Marked:
    """A client. context: of one that speaks TLS, as every other one does."""

    def __init__(
        self, number: int, address: tuple[str, int], seed: int, context: ssl.SSLContext | None
    ) -> None:
        self.name = f"client{number}"
        self.problems: list[str] = []
        self.written = self.read = 0
        self._address, self._context = address, context
        self._chance = random.Random(seed + number)
        self._number = self._offset = 0
        self._doing = ""
        self._client: WireClient | None = None

    def run(self, stopping: threading.Event) -> None:
        """Connect, write, read and disconnect, again and again."""
        while not stopping.is_set():
            began = time.monotonic()
            try:
                self._doing, self._client = "connect", None
                with SecuredClient(
                    self._address, STEP_S, self.name, context=self._context
                ) as self._client:
                    for _ in range(self._chance.randrange(1, 40)):
                        began = time.monotonic()
                        self._step(self._client)
                    self._break_off(self._client)
            except TimeoutError:
                took = time.monotonic() - began
                self.problems.append(f"{self.name}: {self._doing} hangs: {took:.1f} s")
            except OSError:
                hold(0.01)  # its process was killed
            except Exception as error:  # bytes that are not a response to the request
                self.problems.append(f"{self.name}: {self._doing}: {type(error).__name__}: {error}")

    def _step(self, client: WireClient) -> None:
        if self._chance.random() < 0.5:
            self._doing = "produce"
            response = client.produce(self.name, {0: self._batch()})[0]
            self.written += response.error_code == 0
        else:
            self._doing = "fetch"
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
        self._doing = "break off"
        request = request_frame(
            produce_request(self.name, {0: self._batch()}, timeout_ms=5000), 8, 9, self.name
        )
        kind = self._chance.randrange(3)
        if kind == 0:
            client.socket.sendall(request * 5)
        elif kind == 1:
            client.socket.sendall(request[: self._chance.randrange(len(request))])


def main(plain_port: int, tls_port: int, ca_file: Path, seed: int, first: int, end: int) -> None:
    """The program."""
    context = ssl.create_default_context(cafile=str(ca_file))
    clients = [
        Marked(number, (HOST, tls_port), seed, context)
        if number % 2
        else Marked(number, (HOST, plain_port), seed, None)
        for number in range(first, end)
    ]
    stopping = threading.Event()
    threads = [threading.Thread(target=one.run, args=(stopping,)) for one in clients]
    for thread in threads:
        thread.start()
    try:
        wait_until(lambda: all(one.written and one.read for one in clients), 120, "all have read")
        print("ready", flush=True)
        sys.stdin.read()
    finally:
        stopping.set()
        for thread in threads:
            thread.join(60)
    for one in clients:
        for problem in one.problems:
            print(problem)
    for thread in threads:
        assert not thread.is_alive(), "a client does not end"


if __name__ == "__main__":
    ports, rest = sys.argv[1:3], sys.argv[4:]
    main(*map(int, ports), Path(sys.argv[3]), *map(int, rest))  # type: ignore[misc]
