"""Verifications of transactions whose coordinators are on other brokers (KIP-890).

The io worker that leads a partition asks by AddPartitionsToTxn (24), version 4 or later, over a
link of its own to each such broker. What comes while a request is under way goes together with the
next one. Kafka 2.7 has no such version: it is not asked, and its transactions are not verified.
Whatever goes wrong is an error at which the batch is verified again, or its producer tries again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from kbroker.coordinator.transaction.state import Partition
from kbroker.errors import ErrorCode
from kbroker.ipc.rpc import Pending, run
from kbroker.peers.link import LinkFailed
from kbroker.protocol.api import ApiKey
from kbroker.protocol.codec import EncodeError
from kbroker.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
)
from kbroker.protocol.messages.api_versions import ApiVersionsRequest
from kbroker.wire.negotiation import versions_in
from kbroker.workers.io.broker_links import BrokerQueue

if TYPE_CHECKING:
    from kbroker.workers.io.broker_links import BrokerLink, BrokerLinks

# The versions between brokers.
FIRST_VERSION, LAST_VERSION = 4, 5
# BOUND: partitions that wait for one broker, and those in a request to it.
WAITING_MAX = 10_000
REQUEST_PARTITIONS_MAX = 2_000
# As Kafka's brokers do on behalf of a producer whose last transaction is being completed.
RETRY_MS, RETRY_MAX_MS = 20, 100

# There is no response from which anything follows.
UNANSWERED = int(ErrorCode.NETWORK_EXCEPTION)
# The coordinator does not know the partition yet, or another one of the same transaction.
_NOT_KNOWN_YET = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.OPERATION_NOT_ATTEMPTED)


class TransactionProducer(NamedTuple):
    """Whose transaction it is. adds: the partitions join it by this."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    adds: bool


class VerificationToMake(NamedTuple):
    """``outcome``: gets an error code."""

    producer: TransactionProducer
    partition: Partition
    outcome: Pending[int]


class RemoteVerifications:
    """One per io worker."""

    def __init__(
        self,
        links: BrokerLinks,
        sleep: Callable[[int], Pending[None]],
        now_ms: Callable[[], int],
    ) -> None:
        """now_ms: on the clock of ``sleep``."""
        self._links = links
        self._sleep = sleep
        self._now_ms = now_ms
        self._brokers: dict[int, OtherCoordinator] = {}

    def verify(
        self, broker_id: int, producer: TransactionProducer, partition: Partition
    ) -> Pending[int]:
        """Ask that broker; resolves to an error code, 0 if the partition may be written to."""
        broker = self._brokers.get(broker_id)
        if broker is None:
            broker = OtherCoordinator(self._links.make(broker_id))
            self._brokers[broker_id] = broker
        return run(self._verify(broker, producer, partition))

    async def _verify(
        self, broker: OtherCoordinator, producer: TransactionProducer, partition: Partition
    ) -> int:
        until_ms = self._now_ms() + RETRY_MAX_MS
        while True:
            code = await broker.verify(producer, partition)
            if code != ErrorCode.CONCURRENT_TRANSACTIONS or self._now_ms() >= until_ms:
                return code
            await self._sleep(RETRY_MS)


class OtherCoordinator(BrokerQueue[VerificationToMake]):
    """The queue for one broker, and the link to it."""

    cannot = "cannot verify transactions with broker %d"

    def __init__(self, link: BrokerLink) -> None:
        super().__init__(link)
        # The version that the broker has; None if it has none. Valid for this connection.
        self._version: int | None = None
        self._of_connection = -1

    def verify(self, producer: TransactionProducer, partition: Partition) -> Pending[int]:
        """Resolves to an error code."""
        wanted = VerificationToMake(producer, partition, Pending())
        if len(self.waiting) >= WAITING_MAX:
            wanted.outcome.resolve(int(ErrorCode.COORDINATOR_NOT_AVAILABLE))
        else:
            self.put(wanted)
        return wanted.outcome

    async def send(self, batch: list[VerificationToMake]) -> None:
        codes = await self._ask(batch)
        for wanted, code in zip(batch, codes, strict=True):
            wanted.outcome.resolve(code)

    def next_batch(self) -> list[VerificationToMake]:
        """A transactional id is in a request once: another producer of it, or the same one in
        another way, waits for the next request.
        """
        batch: list[VerificationToMake] = []
        producers: dict[str, TransactionProducer] = {}
        while self.waiting and len(batch) < REQUEST_PARTITIONS_MAX:
            producer = self.waiting[0].producer
            if producers.setdefault(producer.transactional_id, producer) != producer:
                break
            batch.append(self.waiting.popleft())
        return batch

    async def _ask(self, batch: list[VerificationToMake]) -> list[int]:
        """The codes, in order."""
        try:
            version = await self._present_version()
            if version is None:
                return [unverified(wanted.producer) for wanted in batch]
            response = await self.link.ask(verification_request(batch), version)
        except (LinkFailed, EncodeError) as error:
            self.failed(error)
            return [UNANSWERED] * len(batch)
        if response.error_code:
            return [response.error_code] * len(batch)
        codes = codes_in(response)
        return [
            codes.get(wanted.producer.transactional_id, {}).get(wanted.partition, UNANSWERED)
            for wanted in batch
        ]

    async def _present_version(self) -> int | None:
        """The version of the request; None if the broker has none. Raises LinkFailed.

        Asked on each new connection, as a Kafka may have been replaced by a kbroker, or the
        reverse. A Kafka that is asked in a version that it lacks closes the connection.
        """
        if self._of_connection != self.link.connection():
            response = await self.link.ask(ApiVersionsRequest(), 0)
            _, highest = versions_in(response).get(ApiKey.ADD_PARTITIONS_TO_TXN, (0, 0))
            self._version = min(highest, LAST_VERSION) if highest >= FIRST_VERSION else None
            self._of_connection = self.link.connection()
        return self._version


def unverified(producer: TransactionProducer) -> int:
    """The code for a transaction whose coordinator does not verify: the partition must have been
    added before.
    """
    return int(ErrorCode.INVALID_TXN_STATE) if producer.adds else 0


def verification_request(batch: Iterable[VerificationToMake]) -> AddPartitionsToTxnRequest:
    """One transaction for each producer, with all its partitions."""
    made = AddPartitionsToTxnRequest
    partitions: dict[TransactionProducer, dict[str, dict[int, None]]] = {}
    for producer, (topic, number), _ in batch:
        partitions.setdefault(producer, {}).setdefault(topic, {})[number] = None
    return made(
        transactions=[
            made.AddPartitionsToTxnTransaction(
                transactional_id=producer.transactional_id,
                producer_id=producer.producer_id,
                producer_epoch=producer.producer_epoch,
                verify_only=not producer.adds,
                topics=[
                    made.AddPartitionsToTxnTopic(name=name, partitions=list(numbers))
                    for name, numbers in topics.items()
                ],
            )
            for producer, topics in partitions.items()
        ]
    )


def codes_in(response: AddPartitionsToTxnResponse | Any) -> dict[str, dict[Partition, int]]:
    """Error codes by transactional id and partition."""
    codes: dict[str, dict[Partition, int]] = {}
    for result in response.results_by_transaction:
        partition_codes = codes.setdefault(result.transactional_id, {})
        for topic in result.topic_results:
            for row in topic.results_by_partition:
                code = row.partition_error_code
                is_late = code in _NOT_KNOWN_YET
                partition_codes[topic.name, row.partition_index] = (
                    int(ErrorCode.COORDINATOR_NOT_AVAILABLE) if is_late else code
                )
    return codes
