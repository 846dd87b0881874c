"""A follower with damage that the next start finds: its leader has what is lost."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.replication.follower_host import FollowerHost
from support.replication.scripted_leader import ScriptedLeader
from support.storage.log_store import LogStore, checkpoint

from kbroker.replication.fetched_run import append_fetched
from kbroker.storage.checkpoint import OffsetCheckpoint
from kbroker.storage.formats import SUSPECT_PARTITIONS

pytestmark = pytest.mark.unit

KEY = ("t", 0)
BATCHES, DAMAGED = 6, 3
FOLLOWER: dict[str, Any] = {"topic_id": b"t" * 16, "role": 2, "is_alone": False, "is_new": False}


@pytest.fixture
def leader() -> Iterator[ScriptedLeader]:
    with ScriptedLeader() as one:
        for number in range(BATCHES):
            one.log().append([b"%d" % number])
        yield one


def damaged(path: Path, leader: ScriptedLeader, how: str) -> LogStore:
    """A replica of the leader's log, all of it synced; its fourth batch is not what it was."""
    store = LogStore(path)
    log = store.open(**FOLLOWER | {"is_new": True})
    append_fetched(log, leader.log().data(), 1, 0)
    log.publish()
    log.flush()
    store.manager.checkpoint()
    store.stop(clean=False)
    file = store.path("00000000000000000000.log")
    data = file.read_bytes()
    at = len(data) // BATCHES * DAMAGED
    if how == "a flipped bit":
        file.write_bytes(data[: at + 40] + bytes([data[at + 40] ^ 1]) + data[at + 41 :])
    elif how == "a short file":
        file.write_bytes(data[: at + 40])
    else:
        file.unlink()
    return store


@pytest.mark.parametrize("how", ["a flipped bit", "a short file", "no file"])
def test_damaged_follower_keeps_what_is_sound_and_copies_the_rest(
    tmp_path: Path, leader: ScriptedLeader, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = damaged(tmp_path, leader, how)
    store.start()
    host = FollowerHost(tmp_path, leader, store=store)
    left = 0 if how == "no file" else DAMAGED

    host.publish()
    assert host.log().log_end_offset == left
    assert checkpoint(store) == f"0\n1\nt 0 {left}\n"
    assert OffsetCheckpoint(store.dirs[0], SUSPECT_PARTITIONS).read() == {KEY: 0}
    assert host.hosted.suspect_followers() == [0], "elected now, it asks others before it leads"

    host.run_until(lambda: host.followers.has_caught_up(0))
    assert host.bytes_of() == leader.log().data()
    (told,) = [r for r in caplog.records if r.levelno >= logging.ERROR]
    assert f"everything from offset {left} on is dropped here" in told.getMessage()
    host.close()


def test_damaged_replica_without_a_leader_is_offline_and_unchanged(
    tmp_path: Path, leader: ScriptedLeader
) -> None:
    """It may have the only copy of what can still be read."""
    store = damaged(tmp_path, leader, "a flipped bit")
    before = store.path("00000000000000000000.log").read_bytes()
    store.start()

    assert store.try_open(**FOLLOWER) is None

    assert store.path("00000000000000000000.log").read_bytes() == before
    assert KEY not in store.manager.suspects
    store.stop(clean=False)
