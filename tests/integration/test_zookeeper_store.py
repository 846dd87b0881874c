"""The store with a real ZooKeeper that disconnects, reconnects, and expires sessions."""

from __future__ import annotations

import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.security import READ_ACL_UNSAFE
from support.brokers.zookeeper import ZooKeeperServer, path_of_its_own, shared
from support.brokers.zookeeper_bench import ZooKeeperBench
from support.network.cable import Cable

from kbroker.ipc.pending import Pending, run
from kbroker.metastore import paths
from kbroker.metastore.session_file import FILE_NAME
from kbroker.metastore.settled import SettledStore
from kbroker.metastore.store import (
    CHANGED,
    CHILDREN,
    CREATED,
    DELETED,
    ConnectionLoss,
    SessionState,
    StoreFailed,
    StoreOperation,
    TooLarge,
    WatchEvent,
)
from kbroker.testing import zookeeper

pytestmark = pytest.mark.integration

CONNECTED, SUSPENDED, EXPIRED = SessionState.CONNECTED, SessionState.SUSPENDED, SessionState.EXPIRED
ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def server() -> zookeeper.ZooKeeperServer:
    return shared()


@pytest.fixture
def chroot() -> str:
    return f"/{path_of_its_own().partition('/')[2]}"


@pytest.fixture
def cable(server: zookeeper.ZooKeeperServer) -> Iterator[Cable]:
    with Cable(server.port) as cable:
        yield cable


@pytest.fixture
def bench(cable: Cable, chroot: str, tmp_path: Path) -> Iterator[ZooKeeperBench]:
    made = ZooKeeperBench(cable.address + chroot, tmp_path, zookeeper_session_timeout_ms="10000")
    yield made
    made.close()


@pytest.fixture
def other(
    server: zookeeper.ZooKeeperServer, chroot: str, bench: ZooKeeperBench
) -> Iterator[KazooClient]:
    """Another client, whose connection is not cut."""
    client = KazooClient(server.connect + chroot)
    client.start()
    yield client
    client.stop()
    client.close()


def cut(bench: ZooKeeperBench, cable: Cable) -> None:
    cable.cut()
    bench.until(lambda: bench.states[-1] == SUSPENDED)


def mend(bench: ZooKeeperBench, cable: Cable) -> None:
    cable.mend()
    bench.until(lambda: bench.states[-1] == CONNECTED)


def test_paths_of_a_broker_are_created_below_the_chroot(
    bench: ZooKeeperBench, other: KazooClient
) -> None:
    bench.close()
    bench.open(top_paths=paths.PERSISTENT_PATHS)
    assert all(other.exists(path) for path in paths.PERSISTENT_PATHS)
    bench.next_session()  # they are there already


def test_node_that_holds_nothing_is_created_as_by_kafka(
    bench: ZooKeeperBench, other: KazooClient
) -> None:
    """Kafka parses any bytes, even none, and does not start then."""
    bench.close()
    bench.open(top_paths=paths.PERSISTENT_PATHS)
    bench.wait(bench.store.create("/empty"))
    assert other.get("/empty")[0] is None
    assert other.get(paths.PRODUCER_ID_BLOCK)[0] is None


def test_server_that_leaves_a_connection_without_response_is_asked_on_another(
    server: zookeeper.ZooKeeperServer, tmp_path: Path
) -> None:
    """A starting server does that once in a while, and kazoo waits for the session timeout."""
    with Cable(server.port) as cable:
        bench = ZooKeeperBench(cable.address, tmp_path, zookeeper_session_timeout_ms="3600000")
        session_id = bench.store.session_id
        cut(bench, cable)
        cable.silent = 1
        cable.mend()
        bench.until(lambda: bench.states[-1] == CONNECTED)
        assert cable.silent == 0
        assert bench.store.session_id == session_id
        bench.close()


def test_session_outlives_a_restart_of_the_server(tmp_path: Path) -> None:
    with ZooKeeperServer(tmp_path / "server", {"tickTime": "3000"}) as server:
        bench = ZooKeeperBench(server.connect, tmp_path, zookeeper_session_timeout_ms="60000")
        bench.wait(bench.store.create("/me", ephemeral=True))
        session_id = bench.store.session_id
        server.kill()
        bench.until(lambda: bench.states[-1] == SUSPENDED)
        with pytest.raises(ConnectionLoss):
            bench.wait(bench.store.get("/me"))
        server.start()
        bench.until(lambda: bench.states[-1] == CONNECTED)
        assert bench.states[1:] == [CONNECTED, SUSPENDED, CONNECTED]
        assert bench.wait(bench.store.exists("/me")).owner_session == session_id
        assert bench.store.session_id == session_id
        bench.close()


def test_expired_session_is_told_before_the_next(
    bench: ZooKeeperBench, server: zookeeper.ZooKeeperServer
) -> None:
    bench.wait(bench.store.create("/me", ephemeral=True))
    session_id = bench.store.session_id
    ender = KazooClient(server.connect, client_id=bench.file.read())
    ender.start()
    ender.stop()
    ender.close()
    bench.until(lambda: bench.states[-1] == CONNECTED and EXPIRED in bench.states)
    assert bench.states[-2:] == [EXPIRED, CONNECTED]
    assert bench.states.count(EXPIRED) == 1
    assert bench.store.session_id != session_id
    assert bench.wait(bench.store.exists("/me")) is None
    saved = bench.file.read()
    assert saved is not None
    assert saved[0] == bench.store.session_id


def test_writes_across_lost_connections_take_effect_once(
    bench: ZooKeeperBench, cable: Cable
) -> None:
    """Each is conditional on the previous one: a lost or duplicate write would break the chain."""
    bench.wait(bench.store.create("/count", b"0"))
    store = SettledStore(bench.store)

    async def count_up() -> None:
        for number in range(300):
            await store.apply([_set("/count", number)])

    counting: Pending[None] = run(count_up())
    for at in (50, 120, 200):

        def is_there(at: int = at) -> bool:
            reading = bench.store.get("/count")
            bench.settle(reading)
            return counting.done or (reading.error is None and int(reading.value.data) >= at)

        bench.until(is_there)
        cable.cut()
        bench.until(lambda: bench.states[-1] == SUSPENDED)
        mend(bench, cable)
    bench.wait(counting)
    node = bench.wait(bench.store.get("/count"))
    assert (node.data, node.stat.version) == (b"300", 300)


def _set(path: str, version: int) -> StoreOperation:
    return StoreOperation("set", path, str(version + 1).encode(), version)


def test_requests_behind_a_lost_one_are_lost_too(bench: ZooKeeperBench, cable: Cable) -> None:
    """The requests that took effect are a prefix of all, whatever the store knows."""
    bench.wait(bench.store.create("/n", b"0"))
    asked: list[Pending[list[str]]] = []

    def ask_more() -> bool:
        asked.append(bench.store.set("/n", str(len(asked) + 1).encode(), len(asked)))
        return len(asked) == 200

    bench.until(ask_more)
    cable.cut()
    bench.until(lambda: asked.append(bench.store.set("/n", b"x", 10_000)) or asked[199].done)
    bench.until(lambda: bench.states[-1] == SUSPENDED and all(one.done for one in asked))
    mend(bench, cable)
    reached = int(bench.wait(bench.store.get("/n")).data)
    outcomes = [one.error for one in asked[:200]]
    answered = [number for number, error in enumerate(outcomes) if error is None]
    assert answered == list(range(len(answered)))
    assert len(answered) <= reached <= 200
    assert all(isinstance(error, ConnectionLoss) for error in outcomes if error is not None)


def test_what_changes_without_a_connection_is_reported_after_it(
    bench: ZooKeeperBench, cable: Cable, other: KazooClient
) -> None:
    events: list[WatchEvent] = []
    for path in ("/changed", "/parent", "/deleted", "/again"):
        bench.wait(bench.store.create(path))
    for path in ("/changed", "/parent", "/deleted", "/again", "/created"):
        bench.wait(bench.store.watch(path, events.append))
    cut(bench, cable)
    other.set("/changed", b"x")
    other.create("/parent/child")
    other.delete("/deleted")
    other.delete("/again")
    other.create("/again")
    other.create("/created")
    mend(bench, cable)
    bench.until(lambda: len(events) >= 6)
    assert events == [
        WatchEvent(CHANGED, "/changed"),
        WatchEvent(CHILDREN, "/parent"),
        WatchEvent(DELETED, "/deleted"),
        WatchEvent(DELETED, "/again"),
        WatchEvent(CREATED, "/again"),
        WatchEvent(CREATED, "/created"),
    ]
    events.clear()
    for number in range(3):
        other.create(f"/again/{number}")
    bench.until(lambda: events)
    assert set(events) == {WatchEvent(CHILDREN, "/again")}


def test_watches_miss_no_change_of_a_busy_node(bench: ZooKeeperBench, other: KazooClient) -> None:
    """After the last event a read sees everything, however fast the changes were."""
    seen: list[int] = []
    reads: list[Pending[list[str]]] = []
    bench.wait(bench.store.create("/busy"))
    bench.wait(bench.store.watch("/busy", lambda _: reads.append(bench.store.children("/busy"))))
    pending = [other.create_async(f"/busy/{number}") for number in range(100)]

    def is_complete() -> bool:
        seen[:] = [len(one.value) for one in reads if one.done and one.error is None]
        return bool(seen) and seen[-1] == 100

    bench.until(is_complete)
    assert all(one.get() for one in pending)
    assert seen == sorted(seen)


def test_cancelled_watch_is_forgotten(bench: ZooKeeperBench, other: KazooClient) -> None:
    events: list[WatchEvent] = []
    cancel = bench.wait(bench.store.watch("/a", events.append))
    cancel()
    other.create("/a")
    other.set("/a", b"x")
    bench.wait(bench.store.exists("/a"))
    bench.wait(bench.store.watch("/a", events.append))
    other.set("/a", b"y")
    bench.until(lambda: events)
    assert events == [WatchEvent(CHANGED, "/a")]


def test_document_above_the_limit_is_rejected_with_its_size(bench: ZooKeeperBench) -> None:
    """ZooKeeper would close the connection, and the request would be retried forever."""
    with pytest.raises(TooLarge, match=r"/big: 1048\d\d\d bytes .*jute.maxbuffer"):
        bench.wait(bench.store.create("/big", b"x" * 1_048_570))
    bench.wait(bench.store.create("/big", b"x" * 1_048_400))
    assert len(bench.wait(bench.store.get("/big")).data) == 1_048_400
    assert bench.states[-1] == CONNECTED


def test_slow_server_delays_responses_and_keeps_the_session(tmp_path: Path) -> None:
    with ZooKeeperServer(tmp_path / "server") as server:
        bench = ZooKeeperBench(server.connect, tmp_path, zookeeper_session_timeout_ms="10000")
        server.hold()
        asked = [bench.store.create(f"/{number}") for number in range(50)]
        for pending in asked:
            assert not pending.done
        bench.store.drain()
        server.release()
        for pending in asked:
            bench.wait(pending)
        assert SUSPENDED not in bench.states[1:]
        bench.close()


def test_forbidden_node_is_named_with_the_remedy(bench: ZooKeeperBench, other: KazooClient) -> None:
    other.create("/foreign", acl=READ_ACL_UNSAFE)
    with pytest.raises(StoreFailed, match="/foreign: its access list"):
        bench.wait(bench.store.set("/foreign", b"x"))


DYING = """
import os, sys
sys.path[:0] = [{root!r}]
from pathlib import Path
from support.brokers.zookeeper_bench import ZooKeeperBench
bench = ZooKeeperBench({connect!r}, Path({directory!r}), zookeeper_session_timeout_ms="10000")
bench.wait(bench.store.create("/me", ephemeral=True))
print(bench.store.session_id, flush=True)
os._exit(1)
"""


def test_next_process_resumes_the_session(
    server: zookeeper.ZooKeeperServer, chroot: str, tmp_path: Path
) -> None:
    """A controller process that dies does not end the broker's registration."""
    connect = server.connect + chroot
    script = DYING.format(root=str(ROOT), connect=connect, directory=str(tmp_path))
    died = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert died.stdout, died.stderr
    assert stat.S_IMODE((tmp_path / FILE_NAME).stat().st_mode) == 0o600
    bench = ZooKeeperBench(connect, tmp_path, zookeeper_session_timeout_ms="10000")
    assert EXPIRED not in bench.states
    assert bench.store.session_id == int(died.stdout)
    assert bench.wait(bench.store.exists("/me")).owner_session == bench.store.session_id
    bench.close()
    assert not (tmp_path / FILE_NAME).exists()


def test_session_that_cannot_be_resumed_is_reported_as_expired(
    server: zookeeper.ZooKeeperServer, chroot: str, tmp_path: Path
) -> None:
    bench = ZooKeeperBench(server.connect + chroot, tmp_path)
    old = bench.file.read()
    bench.close()
    assert old is not None
    bench.file.write(old)
    bench.open()
    assert bench.states[-2:] == [EXPIRED, CONNECTED]
    assert bench.store.session_id != old[0]
    bench.close()
