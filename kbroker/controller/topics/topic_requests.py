"""Plans requests about topics: what to do for each topic, or why it is rejected. Pure.

``topics`` has the rules for a single topic. One that is rejected does not keep the others from
being created, enlarged or deleted.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from kbroker.controller.state.state import ClusterState, TopicState
from kbroker.controller.state.topics import (
    Assignment,
    PlannedTopic,
    ValidateConfig,
    existing_topic,
    plan_partitions,
    plan_topic,
)
from kbroker.errors import ErrorCode, WireError
from kbroker.internal_topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from kbroker.ipc.calls import (
    CreateTopics,
    DeleteTopics,
    SettingValue,
    TopicResult,
    TopicToCreate,
    TopicToDelete,
    TopicToEnlarge,
)
from kbroker.replica_placement import Choose
from kbroker.security.policies import Policies, TopicRequest

# The configs that an internal topic is created with.
INTERNAL_PREFIXES = {
    OFFSETS_TOPIC: "offsets.topic",
    TRANSACTIONS_TOPIC: "transaction.state.log",
}
NONE_REJECTED: Mapping[str, WireError] = {}
NO_POLICIES = Policies()


class PlannedRoom(Protocol):
    """The slots that this broker has left for the topics of one request: ``hosting.room``."""

    def check(self, name: str, hosted: int) -> None:
        """Raises INVALID_PARTITIONS if there is no room for so many replicas."""

    def plan(self, name: str, hosted: int) -> None:
        """Like ``check``, and counts them as taken."""


class PlannedCreations(NamedTuple):
    """``results``: in request order. ``rejected``: the failures among them."""

    results: list[TopicResult]
    topics: list[PlannedTopic]
    rejected: list[tuple[str, WireError]]


class PlannedDeletions(NamedTuple):
    """``names``: each once."""

    results: list[TopicResult]
    names: list[str]


class TopicRequests:
    """setting: the present value of a broker setting. is_cordoned: whether this broker takes no
    partition unless it is named. is_shared: whether there may be other brokers. choose: of
    ``place_replicas``.
    """

    def __init__(
        self,
        state: ClusterState,
        setting: Callable[[str], Any],
        validate_config: ValidateConfig,
        is_cordoned: Callable[[], bool],
        *,
        is_shared: bool = False,
        policies: Policies = NO_POLICIES,
        choose: Choose = random.randrange,
    ) -> None:
        self._state = state
        self._setting = setting
        self._validate_config = validate_config
        self._is_cordoned = is_cordoned
        self._is_shared = is_shared
        self._policies = policies
        self._choose = choose

    # -- creation ----------------------------------------------------------------------------

    def creations(
        self,
        asked: CreateTopics,
        room: PlannedRoom,
        no_place: Mapping[str, WireError] = NONE_REJECTED,
    ) -> PlannedCreations:
        """no_place: topics for which no slots could be reserved, with the error."""
        planned = PlannedCreations([], [], [])
        named = Counter(request.name for request in asked.topics)
        by_metric: dict[str, str] = {}
        for request in asked.topics:
            try:
                if asked.auto:
                    request = self._automatic(request.name)
                if request.name in no_place:
                    raise no_place[request.name]
                new = self._plan(request, room, named[request.name], by_metric, asked.auto)
                by_metric[metric_name(new.name)] = new.name
                planned.topics.append(new)
                planned.results.append(created_result(new))
            except WireError as error:
                planned.results.append(failure(request.name, error))
                planned.rejected.append((request.name, error))
        return planned

    def _automatic(self, name: str) -> TopicToCreate:
        """The request for an auto-created topic, or one that a coordinator needs."""
        prefix = INTERNAL_PREFIXES.get(name)
        if prefix is None:
            return TopicToCreate(name)
        replicas = self._internal_replicas(f"{prefix}.replication.factor")
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
            configs=[SettingValue(*config) for config in configs.items()],
        )

    def _internal_replicas(self, key: str) -> int:
        """The configured number. A standalone broker has one: groups must work anyway.

        COMPAT: in a cluster, an internal topic waits until enough brokers have joined.
        """
        wanted, available = int(self._setting(key)), len(self._state.brokers)
        if wanted > available and self._is_shared:
            raise WireError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"{key} is {wanted}, but the number of available brokers is {available}: start "
                "more brokers, or set it to a smaller number",
            )
        return min(wanted, available)

    def _plan(
        self,
        request: TopicToCreate,
        room: PlannedRoom,
        duplicates: int,
        earlier: Mapping[str, str],
        asked_auto: bool,
    ) -> PlannedTopic:
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
            self._state, request, defaults, self._validate_config,
            lambda: self._state.topic_ids.new(name),
            self._cordoned(), room.check, self._choose,
        )  # fmt: skip
        other = earlier.get(metric_name(name))
        if other is not None:
            raise WireError(
                ErrorCode.INVALID_TOPIC_EXCEPTION,
                f"Topic '{name}' collides with '{other}' in the same request.",
            )
        if not (asked_auto and name in INTERNAL_PREFIXES):
            self._policies.check_topic(policy_request(request, new))
        room.plan(name, len(self.hosted(new.assignment)))
        return new

    def _cordoned(self) -> list[int]:
        return [self._state.broker_id] if self._is_cordoned() else []

    def hosted(self, assignment: Assignment) -> list[int]:
        """The partitions of which this broker gets a replica."""
        here = self._state.broker_id
        return sorted(number for number, replicas in assignment.items() if here in replicas)

    # -- more partitions ---------------------------------------------------------------------

    def enlargement(
        self, request: TopicToEnlarge, room: PlannedRoom, duplicates: int
    ) -> Assignment:
        """The partitions to add."""
        name = request.name
        if duplicates > 1:
            raise WireError(
                ErrorCode.INVALID_REQUEST, f"Topic '{name}' appears more than once in the request."
            )
        added = plan_partitions(
            self._state, name, request.count, request.assignments, self._cordoned(), room.check,
            self._choose,
        )  # fmt: skip
        room.check(name, len(self.hosted(added)))
        return added

    # -- deletion ----------------------------------------------------------------------------

    def deletions(self, asked: DeleteTopics) -> PlannedDeletions:
        """For a topic id the result has the topic's name."""
        results: list[TopicResult] = []
        names: dict[str, None] = {}
        for request in asked.topics:
            try:
                topic = self._deletable(request)
                names[topic.name] = None
                results.append(TopicResult(topic.name, topic_id=topic.topic_id))
            except WireError as error:
                results.append(failure(request.name, error, request.topic_id))
        return PlannedDeletions(results, list(names))

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

    # -- results -----------------------------------------------------------------------------

    def existing_result(self, result: TopicResult) -> TopicResult:
        """The result of an auto-creation, which succeeds if the topic exists already."""
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


def metric_name(name: str) -> str:
    """The name in metrics, which must be unique; '.' and '_' are the same there."""
    return name.replace(".", "_")


def created_result(new: PlannedTopic) -> TopicResult:
    return TopicResult(
        new.name,
        topic_id=new.topic_id,
        partitions=len(new.assignment),
        replication_factor=len(new.assignment[0]),
    )


def failure(name: str | None, error: WireError, topic_id: bytes | None = None) -> TopicResult:
    return TopicResult(name, int(error.code), error.message, topic_id)


def timed_out(name: str | None, topic_id: bytes | None = None) -> TopicResult:
    """REQUEST_TIMED_OUT: the change will be completed, but not within the client's timeout."""
    text = "The change did not finish in time; it continues."
    return failure(name, WireError(ErrorCode.REQUEST_TIMED_OUT, text), topic_id)


def policy_request(request: TopicToCreate, new: PlannedTopic) -> TopicRequest:
    """The topic as a policy sees it."""
    configs = {setting.name: setting.value for setting in request.configs}
    if request.assignments:
        return TopicRequest(new.name, None, None, dict(new.assignment), configs)
    factor = len(next(iter(new.assignment.values())))
    return TopicRequest(new.name, len(new.assignment), factor, None, configs)
