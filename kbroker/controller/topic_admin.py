"""Creates, enlarges and deletes topics: plan, store, image, answer, in that order.

Up to the change of ``ClusterState`` a request is one event of the controller's queue, so two
requests never interleave; the publishing is awaited outside it.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from kbroker.controller import persistence
from kbroker.controller.events import EventQueue
from kbroker.controller.state import ClusterState, PartitionState, TopicState
from kbroker.controller.topics import (
    Assignment,
    NewTopic,
    ValidateConfig,
    existing_topic,
    plan_partitions,
    plan_topic,
)
from kbroker.errors import ErrorCode, WireError
from kbroker.hosting.publisher import Publisher
from kbroker.hosting.slots import NoFreeSlot, SlotAssignments
from kbroker.internal_topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from kbroker.ipc.calls import (
    NOBODY,
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    Setting,
    TopicResult,
    TopicToCreate,
    TopicToDelete,
    TopicToEnlarge,
)
from kbroker.ipc.pending import Pending, run
from kbroker.ipc.process_table import Address
from kbroker.ipc.rpc import Rpc
from kbroker.logcontext import RateLimit, Whole
from kbroker.metastore.settled import Fenced, SettledStore
from kbroker.metastore.store import StoreError, StoreFailed
from kbroker.security.principal import by
from kbroker.uuids import new_uuid
from kbroker.wording import counted

logger = logging.getLogger(__name__)

# What the settings of an internal topic start with.
INTERNAL_PREFIXES = {
    OFFSETS_TOPIC: "offsets.topic",
    TRANSACTIONS_TOPIC: "transaction.state.log",
}


class Room:
    """The slots that are left for the topics of one request.

    With ``validate_only`` none is taken, but what the topics before would have taken is gone: as if
    the request was meant, and a bound for what is planned.
    """

    def __init__(self, slots: SlotAssignments, validate_only: bool) -> None:
        self.validate_only = validate_only
        self._slots = slots
        self._planned = 0

    def check(self, name: str, hosted: int) -> None:
        """INVALID_PARTITIONS unless so many replicas of the topic have room on this broker."""
        free = self._slots.free_count - self._planned
        if hosted > free:
            raise no_room(name, hosted, NoFreeSlot(free, self._slots.capacity))

    def plan(self, name: str, hosted: int) -> None:
        """As ``check``, and have them count as taken."""
        self.check(name, hosted)
        self._planned += hosted


class TopicAdmin:
    """The operations of the controller that are about topics."""

    def __init__(
        self,
        rpc: Rpc,
        events: EventQueue,
        store: SettledStore,
        state: ClusterState,
        slots: SlotAssignments,
        publisher: Publisher,
        setting: Callable[[str], Any],
        validate_config: ValidateConfig,
        is_cordoned: Callable[[], bool],
        has_all_directories: Callable[[], bool],
    ) -> None:
        """setting: the present value of a broker setting. is_cordoned: whether this broker takes no
        partition unless it is named. has_all_directories: whether no log directory is offline.
        """
        self._rpc = rpc
        self._events = events
        self._store = store
        self._state = state
        self._slots = slots
        self._publisher = publisher
        self._setting = setting
        self._validate_config = validate_config
        self._is_cordoned = is_cordoned
        self._has_all_directories = has_all_directories
        self._deletions: dict[str, list[Pending[Any]]] = {}
        self._not_created = RateLimit()

    # -- creation ----------------------------------------------------------------------------

    async def create_topics(self, sender: Address, asked: CreateTopics) -> list[TopicResult]:
        """Create them, or say whether that would work."""
        results, created = await self._events.put(lambda: self._create(asked))
        if asked.validate_only:
            return results
        if created or asked.auto:
            # With auto the topic may have been created, but not published, by somebody else.
            done = self._publisher.publish(created)
            if not await self._wait(done, asked.within_ms):
                late = set(created)
                return [timed_out(r.name) if r.name in late else r for r in results]
        return [self._existing_result(r) if asked.auto else r for r in results]

    async def _create(self, asked: CreateTopics) -> tuple[list[TopicResult], list[str]]:
        """The results, and the names of what was created."""
        topics, validate_only, auto = asked.topics, asked.validate_only, asked.auto
        results: list[TopicResult] = []
        created: list[tuple[NewTopic, list[PartitionState]]] = []
        named = Counter(request.name for request in topics)
        by_metric: dict[str, str] = {}
        room = Room(self._slots, validate_only)
        for request in topics:
            try:
                if auto:
                    request = self._automatic(request.name)
                duplicates = named[request.name]
                new, partitions = self._plan(request, room, duplicates, by_metric)
                by_metric[metric_name(new.name)] = new.name
                created.append((new, partitions))
                results.append(created_result(new))
            except WireError as error:
                results.append(failure(request.name, error))
                if auto and error.code != ErrorCode.TOPIC_ALREADY_EXISTS:
                    self._say_not_created(request.name, error)
        if validate_only:
            return results, []
        refused = await self._write_topics(created)
        if refused is not None:
            names = {new.name for new, _ in created}
            return [failure(r.name, refused) if r.name in names else r for r in results], []
        for new, partitions in created:
            self._state.add_topic(TopicState(new.name, new.topic_id, partitions, new.config))
            size = counted(len(partitions), "partition")
            logger.info("created topic %s with %s%s", new.name, size, by(asked.asked_by))
        return results, [new.name for new, _ in created]

    def _say_not_created(self, name: str, error: WireError) -> None:
        """Clients that merely need a topic are told a code at most, and ask again in silence."""
        count = self._not_created.due(name)
        if count:
            times = f" ({count} times)" if count > 1 else ""
            logger.warning("cannot create topic %s%s: %s", name, times, error)

    def _automatic(self, name: str) -> TopicToCreate:
        """The request for a topic that somebody merely mentioned, or that a coordinator needs."""
        prefix = INTERNAL_PREFIXES.get(name)
        if prefix is None:
            return TopicToCreate(name)
        # Fewer brokers than the settings ask for are no reason to have no groups at all.
        replicas = min(self._setting(f"{prefix}.replication.factor"), len(self._state.brokers))
        configs = {
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": str(self._setting(f"{prefix}.segment.bytes")),
        }
        if name == TRANSACTIONS_TOPIC:
            configs["compression.type"] = "uncompressed"
            configs["min.insync.replicas"] = str(min(self._setting(f"{prefix}.min.isr"), replicas))
            configs["unclean.leader.election.enable"] = "false"
        return TopicToCreate(
            name,
            self._setting(f"{prefix}.num.partitions"),
            replicas,
            configs=[Setting(*config) for config in configs.items()],
        )

    def _plan(
        self,
        request: TopicToCreate,
        room: Room,
        duplicates: int,
        earlier: Mapping[str, str],
    ) -> tuple[NewTopic, list[PartitionState]]:
        name = request.name
        if duplicates > 1:
            raise WireError(
                ErrorCode.INVALID_REQUEST, f"Topic '{name}' appears more than once in the request."
            )
        defaults = {
            "partitions": self._setting("num.partitions"),
            "replication_factor": self._setting("default.replication.factor"),
        }
        new = plan_topic(
            self._state, request, defaults, self._validate_config, new_uuid,
            self._cordoned(), room.check,
        )  # fmt: skip
        other = earlier.get(metric_name(name))
        if other is not None:
            raise WireError(
                ErrorCode.INVALID_TOPIC_EXCEPTION,
                f"Topic '{name}' collides with '{other}' in the same request.",
            )
        partitions = self._give_slots(new.name, new.assignment, room)
        return new, partitions

    def _cordoned(self) -> list[int]:
        return [self._state.broker_id] if self._is_cordoned() else []

    def _give_slots(self, name: str, assignment: Assignment, room: Room) -> list[PartitionState]:
        hosted = sum(self._state.broker_id in replicas for replicas in assignment.values())
        if room.validate_only:
            room.plan(name, hosted)
            return []
        try:
            return persistence.partition_list(self._state.broker_id, name, assignment, self._slots)
        except NoFreeSlot as error:
            raise no_room(name, hosted, error) from error
        except OSError as error:
            text = f"cannot write the runtime directory: {error.strerror}"
            logger.error("topic %s: %s", name, text)
            raise WireError(ErrorCode.KAFKA_STORAGE_ERROR, f"Topic '{name}': {text}") from error

    async def _write_topics(
        self, created: list[tuple[NewTopic, list[PartitionState]]]
    ) -> WireError | None:
        if not created:
            return None
        epoch = self._state.controller_epoch
        try:
            await persistence.write_topics(self._store, [new for new, _ in created], epoch)
        except (StoreFailed, StoreError, Fenced) as error:
            for new, _ in created:
                self._slots.release(new.name)
            return store_failure(error)
        return None

    def _existing_result(self, result: TopicResult) -> TopicResult:
        if result.error != ErrorCode.TOPIC_ALREADY_EXISTS or result.name is None:
            return result
        topic = self._state.topic(result.name)
        if topic is None or topic.deleting:
            return result
        return TopicResult(
            topic.name,
            topic_id=topic.topic_id,
            partitions=len(topic.partitions),
            replication_factor=len(topic.partitions[0].replicas),
        )

    # -- more partitions ---------------------------------------------------------------------

    async def create_partitions(
        self, sender: Address, asked: CreatePartitions
    ) -> list[TopicResult]:
        """Enlarge topics, or say whether that would work."""
        results, enlarged = await self._events.put(lambda: self._enlarge_all(asked))
        if enlarged and not asked.validate_only:
            done = self._publisher.publish(enlarged)
            if not await self._wait(done, asked.within_ms):
                return [r if r.error else timed_out(r.name) for r in results]
        return results

    async def _enlarge_all(self, asked: CreatePartitions) -> tuple[list[TopicResult], list[str]]:
        """The results, and the names of what was enlarged."""
        results: list[TopicResult] = []
        enlarged: list[str] = []
        named = Counter(request.name for request in asked.topics)
        room = Room(self._slots, asked.validate_only)
        for request in asked.topics:
            name = request.name
            try:
                if named[name] > 1:
                    raise WireError(
                        ErrorCode.INVALID_REQUEST,
                        f"Topic '{name}' appears more than once in the request.",
                    )
                await self._enlarge(request, room, asked.asked_by)
                results.append(TopicResult(name))
                enlarged.append(name)
            except WireError as error:
                results.append(failure(name, error))
        return results, enlarged

    async def _enlarge(self, request: TopicToEnlarge, room: Room, asked_by: str) -> None:
        name = request.name
        added = plan_partitions(
            self._state, name, request.count, request.assignments, self._cordoned(), room.check
        )
        topic = existing_topic(self._state, name)
        partitions = self._give_slots(name, added, room)
        if room.validate_only:
            return
        try:
            epoch = self._state.controller_epoch
            await persistence.write_partitions(self._store, topic, added, epoch)
        except (StoreFailed, StoreError, Fenced) as error:
            # The slots stay assigned to the partitions, which get them when it works.
            raise store_failure(error) from error
        topic.document_version += 1
        self._state.add_partitions(name, partitions)
        logger.info("topic %s now has %d partitions%s", name, len(topic.partitions), by(asked_by))

    # -- deletion ----------------------------------------------------------------------------

    async def delete_topics(self, sender: Address, asked: DeleteTopics) -> list[TopicResult]:
        """Delete them; the results say what was found under an id."""
        results, names = await self._events.put(lambda: self._mark_deleted(asked))
        if not names:
            return results
        done = run(self._finish_deletion(names, asked.asked_by))
        if not await self._wait(done, asked.within_ms):
            return [r if r.error else timed_out(r.name, r.topic_id) for r in results]
        return results

    async def _mark_deleted(self, asked: DeleteTopics) -> tuple[list[TopicResult], list[str]]:
        """The results, and the names of what will be deleted from now on."""
        results: list[TopicResult] = []
        names: list[str] = []
        known: set[str] = set()
        for request in asked.topics:
            try:
                topic = self._deletable(request)
                if topic.name not in known:
                    known.add(topic.name)
                    names.append(topic.name)
                results.append(TopicResult(topic.name, topic_id=topic.topic_id))
            except WireError as error:
                results.append(failure(request.name, error, request.topic_id))
        if not names:
            return results, names
        try:
            await persistence.write_deletion_marks(self._store, names)
        except (StoreFailed, StoreError, Fenced) as error:
            failed = store_failure(error)
            return [r if r.error else failure(r.name, failed, r.topic_id) for r in results], []
        self._state.mark_deleting(names)
        return results, names

    def _deletable(self, request: TopicToDelete) -> TopicState:
        if not self._setting("delete.topic.enable"):
            raise WireError(
                ErrorCode.TOPIC_DELETION_DISABLED,
                "Topic deletion is disabled: set delete.topic.enable=true on the broker.",
            )
        if request.topic_id is None:
            return existing_topic(self._state, request.name or "")
        name = self._state.name_of(request.topic_id)
        topic = None if name is None else self._state.topic(name)
        if topic is None or topic.deleting:
            raise WireError(
                ErrorCode.UNKNOWN_TOPIC_ID, "This server does not host a topic with that id."
            )
        return topic

    def resume_deletions(self) -> None:
        """Finish what an earlier controller process began. Called once, at the start."""
        names = [topic.name for topic in self._state.topics() if topic.deleting]
        if names:
            logger.info("finishing the deletion of %s", Whole(", ".join(names)))
            run(self._finish_deletion(names)).then(_raise_error)

    async def _finish_deletion(self, names: list[str], asked_by: str = NOBODY) -> None:
        """Clients first, so that nobody asks for a log that is going; then logs, then store."""
        await self._publisher.publish(names)
        await self._publisher.stop_replicas(list(self._state.hosted_replicas(names)))
        self._state.mark_stopped(names)
        await self._publisher.publish(names)
        while True:
            try:
                await self._events.put(lambda: self._remove(names, asked_by))
                return
            except Fenced as error:
                raise store_failure(error) from error  # another controller goes on
            except (StoreFailed, StoreError, WireError) as error:
                logger.error(
                    "topics %s are deleted but could not be removed from the store: %s",
                    names,
                    error,
                )
                await self._rpc.sleep(5_000)

    async def _remove(self, names: list[str], asked_by: str) -> None:
        """Topics without logs: from the store, and from what is known here."""
        if not self._has_all_directories():
            topics = filter(None, map(self._state.topic, names))
            gone = {topic.name: topic.topic_id for topic in topics}
            await persistence.remember_gone(self._store, gone)
        await persistence.write_deletion(self._store, names)
        for name in names:
            self._state.remove_topic(name)
            self._slots.release(name)
            logger.info("deleted topic %s%s", name, by(asked_by))

    async def _wait(self, done: Pending[None], within_ms: int) -> bool:
        """Whether ``done`` came about in time; it goes on by itself if not."""
        first: Pending[bool] = Pending()
        done.then(lambda outcome: first.resolve(True, outcome.error))
        if not done.done:
            self._rpc.sleep(max(0, within_ms)).then(lambda _: first.resolve(False))
        return bool(await first)


def no_room(name: str, hosted: int, error: NoFreeSlot) -> WireError:
    return WireError(
        ErrorCode.INVALID_PARTITIONS,
        f"Topic '{name}' needs {hosted} more partitions here, but {error}, or use fewer.",
    )


def metric_name(name: str) -> str:
    """What topics may not have in common: '.' and '_' are the same in metric names."""
    return name.replace(".", "_")


def created_result(new: NewTopic) -> TopicResult:
    return TopicResult(
        new.name,
        topic_id=new.topic_id,
        partitions=len(new.assignment),
        replication_factor=len(new.assignment[0]),
    )


def failure(name: str | None, error: WireError, topic_id: bytes | None = None) -> TopicResult:
    return TopicResult(name, int(error.code), error.message, topic_id)


def timed_out(name: str | None, topic_id: bytes | None = None) -> TopicResult:
    """The change is decided and will be finished, but not within the client's timeout."""
    text = "The change did not finish in time; it continues."
    return failure(name, WireError(ErrorCode.REQUEST_TIMED_OUT, text), topic_id)


def store_failure(error: StoreFailed | StoreError | Fenced) -> WireError:
    """The wire's word for a change that the metadata store did not take."""
    if isinstance(error, Fenced):
        return WireError(ErrorCode.NOT_CONTROLLER, "This broker is no longer the controller.")
    if isinstance(error, StoreError):
        logger.error("another client changed the metadata store: %r", error)
        text = f"{error.path} of the metadata store was changed by another client; try again."
        return WireError(ErrorCode.UNKNOWN_SERVER_ERROR, text)
    logger.error("the metadata store failed: %s", error)
    return WireError(ErrorCode.KAFKA_STORAGE_ERROR, f"The metadata store failed: {error}")


def _raise_error(outcome: Pending[Any]) -> None:
    if outcome.error is not None:
        raise outcome.error
