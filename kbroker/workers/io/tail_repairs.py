"""Tail repairs of an io worker: partitions that may have lost records (``storage.dirs``) are asked
for at their other replicas before they are led.

What is asked and what is done with the answers, ``replication.tail_repair`` decides; this module
fetches, appends, and ends the repair when everybody has answered. After kbroker.tail.repair.wait.ms
it ends without those who may not have what min.insync.replicas replicas have acknowledged
(docs/decisions/0021-how-long-a-tail-repair-waits.md). Until then the slot's role is REPAIRING, and
whoever wants to produce, fetch or truncate gets NOT_LEADER_OR_FOLLOWER.

Fetches of all partitions for one broker share a link and, as far as they wait at the same time, a
request. They come with replica id -3: replicas that follow answer them up to their log end, Kafka's
too. Unless records may be lost, nothing here runs.
"""

from __future__ import annotations

import logging
from collections import deque
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from kbroker.errors import StorageError, may_do_without
from kbroker.ipc.pending import Pending
from kbroker.ipc.rpc import Rpc, run
from kbroker.peers.connecting import Connecting
from kbroker.peers.endpoints import inter_broker_endpoint
from kbroker.peers.link import Link, LinkFailed, LinkTimeouts
from kbroker.peers.versions import sent_version
from kbroker.protocol.api import ApiKey
from kbroker.protocol.codec import EncodeError
from kbroker.protocol.messages.fetch import FetchRequest, FetchResponse
from kbroker.replication.partition import Partition, Role
from kbroker.replication.tail_repair import Answer, TailQuestion, TailRepair
from kbroker.replication.truncation import EpochEnd
from kbroker.types import Offset
from kbroker.workers.base import now_ms, raise_failure
from kbroker.workers.io.replica_log import ReplicaLog, ReplicatingProcess

if TYPE_CHECKING:
    from kbroker._ext.io.io_loop import IoLoop
    from kbroker.config.topic_config import TopicConfig
    from kbroker.peers.security import PeerSecurity
    from kbroker.storage.checkpoint import TopicPartition
    from kbroker.storage.log.partition_log import PartitionLog

logger = logging.getLogger(__name__)

# WIRE: reads up to the log end of any replica.
ANY_REPLICA = -3
FIRST_WITH_LAST_EPOCH = 12
# BOUND: partitions and bytes of one request.
ASKED_MAX = 200
ANSWER_BYTES = 4 << 20
# How long a replica waits for records at its log end. Without it, one whose segments are being
# exchanged would answer that it has none.
WAIT_MS = 100
# A broker that does not answer must not use up the time of the others.
TIMES = LinkTimeouts(connect_ms=1_000, response_ms=3_000)


class RepairingProcess(ReplicatingProcess, Protocol):
    """The io worker."""

    rpc: Rpc

    def topic_config(self, name: str) -> TopicConfig:
        """The configs of a topic as they are now."""

    def lead_repaired(self, slot: int) -> None:
        """The log of the partition has what the other replicas have: lead it."""


class Repair:
    """A partition that is about to be led. deadline_ms: until then it waits for every replica."""

    __slots__ = ("deadline_ms", "is_overdue", "log", "machine", "slot")

    def __init__(self, slot: int, log: PartitionLog, machine: TailRepair, deadline_ms: int) -> None:
        self.slot = slot
        self.log = log
        self.machine = machine
        self.deadline_ms = deadline_ms
        self.is_overdue = False


class TailRepairs:
    """Made by the io worker, after its loop. security: of connections to other brokers."""

    def __init__(
        self,
        process: RepairingProcess,
        loop: IoLoop,
        *,
        broker_id: int,
        security: PeerSecurity | None = None,
    ) -> None:
        self._process = process
        self._security = security
        self._loop = loop
        self._broker_id = broker_id
        self._repairs: dict[int, Repair] = {}
        self._connecting: Connecting | None = None
        self._brokers: dict[int, OtherReplicas] = {}
        # Repairs that ended without an answer of every replica.
        self.incomplete = 0

    @property
    def waiting(self) -> int:
        """Partitions that are not led yet."""
        return len(self._repairs)

    # -- roles --

    def take_role(self, slot: int, partition: Partition, log: PartitionLog | None) -> None:
        """The partition is what ``partition`` says from now on. log: None while it is not open."""
        if log is None or partition.role is not Role.REPAIRING:
            self.stop(slot)
            return
        known = self._repairs.get(slot)
        last = known.machine if known is not None and known.log is log else None
        if last is not None and last.leader_epoch == partition.leader_epoch:
            return
        repair = self._begin(slot, partition, log, last)
        self._repairs[slot] = repair
        run(self._run(repair)).then(raise_failure)

    def _begin(
        self, slot: int, partition: Partition, log: PartitionLog, last: TailRepair | None
    ) -> Repair:
        config = self._process.config
        others = [broker for broker in partition.replicas if broker != self._broker_id]
        is_format_2 = log.epochs.latest is not None or log.log_end_offset == log.log_start_offset
        machine = TailRepair(
            ReplicaLog(log, self._loop, self._process.clock),
            partition.leader_epoch,
            others if is_format_2 else (),
            by_epoch=self._version >= FIRST_WITH_LAST_EPOCH,
            continues=last,
        )
        logger.info(
            "%s: to be led in leader epoch %d, but may lack records; asking brokers %s for those "
            "after offset %d first",
            log.name, partition.leader_epoch, machine.unknown, log.log_end_offset,
        )  # fmt: skip
        return Repair(slot, log, machine, now_ms() + config["kbroker.tail.repair.wait.ms"])

    def stop(self, slot: int) -> None:
        """Another broker leads, or the log is closed: answers have no effect any more."""
        self._repairs.pop(slot, None)

    # -- a repair --

    async def _run(self, repair: Repair) -> None:
        await self._process.rpc.sleep(0)  # whoever has set the role is done with it
        machine = repair.machine
        try:
            while self._is_current(repair) and not machine.is_done:
                now = now_ms()
                if now >= repair.deadline_ms and self._may_end(repair):
                    break
                asked = machine.next_question(now)
                if asked is None:
                    due = machine.next_ms() or now
                    if not repair.is_overdue:
                        due = min(due, repair.deadline_ms)
                    await self._process.rpc.sleep(max(due - now, 1))
                    continue
                answer = await self._ask(repair, *asked)
                if self._is_current(repair):
                    self._take(repair, *asked, answer)
        except (OSError, StorageError) as error:
            if isinstance(error, OSError):
                repair.log.fail(error)
            self.stop(repair.slot)
            self._process.on_storage_failure(repair.slot)
        if self._is_current(repair):
            del self._repairs[repair.slot]
            self._end(repair)

    def _may_end(self, repair: Repair) -> bool:
        """Whether it ends without those who have not answered in time. The topic's configs say so,
        which an operator may change meanwhile.
        """
        log, machine = repair.log, repair.machine
        config = self._process.topic_config(log.topic)
        copies = config["min.insync.replicas"]
        if config["unclean.leader.election.enable"] or machine.may_end(copies):
            return True
        if not repair.is_overdue:
            repair.is_overdue = True
            logger.error(
                "%s: is not led. A power failure or a lost disk may have cost records, which "
                "brokers %s may still have, as min.insync.replicas is %d: %s. It waits for them; "
                "to have it led without them, set min.insync.replicas of the topic to 1",
                log.name, machine.unknown, copies, machine.outcome,
            )  # fmt: skip
        return False

    async def _ask(self, repair: Repair, broker: int, question: TailQuestion) -> Answer | str:
        """The answer, or why there is none."""
        epoch = repair.machine.leader_epoch
        asked = AwaitedAnswer(repair.log.key, epoch, question, Pending())
        return await self._broker(broker).ask(asked)

    def _is_current(self, repair: Repair) -> bool:
        return self._repairs.get(repair.slot) is repair

    @staticmethod
    def _take(repair: Repair, broker: int, question: TailQuestion, answer: Answer | str) -> None:
        """Raises OSError, StorageError: the log has failed."""
        machine = repair.machine
        if isinstance(answer, str):
            machine.on_failure(broker, answer, now_ms())
            return
        try:
            machine.on_answer(broker, question, answer, now_ms())
        except OSError as error:
            if not may_do_without(error):
                raise
            machine.on_failure(broker, f"has records that cannot be taken: {error}", now_ms())

    def _end(self, repair: Repair) -> None:
        log, machine = repair.log, repair.machine
        first, end = machine.first_end, log.log_end_offset
        if machine.unknown:
            self.incomplete += 1
            logger.warning(
                "%s: leads in leader epoch %d although brokers %s could not be asked for records "
                "that this one may have lost; offsets %d to %d come from other "
                "replicas: %s",
                log.name, machine.leader_epoch, machine.unknown, first, end, machine.outcome,
            )  # fmt: skip
        else:
            logger.info(
                "%s: leads in leader epoch %d; offsets %d to %d were missing here and "
                "come from other replicas: %s",
                log.name, machine.leader_epoch, first, end,
                machine.outcome or "format 0 and 1 are not repaired",
            )  # fmt: skip
        self._process.lead_repaired(repair.slot)

    # -- other brokers --

    @property
    def _version(self) -> int:
        version = sent_version(ApiKey.FETCH, self._process.config.protocol_version)
        assert version is not None, "every protocol has this request"
        return version

    def _broker(self, number: int) -> OtherReplicas:
        broker = self._brokers.get(number)
        if broker is None:
            process = self._process
            if self._connecting is None:
                self._connecting = Connecting(self._security)
                process.add_reader(self._connecting.fd, self._connecting.run)
            link = Link(process, self._connecting, str(self._broker_id), TIMES, now_ms)
            broker = self._brokers[number] = OtherReplicas(number, process, link, self._version)
        return broker

    def tick(self, now: int) -> None:
        """Give up requests that take too long; close links that are not needed any more."""
        for broker in self._brokers.values():
            broker.link.tick(now)
        if self._brokers and not self._repairs:
            self.close()

    def close(self) -> None:
        """Close all links; repairs that have not ended never do."""
        self._repairs.clear()
        for broker in self._brokers.values():
            broker.link.close()
        self._brokers.clear()


class AwaitedAnswer(NamedTuple):
    """A question that waits for its answer, or for the reason why there is none."""

    key: TopicPartition
    leader_epoch: int
    question: TailQuestion
    answer: Pending[Answer | str]


class OtherReplicas:
    """The replicas on one other broker, and the link to it."""

    def __init__(self, broker_id: int, process: RepairingProcess, link: Link, version: int) -> None:
        self.link = link
        self._broker_id = broker_id
        self._process = process
        self._version = version
        self._waiting: deque[AwaitedAnswer] = deque()
        self._is_working = False

    def ask(self, asked: AwaitedAnswer) -> Pending[Answer | str]:
        self._waiting.append(asked)
        if not self._is_working:
            run(self._work()).then(raise_failure)
        return asked.answer

    async def _work(self) -> None:
        self._is_working = True
        while self._waiting:
            batch = self._next_batch()
            try:
                endpoint = inter_broker_endpoint(
                    self._process.image, self._broker_id, self._process.config
                )
                request = fetch_request(batch, self._process.config["replica.fetch.max.bytes"])
                response = await self.link.ask(endpoint, request, self._version)
                answers = answers_in(response)
            except (LinkFailed, EncodeError) as error:
                for one in batch:
                    one.answer.resolve(f"cannot be reached: {error}")
                continue
            self._waiting.extend(distribute(batch, answers))
        self._is_working = False

    def _next_batch(self) -> list[AwaitedAnswer]:
        """Sorted by topic; of a partition the latest question only."""
        batch: dict[TopicPartition, AwaitedAnswer] = {}
        while self._waiting and len(batch) < ASKED_MAX:
            asked = self._waiting.popleft()
            before = batch.pop(asked.key, None)
            if before is not None:
                before.answer.resolve("was asked again in another leader epoch")
            batch[asked.key] = asked
        return [batch[key] for key in sorted(batch)]


def distribute(
    batch: list[AwaitedAnswer], answers: dict[TopicPartition, Answer]
) -> list[AwaitedAnswer]:
    """Give each its answer; returns those to be asked again.

    No records may mean that the response was full. They mean the log end only if it has no
    records of others either.
    """
    has_records = any(answer.records for answer in answers.values())
    again = []
    for one in batch:
        answer = answers.get(one.key)
        if answer is None:
            one.answer.resolve("leaves the partition out of its response")
        elif has_records and not (answer.records or answer.error or answer.diverging):
            again.append(one)
        else:
            one.answer.resolve(answer)
    return again


def fetch_request(batch: list[AwaitedAnswer], partition_bytes: int) -> FetchRequest:
    """A fetch of these partitions, which are sorted by topic."""
    request = FetchRequest(
        replica_id=ANY_REPLICA,
        max_wait_ms=WAIT_MS,
        min_bytes=1,
        max_bytes=ANSWER_BYTES,
        isolation_level=0,
    )
    for topic, some in groupby(batch, lambda one: one.key[0]):
        rows = [
            FetchRequest.FetchPartition(
                partition=one.key[1],
                current_leader_epoch=one.leader_epoch,
                fetch_offset=one.question.offset,
                last_fetched_epoch=one.question.last_epoch,
                log_start_offset=-1,
                partition_max_bytes=max(min(partition_bytes, ANSWER_BYTES), 1),
            )
            for one in some
        ]
        request.topics.append(FetchRequest.FetchTopic(topic=topic, partitions=rows))
    return request


def answers_in(response: FetchResponse) -> dict[TopicPartition, Answer]:
    """The answers by partition. Raises LinkFailed."""
    if response.error_code:
        raise LinkFailed(f"it responds to a fetch with error {response.error_code}")
    return {
        (topic.topic, row.partition_index): Answer(
            row.error_code,
            _diverging(row.diverging_epoch),
            row.records or b"",
        )
        for topic in response.responses
        for row in topic.partitions
    }


def _diverging(epoch_end: Any) -> EpochEnd | None:
    if epoch_end is None or (epoch_end.epoch < 0 and epoch_end.end_offset < 0):
        return None
    return EpochEnd(epoch_end.epoch, Offset(epoch_end.end_offset))
