"""The file of the embedded store: the contract of each operation, and surviving kill -9."""

import os
import random
import signal
import sqlite3
import struct
import subprocess
import sys
import time

import pytest

from kbroker.metastore.node_file import NodeFile
from kbroker.metastore.store import (
    BadVersion,
    EphemeralParent,
    NodeExists,
    NoNode,
    NotEmpty,
    StoreError,
    StoreFailed,
)
from kbroker.metastore.store_files import FILE_NAME, WAL_NAME, nodes_of_store

pytestmark = pytest.mark.unit


@pytest.fixture
def store(tmp_path):
    store = NodeFile(str(tmp_path))
    yield store
    store.close()


def test_create_get_set_delete_roundtrip(store):
    assert store.create("/a", b"one") == "/a"
    assert store.get("/a").data == b"one"
    assert store.get("/a").stat.version == 0
    store.set("/a", b"two", version=0)
    assert store.get("/a").data == b"two"
    assert store.get("/a").stat.version == 1
    store.delete("/a", version=1)
    assert store.exists("/a") is None


def test_new_store_is_begun_in_one_transaction(store, tmp_path):
    """A start waits for the sync of each; it was one for each table and trigger."""
    log = (tmp_path / WAL_NAME).read_bytes()
    (page_bytes,) = struct.unpack_from(">I", log, 8)
    frames = range(32, len(log), 24 + page_bytes)
    assert sum(struct.unpack_from(">I", log, frame + 4)[0] > 0 for frame in frames) == 1


def test_errors_are_typed_and_name_the_path(store):
    store.create("/a")
    with pytest.raises(NodeExists) as caught:
        store.create("/a")
    assert caught.value.path == "/a"
    with pytest.raises(NoNode) as caught:
        store.create("/b/c")
    assert caught.value.path == "/b"
    with pytest.raises(NoNode):
        store.get("/b")
    with pytest.raises(NoNode):
        store.set("/b", b"")
    with pytest.raises(NoNode):
        store.children("/b")
    with pytest.raises(BadVersion):
        store.set("/a", b"", version=5)
    with pytest.raises(BadVersion):
        store.delete("/a", version=5)
    store.create("/a/b")
    with pytest.raises(NotEmpty):
        store.delete("/a")


@pytest.mark.parametrize("path", ["", "a", "/", "/a/", "//a", "/a/../b", "/a\0"])
def test_create_illegal_path_raises(store, path):
    with pytest.raises(ValueError, match="not a znode path"):
        store.create(path)


def test_children_are_the_direct_ones_in_order(store):
    for path in ("/a", "/a/z", "/a/b", "/a/b/c", "/ab", "/a0"):
        store.create(path)
    assert store.children("/a") == ["b", "z"]
    assert store.children("/") == ["a", "a0", "ab"]
    assert store.children("/ab") == []


def test_subtree_excludes_siblings_with_the_same_prefix(store):
    for path in ("/a", "/a/b", "/a/b/c", "/a.b", "/a-b", "/a0", "/ab"):
        store.create(path)
    assert [node.path for node in store.subtree("/a")] == ["/a/b", "/a/b/c"]
    assert list(store.subtree("/none")) == []
    assert len(list(store.subtree("/"))) == 7


def test_sequential_names_grow_even_after_deletion(store):
    store.create("/q")
    first = store.create("/q/n-", sequential=True)
    store.delete(first)
    second = store.create("/q/n-", sequential=True)
    assert first == "/q/n-0000000000"
    assert second > first


def test_multi_applies_all_or_nothing(store):
    store.create("/a")
    assert store.multi().create("/b").set("/a", b"1").delete("/b").commit() == ["/b", "/a", "/b"]
    with pytest.raises(NodeExists):
        store.multi().create("/c").set("/a", b"2").create("/a").commit()
    with pytest.raises(BadVersion):
        store.multi().create("/c").check("/a", 7).commit()
    assert store.exists("/c") is None
    assert store.get("/a").data == b"1"


def test_ephemeral_goes_with_its_session(tmp_path):
    first = NodeFile(str(tmp_path))
    first.create("/ids")
    first.create("/ids/0", b"me", ephemeral=True)
    with pytest.raises(EphemeralParent):
        first.create("/ids/0/x")
    assert first.exists("/ids/0").owner_session == first.session_id
    first.close()
    second = NodeFile(str(tmp_path))
    assert second.children("/ids") == []
    second.close()


def test_second_opener_is_rejected_with_a_remedy(store, tmp_path, monkeypatch):
    monkeypatch.setattr("kbroker.metastore.store_opening.LOCK_TIMEOUT_S", 0.05)
    with pytest.raises(StoreFailed, match="another broker uses this log directory"):
        NodeFile(str(tmp_path))


def test_file_of_another_layout_is_rejected(tmp_path):
    with sqlite3.connect(tmp_path / FILE_NAME) as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(StoreFailed, match="layout 99"):
        NodeFile(str(tmp_path))


def test_damaged_file_is_rejected_with_a_remedy(tmp_path):
    (tmp_path / FILE_NAME).write_bytes(b"not a database" * 1000)
    with pytest.raises(StoreFailed, match="restore it from a backup"):
        NodeFile(str(tmp_path))


class Model:
    """The tree as a dict of path -> [data, version], with the same errors."""

    def __init__(self):
        self.nodes = {"/": [b"", 0]}

    def create(self, path, data):
        if path.rpartition("/")[0] not in ("", *self.nodes):
            raise NoNode(path)
        if path in self.nodes:
            raise NodeExists(path)
        self.nodes[path] = [data, 0]

    def set(self, path, data, version):
        self.expect(path, version)
        self.nodes[path] = [data, self.nodes[path][1] + 1]

    def delete(self, path, version):
        self.expect(path, version)
        if any(other.startswith(path + "/") for other in self.nodes):
            raise NotEmpty(path)
        del self.nodes[path]

    def expect(self, path, version):
        if path not in self.nodes:
            raise NoNode(path)
        if version not in (-1, self.nodes[path][1]):
            raise BadVersion(path)


def outcome(function, *args):
    try:
        function(*args)
    except StoreError as error:
        return type(error)
    return None


@pytest.mark.parametrize("seed", range(5))
def test_random_operations_agree_with_the_model(tmp_path, seed):
    choose = random.Random(seed)
    store, model = NodeFile(str(tmp_path)), Model()
    for step in range(400):
        path = "".join("/" + choose.choice("abc") for _ in range(choose.randint(1, 3)))
        data, version = str(step).encode(), choose.choice((-1, -1, 0, 1))
        kind = choose.choice(("create", "create", "set", "delete", "reopen"))
        if kind == "reopen":
            if choose.random() < 0.1:
                store.close()
                store = NodeFile(str(tmp_path))
            continue
        args = (path, data) if kind == "create" else (path, version)
        if kind == "set":
            args = (path, data, version)
        expected = outcome(getattr(model, kind), *args)
        assert outcome(getattr(store, kind), *args) is expected, (seed, step, kind, path)
    found = {node.path: [node.data, node.stat.version] for node in store.subtree("/")}
    assert found == {path: node for path, node in model.nodes.items() if path != "/"}
    store.close()


WRITER = """
import sys
from kbroker.metastore.node_file import NodeFile
store = NodeFile(sys.argv[1])
n = len(store.children("/"))
while True:
    store.multi().create(f"/{n:06d}").create(f"/{n:06d}/x", str(n).encode()).commit()
    print(n, flush=True)
    n += 1
"""


def test_kill_9_loses_nothing_acknowledged_and_tears_no_transaction(tmp_path):
    acknowledged = -1
    for after in (3, 40, 11):
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True
        ) as writer:
            for _ in range(after):
                acknowledged = int(writer.stdout.readline())
            os.kill(writer.pid, signal.SIGKILL)
            acknowledged = max([acknowledged, *map(int, writer.stdout.read().split())])
        store = NodeFile(str(tmp_path))
        names = store.children("/")
        assert names == [f"{n:06d}" for n in range(len(names))]
        assert len(names) in (acknowledged + 1, acknowledged + 2)
        for number, name in enumerate(names):
            assert store.get(f"/{name}/x").data == str(number).encode()
        store.close()


def test_topic_of_1000_partitions_is_one_fast_transaction(store):
    store.multi().create("/t").create("/t/partitions").commit()
    start = time.process_time()
    transaction = store.multi()
    for number in range(1000):
        transaction.create(f"/t/partitions/{number}")
        transaction.create(f"/t/partitions/{number}/state", b"x" * 80)
    transaction.commit()
    assert time.process_time() - start < 5  # a tenth of a second, unless each row is a scan


def test_full_disk_rejects_and_heals(store):
    pages = store._db.execute("PRAGMA page_count").fetchone()[0]
    store._db.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(StoreFailed, match="free some space"):
        store.create("/big", b"x" * 100_000)
    assert store.exists("/big") is None
    store._db.execute("PRAGMA max_page_count = 100000")
    store.create("/big", b"x" * 100_000)
    assert len(store.get("/big").data) == 100_000


def test_failed_sync_is_final(store):
    class FailingSync:
        """The connection, but COMMIT fails as SQLite reports a failed fsync."""

        def __init__(self, db):
            self.db = db

        def __getattr__(self, name):
            return getattr(self.db, name)

        def execute(self, sql, *args):
            if sql == "COMMIT":
                error = sqlite3.OperationalError("disk I/O error")
                error.sqlite_errorname = "SQLITE_IOERR_FSYNC"
                raise error
            return self.db.execute(sql, *args)

    real = store._db
    store._db = FailingSync(real)
    with pytest.raises(StoreFailed):
        store.create("/a")
    store._db = real
    with pytest.raises(StoreFailed, match="disk I/O error"):
        store.create("/b")
    assert store.children("/") == []


class NoRoom:
    """The connection to a store on a disk that has room only while there is no reserve."""

    def __init__(self, db, reserve):
        self.db = db
        self.reserve = reserve

    def __getattr__(self, name):
        return getattr(self.db, name)

    def execute(self, sql, *args):
        if sql == "COMMIT" and self.reserve.exists():
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorname = "SQLITE_FULL"
            raise error
        return self.db.execute(sql, *args)


def test_reserve_is_given_up_for_changes_but_not_for_topics(store, tmp_path):
    reserve = tmp_path / "kbroker-metadata.reserve"
    assert reserve.stat().st_blocks * 512 >= 256 * 1024
    for path in ("/brokers", "/brokers/topics"):
        store.create(path)
    store._db = NoRoom(store._db, reserve)

    with pytest.raises(StoreFailed, match="free some space"):
        store.create("/brokers/topics/t")
    assert reserve.exists()
    store._reserve.fill = lambda: None  # the disk stays full
    store.create("/deleted")

    assert not reserve.exists()
    assert store.children("/") == ["brokers", "deleted"]


def test_reserve_is_set_aside_again_when_there_is_room(store, tmp_path):
    store._reserve.release()
    store.create("/a")

    assert (tmp_path / "kbroker-metadata.reserve").exists()


def test_look_at_a_store_changes_nothing(tmp_path):
    """Before a start, while what it finds behind the last part of the log is not known yet."""
    store = NodeFile(str(tmp_path))
    store.create("/a", b"1")
    store.create("/b", b"2")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    assert nodes_of_store([str(tmp_path)], ["/a", "/c"]) == {"/a": b"1"}

    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    store.close()
    assert nodes_of_store([str(tmp_path)], ["/b"]) == {"/b": b"2"}
    assert nodes_of_store([str(tmp_path / "other")], ["/b"]) == {}
    (tmp_path / FILE_NAME).write_bytes(b"nothing")
    with pytest.raises(ValueError, match=str(tmp_path)):
        nodes_of_store([str(tmp_path)], ["/b"])
