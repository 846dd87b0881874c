"""Every operation between the processes of a broker: what is asked, what is answered, by whom.

``Rpc.call`` takes a row of this table and its request, ``Rpc.serve`` a row and the function that
answers it in the processes that the row names. To add an operation, add its row, and the classes of
its request and answer if there are none like them. ``kbroker.ipc.documents`` says what a class may
be made of; of what there are many in one document there are NamedTuples. Frozen classes would cost
a start 8 ms more."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import NoneType
from typing import Any, Generic, NamedTuple, NotRequired, TypedDict, TypeVar

from kbroker.config.dynamic import AlterOp
from kbroker.ipc.operation import Operation as Operation
from kbroker.ipc.process_table import ProcessKind
from kbroker.security.principal import ANONYMOUS
from kbroker.types import SlotId

Q = TypeVar("Q")
A = TypeVar("A")

ACCEPTOR = ProcessKind.ACCEPTOR
CLEANER = ProcessKind.CLEANER
CONTROLLER = ProcessKind.CONTROLLER
IO_WORKER = ProcessKind.IO_WORKER
NETWORK = ProcessKind.NETWORK

# Of a process that may still be starting; it is asked again.
HELLO_DEADLINE_MS = 1_000
# io workers create directories and open logs meanwhile.
IMAGE_DEADLINE_MS = 60_000
# The owner answers after its disk has synced a directory.
SWAP_DEADLINE_MS = 60_000
COUNT_DEADLINE_MS = 1_000
# A change of topics that nobody waits for longer.
CHANGE_MS = 30_000
NOBODY = str(ANONYMOUS)


@dataclass(slots=True)
class Nothing:
    """Of operations that are told no more than their name."""


# -- the cluster image ---------------------------------------------------------------------------


class ImageDocument(TypedDict):
    """A snapshot of the image, or what changed in it (docs/architecture.md, "The cluster image").

    ``cluster.image`` reads what is below the names.
    """

    version: int
    snapshot: NotRequired[bool]
    cluster_id: NotRequired[str]
    controller_id: NotRequired[int]
    brokers: NotRequired[dict[str, Any]]
    topics: NotRequired[dict[str, Any]]
    broker_config: NotRequired[dict[str, dict[str, str]]]
    group_config: NotRequired[dict[str, Any]]


@dataclass(slots=True)
class ImageChange:
    delta: ImageDocument


@dataclass(slots=True)
class ImageTaken:
    """errors: of partitions that cannot be served, by ``topic-partition``."""

    errors: dict[str, int]


class StoppedReplica(NamedTuple):
    """Its log is to be deleted. An order that comes late means no later replica of the slot."""

    topic: str
    partition: int
    slot: int
    slot_incarnation: int


@dataclass(slots=True)
class StopReplicas:
    replicas: list[StoppedReplica]


# A process asks for the image, and for all changes from now on.
HELLO = Operation("hello", Nothing, ImageDocument, (CONTROLLER,), HELLO_DEADLINE_MS)
# The processes that have an image. One that is not named here is not told of changes.
IMAGE = Operation(
    "image", ImageChange, ImageTaken, (IO_WORKER, NETWORK, ACCEPTOR, CLEANER), IMAGE_DEADLINE_MS
)
# Answered when the logs are deleted. Nothing else has a log deleted.
STOP_REPLICAS = Operation("stop_replicas", StopReplicas, NoneType, (IO_WORKER,), IMAGE_DEADLINE_MS)
# A network process starts: when it is answered, nothing of its predecessor is looked at any more.
NETWORK_STARTS = Operation("network_starts", Nothing, NoneType, (IO_WORKER,), HELLO_DEADLINE_MS)


# -- topics --------------------------------------------------------------------------------------


class Assigned(NamedTuple):
    """Brokers that a client wants a partition on, the preferred leader first."""

    partition: int
    replicas: list[int]


class Setting(NamedTuple):
    name: str
    value: str | None


@dataclass(slots=True)
class TopicToCreate:
    """num_partitions, replication_factor: -1 to have the broker's default."""

    name: str
    num_partitions: int = -1
    replication_factor: int = -1
    assignments: list[Assigned] = field(default_factory=list)
    configs: list[Setting] = field(default_factory=list)


@dataclass(slots=True)
class CreateTopics:
    """within_ms: answered after so long at the latest; the change goes on. auto: only the names
    count, and a topic that exists is a success.
    """

    topics: list[TopicToCreate]
    validate_only: bool = False
    within_ms: int = CHANGE_MS
    auto: bool = False
    asked_by: str = NOBODY


@dataclass(slots=True)
class TopicToEnlarge:
    """count: partitions that it is to have. assignments: replicas of each new one, in order; None
    to have them chosen.
    """

    name: str
    count: int
    assignments: list[list[int]] | None = None


@dataclass(slots=True)
class CreatePartitions:
    topics: list[TopicToEnlarge]
    validate_only: bool = False
    within_ms: int = CHANGE_MS
    asked_by: str = NOBODY


@dataclass(slots=True)
class TopicToDelete:
    """By its name or its id."""

    name: str | None = None
    topic_id: bytes | None = None


@dataclass(slots=True)
class DeleteTopics:
    topics: list[TopicToDelete]
    within_ms: int = CHANGE_MS
    asked_by: str = NOBODY


@dataclass(slots=True)
class TopicResult:
    """What became of one topic; ``topic_id`` and what follows are known of some successes only."""

    name: str | None
    error: int = 0
    message: str | None = None
    topic_id: bytes | None = None
    partitions: int = -1
    replication_factor: int = -1


# The answers have a result for each topic, in order.
CREATE_TOPICS = Operation("create_topics", CreateTopics, list[TopicResult], (CONTROLLER,))
CREATE_PARTITIONS = Operation(
    "create_partitions", CreatePartitions, list[TopicResult], (CONTROLLER,)
)
DELETE_TOPICS = Operation("delete_topics", DeleteTopics, list[TopicResult], (CONTROLLER,))


# -- settings ------------------------------------------------------------------------------------


@dataclass(slots=True)
class ResourceSettings:
    """type: as in ``config.resource_types``. name: of a broker its id, or "" for all brokers."""

    type: int
    name: str
    configs: list[Setting]


@dataclass(slots=True)
class AlterConfigs:
    resources: list[ResourceSettings]
    validate_only: bool = False
    asked_by: str = NOBODY


@dataclass(slots=True)
class ResourceChanges:
    """As ``ResourceSettings``, with only what changes."""

    type: int
    name: str
    configs: list[AlterOp]


@dataclass(slots=True)
class IncrementalAlterConfigs:
    resources: list[ResourceChanges]
    validate_only: bool = False
    asked_by: str = NOBODY


# Changes that clients ask for, and were found to be allowed to; ``asked_by`` is the principal.
OfClient = CreateTopics | CreatePartitions | DeleteTopics | AlterConfigs | IncrementalAlterConfigs


@dataclass(slots=True)
class ConfigResult:
    error: int = 0
    message: str | None = None


# The answers have a result for each resource, in order.
ALTER_CONFIGS = Operation("alter_configs", AlterConfigs, list[ConfigResult], (CONTROLLER,))
INCREMENTAL_ALTER_CONFIGS = Operation(
    "incremental_alter_configs", IncrementalAlterConfigs, list[ConfigResult], (CONTROLLER,)
)


# -- what else the metadata store has ------------------------------------------------------------


@dataclass(slots=True)
class ProducerIdBlock:
    first: int
    count: int


class StoredOffset(NamedTuple):
    topic: str
    partition: int
    offset: int


@dataclass(slots=True)
class CommitStoredOffsets:
    group: str
    offsets: list[StoredOffset]


class StoredPartition(NamedTuple):
    topic: str
    partition: int


@dataclass(slots=True)
class FetchStoredOffsets:
    group: str
    partitions: list[StoredPartition]


ALLOCATE_PRODUCER_IDS = Operation("allocate_producer_ids", Nothing, ProducerIdBlock, (CONTROLLER,))
COMMIT_STORED_OFFSETS = Operation(
    "commit_stored_offsets", CommitStoredOffsets, NoneType, (CONTROLLER,)
)
# Answers with the offset of each partition, None where there is none.
FETCH_STORED_OFFSETS = Operation(
    "fetch_stored_offsets", FetchStoredOffsets, list[int | None], (CONTROLLER,)
)


# -- questions about many partitions, to their owner ---------------------------------------------


@dataclass(slots=True)
class Questions(Generic[Q]):
    """Each begins with the slot of its partition."""

    asked: list[Q]


class Failure(NamedTuple):
    """number: of the question, from 0 on."""

    number: int
    error: int
    message: str | None


@dataclass(slots=True)
class Answers(Generic[A]):
    """One for each question, in order; None where it has failed."""

    answers: list[A | None]
    failures: list[Failure]


class OffsetQuestion(NamedTuple):
    """timestamp: or one of the special ones of ListOffsets. isolation: READ_COMMITTED or not."""

    slot: SlotId
    timestamp: int
    isolation: int


@dataclass(slots=True)
class FoundOffset:
    """-1 where there is nothing to say."""

    offset: int
    timestamp: int
    leader_epoch: int


class SegmentsQuestion(NamedTuple):
    """bound: offsets from there on are left out."""

    slot: SlotId
    timestamp: int
    bound: int


@dataclass(slots=True)
class FoundOffsets:
    offsets: list[int]


class EpochQuestion(NamedTuple):
    slot: SlotId
    leader_epoch: int


@dataclass(slots=True)
class EpochEnd:
    leader_epoch: int
    end_offset: int


class Deletion(NamedTuple):
    """Of records below an offset."""

    slot: SlotId
    offset: int


@dataclass(slots=True)
class LowWatermark:
    low_watermark: int


class ProducersQuestion(NamedTuple):
    slot: SlotId


@dataclass(slots=True)
class KnownProducer:
    """The fields of a DescribeProducers answer."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    current_txn_start_offset: int


@dataclass(slots=True)
class KnownProducers:
    producers: list[KnownProducer]


LIST_OFFSETS = Operation(
    "list_offsets", Questions[OffsetQuestion], Answers[FoundOffset], (IO_WORKER,)
)
# As version 0 of ListOffsets asks.
OFFSETS_BEFORE = Operation(
    "offsets_before", Questions[SegmentsQuestion], Answers[FoundOffsets], (IO_WORKER,)
)
OFFSET_FOR_LEADER_EPOCH = Operation(
    "offset_for_leader_epoch", Questions[EpochQuestion], Answers[EpochEnd], (IO_WORKER,)
)
DELETE_RECORDS = Operation(
    "delete_records", Questions[Deletion], Answers[LowWatermark], (IO_WORKER,)
)
DESCRIBE_PRODUCERS = Operation(
    "describe_producers", Questions[ProducersQuestion], Answers[KnownProducers], (IO_WORKER,)
)


# -- log directories -----------------------------------------------------------------------------


@dataclass(slots=True)
class ReplicaSize:
    """future: it is being moved there. lag: offsets that are still to be copied."""

    topic: str
    partition: int
    size: int
    lag: int = 0
    future: bool = False


@dataclass(slots=True)
class LogDirDescription:
    """error: why it is offline."""

    path: str
    error: str | None
    total_bytes: int
    usable_bytes: int
    cordoned: bool
    logs: list[ReplicaSize]


class ReplicaToMove(NamedTuple):
    """slot: -1 for a partition that is not there yet. path: of the log directory."""

    topic: str
    partition: int
    slot: SlotId
    path: str


@dataclass(slots=True)
class MoveReplicas:
    replicas: list[ReplicaToMove]


@dataclass(slots=True)
class Damage:
    """A reader met it. incarnation: of the slot."""

    slot: SlotId
    incarnation: int
    segment: int
    position: int
    what: str


DESCRIBE_LOG_DIRS = Operation("describe_log_dirs", Nothing, list[LogDirDescription], (IO_WORKER,))
# Answers with an error code for each replica.
ALTER_REPLICA_LOG_DIRS = Operation("alter_replica_log_dirs", MoveReplicas, list[int], (IO_WORKER,))
REPORT_DAMAGE = Operation("report_damage", Damage, NoneType, (IO_WORKER,))


# -- transactions --------------------------------------------------------------------------------


class Marker(NamedTuple):
    """What the log in a slot is told about the end of a producer's transaction."""

    slot: SlotId
    producer_id: int
    producer_epoch: int
    commit: bool
    coordinator_epoch: int
    transaction_version: int


@dataclass(slots=True)
class WriteMarkers:
    markers: list[Marker]


@dataclass(slots=True)
class VerifyTransaction:
    """slot: of the coordinator. add: the partition becomes a part of the transaction (KIP-890)."""

    slot: SlotId
    transactional_id: str
    producer_id: int
    producer_epoch: int
    topic: str
    partition: int
    add: bool


# Answers with an error code for each marker, when they are committed.
WRITE_MARKERS = Operation("write_markers", WriteMarkers, list[int], (IO_WORKER,))
# Answers with an error code.
VERIFY_TRANSACTION = Operation("verify_transaction", VerifyTransaction, int, (IO_WORKER,))


# -- compaction ----------------------------------------------------------------------------------


@dataclass(slots=True)
class CleanableSegments:
    """timestamps: whether the newest timestamp of each segment is asked for, which costs more."""

    slots: list[SlotId]
    timestamps: bool


class SealedSegment(NamedTuple):
    """largest_timestamp: -1 unless it was asked for."""

    base_offset: int
    next_offset: int
    size: int
    largest_timestamp: int


@dataclass(slots=True)
class CleanableLog:
    """active: base offset of the active segment. cuts: to be handed back with a swap."""

    slot: SlotId
    log_dir: str
    path: str
    cuts: int
    active: int
    segments: list[SealedSegment]


@dataclass(slots=True)
class OfSlot:
    slot: SlotId


class ActiveProducer(NamedTuple):
    """last_offset: of its data, -1 if there is none."""

    producer_id: int
    last_offset: int
    producer_epoch: int


class ReplacedSegment(NamedTuple):
    base_offset: int
    size: int


@dataclass(slots=True)
class SwapSegments:
    """A cleaned segment takes the place of the ones it was made from."""

    slot: SlotId
    base_offset: int
    size: int
    largest_timestamp: int
    replaced: list[ReplacedSegment]
    cuts: int


@dataclass(slots=True)
class SwapOutcome:
    """refused: why not. busy: why not now."""

    refused: str | None = None
    busy: str | None = None


# Leaves out the logs that are not open.
CLEANABLE_SEGMENTS = Operation(
    "cleanable_segments", CleanableSegments, list[CleanableLog], (IO_WORKER,)
)
ACTIVE_PRODUCERS = Operation("active_producers", OfSlot, list[ActiveProducer], (IO_WORKER,))
SWAP_SEGMENTS = Operation(
    "swap_segments", SwapSegments, SwapOutcome, (IO_WORKER,), SWAP_DEADLINE_MS
)


# -- connections ---------------------------------------------------------------------------------


@dataclass(slots=True)
class OpenConnections:
    """How many there are from each address; None: ask again."""

    hosts: dict[str, int] | None


# A new acceptor asks for what it finds.
CONNECTIONS = Operation("connections", Nothing, OpenConnections, (NETWORK,), COUNT_DEADLINE_MS)


OPERATIONS: dict[str, Operation[Any, Any]] = {
    row.name: row for row in list(globals().values()) if isinstance(row, Operation)
}
