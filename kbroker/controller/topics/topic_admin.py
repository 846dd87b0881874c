"""Creates and deletes topics and adds partitions: decide, write, notify brokers, respond.

Up to the change of ``ClusterState`` a request is one event of the controller's queue, so two
requests never interleave; the responses of brokers are awaited outside it.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from kbroker.controller.election import announcements
from kbroker.controller.election.active_controller import ActiveController, Completed
from kbroker.controller.election.awaited_responses import known_in_time
from kbroker.controller.state import decisions
from kbroker.controller.state.decisions import Decision
from kbroker.controller.state.state import Change, DeletionBegun, LogsDeleted, TopicCreated
from kbroker.controller.state.topics import PlannedTopic
from kbroker.controller.store import persistence
from kbroker.controller.store.store_failure import store_failure
from kbroker.controller.topics.mutation_quotas import MutationRequest, Mutations
from kbroker.controller.topics.topic_requests import (
    PlannedCreations,
    PlannedDeletions,
    PlannedRoom,
    TopicRequests,
    failure,
    timed_out,
)
from kbroker.errors import ErrorCode, WireError
from kbroker.ipc.calls import (
    NOBODY,
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    TopicResult,
    TopicToEnlarge,
)
from kbroker.ipc.pending import Pending, run
from kbroker.ipc.process_table import Address
from kbroker.logcontext import RateLimit, Whole
from kbroker.metastore.settled import Fenced
from kbroker.metastore.store import Node, StoreError, StoreFailed
from kbroker.security.principal import by
from kbroker.wording import counted

logger = logging.getLogger(__name__)

FAILURES = (StoreFailed, StoreError, Fenced)
# The time until a failed request to a broker or the store is retried.
RETRY_MS = 5_000

AwaitedResponses = Pending[list[Completed]]


class ReservedRoom(PlannedRoom, Protocol):
    """The room of this broker, whose slots are reserved before a topic is written."""

    def reserve(self, name: str, partitions: Collection[int]) -> None:
        """Reserve slots. Raises WireError if there are not enough."""

    def give_back(self, name: str, partitions: Collection[int]) -> None:
        """Release the reserved slots that have no replica."""


class Created(NamedTuple):
    results: list[TopicResult]
    topics: list[PlannedTopic]
    told: AwaitedResponses


class TopicAdmin:
    """The controller's operations on topics."""

    def __init__(
        self,
        controller: ActiveController,
        requests: TopicRequests,
        room: Callable[[], ReservedRoom],
        sleep: Callable[[int], Pending[None]],
        has_all_directories: Callable[[], bool],
        mutations: Callable[[MutationRequest], Mutations] = lambda _: Mutations(),
    ) -> None:
        """room: returns this broker's room, for one request. has_all_directories: returns whether
        all log directories are online. mutations: what a request may change.
        """
        self._controller = controller
        self._events = controller.events
        self._state = controller.state
        self._store = controller.store
        self._requests = requests
        self._room = room
        self._sleep = sleep
        self._has_all_directories = has_all_directories
        self._mutations = mutations
        self._not_created = RateLimit()
        self._waits = RateLimit(60.0)

    # -- creation ----------------------------------------------------------------------------

    async def create_topics(self, sender: Address, asked: CreateTopics) -> list[TopicResult]:
        """Create topics, or only validate the request."""
        mutations = Mutations() if asked.auto else self._mutations(asked)
        return mutations.told(await self._create_topics(asked, mutations))

    async def _create_topics(self, asked: CreateTopics, mutations: Mutations) -> list[TopicResult]:
        results, topics, responses = await self._events.put(lambda: self._create(asked, mutations))
        if asked.validate_only:
            return results
        if topics or asked.auto:
            # With auto another request may have created the topic, and brokers may not know it yet.
            awaited = responses if topics else self._controller.all_told()
            if not await self._is_told(awaited, asked.within_ms):
                late = {new.name for new in topics}
                return [timed_out(r.name) if r.name in late else r for r in results]
        return [self._requests.existing_result(r) if asked.auto else r for r in results]

    async def _create(self, asked: CreateTopics, mutations: Mutations) -> Created:
        if asked.validate_only:
            planned = self._requests.creations(asked, self._room())
            self._say_rejected(asked, planned)
            return Created(planned.results, [], done([]))
        planned = PlannedCreations([], [], [])
        reserved: dict[str, list[int]] = {}

        def decide() -> Decision:
            nonlocal planned
            planned = self._plan_creations(asked, reserved, mutations)
            return decisions.create(self._state, planned.topics)

        try:
            decision = await self._controller.write(decide, lambda: self._reread(names_of(asked)))
        except FAILURES as error:
            self._give_back(reserved)
            failed = store_failure(error)
            names = {new.name for new in planned.topics}
            results = [failure(r.name, failed) if r.name in names else r for r in planned.results]
            return Created(results, [], done([]))
        self._say_rejected(asked, planned)
        awaited = self._controller.enter(decision.changes)
        self._give_back(reserved)
        for new in planned.topics:
            size = counted(len(new.assignment), "partition")
            logger.info("created topic %s with %s%s", new.name, size, by(asked.asked_by))
        return Created(planned.results, planned.topics, awaited)

    def _plan_creations(
        self, asked: CreateTopics, reserved: dict[str, list[int]], mutations: Mutations
    ) -> PlannedCreations:
        """Plan the topics, with a reserved slot for every replica on this broker."""
        no_place: dict[str, WireError] = {}
        while True:
            self._give_back(reserved)
            room = self._room()
            planned = self._requests.creations(asked, room, no_place)
            without_place = len(no_place)
            for new in planned.topics:
                hosted = self._requests.hosted(new.assignment)
                try:
                    mutations.admit(new.name, len(new.assignment))
                    room.reserve(new.name, hosted)
                    reserved[new.name] = hosted
                except WireError as error:
                    no_place[new.name] = error
            if len(no_place) == without_place:
                return planned

    def _give_back(self, reserved: dict[str, list[int]]) -> None:
        """Release slots of topics that were not created; those of created topics have replicas."""
        for name, partitions in reserved.items():
            self._room().give_back(name, partitions)
        reserved.clear()

    def _say_rejected(self, asked: CreateTopics, planned: PlannedCreations) -> None:
        """Log rejected auto-creations: clients get only an error code for them, and retry."""
        if not asked.auto:
            return
        for name, error in planned.rejected:
            if error.code == ErrorCode.TOPIC_ALREADY_EXISTS:
                continue
            count = self._not_created.due(name)
            if count:
                times = f" ({count} times)" if count > 1 else ""
                logger.warning("cannot create topic %s%s: %s", name, times, error)

    # -- more partitions ---------------------------------------------------------------------

    async def create_partitions(
        self, sender: Address, asked: CreatePartitions
    ) -> list[TopicResult]:
        """Add partitions to topics, or only validate the request."""
        mutations = self._mutations(asked)
        results, responses = await self._events.put(lambda: self._enlarge_all(asked, mutations))
        if responses and not await self._is_told(all_of(responses), asked.within_ms):
            results = [r if r.error else timed_out(r.name) for r in results]
        return mutations.told(results)

    async def _enlarge_all(
        self, asked: CreatePartitions, mutations: Mutations
    ) -> tuple[list[TopicResult], list[AwaitedResponses]]:
        """The results, and the pending responses of brokers."""
        results: list[TopicResult] = []
        responses: list[AwaitedResponses] = []
        named = Counter(request.name for request in asked.topics)
        room = self._room()
        for request in asked.topics:
            name = request.name
            try:
                if asked.validate_only:
                    added = self._requests.enlargement(request, room, named[name])
                    room.plan(name, len(self._requests.hosted(added)))
                else:
                    responses.append(
                        await self._enlarge(request, named[name], asked.asked_by, mutations)
                    )
                results.append(TopicResult(name))
            except WireError as error:
                results.append(failure(name, error))
        return results, responses

    async def _enlarge(
        self, request: TopicToEnlarge, duplicates: int, asked_by: str, mutations: Mutations
    ) -> AwaitedResponses:
        name = request.name

        def decide() -> Decision:
            room = self._room()
            added = self._requests.enlargement(request, room, duplicates)
            mutations.admit(name, len(added))
            room.reserve(name, self._requests.hosted(added))
            return decisions.enlarge(self._state, name, added)

        try:
            decision = await self._controller.write(decide, lambda: self._reread([name]))
        except FAILURES as error:
            # The slots stay assigned to the partitions, which use them after a retry.
            raise store_failure(error) from error
        responses = self._controller.enter(decision.changes)
        count = len(self._state.existing(name).partitions)
        logger.info("topic %s now has %d partitions%s", name, count, by(asked_by))
        return responses

    # -- deletion ----------------------------------------------------------------------------

    async def delete_topics(self, sender: Address, asked: DeleteTopics) -> list[TopicResult]:
        """Delete topics; for a topic id the result has the topic's name.

        A topic is deleted for clients when it has left the metadata. Its logs are waited for as
        well, so that its name is free, but not for long, nor for those on brokers that are gone.
        """
        mutations = self._mutations(asked)
        results, names, responses = await self._events.put(
            lambda: self._mark_deleted(asked, mutations)
        )
        if not names:
            return mutations.told(results)
        waits = [name for name in names if self._missing([name])]
        finished = run(self._finish_deletion([n for n in names if n not in waits], asked.asked_by))
        if waits:
            run(self._finish_deletion(waits, asked.asked_by)).then(_ended)
        try:
            is_told = await self._is_told(all_of([responses, finished]), asked.within_ms)
        except WireError as error:
            if error.code != ErrorCode.NOT_CONTROLLER:
                raise
            is_told = True  # the next controller finishes what is marked
        if not is_told:
            left = {name for name in names if self._state.topic(name)}
            results = [timed_out(r.name, r.topic_id) if r.name in left else r for r in results]
        return mutations.told(results)

    async def _mark_deleted(
        self, asked: DeleteTopics, mutations: Mutations
    ) -> tuple[list[TopicResult], list[str], AwaitedResponses]:
        """The results, the names of the topics now marked for deletion, and the brokers' responses
        to that.
        """
        planned = PlannedDeletions([], [])

        def decide() -> Decision:
            nonlocal planned
            planned = self._within_quota(self._requests.deletions(asked), mutations)
            return decisions.begin_deletion(planned.names)

        try:
            decision = await self._controller.write(decide, lambda: self._reread(planned.names))
        except FAILURES as error:
            failed = store_failure(error)
            results = [
                r if r.error else failure(r.name, failed, r.topic_id) for r in planned.results
            ]
            return results, [], done([])
        responses = self._controller.enter(decision.changes)
        return planned.results, planned.names, responses

    def _within_quota(self, planned: PlannedDeletions, mutations: Mutations) -> PlannedDeletions:
        """The deletions without those for which the client has to wait."""
        errors: dict[str | None, WireError] = {}
        for name in planned.names:
            try:
                mutations.admit(name, len(self._state.existing(name).partitions))
            except WireError as error:
                errors[name] = error
        results = [
            r if r.error or r.name not in errors else failure(r.name, errors[r.name], r.topic_id)
            for r in planned.results
        ]
        return PlannedDeletions(results, [name for name in planned.names if name not in errors])

    def resume_deletions(self) -> None:
        """Finish deletions that an earlier controller began. Called once, after the election."""
        self.finish_deletions([topic.name for topic in self._state.topics() if topic.deleting])

    def finish_deletions(self, names: list[str]) -> None:
        """Delete topics that another client or controller has marked for deletion."""
        if names:
            logger.info("finishing the deletion of %s", Whole(", ".join(names)))
            run(self._finish_deletion(names)).then(_ended)

    async def _finish_deletion(self, names: list[str], asked_by: str = NOBODY) -> None:
        """Delete the logs, then the nodes; clients already see the topics as deleted.

        A topic with a replica on a broker that is not live waits for it, and no other topic does.
        Raises NOT_CONTROLLER if another controller has been elected.
        """
        while True:
            left = [n for n in names if (topic := self._state.topic(n)) and topic.deleting]
            missing = {name: self._missing([name]) for name in left}
            ready = any(not missing[name] for name in left)
            stopped = await self._stop_replicas(left) if ready else []
            if stopped:
                await self._remove_stopped(stopped, asked_by)
            if len(stopped) == len(left):
                return
            waiting = [name for name in left if missing[name]]
            if waiting and self._waits.due():
                text = "the deletion of %s waits for brokers %s"
                logger.warning(text, Whole(", ".join(waiting)), self._missing(waiting))
            await self._sleep(RETRY_MS)
            self._controller.check_in_office()

    async def _remove_stopped(self, names: list[str], asked_by: str) -> None:
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
                await self._sleep(RETRY_MS)

    async def _stop_replicas(self, names: Collection[str]) -> list[str]:
        """The topics of which no broker has a log now. A broker that was started meanwhile may have
        reopened its logs.

        An event sends this: a broker that comes is told of its replicas by the event that finds it,
        and would otherwise be told to delete them before, and have them again after that.
        """
        names, responded = await self._events.put(lambda: self._order_deletion(names))
        responses = await responded
        if any(a.response.error is ErrorCode.STALE_CONTROLLER_EPOCH for a in responses):
            raise store_failure(Fenced())
        failed = {name for completed in responses for name in self._not_stopped(completed)}
        stopped = [name for name in names if name not in failed and self._state.topic(name)]
        self._controller.enter(map(LogsDeleted, stopped))
        return stopped

    async def _order_deletion(
        self, names: Collection[str]
    ) -> tuple[list[str], Pending[list[Completed]]]:
        """Those whose brokers are all live, and the brokers' responses."""
        marked = [n for n in names if (topic := self._state.topic(n)) and topic.deleting]
        ready = [name for name in marked if not self._missing([name])]
        return ready, self._controller.send(announcements.stop(self._state, ready))

    def _missing(self, names: Iterable[str]) -> list[int]:
        """Brokers with replicas of these topics that are not live."""
        return sorted(
            {
                broker_id
                for name in names
                for partition in self._state.existing(name).partitions
                for broker_id in partition.replicas
            }
            - self._state.brokers.keys()
        )

    def _not_stopped(self, completed: Completed) -> set[str]:
        """The topics of the request of which the broker may still have logs."""
        broker_id, request, response = completed
        if response.error or response.partitions:
            logger.error("broker %d has not deleted logs: %s", broker_id, response)
        if response.error or not announcements.is_current(self._state, request, broker_id):
            return {row.topic for row in request.partitions}
        return {topic for topic, _ in response.partitions}

    async def _remove(self, names: list[str], asked_by: str) -> None:
        """Remove topics whose logs are deleted from the store and the state."""
        if not self._has_all_directories():
            topics = filter(None, map(self._state.topic, names))
            gone = {topic.name: topic.topic_id for topic in topics}
            await persistence.remember_gone(self._store, gone)
        nodes: dict[str, list[Node]] = {}

        async def reread() -> Iterable[Change]:
            await persistence.reread_topics(self._store, self._state, names)  # notes the versions
            nodes.update(await self._nodes(names))
            return ()

        nodes.update(await self._nodes(names))
        decision = await self._controller.write(
            lambda: decisions.remove(self._state, names, nodes), reread
        )
        self._controller.enter(decision.changes)
        for name in names:
            logger.info("deleted topic %s%s", name, by(asked_by))

    async def _nodes(self, names: Iterable[str]) -> dict[str, list[Node]]:
        return {name: await persistence.nodes_to_delete(self._store, name) for name in names}

    # -- all of them -------------------------------------------------------------------------

    async def _reread(self, names: Iterable[str]) -> list[Change]:
        """Changes that other clients made to these topics; finishes deletions that they began."""
        changes = await persistence.reread_topics(self._store, self._state, names)
        begun = [change.name for change in changes if isinstance(change, DeletionBegun)]
        begun += [
            change.topic.name
            for change in changes
            if isinstance(change, TopicCreated) and change.topic.deleting
        ]
        if begun:
            self._events.put(lambda: self._resume_later(begun))
        return changes

    async def _resume_later(self, names: list[str]) -> None:
        self.finish_deletions(names)

    async def _is_told(self, everywhere: Pending[Any], within_ms: int) -> bool:
        here = self._controller.told_here()
        return await known_in_time(here, everywhere, within_ms, self._sleep)


def names_of(asked: CreateTopics) -> list[str]:
    return list(dict.fromkeys(request.name for request in asked.topics))


def done(value: Any) -> Pending[Any]:
    """A resolved Pending."""
    pending: Pending[Any] = Pending()
    pending.resolve(value)
    return pending


def all_of(awaited: Sequence[Pending[Any]]) -> Pending[None]:
    """Resolves when all have resolved, or with the first error."""
    all_done: Pending[None] = Pending()
    left = len(awaited)

    def one_done(outcome: Pending[Any]) -> None:
        nonlocal left
        left -= 1
        if outcome.error is not None or left == 0:
            all_done.resolve(error=outcome.error)

    for pending in awaited:
        pending.then(one_done)
    return all_done


def _ended(outcome: Pending[Any]) -> None:
    error = outcome.error
    if error is not None and getattr(error, "code", None) != ErrorCode.NOT_CONTROLLER:
        raise error
