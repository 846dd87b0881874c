"""The effect of an image on the logs of an io worker: roles, epochs, ISR."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.network.network_process import topic_document
from support.storage.log_store import NOW_MS, LogStore, append, batch

from kbroker._ext.io.io_loop import IoLoop
from kbroker._ext.shared.partition_table import (
    FOLLOWER,
    FREE,
    LEADER,
    NO_ROLE,
    OFFLINE,
    ONLINE,
    REPAIRING,
)
from kbroker.cluster.image import ClusterImage, PartitionImage
from kbroker.config.loader import BrokerConfig
from kbroker.ipc.calls import StoppedReplica
from kbroker.ipc.rpc import Pending, Rpc, run
from kbroker.storage.checkpoint import OffsetCheckpoint
from kbroker.storage.dirs import boots
from kbroker.storage.formats import RECOVERY_POINT_CHECKPOINT
from kbroker.types import Offset
from kbroker.workers.io.hosted import HostedPartitions, OpeningLogs

pytestmark = pytest.mark.unit

ME, OTHER = 0, 9
NOBODY: Any = None


class Worker:
    """An io worker with topic ``t``, whose partitions 0 and 1 are in slots 0 and 1."""

    def __init__(self, path: Path) -> None:
        self.store = LogStore(path)
        self.config = BrokerConfig({})
        self.rpc = Rpc(NOBODY, NOBODY, self.store.clock.monotonic_ms)
        # By slot, the followed broker.
        self.followed: dict[int, int | None] = {}
        self.begin()
        self.lost: list[int] = []
        self.opened: list[Any] = []
        self.failed: list[int] = []
        self.document: dict[str, Any] = topic_document(b"t" * 16, [0, 1])
        self.publish()

    def begin(self) -> None:
        """Start as a new io worker."""
        self.image = ClusterImage()
        self.loop = IoLoop(self.store.table, [], [], self.on_storage_failure)
        self.hosted = HostedPartitions(
            self,
            self.store.manager,
            self.loop,
            broker_id=ME,
            worker_index=0,
            worker_count=1,
        )

    def restart(self) -> None:
        """Shut down cleanly; the next start waits for an image."""
        self.store.stop(clean=True)
        self.store.start(clean=True)
        self.begin()

    def lead_lost(self, slot: int) -> None:
        self.lost.append(slot)

    def role_changed(self, slot: int, partition: Any, log: Any) -> None:
        self.followed[slot] = partition.leader if partition.role == FOLLOWER and log else None

    def on_storage_failure(self, slot: int) -> None:
        self.failed.append(slot)

    def publish(self, **topics: Any) -> OpeningLogs:
        """Publish an image with ``document``, or with other topics."""
        delta = {"version": self.image.version + 1, "topics": topics or {"t": self.document}}
        changes = self.image.apply(delta)
        self.hosted.take(changes, is_snapshot=False)
        return self.hosted.open(changes, lambda: self.opened.append(changes))

    def change(self, partition: int, **fields: Any) -> OpeningLogs:
        """Publish a change of a partition, with nothing else of its topic."""
        row = self.replace(partition, fields)
        return self.publish(t={"id": self.document["id"], "changed": [[partition, row]]})

    def replace(self, partition: int, fields: dict[str, Any]) -> PartitionImage:
        """Change a partition in the document."""
        row: PartitionImage = self.document["partitions"][partition]._replace(**fields)
        self.document["partitions"][partition] = row
        return row

    def forget(self, name: str) -> None:
        """Publish an image without a topic."""
        self.publish(**{name: None})

    def stop(self, *replicas: Any) -> None:
        """A StopReplica order of the controller."""
        outcome = run(self.hosted.stop([StoppedReplica(*replica) for replica in replicas]))
        assert outcome.done and outcome.error is None

    def tell(self, partition: int = 0, **fields: Any) -> None:
        """Change a partition in the image."""
        self.replace(partition, fields)
        self.publish()

    def log(self, slot: int = 0) -> Any:
        return self.store.manager.log(slot)

    def slot(self, slot: int = 0) -> tuple[int, int, int]:
        """Role, leader epoch, partition epoch."""
        found = self.store.slot(slot)
        return found["role"], found["leader_epoch"], found["partition_epoch"]


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    made = Worker(tmp_path)
    yield made
    made.store.stop(clean=False)


def test_partition_that_is_led_here_is_opened_as_leader(worker: Worker) -> None:
    assert (worker.slot(0), worker.slot(1)) == ((LEADER, 0, 0), (LEADER, 0, 0))
    assert worker.hosted.led_log(0) is worker.log(0)
    assert not worker.log().appender.high_watermark_held


def test_leader_elsewhere_takes_effect_in_the_slot_and_ends_what_serves_it(worker: Worker) -> None:
    worker.tell(leader=OTHER, leader_epoch=1, replicas=[ME, OTHER], isr=[ME, OTHER])

    assert worker.slot() == (FOLLOWER, 1, 0)
    assert worker.lost == [0]
    assert worker.hosted.led_log(0) is None
    assert worker.log() is not None, "its log stays"
    assert worker.slot(1) == (LEADER, 0, 0)


def test_lead_that_comes_back_begins_its_epoch_at_the_log_end(worker: Worker) -> None:
    append(worker.log(), batch(3))
    worker.tell(leader=OTHER, leader_epoch=1, replicas=[ME, OTHER], isr=[ME, OTHER])
    worker.tell(leader=ME, leader_epoch=2, replicas=[ME], isr=[ME])

    assert worker.slot() == (LEADER, 2, 0)
    assert worker.log().epochs.entries == [(0, 0), (2, 3)]
    append(worker.log(), batch())
    assert worker.log().high_watermark == 4


def test_new_epoch_of_the_same_leader_stamps_what_is_appended(worker: Worker) -> None:
    append(worker.log(), batch(2))
    worker.tell(leader_epoch=6)

    assert (worker.slot(), worker.lost) == ((LEADER, 6, 0), [])
    assert worker.log().appender.leader_epoch == 6
    assert worker.log().epochs.entries == [(0, 0), (6, 2)]


def test_image_that_comes_late_changes_nothing(worker: Worker) -> None:
    worker.tell(leader_epoch=6)
    worker.tell(leader=OTHER, leader_epoch=5)

    assert (worker.slot(), worker.lost) == ((LEADER, 6, 0), [])


def test_second_replica_holds_the_high_watermark_until_there_is_none(worker: Worker) -> None:
    append(worker.log(), batch(2))
    worker.tell(isr=[ME, OTHER], replicas=[ME, OTHER], partition_epoch=3)
    append(worker.log(), batch(5))
    assert (worker.slot(), worker.log().high_watermark) == ((LEADER, 0, 3), 2)

    worker.tell(isr=[ME], replicas=[ME], partition_epoch=4)
    worker.loop.end_turn()
    assert worker.store.slot(0)["high_watermark"][0] == 7


def test_partition_under_min_isr_says_so_and_follows_the_setting(worker: Worker) -> None:
    worker.document["config"] = {"min.insync.replicas": "2"}
    worker.publish()
    assert not worker.log().appender.committed.is_under_min_isr, "it has one replica"

    worker.tell(isr=[ME], replicas=[ME, OTHER], partition_epoch=1)
    assert worker.log().appender.committed.is_under_min_isr

    worker.tell(isr=[ME, OTHER], replicas=[ME, OTHER], partition_epoch=2)
    assert not worker.log().appender.committed.is_under_min_isr


def test_config_that_is_not_allowed_counts_as_unset(worker: Worker) -> None:
    """Any client can write one into the store; all logs of this process would be gone with it."""
    worker.document["config"] = {"segment.bytes": "few", "min.insync.replicas": "2"}
    worker.publish()
    worker.restart()
    worker.publish()

    config = worker.hosted.topic_config(worker.image.topics["t"])
    assert config["segment.bytes"] == worker.config["log.segment.bytes"]
    assert config["min.insync.replicas"] == 2
    assert worker.store.slot()["role"] == LEADER


def test_replica_that_follows_from_the_start_is_opened_as_such(worker: Worker) -> None:
    worker.publish(
        u=topic_document(b"u" * 16, [2], leader=OTHER, leader_epoch=4),
    )

    assert worker.slot(2) == (FOLLOWER, 4, 0)
    assert worker.store.slot(2)["state"] == ONLINE
    assert worker.log(2).epochs.entries == []
    assert worker.followed == {0: None, 1: None, 2: OTHER}


def test_follower_is_told_whom_to_follow_until_its_log_is_ordered_away(worker: Worker) -> None:
    worker.tell(leader=OTHER, leader_epoch=4)
    assert worker.followed[0] == OTHER
    worker.tell(leader=ME, leader_epoch=5)
    assert worker.followed[0] is None
    worker.tell(leader=OTHER, leader_epoch=6)
    worker.stop(("t", 0, 0, 1))
    assert worker.followed[0] is None


@pytest.mark.parametrize(
    ("leader", "replicas", "begins"),
    [(OTHER, [OTHER, ME], 2), (ME, [ME, OTHER], 2), (ME, [ME], 5)],
    ids=["follows", "leads others", "leads alone"],
)
def test_log_is_opened_with_the_high_watermark_that_its_role_gives_it(
    worker: Worker, leader: int, replicas: list[int], begins: int
) -> None:
    """Other replicas may not have the records above it."""
    append(worker.log(), batch(2))
    worker.log().set_high_watermark(2)
    append(worker.log(), batch(3))

    worker.restart()
    worker.tell(leader=leader, isr=replicas, replicas=replicas, leader_epoch=1)

    assert worker.store.slot(0)["high_watermark"][0] == begins
    assert worker.store.slot(0)["log_end"][0] == 5


def test_disk_that_fails_at_a_change_of_role_takes_the_directory_offline(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise OSError(5, "gone")

    monkeypatch.setattr(type(worker.log().segments), "locate", broken)
    worker.tell(leader_epoch=6, replicas=[ME, ME + 1])

    assert worker.failed == [0]
    assert worker.log().failure is not None


def test_epoch_is_shown_to_clients_before_it_is_on_disk(worker: Worker) -> None:
    """Whoever comes to lead many partitions answers before it writes a file for each."""
    append(worker.log(), batch())
    worker.tell(leader_epoch=6)

    assert worker.slot()[1] == 6
    assert "\n6 1\n" not in worker.store.path("leader-epoch-checkpoint").read_text()


# ---- logs are deleted by order -----------------------------------------------------------------


def test_topic_that_the_image_forgets_keeps_its_logs_and_is_not_served(worker: Worker) -> None:
    append(worker.log(), batch(3))
    path = worker.log().path
    worker.forget("t")

    assert worker.log().log_end_offset == 3
    assert Path(path).is_dir()
    assert worker.slot()[0] == NO_ROLE
    assert worker.lost == [0, 1]


def test_topic_that_comes_back_continues_with_its_logs(worker: Worker) -> None:
    append(worker.log(), batch(3))
    worker.forget("t")
    worker.publish()

    assert worker.slot() == (LEADER, 0, 0)
    assert worker.hosted.led_log(0).log_end_offset == 3  # type: ignore[union-attr]


def test_another_topic_id_in_the_image_costs_no_data(worker: Worker) -> None:
    append(worker.log(), batch(3))
    worker.publish(t={**worker.document, "id": (b"x" * 16).hex()})

    assert worker.log().log_end_offset == 3
    assert worker.slot() == (LEADER, 0, 0)


def test_order_deletes_the_logs_it_names(worker: Worker) -> None:
    path = Path(worker.log().path)
    worker.stop(("t", 0, 0, 1))

    assert (worker.log(0), worker.lost, path.is_dir()) == (None, [0], False)
    assert worker.store.slot(0)["state"] == FREE
    assert worker.log(1) is not None


def test_order_may_be_to_keep_a_log_under_another_name(worker: Worker) -> None:
    append(worker.log(0), batch(3))
    append(worker.log(1), batch(3))
    path = Path(worker.log().path)
    worker.stop(("t", 0, 0, 1, True), ("t", 1, 1, 1, False))

    assert (worker.log(0), worker.lost, path.is_dir()) == (None, [0, 1], False)
    kept = [found.name.split(".")[0] for found in path.parent.glob("*-stray")]
    assert kept == [path.name]


def test_order_for_an_earlier_replica_of_the_slot_deletes_nothing(worker: Worker) -> None:
    worker.stop(("t", 0, 0, 0))

    assert worker.log(0) is not None
    assert worker.lost == []


def test_log_that_was_ordered_away_is_not_made_again_by_an_image(worker: Worker) -> None:
    """The image names a topic until all of its logs are deleted everywhere."""
    worker.stop(("t", 0, 0, 1), ("t", 1, 1, 1))
    worker.publish()

    assert (worker.log(0), worker.log(1)) == (None, None)


def test_topic_made_again_begins_empty_in_its_own_slots(worker: Worker) -> None:
    append(worker.log(), batch(3))
    worker.stop(("t", 0, 0, 1), ("t", 1, 1, 1))
    worker.forget("t")
    document = topic_document(b"n" * 16, [0, 3])
    first, second = document["partitions"]
    document["partitions"] = [first._replace(slot_incarnation=2), second]
    worker.publish(t=document)

    assert worker.log(0).log_end_offset == 0
    assert worker.store.slot(0)["slot_incarnation"] == 2
    assert worker.slot(3) == (LEADER, 0, 0)


def test_log_of_a_topic_made_again_waits_until_the_earlier_one_is_deleted(worker: Worker) -> None:
    append(worker.log(0), batch(3))
    failed = worker.publish(t=topic_document(b"n" * 16, [2]))

    assert (failed.errors, worker.log(2), worker.log(0).log_end_offset) == ({}, None, 3)
    assert worker.store.slot(2)["state"] == OFFLINE

    worker.stop(("t", 0, 0, 1))
    assert worker.log(2).log_end_offset == 0
    assert worker.slot(2) == (LEADER, 0, 0)


# ---- settings ----------------------------------------------------------------------------------


def test_log_follows_a_changed_setting_of_its_topic(worker: Worker) -> None:
    worker.document["config"] = {"max.message.bytes": "100"}
    worker.publish()

    code, *_ = worker.log().appender.append_batch(batch(20), NOW_MS)
    assert code == 10


# -- logs that take long to open --


class Turns:
    """Pauses in which the loop runs; they end when the test says so."""

    def __init__(self, worker: Worker) -> None:
        self._pauses: list[Pending] = []
        worker.rpc.sleep = self.sleep  # type: ignore[method-assign]

    def sleep(self, delay_ms: int) -> Pending:
        assert delay_ms == 0
        self._pauses.append(Pending())
        return self._pauses[-1]

    def next(self) -> None:
        """Run until the next pause."""
        (pause,) = self._pauses
        self._pauses.clear()
        pause.resolve()


LEADS_OTHERS = {"isr": [ME, OTHER], "replicas": [ME, OTHER], "leader_epoch": 7}


@pytest.fixture
def turns(worker: Worker) -> Turns:
    """The pauses of a worker with 16 partitions, of which 10 are open."""
    made = Turns(worker)
    worker.document = topic_document(b"t" * 16, list(range(16)))
    worker.publish()
    return made


def test_open_log_is_led_while_others_of_its_topic_are_being_opened(
    worker: Worker, turns: Turns
) -> None:
    """A producer that was sent here would be rejected until all of them are open."""
    opening = worker.change(1, **LEADS_OTHERS)

    assert worker.slot(1) == (LEADER, 7, 0)
    assert opening.done.value == {}
    assert worker.log(15) is None


def test_log_of_the_latest_change_is_opened_before_those_that_wait(
    worker: Worker, turns: Turns
) -> None:
    opening = worker.change(15, **LEADS_OTHERS, is_new=True)

    assert opening.done.value == {}
    assert worker.slot(15) == (LEADER, 7, 0)
    assert worker.log(14) is None


def test_logs_that_wait_are_opened_once_in_the_roles_of_a_later_change(
    worker: Worker, turns: Turns
) -> None:
    before = len(worker.opened)
    for number in range(16):
        worker.replace(number, {"leader_epoch": number})
    assert worker.publish().done.value == {}

    assert [worker.slot(number)[1] for number in range(16)] == list(range(16))
    assert len(worker.opened) == before + 1

    turns.next()
    assert len(worker.opened) == before + 2, "nothing is left for the earlier one"


def test_response_in_a_cluster_does_not_wait_for_logs(worker: Worker) -> None:
    """Changes of other partitions would wait for it, and so would the controller."""
    worker.config = BrokerConfig({"zookeeper.connect": "host:2181"})
    opening = OpeningLogs([("t", 1)], None)
    opening.errors["t-0"] = 56

    assert run(worker.hosted.errors_so_far(opening)).value == {"t-0": 56}


def test_response_of_a_single_broker_waits_for_all_logs(worker: Worker) -> None:
    turns = Turns(worker)
    worker.document = topic_document(b"t" * 16, list(range(16)))
    response = run(worker.hosted.errors_so_far(worker.publish()))
    assert not response.done

    turns.next()

    assert response.value == {} and len(worker.store.manager.logs()) == 16


# -- what must be on disk --


def test_order_to_delete_a_log_that_is_not_open_yet_is_carried_out(
    worker: Worker, turns: Turns
) -> None:
    """It is one of thousands that are being opened: who answers must have looked at the disk."""
    waiting = Path(worker.store.dirs[0]) / "t-14"
    waiting.mkdir()
    assert worker.log(14) is None

    worker.stop(("t", 14, 14, 1))

    assert not waiting.exists()


def test_order_without_a_slot_deletes_what_is_on_disk_or_open(worker: Worker) -> None:
    left = Path(worker.store.dirs[0]) / "gone-3"
    left.mkdir()

    worker.stop(("gone", 3, -1, 0))
    assert not left.exists()

    open_here = Path(worker.log(1).path)
    worker.forget("t")
    worker.stop(("t", 1, -1, 0))
    assert worker.log(1) is None and not open_here.exists()


def test_late_order_does_not_delete_a_later_replica(worker: Worker) -> None:
    worker.stop(("t", 0, 0, 7), ("t", 1, -1, 0))

    assert worker.log(0) is not None and worker.log(1) is not None
    assert Path(worker.log(0).path).exists() and Path(worker.log(1).path).exists()


def lead_with_others(worker: Worker, number: int = 5, **more: Any) -> int:
    """Have a replica led here that was not open before; the role in its slot."""
    worker.document = topic_document(b"u" * 16, [number])
    worker.replace(0, LEADS_OTHERS | more)
    worker.publish(u=worker.document)
    return worker.slot(number)[0]


def test_replica_in_sync_without_a_log_is_suspect_before_an_empty_one_is_created(
    worker: Worker, caplog: pytest.LogCaptureFixture
) -> None:
    """Its disk was replaced: to lead with an empty log has all others truncate theirs."""
    assert lead_with_others(worker) == REPAIRING

    assert ("u", 0) in worker.store.manager.suspects
    assert boots.has_suspects(worker.store.dirs[0])
    assert "u-0" in caplog.text


@pytest.mark.parametrize(
    "more", [{"is_new": True}, {"isr": [OTHER]}, {"replicas": [ME], "isr": [ME]}]
)
def test_replica_that_need_not_have_a_log_is_not_suspect(
    worker: Worker, more: dict[str, Any]
) -> None:
    """It is new, has yet to catch up, or there is nobody to ask."""
    assert lead_with_others(worker, **more) == LEADER

    assert not boots.has_suspects(worker.store.dirs[0])


LOG = f"{0:020}.log"


@pytest.mark.parametrize("name", [LOG, f"{LOG}.swap"])
def test_replica_with_a_log_is_not_suspect_although_it_is_empty(worker: Worker, name: str) -> None:
    directory = Path(worker.store.dirs[0]) / "u-0"
    directory.mkdir()
    (directory / name).touch()

    assert lead_with_others(worker) == LEADER

    assert not boots.has_suspects(worker.store.dirs[0])


@pytest.mark.parametrize(
    "left", [[], ["leader-epoch-checkpoint", f"{0:020}.index"], [LOG + ".deleted"]]
)
def test_replica_in_sync_whose_directory_has_lost_its_log_is_suspect(
    worker: Worker, left: list[str]
) -> None:
    directory = Path(worker.store.dirs[0]) / "u-0"
    directory.mkdir()
    for name in left:
        (directory / name).touch()

    OffsetCheckpoint(worker.store.dirs[0], RECOVERY_POINT_CHECKPOINT).merge({("u", 0): Offset(100)})
    worker.restart()

    assert lead_with_others(worker) == REPAIRING

    assert ("u", 0) in worker.store.manager.suspects
    (stray,) = directory.parent.glob("u-0.*-stray")
    assert sorted(path.name for path in stray.iterdir()) == sorted(left)
    assert (directory / LOG).exists()
