"""Where a partition's log is found or created, and to which topic its directory belongs."""

import os
from pathlib import Path

import pytest
from support.storage.log_store import TOPIC_ID, LogStore, append, batch, checkpoint, stored_values

from kbroker._ext.shared.partition_table import OFFLINE
from kbroker.storage import checkpoint as checkpoint_module
from kbroker.storage.checkpoint import OffsetCheckpoint, parse_checkpoint
from kbroker.storage.damage import DamagedLogError
from kbroker.storage.dirs.partition_metadata import write_partition_metadata
from kbroker.storage.manager import recovery_threads

pytestmark = pytest.mark.unit


def test_new_partition_goes_to_the_directory_with_the_fewest(tmp_path):
    store = LogStore(tmp_path, dirs=2)
    os.makedirs(Path(store.dirs[0]) / "x-0")
    os.makedirs(Path(store.dirs[0]) / "x-1")
    store.start()
    for number in range(2):
        store.open("x", number, slot=8 + number)

    found = [store.open("t", i, slot=i).log_dir for i in range(4)]

    assert found == [store.dirs[1], store.dirs[1], store.dirs[0], store.dirs[1]]
    store.stop(clean=True)


def test_partition_is_found_in_the_directory_that_has_it(tmp_path):
    store = LogStore(tmp_path, dirs=3)
    places = {i: store.open("t", i, slot=i).log_dir for i in range(3)}
    store.stop(clean=True)

    store.start(clean=True)

    assert {i: store.open("t", i, slot=i).log_dir for i in range(3)} == places
    store.stop(clean=True)


def test_recreated_partitions_do_not_read_every_line_of_the_others(store, monkeypatch):
    """A topic of thousands of partitions, deleted and recreated, had quadratic cost."""
    for partition in range(10):
        append(store.open("t", partition, slot=partition), batch())
    append(store.open("other", 0, slot=10), batch())
    store.manager.checkpoint()
    store.manager.remove_partitions(range(10))
    assert checkpoint(store) == "0\n1\nother 0 0\n"
    parsed = []
    monkeypatch.setattr(
        checkpoint_module,
        "parse_checkpoint",
        lambda data, path: parsed.append(path) or parse_checkpoint(data, path),
    )

    for partition in range(10):
        store.open("t", partition, slot=partition)

    assert parsed == []
    OffsetCheckpoint(store.dirs[0], "recovery-point-offset-checkpoint").merge({}, [("other", 0)])
    assert checkpoint(store) == "0\n0\n"


def test_recreated_partition_does_not_inherit_a_recovery_point(store):
    log = store.open()
    append(log, batch(5))
    log.flush()
    store.manager.checkpoint()
    store.manager.remove_partitions([0])
    store.open(topic_id=bytes(16))

    log = store.restart(clean=False, topic_id=bytes(16))

    assert log.log_end_offset == 0


def test_directory_of_another_topic_id_is_kept_aside(store):
    log = store.open()
    append(log, batch([b"old"]))
    store.stop(clean=True)
    store.start(clean=True)

    log = store.open(topic_id=bytes(16))

    assert log.log_end_offset == 0
    (stray,) = Path(store.dirs[0]).glob("t-0.*-stray")
    assert (stray / ("0" * 20 + ".log")).stat().st_size == len(batch([b"old"]))


def test_directory_without_a_topic_id_is_not_that_of_a_new_topic(tmp_path):
    """From a broker before 2.8, with a topic unknown to its metadata: kbroker-adopt reports that it
    is not served.
    """
    store = LogStore(tmp_path)
    log = store.open()
    append(log, batch([b"old"]))
    store.stop(clean=True)
    store.path("partition.metadata").unlink()
    store.start(clean=True)

    log = store.open(topic_id=bytes(16))

    assert stored_values(log) == []
    (stray,) = Path(store.dirs[0]).glob("t-0.*-stray")
    assert (stray / f"{0:020}.log").stat().st_size > 0
    store.stop(clean=True)


def test_directory_without_a_topic_id_is_adopted(store):
    log = store.open()
    append(log, batch([b"old"]))
    store.stop(clean=True)
    store.path("partition.metadata").unlink()
    store.start(clean=True)

    log = store.open(is_new=False)

    assert stored_values(log) == [(0, b"old")]
    assert store.path("partition.metadata").exists()


@pytest.mark.parametrize("left", [b"", bytes(43), b"version: 0\ntopic_id: AAEC"])
def test_new_partition_whose_id_a_power_failure_has_torn_keeps_its_records(store, left):
    """The file is not synced; its records may be, before it is known that it was ever opened."""
    append(store.open(), batch([b"kept"]))
    store.stop(clean=False)
    store.path("partition.metadata").write_bytes(left)
    store.start()

    assert stored_values(store.open(is_new=True)) == [(0, b"kept")]


@pytest.mark.parametrize("at", range(43))
def test_flipped_bit_in_partition_metadata_never_begins_empty(store, at):
    append(store.open(), batch([b"kept"]))
    store.stop(clean=True)
    path = store.path("partition.metadata")
    whole = path.read_bytes()
    for bit in range(8):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :])
        store.start(clean=True)

        log = store.try_open(is_new=False)

        # Two bits of the last of its 22 characters do not belong to the id.
        assert log is None or stored_values(log) == [(0, b"kept")], bit
        assert not list(Path(store.dirs[0]).glob("*-stray"))
        if log is None:
            assert "partition.metadata" in store.manager.offline_reason(0)
            assert "remove partition.metadata" in store.manager.offline_reason(0)
        store.stop(clean=True)
    path.unlink()  # the way out
    store.start(clean=True)
    assert stored_values(store.open(is_new=False)) == [(0, b"kept")]


def test_directory_with_a_wrong_id_is_offline_wherever_it_is(tmp_path):
    """With several log directories, too: no other one has the partition."""
    store = LogStore(tmp_path, dirs=2)
    path = Path(store.open().path)
    append(store.manager.log(0), batch([b"kept"]))
    store.stop(clean=True)
    write_partition_metadata(str(path), bytes(16))
    store.start(clean=True)

    assert store.try_open(is_new=False) is None

    assert "topic id" in store.manager.offline_reason(0)
    assert path.exists() and store.manager.dirs.all_online
    write_partition_metadata(str(path), TOPIC_ID)
    assert stored_values(store.restart(clean=True, is_new=False)) == [(0, b"kept")]
    store.stop(clean=True)


def test_whatever_opening_a_log_raises_costs_that_partition_alone(store, monkeypatch, caplog):
    def failing(*args):
        raise IndexError("nobody thought of it")

    monkeypatch.setattr(recovery_threads, "load_log", failing)
    assert store.try_open() is None
    monkeypatch.undo()

    other = store.open("other", 0, 1)

    assert append(other, batch()) == 0
    assert "nobody thought of it" in store.manager.offline_reason(0)
    assert "Traceback" in caplog.text
    assert store.path("quarantine.txt").exists()


def test_log_found_damaged_while_it_is_served_goes_offline_alone(store):
    log, other = store.open(), store.open("other", 0, 1)
    append(log, batch())
    log.fail(DamagedLogError("a segment is another's"))

    assert store.manager.fail_directory_of(0) == [0]

    assert store.slot()["state"] == OFFLINE
    assert append(other, batch()) == 0
    assert store.path("quarantine.txt").read_text() == "a segment is another's\n"


def test_topic_id_of_the_directory_is_kept(store):
    store.open()

    text = store.path("partition.metadata").read_text()

    assert text == "version: 0\ntopic_id: AAECAwQFBgcICQoLDA0ODw"
    assert TOPIC_ID == bytes(range(16))
