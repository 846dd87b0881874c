"""Nodes that several brokers write to: what each of them knows, whatever befalls its connection."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from kbroker.controller.store.notices import KEPT_MS
from kbroker.controller.store.watched_tree import WatchedTree
from kbroker.errors import ErrorCode, WireError
from kbroker.ipc.pending import Pending, run
from kbroker.metastore.embedded import EmbeddedStore
from kbroker.metastore.node_file import NodeFile
from kbroker.metastore.settled import SettledStore
from kbroker.metastore.simulated import Faults, SimulatedEnsemble
from kbroker.metastore.store import Node, NoNode, Store, StoreOperation

pytestmark = pytest.mark.unit

THINGS, CHANGES, OTHERS = "/things", "/thing_changes", "/other_changes"
NODES = (THINGS, CHANGES, OTHERS)
PREFIXES = (f"{CHANGES}/change_", f"{OTHERS}/change_")
EVERYTHING = ["*"]


class Broker:
    """Knows the data of the nodes below THINGS. reads: what it has read, in this order."""

    def __init__(
        self, store: Store, sleep: Callable[[int], Pending[None]], now_ms: Callable[[], int]
    ) -> None:
        self.known: dict[str, bytes] = {}
        self.reads: list[list[str]] = []
        self.store: Any = store
        self.tree = WatchedTree[str](
            store,
            SettledStore(store),
            sleep,
            now_ms,
            prefixes=PREFIXES,
            named=self._named,
            read=self._read,
            read_all=self._read_all,
        )
        self.started = self.tree.events.put(lambda: self.tree.begin(NODES))

    def _named(self, parent: str, data: bytes) -> str | None:
        assert parent in (CHANGES, OTHERS)
        name = data.decode()
        return None if name == "of no interest" else name

    async def _read(self, names: Iterable[str]) -> None:
        self.reads.append(list(names))
        for name in names:
            try:
                self.known[name] = (await self.tree.store.get(f"{THINGS}/{name}")).data
            except NoNode:
                self.known.pop(name, None)

    async def _read_all(self) -> None:
        self.reads.append(EVERYTHING)
        found = await self.tree.store.subtree(THINGS)
        self.known = {node.path.rpartition("/")[2]: node.data for node in found}


class Cluster:
    def __init__(self, brokers: int = 1) -> None:
        self.ensemble = SimulatedEnsemble(1, Faults(delay_max_ms=5))
        self.session_id = self.ensemble.begin_session()
        self.brokers = [self.join() for _ in range(brokers)]
        self.until_started(*self.brokers)

    def join(self) -> Broker:
        ensemble = self.ensemble
        return Broker(ensemble.connect(), ensemble.sleep, lambda: ensemble.now_ms)

    def until_started(self, *brokers: Broker) -> None:
        self.ensemble.run_until(lambda: all(broker.started.done for broker in brokers))
        assert [broker.started.error for broker in brokers] == [None] * len(brokers)

    def apply(self, *operations: StoreOperation) -> None:
        self.ensemble.apply(list(operations), self.session_id)

    def write(self, name: str, data: bytes, *, notifies: bool = True) -> None:
        path = f"{THINGS}/{name}"
        kind = "create" if self.ensemble.tree.exists(path) is None else "set"
        self.apply(StoreOperation(kind, path, data))
        if notifies:
            self.notify(name.encode())

    def notify(self, name: bytes, prefix: str = PREFIXES[0]) -> None:
        self.apply(StoreOperation("create", prefix, name, sequential=True))

    def settle(self, within_ms: int = 400) -> None:
        waited = self.ensemble.sleep(within_ms)
        self.ensemble.run_until(lambda: waited.done)


def test_brokers_that_start_together_create_the_missing_nodes_and_read_the_others() -> None:
    cluster = Cluster(0)
    cluster.apply(StoreOperation("create", THINGS))
    cluster.write("a", b"1", notifies=False)
    brokers = [cluster.join() for _ in range(3)]
    cluster.until_started(*brokers)

    assert [broker.known for broker in brokers] == [{"a": b"1"}] * 3
    assert [cluster.ensemble.tree.children(path) for path in NODES[1:]] == [[], []]


def test_only_what_a_notification_names_is_read() -> None:
    cluster = Cluster(2)
    cluster.write("a", b"1")
    cluster.settle()
    cluster.write("unsaid", b"1", notifies=False)
    cluster.write("b", b"1", notifies=False)
    cluster.notify(b"b", PREFIXES[1])
    cluster.settle()

    for broker in cluster.brokers:
        assert broker.known == {"a": b"1", "b": b"1"}
        assert [read for read in broker.reads if read] == [EVERYTHING, ["a"], ["b"]]


def test_notifications_that_came_together_are_read_once_in_their_order() -> None:
    cluster = Cluster()
    for name in (b"b", b"of no interest", b"\xff", b"a", b"b"):
        cluster.notify(name)
    cluster.settle()

    assert cluster.brokers[0].reads[1] == ["b", "a"]


def test_damaged_notification_is_named_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster()
    cluster.notify(b"\xff")
    cluster.settle()

    assert f"ignoring the notification {PREFIXES[0]}0000000000" in caplog.text


@pytest.mark.parametrize("ends_session", [False, True])
def test_after_a_lost_connection_everything_is_read_and_watched_again(ends_session: bool) -> None:
    cluster = Cluster()
    (broker,) = cluster.brokers
    cluster.write("a", b"1")
    cluster.write("gone", b"1")
    cluster.settle()
    if ends_session:
        broker.store.expire()
    else:
        broker.store.lose(1_000)
    assert not broker.tree.is_connected
    cluster.write("a", b"2", notifies=False)
    cluster.apply(StoreOperation("delete", f"{THINGS}/gone"))
    cluster.settle(5_000)

    assert broker.tree.is_connected
    assert broker.known == {"a": b"2"}
    assert broker.reads.count(EVERYTHING) == 2
    cluster.write("b", b"3")
    cluster.settle()
    assert broker.known == {"a": b"2", "b": b"3"}
    assert broker.reads[-1] == ["b"]


def test_change_is_seen_at_whatever_moment_of_a_start_it_is_made() -> None:
    """Also between the look at the notifications and the end of reading."""
    for moment in range(60):
        cluster = Cluster()
        cluster.write("a", b"1")
        joining = cluster.join()
        for _ in range(moment):
            cluster.ensemble.step()
        cluster.write("a", b"2")
        cluster.settle()
        assert joining.known == {"a": b"2"}, moment


def test_change_is_seen_at_whatever_moment_of_another_reading_it_is_made() -> None:
    """A look that is under way has read the first state; a second one follows."""
    for moment in range(40):
        cluster = Cluster()
        cluster.write("a", b"1")
        for _ in range(moment):
            cluster.ensemble.step()
        cluster.write("a", b"2")
        cluster.write("b", b"2")
        cluster.settle()
        assert cluster.brokers[0].known == {"a": b"2", "b": b"2"}, moment


def test_connection_lost_at_any_moment_of_a_start_hides_no_change() -> None:
    for moment in range(60):
        cluster = Cluster(0)
        broker = cluster.join()
        for _ in range(moment):
            cluster.ensemble.step()
        broker.store.lose(100)
        cluster.settle(200)
        cluster.write("a", b"1")
        cluster.settle()
        assert broker.known == {"a": b"1"}, moment


def test_nodes_of_notifications_that_were_removed_are_used_again_once_they_are_back() -> None:
    """An administrator has removed them, and a Kafka or another broker creates them again."""
    cluster = Cluster()
    (broker,) = cluster.brokers
    cluster.write("a", b"1")
    cluster.settle()
    (notice,) = cluster.ensemble.tree.children(CHANGES)
    cluster.apply(
        StoreOperation("delete", f"{CHANGES}/{notice}"), StoreOperation("delete", CHANGES)
    )
    cluster.write("a", b"2", notifies=False)
    cluster.settle(3_000)
    cluster.apply(StoreOperation("create", CHANGES))
    cluster.settle(60_000)
    assert broker.known == {"a": b"2"}, "everything is read: who knows what was said meanwhile"

    cluster.write("a", b"3")
    cluster.settle()
    assert broker.known == {"a": b"3"}


def test_reading_that_failed_is_followed_by_one_of_everything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The notification is taken: nobody would say again what to read."""
    cluster = Cluster()
    (broker,) = cluster.brokers
    failures = [OSError("the first reading fails")]
    get = broker.tree.store.get

    async def failing(path: str) -> Node:
        if path.startswith(THINGS) and failures:
            raise failures.pop()
        return await get(path)

    monkeypatch.setattr(broker.tree.store, "get", failing)
    cluster.write("a", b"1")
    cluster.settle(3_000)

    assert broker.known == {"a": b"1"}
    assert broker.reads[:3] == [EVERYTHING, ["a"], EVERYTHING]


def test_old_notifications_are_removed() -> None:
    cluster = Cluster()
    cluster.write("a", b"1")
    cluster.settle(KEPT_MS + 1)
    cluster.write("a", b"2")
    cluster.settle()

    assert len(cluster.ensemble.tree.children(CHANGES)) == 1


def test_many_that_catch_up_ask_the_store_once() -> None:
    cluster = Cluster(2)
    (broker, _) = cluster.brokers
    broker.reads.clear()
    cluster.write("a", b"1")
    caught_up = [run(broker.tree.catch_up()) for _ in range(500)]
    cluster.ensemble.run_until(lambda: all(one.done for one in caught_up))

    assert broker.known == {"a": b"1"}
    assert broker.reads.count(["a"]) == 1
    assert len(broker.reads) <= 3, "one for the watch, one for the requests"


def test_catching_up_after_others_have_begun_sees_later_changes() -> None:
    cluster = Cluster()
    (broker,) = cluster.brokers
    first = run(broker.tree.catch_up())
    cluster.ensemble.step()
    cluster.write("a", b"1")
    second = run(broker.tree.catch_up())
    cluster.ensemble.run_until(lambda: second.done)

    assert first.done
    assert broker.known == {"a": b"1"}


def test_without_a_connection_requests_are_rejected_and_nobody_waits_to_catch_up() -> None:
    cluster = Cluster()
    (broker,) = cluster.brokers
    broker.tree.check_connected()
    broker.store.lose(1_000)

    with pytest.raises(WireError) as caught:
        broker.tree.check_connected()
    assert caught.value.code is ErrorCode.REQUEST_TIMED_OUT
    assert run(broker.tree.catch_up()).done


def test_store_of_one_broker_is_read_once_and_has_no_notifications(tmp_path: Path) -> None:
    """Nobody else writes to it."""
    store = EmbeddedStore(NodeFile(str(tmp_path)))
    broker = Broker(store, lambda _: Pending(), lambda: 0)
    assert broker.started.done
    assert broker.started.error is None
    store.apply(
        [StoreOperation("create", f"{THINGS}/a"), StoreOperation("create", f"{CHANGES}/change_1")]
    )

    assert run(broker.tree.catch_up()).done
    assert broker.reads == [EVERYTHING]
    broker.tree.check_connected()
    store.close()
