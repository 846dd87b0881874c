"""The contract of every store, as tests: a module that imports them all and has a fixture ``bench``
runs them with its store.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from kbroker.ipc.pending import Pending
from kbroker.metastore.store import (
    CHANGED,
    CHILDREN,
    CREATED,
    DELETED,
    BadVersion,
    EphemeralParent,
    NodeExists,
    NoNode,
    NotEmpty,
    SessionState,
    Store,
    StoreError,
    WatchEvent,
)


class Bench:
    """A store, and how to wait for it."""

    store: Store

    def wait(self, pending: Pending[Any]) -> Any:
        """The value, or the error."""
        self.settle(pending)
        if pending.error is not None:
            raise pending.error
        return pending.value

    def settle(self, pending: Pending[Any]) -> None:
        """Wait until it is done."""
        assert pending.done

    def next_session(self) -> None:
        """Close the store, and open another on the same tree."""
        raise NotImplementedError


def test_node_is_created_read_changed_and_deleted(bench: Bench) -> None:
    store, wait = bench.store, bench.wait
    assert wait(store.create("/a", b"one")) == ["/a"]
    assert wait(store.get("/a")).data == b"one"
    assert wait(store.get("/a")).stat.version == 0
    wait(store.set("/a", b"two", version=0))
    assert wait(store.get("/a")).data == b"two"
    assert wait(store.exists("/a")).version == 1
    wait(store.delete("/a", version=1))
    assert wait(store.exists("/a")) is None


def test_errors_are_typed_and_name_the_path(bench: Bench) -> None:
    store, wait = bench.store, bench.wait
    wait(store.create("/a"))
    with pytest.raises(NodeExists) as existing:
        wait(store.create("/a"))
    assert existing.value.path == "/a"
    with pytest.raises(NoNode) as missing:
        wait(store.create("/b/c"))
    assert missing.value.path == "/b"
    for rejected in (store.get("/b"), store.set("/b", b""), store.children("/b")):
        with pytest.raises(NoNode):
            wait(rejected)
    for stale in (store.set("/a", b"", version=5), store.delete("/a", version=5)):
        with pytest.raises(BadVersion):
            wait(stale)
    wait(store.create("/a/b"))
    with pytest.raises(NotEmpty):
        wait(store.delete("/a"))


@pytest.mark.parametrize("path", ["", "a", "/", "/a/", "//a", "/a/../b", "/a\0"])
def test_illegal_path_is_rejected(bench: Bench, path: str) -> None:
    with pytest.raises(ValueError, match="not a znode path"):
        bench.wait(bench.store.create(path))


def test_children_are_the_direct_ones_and_a_subtree_has_all(bench: Bench) -> None:
    store, wait = bench.store, bench.wait
    for path in ("/a", "/a/z", "/a/b", "/a/b/c", "/ab", "/a0", "/a.b"):
        wait(store.create(path))
    assert wait(store.children("/a")) == ["b", "z"]
    assert wait(store.children("/")) == ["a", "a.b", "a0", "ab"]
    assert wait(store.children("/ab")) == []
    assert [node.path for node in wait(store.subtree("/a"))] == ["/a/b", "/a/b/c", "/a/z"]
    assert wait(store.subtree("/none")) == []
    assert len(wait(store.subtree("/"))) == 7


def test_sequential_names_grow_even_after_deletion(bench: Bench) -> None:
    store, wait = bench.store, bench.wait
    wait(store.create("/q"))
    (first,) = wait(store.create("/q/n-", sequential=True))
    wait(store.delete(first))
    (second,) = wait(store.create("/q/n-", sequential=True))
    assert first == "/q/n-0000000000"
    assert second > first


def test_transaction_applies_all_or_nothing(bench: Bench) -> None:
    store, wait = bench.store, bench.wait
    wait(store.create("/a"))
    done = store.multi().create("/b").set("/a", b"1").delete("/b").commit()
    assert wait(done) == ["/b", "/a", "/b"]
    with pytest.raises(NodeExists):
        wait(store.multi().create("/c").set("/a", b"2").create("/a").commit())
    with pytest.raises(BadVersion):
        wait(store.multi().create("/c").check("/a", 7).commit())
    assert wait(store.exists("/c")) is None
    assert wait(store.get("/a")).data == b"1"


def test_requests_take_effect_in_their_order_without_waiting(bench: Bench) -> None:
    store = bench.store
    asked = [store.create("/a", b"0"), store.set("/a", b"1", 0), store.set("/a", b"2", 1)]
    read = store.get("/a")
    assert bench.wait(read).data == b"2"
    assert all(pending.done and pending.error is None for pending in asked)


def test_ephemeral_node_has_an_owner_and_goes_with_its_session(bench: Bench) -> None:
    wait, session_id = bench.wait, bench.store.session_id
    wait(bench.store.create("/ids"))
    wait(bench.store.create("/ids/0", b"me", ephemeral=True))
    with pytest.raises(EphemeralParent):
        wait(bench.store.create("/ids/0/x"))
    assert wait(bench.store.exists("/ids/0")).owner_session == session_id != 0
    assert wait(bench.store.exists("/ids")).owner_session == 0
    bench.next_session()
    assert bench.store.session_id > session_id
    assert wait(bench.store.children("/ids")) == []


def test_creation_id_tells_an_ephemeral_node_from_earlier_ones(bench: Bench) -> None:
    """The broker epoch grows within a session and across sessions."""
    wait, ids = bench.wait, []
    for path in ("/a", "/b", "/a"):
        if path in {f"/{name}" for name in wait(bench.store.children("/"))}:
            wait(bench.store.delete(path))
        wait(bench.store.create(path, ephemeral=True))
        wait(bench.store.set(path, b"changed"))
        ids.append(wait(bench.store.exists(path)).created_id)
    with pytest.raises(NodeExists):
        wait(bench.store.multi().delete("/a").create("/b", ephemeral=True).commit())
    assert wait(bench.store.exists("/a")).created_id == ids[-1]
    bench.next_session()
    wait(bench.store.create("/a", ephemeral=True))
    ids.append(wait(bench.store.exists("/a")).created_id)
    assert ids == sorted(set(ids))
    assert ids[0] > 0


def test_watch_reports_changes_until_cancelled(bench: Bench) -> None:
    store, wait = bench.store, bench.wait
    events: list[WatchEvent] = []
    cancel: Callable[[], None] = wait(store.watch("/a", events.append))
    wait(store.create("/a"))
    wait(store.set("/a", b"x"))
    wait(store.create("/a/b"))
    wait(store.delete("/a/b"))
    wait(store.delete("/a"))
    wait(store.exists("/a"))  # changes before a read are reported before its result
    assert events == [
        WatchEvent(CREATED, "/a"),
        WatchEvent(CHANGED, "/a"),
        WatchEvent(CHILDREN, "/a"),
        WatchEvent(CHILDREN, "/a"),
        WatchEvent(DELETED, "/a"),
    ]
    with pytest.raises(NoNode):
        wait(store.multi().create("/a").set("/none", b"").commit())
    cancel()
    wait(store.create("/a"))
    wait(store.exists("/a"))
    assert len(events) == 5


def test_session_state_is_told_at_once(bench: Bench) -> None:
    states: list[SessionState] = []
    bench.store.watch_session(states.append)
    assert states == [SessionState.CONNECTED]


@pytest.mark.parametrize("seed", range(3))
def test_random_operations_agree_with_a_model(bench: Bench, seed: int) -> None:
    choose = random.Random(seed)
    model: dict[str, tuple[bytes, int]] = {}
    for step in range(200):
        path = "".join("/" + choose.choice("abc") for _ in range(choose.randint(1, 3)))
        data, version = str(step).encode(), choose.choice((-1, -1, 0, 1))
        kind = choose.choice(("create", "create", "set", "delete"))
        expected = outcome_in(model, kind, path, data, version)
        arguments = {"create": (path, data), "set": (path, data, version)}
        pending = getattr(bench.store, kind)(*arguments.get(kind, (path, version)))
        bench.settle(pending)
        found = type(pending.error) if isinstance(pending.error, StoreError) else None
        assert found is expected, (seed, step, kind, path)
    nodes = bench.wait(bench.store.subtree("/"))
    assert {node.path: (node.data, node.stat.version) for node in nodes} == model


def outcome_in(
    model: dict[str, tuple[bytes, int]], kind: str, path: str, data: bytes, version: int
) -> type[StoreError] | None:
    """Apply it to path -> (data, version); returns the error instead."""
    if kind == "create":
        if path.rpartition("/")[0] not in ("", *model):
            return NoNode
        if path in model:
            return NodeExists
        model[path] = data, 0
        return None
    if path not in model:
        return NoNode
    if version not in (-1, model[path][1]):
        return BadVersion
    if kind == "set":
        model[path] = data, model[path][1] + 1
        return None
    if any(other.startswith(path + "/") for other in model):
        return NotEmpty
    del model[path]
    return None
