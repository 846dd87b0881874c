"""Load on coordinators: offset commits, transactions, a large group, many stored offsets.

    python perf/coordination.py commits --bootstrap 127.0.0.1:9092
    python perf/coordination.py transactions | group | fill ...

Each part is a cell of compare.py as well. Wire bytes are written here, apart from kbroker's codec,
for the reason that frames.py gives; transactions go through librdkafka.
"""

import argparse
import json
import selectors
import struct
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from perf.arguments import Arguments
from perf.frames import request_frame, text
from perf.load_generator import LoadError, LoadGenerator
from perf.percentiles import histogram_percentile
from perf.raw_client import RawClient, connect, parse_address, require_broker
from perf.topics import create_topic, delete_topic, fresh_name
from perf.waiting import wait_until

OFFSET_COMMIT, OFFSET_FETCH, FIND_COORDINATOR = 8, 9, 10
JOIN_GROUP, HEARTBEAT, SYNC_GROUP = 11, 12, 14
ERROR_LOADING, ERROR_NOT_AVAILABLE, ERROR_NOT_COORDINATOR = 14, 15, 16
ERROR_REBALANCE, ERROR_MEMBER_ID = 27, 79
SESSION_MS = REBALANCE_MS = 60_000
HEARTBEAT_S = 0.1


NULL = struct.pack(">h", -1)


def blob(value: bytes) -> bytes:
    return struct.pack(">i", len(value)) + value


def commit_body(group: str, topic: str, partitions: range, offset: int) -> bytes:
    """OffsetCommit 6 of a group without members."""
    rows = b"".join(struct.pack(">iqih", p, offset, -1, 0) for p in partitions)
    head = text(group) + struct.pack(">i", -1) + text("") + struct.pack(">i", 1) + text(topic)
    return head + struct.pack(">i", len(partitions)) + rows


def commit(
    client: RawClient, group: str, topic: str, partitions: range, offset: int, timeout: float = 30
) -> None:
    """Commit once; retries while the coordinator is loading. Raises TimeoutError."""
    request = request_frame(OFFSET_COMMIT, 6, commit_body(group, topic, partitions, offset))
    code = -1

    def is_accepted() -> bool:
        nonlocal code
        # Correlation id, throttle time, and the topic with its first partition's number.
        at = 4 + 4 + 4 + len(text(topic)) + 4 + 4
        (code,) = struct.unpack_from(">h", client.call(request), at)
        return code == 0

    wait_until(is_accepted, lambda: f"a commit of {group}: refused with {code}", timeout, 0.05)


def await_coordinator(bootstrap: str, key: str, kind: int = 0, timeout: float = 30.0) -> None:
    """Find the coordinator of a group (0) or transactional id (1); TimeoutError."""
    request = request_frame(FIND_COORDINATOR, 2, text(key) + struct.pack(">b", kind))

    def is_there() -> bool:
        with RawClient(parse_address(bootstrap), timeout=30) as client:
            return bool(struct.unpack_from(">h", client.call(request), 8)[0] == 0)

    wait_until(is_there, f"a coordinator for {key}", timeout, 0.05)


# -- offset commits --------------------------------------------------------------------------------


def measure_commits(
    bootstrap: str,
    sockets: int,
    seconds: float,
    warmup: float,
    mark: Callable[[], None] = lambda: None,
) -> dict[str, float]:
    """One group per socket, one commit of one partition in flight on each."""
    topic = fresh_name("commits")
    create_topic(bootstrap, topic, 1)
    frames = []
    prefix = struct.pack(">ii", 0, 1) + text(topic) + struct.pack(">ii", 1, 0)
    connections = connect(parse_address(bootstrap), sockets, is_blocking=False)
    try:
        for number in range(sockets):
            group = f"{topic}-{number}"
            await_coordinator(bootstrap, group)
            with RawClient(parse_address(bootstrap), timeout=30) as client:
                commit(client, group, topic, range(1), number)
            body = commit_body(group, topic, range(1), number)
            frames.append(request_frame(OFFSET_COMMIT, 6, body))
        generator = LoadGenerator(connections, frames, [prefix] * sockets, 1, True)
        if warmup > 0:
            generator.run(warmup)
        mark()
        result = generator.run(seconds)
        mark()
    finally:
        for one in connections:
            one.close()
        delete_topic(bootstrap, topic)
    errors = {code: n for code, n in result["codes"].items() if code != 0}
    if errors:
        raise RuntimeError(f"commits were refused: {errors}")
    taken_s = result["elapsed_ns"] / 1e9
    return {
        "requests": result["requests"],
        "requests_per_s": result["requests"] / taken_s,
        "p50_us": histogram_percentile(result["histogram"], 0.50) / 1e3,
        "p99_us": histogram_percentile(result["histogram"], 0.99) / 1e3,
    }


# -- transactions ----------------------------------------------------------------------------------


def transactional_id_of(topic: str, number: int) -> str:
    """The id of the producer that writes to partition ``number``.

    The last characters decide on the parity of the coordinator's partition, and so on its io
    worker. Half of the coordinators are in the io worker of the producer's own partition, whatever
    the topic is called; with ids that end in the number alone, it would be all of them or none.
    """
    return f"{topic}-{number}-{number // 2 % 2}"


def measure_transactions(
    bootstrap: str,
    producers: int,
    seconds: float,
    records: int = 10,
    record_size: int = 1024,
    mark: Callable[[], None] = lambda: None,
) -> dict[str, float]:
    """Each producer commits transactions of ``records`` records, one after another, to its own
    partition.
    """
    from confluent_kafka import Producer

    topic = fresh_name("transactions")
    create_topic(bootstrap, topic, producers)
    value = bytes(65 + n % 26 for n in range(record_size))
    clients = []
    for number in range(producers):
        transactional_id = transactional_id_of(topic, number)
        await_coordinator(bootstrap, transactional_id, kind=1)
        client = Producer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": transactional_id,
                "linger.ms": 0,
                "log_level": 3,
            }
        )
        client.init_transactions(30)
        clients.append(client)
    counts = [0] * producers
    failures: list[BaseException] = []
    stop = threading.Event()

    def work(number: int) -> None:
        client = clients[number]
        try:
            while not stop.is_set():
                client.begin_transaction()
                for _ in range(records):
                    client.produce(topic, value, partition=number)
                client.commit_transaction(30)
                counts[number] += 1
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(producers)]
    mark()
    began = time.monotonic()
    for thread in threads:
        thread.start()
    time.sleep(seconds)
    stop.set()
    for thread in threads:
        thread.join(60)
    taken_s = time.monotonic() - began
    mark()
    delete_topic(bootstrap, topic)
    if failures:
        raise RuntimeError(f"a producer failed: {failures[0]}")
    return {"transactions": sum(counts), "transactions_per_s": sum(counts) / taken_s}


# -- a large group ---------------------------------------------------------------------------------


class Member:
    """A member of a classic group, driven by what arrives on its socket."""

    def __init__(self, group: str, address: tuple[str, int]) -> None:
        self.group = group
        (self.socket,) = connect(address, 1, is_blocking=False)
        self.member_id = ""
        self.generation = -1
        self.assigned_generation = -1
        self.next_heartbeat = 0.0
        self.waits_for: int | None = None
        self._unread = b""

    def _send(self, key: int, version: int, body: bytes) -> None:
        self.waits_for = key
        self.socket.setblocking(True)
        self.socket.sendall(request_frame(key, version, body))
        self.socket.setblocking(False)

    def join(self) -> None:
        protocol = struct.pack(">i", 1) + text("range") + blob(b"\0\0\0\0\0\0\0\0\0\0")
        body = text(self.group) + struct.pack(">ii", SESSION_MS, REBALANCE_MS)
        body += text(self.member_id) + NULL + text("consumer") + protocol
        self._send(JOIN_GROUP, 5, body)

    def heartbeat(self) -> None:
        body = text(self.group) + struct.pack(">i", self.generation) + text(self.member_id) + NULL
        self._send(HEARTBEAT, 3, body)

    def sync(self, members: list[str]) -> None:
        rows = b"".join(text(m) + blob(b"\0\0" + b"\0" * 8) for m in members)
        body = text(self.group) + struct.pack(">i", self.generation) + text(self.member_id) + NULL
        self._send(SYNC_GROUP, 3, body + struct.pack(">i", len(members)) + rows)

    def read(self) -> None:
        """Read what has arrived and continue from there."""
        data = self.socket.recv(1 << 20)
        if not data:
            raise ConnectionError("the broker closed the connection of a member")
        self._unread += data
        while len(self._unread) >= 4:
            (size,) = struct.unpack_from(">i", self._unread)
            if len(self._unread) < 4 + size:
                return
            response, self._unread = self._unread[4 : 4 + size], self._unread[4 + size :]
            self._take(response)

    def _take(self, response: bytes) -> None:
        key, self.waits_for = self.waits_for, None
        (error,) = struct.unpack_from(">h", response, 8)
        if key == JOIN_GROUP:
            self._joined(response, error)
        elif error == ERROR_REBALANCE:
            self.join()
        elif error:
            raise RuntimeError(f"error {error} to request {key}")
        elif key == SYNC_GROUP:
            self.assigned_generation = self.generation
            self.next_heartbeat = time.monotonic() + HEARTBEAT_S

    def _joined(self, response: bytes, error: int) -> None:
        (self.generation,) = struct.unpack_from(">i", response, 10)
        _, at = read_text(response, 14)
        leader, at = read_text(response, at)
        self.member_id, at = read_text(response, at)
        if error == ERROR_MEMBER_ID:
            self.join()
        elif error:
            raise RuntimeError(f"error {error} to JoinGroup")
        else:
            members = []
            (count,) = struct.unpack_from(">i", response, at)
            at += 4
            for _ in range(count):
                member, at = read_text(response, at)
                _, at = read_text(response, at)
                (size,) = struct.unpack_from(">i", response, at)
                at += 4 + size
                members.append(member)
            self.sync(members if leader == self.member_id else [])


def read_text(data: bytes, at: int) -> tuple[str, int]:
    (size,) = struct.unpack_from(">h", data, at)
    end = at + 2 + max(size, 0)
    return data[at + 2 : end].decode(), end


def measure_group(bootstrap: str, members: int, timeout: float = 120) -> dict[str, float]:
    """Seconds from the first join until all members have an assignment in one generation."""
    group = fresh_name("group")
    await_coordinator(bootstrap, group)
    address = parse_address(bootstrap)
    crowd = [Member(group, address) for _ in range(members)]
    selector = selectors.DefaultSelector()
    for member in crowd:
        selector.register(member.socket, selectors.EVENT_READ, member)
    began = time.monotonic()
    try:
        for member in crowd:
            member.join()
        while len({m.assigned_generation for m in crowd}) > 1 or crowd[0].assigned_generation < 0:
            if time.monotonic() - began > timeout:
                raise TimeoutError(f"{members} members are not assigned after {timeout} s")
            for key, _ in selector.select(0.01):
                key.data.read()
            now = time.monotonic()
            for member in crowd:
                if member.waits_for is None and now >= member.next_heartbeat:
                    member.next_heartbeat = now + HEARTBEAT_S
                    member.heartbeat()
        taken_s = time.monotonic() - began
    finally:
        for member in crowd:
            member.socket.close()
        selector.close()
    return {"seconds": taken_s, "generations": crowd[0].generation}


# -- many stored offsets ---------------------------------------------------------------------------


def fill(bootstrap: str, groups: int, partitions: int) -> str:
    """Commit an offset for each partition of a topic in each group; returns the topic."""
    topic = "perf-stored"
    create_topic(bootstrap, topic, partitions)
    await_coordinator(bootstrap, "perf-stored-0")
    with RawClient(parse_address(bootstrap), timeout=60) as client:
        for number in range(groups):
            commit(client, f"perf-stored-{number}", topic, range(partitions), number)
    return topic


def stored_offset(client: RawClient, group: str, topic: str) -> int | None:
    """The offset that a group has for partition 0; None while its coordinator is not ready."""
    body = text(group) + struct.pack(">i", 1) + text(topic) + struct.pack(">ii", 1, 0)
    response = client.call(request_frame(OFFSET_FETCH, 5, body))
    (code,) = struct.unpack_from(">h", response, len(response) - 2)
    if code in (ERROR_LOADING, ERROR_NOT_AVAILABLE, ERROR_NOT_COORDINATOR):
        return None
    if code:
        raise RuntimeError(f"OffsetFetch of {group}: error {code}")
    at = 4 + 4 + 4 + 2 + len(topic) + 4 + 4
    (offset,) = struct.unpack_from(">q", response, at)
    return int(offset)


# -- command line ----------------------------------------------------------------------------------


def main(arguments: list[str] | None = None) -> int:
    parser = Arguments(__doc__)
    parser.add_argument("part", choices=["commits", "transactions", "group", "fill"])
    parser.add_argument("--bootstrap", default="127.0.0.1:9092", metavar="HOST:PORT")
    parser.add_argument("--sockets", type=int, default=16, help="of commits")
    parser.add_argument("--producers", type=int, default=8, help="of transactions")
    parser.add_argument("--members", type=int, default=300, help="of group")
    parser.add_argument("--groups", type=int, default=10_000, help="of fill")
    parser.add_argument("--partitions", type=int, default=100, help="of fill")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--warmup", type=float, default=1.0)
    chosen = parser.parse_args(arguments)
    require_broker("coordination", chosen.bootstrap)
    try:
        print(json.dumps(_measure(chosen)))
    except (LoadError, OSError, RuntimeError) as error:
        print(f"coordination: {error}", file=sys.stderr)
        return 1
    return 0


def _measure(chosen: argparse.Namespace) -> Any:
    if chosen.part == "commits":
        return measure_commits(chosen.bootstrap, chosen.sockets, chosen.seconds, chosen.warmup)
    if chosen.part == "transactions":
        return measure_transactions(chosen.bootstrap, chosen.producers, chosen.seconds)
    if chosen.part == "group":
        return measure_group(chosen.bootstrap, chosen.members)
    began = time.monotonic()
    fill(chosen.bootstrap, chosen.groups, chosen.partitions)
    return {"seconds": time.monotonic() - began}


if __name__ == "__main__":
    sys.exit(main())
