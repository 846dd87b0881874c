"""Partitions that are repaired before they are led, over links to minimal replicas."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.replication.follower_host import LEADER, ME, FollowerHost
from support.replication.scripted_leader import ScriptedLeader
from support.storage.log_store import LogStore

from kbroker._ext.shared import partition_table
from kbroker.config.topic_config import TopicConfig
from kbroker.ipc.pending import Pending
from kbroker.ipc.rpc import Rpc
from kbroker.peers.link import LinkFailed
from kbroker.protocol.messages.fetch import FetchRequest, FetchResponse
from kbroker.replication.fetched_run import append_fetched
from kbroker.replication.tail_repair import Answer, TailQuestion
from kbroker.storage.checkpoint import OffsetCheckpoint
from kbroker.storage.formats import SUSPECT_PARTITIONS
from kbroker.storage.log.partition_log import PartitionLog
from kbroker.types import Offset
from kbroker.workers.base import now_ms
from kbroker.workers.io.tail_repairs import (
    ANY_REPLICA,
    AwaitedAnswer,
    TailRepairs,
    answers_in,
    distribute,
    fetch_request,
)

pytestmark = pytest.mark.unit

EPOCH = 2  # in which this broker is elected
DEAD = 9
HAD = 3  # batches that this broker has not lost
NOBODY: Any = None
TWO = {"min.insync.replicas": "2"}


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.levelno >= logging.ERROR]


class RepairHost(FollowerHost):
    """An io worker whose machine has lost power. Broker LEADER + n is the nth replica beside it."""

    def __init__(self, path: Path, *replicas: ScriptedLeader, **settings: Any) -> None:
        self.repairs: TailRepairs | None = None
        super().__init__(path, *replicas, store=LogStore(path / "ours"), **settings)
        self.rpc = Rpc(NOBODY, NOBODY, now_ms)
        self.repairs = TailRepairs(self, self.loop, broker_id=ME)

    def role_changed(self, slot: int, partition: Any, log: PartitionLog | None) -> None:
        super().role_changed(slot, partition, log)
        assert self.repairs is not None
        self.repairs.take_role(slot, partition, log)

    def lead_repaired(self, slot: int) -> None:
        self.hosted.lead_repaired(slot)

    def topic_config(self, name: str) -> TopicConfig:
        return self.hosted.topic_config(self.image.topics[name])

    def turn(self, timeout_s: float = 0.01) -> None:
        super().turn(min(timeout_s, 0.01))
        self.rpc.tick(now_ms())
        assert self.repairs is not None
        self.repairs.tick(now_ms())

    def elect(self, **changed: Any) -> None:
        others = [int(broker) for broker in self.brokers]
        told = {"leader": ME, "leader_epoch": EPOCH, "isr": [ME], "replicas": [ME, *others]}
        self.publish(0, **{**told, **changed})

    @property
    def role(self) -> int:
        found: int = self.store.slot()["role"]
        return found

    @property
    def leads(self) -> bool:
        return self.role == partition_table.LEADER

    def close(self) -> None:
        assert self.repairs is not None
        self.repairs.close()
        super().close()


def replica(batches: int) -> ScriptedLeader:
    """It follows this broker in the new leader epoch."""
    one = ScriptedLeader()
    log = one.log(epoch=EPOCH)
    for number in range(batches):
        log.append([b"%d" % number], epoch=1)
    log.high_watermark = 0
    return one


Make = Callable[..., RepairHost]


@pytest.fixture
def elected(tmp_path: Path) -> Iterator[Make]:
    """An io worker with the first HAD batches of the log, suspect, and told to lead."""
    hosts = []

    def make(*replicas: ScriptedLeader, **settings: Any) -> RepairHost:
        before = LogStore(tmp_path / "ours")
        log = before.open(topic_id=b"t" * 16, role=2, is_alone=False)
        source = (replicas or (replica(HAD),))[0].log()
        held = b"".join(data for *_, data in source.batches[:HAD])
        assert append_fetched(log, held, 1, 0).taken == len(held)
        log.publish()
        before.stop(clean=False)
        OffsetCheckpoint(before.dirs[0], SUSPECT_PARTITIONS).merge({("t", 0): 0})
        hosts.append(RepairHost(tmp_path, *replicas, **settings))
        return hosts[-1]

    yield make
    for host in hosts:
        host.close()


def test_records_that_a_replica_has_are_taken_before_this_broker_leads(
    elected: Make, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    other = replica(7)
    host = elected(other)
    host.elect()
    assert (host.role, host.repairs and host.repairs.waiting) == (partition_table.REPAIRING, 1)

    host.run_until(lambda: host.leads)

    assert host.bytes_of() == other.log().data()
    assert host.log().epochs.entries == [(1, 0), (EPOCH, 7)]
    assert host.log().high_watermark == 0, "who is in sync says what is committed"
    assert host.repairs is not None
    assert (host.repairs.waiting, host.repairs.incomplete) == (0, 0)
    assert "after offset 3 first" in caplog.text
    assert "offsets 3 to 7 were missing here" in caplog.text
    assert ("t", 0) not in host.store.manager.suspects
    first = other.fetches[0]
    assert (first.replica_id, first.session_epoch) == (ANY_REPLICA, -1)


def test_longest_of_several_tails_is_taken(elected: Make) -> None:
    others = [replica(4), replica(9), replica(2)]
    host = elected(*others)

    host.elect()
    host.run_until(lambda: host.leads)

    assert host.bytes_of() == others[1].log().data()


@pytest.mark.parametrize("protocol", ["2.6", "1.1"])
def test_before_version_12_the_last_batch_shows_whose_log_it_is(
    elected: Make, protocol: str
) -> None:
    other, stranger = replica(6), ScriptedLeader()
    for _ in range(9):
        stranger.log(epoch=EPOCH).append([b"x"], epoch=1)
    host = elected(other, stranger, inter_broker_protocol_version=protocol)

    host.elect()
    host.run_until(lambda: host.leads)

    assert host.bytes_of() == other.log().data()


def test_replica_is_asked_until_it_has_heard_of_the_leader_epoch(elected: Make) -> None:
    """Until then it may take records from somebody else."""
    other = replica(7)
    other.log().epoch = EPOCH - 1
    host = elected(other)
    host.elect()

    host.run_until(lambda: len(other.fetches) > 2)
    assert host.role == partition_table.REPAIRING
    other.log().epoch = EPOCH
    host.run_until(lambda: host.leads)

    assert host.log().log_end_offset == 7


def test_dead_replica_is_waited_for_no_longer_than_the_setting_says(
    elected: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """As Kafka would lead at once; what the living have is taken."""
    other = replica(5)
    host = elected(other, kbroker_tail_repair_wait_ms=300)
    host.elect(replicas=[DEAD, ME, LEADER])

    host.run_until(lambda: host.leads)

    assert host.log().log_end_offset == 5
    assert host.repairs is not None and host.repairs.incomplete == 1
    (told,) = [r for r in caplog.records if r.levelno >= logging.WARNING]
    assert "brokers [9] could not be asked" in told.getMessage()
    assert "it is not in the cluster" in told.getMessage()


def test_replica_that_may_have_what_was_acknowledged_is_waited_for(
    elected: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """With min.insync.replicas=2 the dead one may be the only one that has it."""
    other = replica(5)
    host = elected(other, kbroker_tail_repair_wait_ms=300, topic=dict(TWO))
    host.elect(replicas=[DEAD, ME, LEADER])
    assert host.repairs is not None

    host.run_until(lambda: errors(caplog), "it is overdue")
    for _ in range(20):
        host.turn()

    assert (host.role, host.repairs.waiting) == (partition_table.REPAIRING, 1)
    (told,) = errors(caplog)
    assert "t-0: is not led" in told
    assert "brokers [9] may still have, as min.insync.replicas is 2" in told
    assert "it is not in the cluster" in told

    host.topic["min.insync.replicas"] = "1"
    host.publish()
    host.run_until(lambda: host.leads)

    assert (host.repairs.waiting, host.repairs.incomplete) == (0, 1)


def test_replica_that_returns_ends_the_wait(elected: Make) -> None:
    others = [replica(5), replica(8)]
    host = elected(*others, kbroker_tail_repair_wait_ms=0, topic=dict(TWO))
    port = host.brokers.pop(str(LEADER + 1))
    host.elect(replicas=[ME, LEADER, LEADER + 1])
    host.run_until(lambda: host.log().log_end_offset == 5)
    assert host.role == partition_table.REPAIRING

    host.brokers[str(LEADER + 1)] = port
    host.publish()
    host.run_until(lambda: host.leads)

    assert host.bytes_of() == others[1].log().data()
    assert host.repairs is not None and host.repairs.incomplete == 0


@pytest.mark.parametrize(
    "topic",
    [
        {"min.insync.replicas": "3"},  # one of the two others has it, too
        {"min.insync.replicas": "2", "unclean.leader.election.enable": "true"},
    ],
)
def test_replica_that_is_not_needed_is_waited_for_no_longer_than_the_setting_says(
    elected: Make, topic: dict[str, str]
) -> None:
    host = elected(replica(5), kbroker_tail_repair_wait_ms=300, topic=topic)
    host.elect(replicas=[DEAD, ME, LEADER])

    host.run_until(lambda: host.leads)

    assert host.log().log_end_offset == 5


def test_lead_that_is_lost_meanwhile_ends_the_repair_and_what_arrives_has_no_effect(
    elected: Make,
) -> None:
    other = replica(7)
    other.log().epoch = EPOCH - 1
    host = elected(other)
    host.elect()
    host.run_until(lambda: other.fetches)

    other.log().epoch = EPOCH + 1
    host.publish(0, leader=LEADER, leader_epoch=EPOCH + 1)

    assert (host.role, host.repairs and host.repairs.waiting) == (partition_table.FOLLOWER, 0)
    host.run_until(lambda: host.followers.has_caught_up(0))
    assert host.log().log_end_offset == 7


def test_suspect_follower_that_has_caught_up_leads_without_asking(elected: Make) -> None:
    other = replica(7)
    other.log().high_watermark = None
    host = elected(other)
    host.publish(0, leader_epoch=EPOCH)
    assert host.hosted.suspect_followers() == [0]

    host.run_until(lambda: host.followers.has_caught_up(0))
    host.hosted.has_caught_up(0)
    host.elect(leader_epoch=EPOCH + 1)

    assert host.leads
    assert host.hosted.suspect_followers() == []
    assert ("t", 0) not in host.store.manager.suspects


def test_follower_that_lacks_committed_records_has_not_caught_up(elected: Make) -> None:
    other = replica(7)
    other.log().high_watermark = 9
    host = elected(other)
    host.publish(0, leader_epoch=EPOCH)

    host.run_until(lambda: host.log().log_end_offset == 7 and len(other.fetches) > 2)

    assert not host.followers.has_caught_up(0)


def test_only_replica_leads_at_once(elected: Make) -> None:
    host = elected()

    host.elect(replicas=[ME])

    assert host.leads
    assert host.log().log_end_offset == HAD


# -- requests --


def asked(partition: int, offset: int = 5, topic: str = "t") -> AwaitedAnswer:
    return AwaitedAnswer((topic, partition), EPOCH, TailQuestion(Offset(offset), 1), Pending())


def test_one_request_names_all_partitions_that_wait() -> None:
    request = fetch_request([asked(0), asked(1, 8), asked(0, topic="u")], 1 << 20)

    rows = [
        (topic.topic, row.partition, row.fetch_offset, row.last_fetched_epoch)
        for topic in request.topics
        for row in topic.partitions
    ]
    assert rows == [("t", 0, 5, 1), ("t", 1, 8, 1), ("u", 0, 5, 1)]
    assert isinstance(request, FetchRequest) and request.replica_id == ANY_REPLICA


def test_empty_answer_beside_records_of_others_is_not_the_log_end() -> None:
    """The response may have been full before it came to that partition."""
    batch = [asked(0), asked(1), asked(2), asked(3)]
    answers = {
        ("t", 0): Answer(0, records=b"records"),
        ("t", 1): Answer(0),
        ("t", 2): Answer(6),
    }

    again = distribute(batch, answers)

    assert again == [batch[1]]
    assert batch[0].answer.value == answers["t", 0]
    assert batch[2].answer.value == answers["t", 2]
    assert "leaves the partition out" in batch[3].answer.value
    assert distribute(again, {("t", 1): Answer(0)}) == []
    assert batch[1].answer.value == Answer(0)


def test_error_of_a_whole_response_is_no_answer() -> None:
    with pytest.raises(LinkFailed):
        answers_in(FetchResponse(error_code=-1))
