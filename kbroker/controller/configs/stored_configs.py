"""Keeps a broker's configs up to date with the store, whichever client changes them.

As in Kafka, whoever changes a config creates a notification below ``/config/changes``, and every
broker reads the node that it names. After a lost connection, all configs are read again. No
notification is created for the config of a new topic, so it is read before the broker learns of
the topic (``ConfiguredHosting``). All of this runs in one event queue, as do requests that change
configs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from kbroker.cluster.control_requests import (
    ControlRequest,
    ControlResponse,
    Sender,
    StopReplica,
)
from kbroker.config.client_metrics_config import CLIENT_METRICS_KEYS
from kbroker.config.group_config import GROUP_KEYS
from kbroker.config.quota_keys import CLIENT_QUOTAS, IP_QUOTAS, read_quotas
from kbroker.config.topic_config import unusable
from kbroker.config.topic_keys import TOPIC_KEYS
from kbroker.controller.configs.configs import Configs, ConfigsChanged, entity_of
from kbroker.controller.election.membership import latest_controller_epoch
from kbroker.controller.store.creations import Creations
from kbroker.controller.store.topic_nodes import DAMAGED
from kbroker.controller.store.watched_tree import WatchedTree
from kbroker.errors import ErrorCode, WireError
from kbroker.ipc.pending import Pending, TooLate, in_window, run, within
from kbroker.logcontext import RateLimit, Whole
from kbroker.metastore import entities, paths
from kbroker.metastore.settled import SettledStore
from kbroker.metastore.store import Node, NoNode, Store, StoreError, StoreFailed

logger = logging.getLogger(__name__)

# How long a control request waits for the configs of its topics.
READ_MS = 2_000
# How often the epoch of a controller is looked up that nobody else knows.
EPOCH_READS, EPOCH_PAUSE_MS = 20, 500
# BOUND: config nodes read in parallel.
READ_AT_ONCE = 1_000
KINDS = (
    paths.TOPIC_CONFIGS,
    paths.BROKER_CONFIGS,
    paths.GROUP_CONFIGS,
    paths.CLIENT_METRICS_CONFIGS,
)


class ConfigDistribution(Protocol):
    """Distributes configs to the processes of this broker: ``Hosting``."""

    def set_configs(
        self,
        topics: Mapping[str, dict[str, str]] = ...,
        brokers: Mapping[str, dict[str, str]] = ...,
        groups: Mapping[str, dict[str, str]] = ...,
        quotas: Mapping[str, dict[str, float]] = ...,
        client_metrics: Mapping[str, dict[str, str]] = ...,
    ) -> Pending[dict[str, int]]:
        """Resolves when every process has applied them."""


class StoredConfigs:
    """The configs of one broker. wall_ms: wall clock, to compare with creation times of nodes."""

    def __init__(
        self,
        store: Store,
        settled: SettledStore,
        user: ConfigDistribution,
        sleep: Callable[[int], Pending[None]],
        wall_ms: Callable[[], int],
    ) -> None:
        self.configs = Configs()
        self.store = settled
        # Called with changed configs, before they are distributed.
        self.changed: Callable[[ConfigsChanged], None] = lambda _: None
        self._user = user
        self._sleep = sleep
        self._tree = WatchedTree[str](
            store,
            settled,
            sleep,
            wall_ms,
            prefixes=[paths.CONFIG_CHANGE],
            named=lambda _, data: _named(data),
            read=self._read,
            read_all=self._read_all,
        )
        self.events = self._tree.events
        self._is_begun = False

    def start(self) -> Pending[None]:
        """Resolves when all configs are read, and watched."""
        return self.events.put(self._begin)

    async def _begin(self) -> None:
        await self._tree.follow(paths.GROUP_CONFIGS, self._read_groups)
        await self._tree.follow(paths.IP_CONFIGS, self._read_addresses)
        await self._tree.follow(paths.CLIENT_METRICS_CONFIGS, self._read_client_metrics)
        await self._tree.begin()
        self._is_begun = True

    @property
    def is_connected(self) -> bool:
        return self._tree.is_connected

    def check_connected(self) -> None:
        """REQUEST_TIMED_OUT while the store cannot be reached."""
        self._tree.check_connected()

    # -- what is known here --

    def set_configs(self, changed: ConfigsChanged) -> Pending[dict[str, int]]:
        """Apply configs that are in the store; resolves when every process has applied them."""
        kinds = (
            ("topic", changed.topics, TOPIC_KEYS),
            ("group", changed.groups, GROUP_KEYS),
            ("client metrics", changed.client_metrics, CLIENT_METRICS_KEYS),
        )
        for kind, layers, keys in kinds:
            for name, config in layers.items():
                for error in unusable(config, keys).values():
                    logger.error("ignoring a config of %s %s in the store: %s", kind, name, error)
        self.configs.enter(changed)
        self.changed(changed)
        quotas = {name: _quotas(name, config) for name, config in changed.entities.items()}
        return self._user.set_configs(
            changed.topics, changed.brokers, changed.groups, quotas, changed.client_metrics
        )

    def forget_topic(self, name: str) -> None:
        """The topic and its configs have been removed."""
        if self.configs.topic(name):
            self._user.set_configs({name: {}})
        self.configs.forget_topic(name)

    # -- what others have changed --

    async def _read_all(self) -> None:
        kinds = (*KINDS, *map(entities.entity_config, entities.KINDS))
        present = await in_window(map(self._nodes_of, kinds), READ_AT_ONCE)
        of_users = [f"{user}/{entities.CLIENTS}" for user in present[len(KINDS)]]
        present += await in_window(map(self._nodes_of, of_users), READ_AT_ONCE)
        await self._read({path for nodes in present for path in nodes} | self._known())

    async def _read_groups(self) -> None:
        await self._read_below(paths.GROUP_CONFIGS)

    async def _read_addresses(self) -> None:
        await self._read_below(paths.IP_CONFIGS)

    async def _read_client_metrics(self) -> None:
        await self._read_below(paths.CLIENT_METRICS_CONFIGS)

    async def _read_below(self, kind: str) -> None:
        known = {path for path in self._known() if path.startswith(f"{kind}/")}
        await self._read(known | set(await self._nodes_of(kind)))

    async def _nodes_of(self, kind: str) -> list[str]:
        try:
            return [f"{kind}/{name}" for name in await self.store.children(kind)]
        except NoNode:
            return []  # a Kafka has created the nodes: not for groups, nor for each user

    def _known(self) -> set[str]:
        return set(self.configs.versions)

    def complete(self, topics: Iterable[str]) -> Pending[None]:
        """Read the configs of those topics of which no config node is known.

        This broker may not have learned of a topic that was created just before it is elected.
        """
        versions = self.configs.versions
        names = [name for name in topics if paths.topic_config(name) not in versions]
        return self.events.put(lambda: self.read_topics(names))

    async def read_topics(self, names: Iterable[str]) -> None:
        """Read the configs of topics that are new to this broker."""
        await self._read([paths.topic_config(name) for name in names], unknown=True)

    async def _read(self, wanted: Iterable[str], *, unknown: bool = False) -> None:
        """Read nodes and apply their configs. unknown: these are topics new to this broker."""
        paths_of = list(wanted)
        for first in range(0, len(paths_of), READ_AT_ONCE):
            group = paths_of[first : first + READ_AT_ONCE]
            while group:
                group = await self._read_group(group, unknown)

    async def _read_group(self, group: list[str], unknown: bool) -> list[str]:
        """As ``_read``. Returns the nodes to read again: this process has written them."""
        configs, read = self.configs, Configs()
        before = {path: configs.versions.get(path) for path in group}
        asked = [(path, run(self.store.get(path))) for path in group]
        for path, pending in asked:
            try:
                _enter(read, await pending)
            except NoNode:
                continue
            except DAMAGED as error:
                if not self.store.is_shared:
                    raise
                logger.error("ignoring the configs %s: %r", path, error)
                del before[path]
        settled = [
            path for path, version in before.items() if configs.versions.get(path) == version
        ]
        changed = configs.different(read, settled)
        if unknown:
            names = [entity_of(path)[1] for path in settled]
            changed = ConfigsChanged({n: read.topic(n) for n in names} | dict(changed.topics))
        if any(changed):
            if self._is_begun and not unknown:
                logger.info("another client has changed the configs of %s", Whole(_names(changed)))
            self.set_configs(changed)
        return [path for path in before if path not in settled]


def _named(notice: bytes) -> str | None:
    """The node that a notification names, if it has configs that count here. DAMAGED."""
    path = paths.decode_config_change(notice)
    name = path.removeprefix(f"{paths.CONFIG}/")
    return path if path.rpartition("/")[0] in KINDS or entities.is_entity(name) else None


def _enter(configs: Configs, node: Node) -> None:
    config = paths.decode_config(node.data)
    kind, name = entity_of(node.path)
    configs.versions[node.path] = node.stat.version
    configs.of_kind(kind)[name] = config


def _quotas(name: str, config: Mapping[str, str]) -> dict[str, float]:
    """The quotas among the configs of an entity: nothing else of them leaves this process."""
    is_address = name.startswith(f"{entities.IPS}/")
    quotas, errors = read_quotas(config, IP_QUOTAS if is_address else CLIENT_QUOTAS)
    for error in errors:
        logger.error("ignoring a quota of %s in the store: %s", name, error)
    return quotas


def _names(changed: ConfigsChanged) -> str:
    names = ("topic", "broker", "group", "entity", "client metrics")
    kinds = zip(names, changed, strict=True)
    return ", ".join(f"{kind} {name}" for kind, configs in kinds for name in configs)


class ConfigHosting(Protocol):
    """What this needs of ``Hosting``."""

    controller_epoch: int

    def take(self, request: ControlRequest) -> Pending[ControlResponse]:
        """Resolves with the response."""

    def has_topic(self, name: str) -> bool:
        """Whether the topic is in the metadata or has replicas here."""


class ConfiguredHosting:
    """Applies control requests of other brokers once the configs of their topics are read. A
    controller that is new to this broker must be known to the store: anybody who can connect could
    say that he is one. With a store of its own, a broker has no controller but its own, which does
    not come this way.
    """

    def __init__(
        self,
        hosting: ConfigHosting,
        stored: StoredConfigs,
        creations: Creations,
        sleep: Callable[[int], Pending[None]],
    ) -> None:
        self._hosting = hosting
        self._stored = stored
        self._creations = creations
        self._sleep = sleep
        self._rejected = -1  # an epoch that the store did not know for long enough
        self._rejections = RateLimit()

    def take(self, request: ControlRequest) -> Pending[ControlResponse]:
        """Resolves with the response."""
        return run(self._take(request))

    async def _take(self, request: ControlRequest) -> ControlResponse:
        if not await self._is_elected(request.sender):
            return ControlResponse(ErrorCode.STALE_CONTROLLER_EPOCH)
        names = dict.fromkeys(row.topic for row in request.partitions)
        new = [name for name in names if not self._hosting.has_topic(name)]
        if new and not isinstance(request, StopReplica) and self._stored.is_connected:
            await self._read(new)
        if self._stored.is_connected:
            request = await self._creations.complete(request)
        response = await self._hosting.take(request)
        for name in names:
            if not self._hosting.has_topic(name):
                self._stored.forget_topic(name)
        return response

    async def _is_elected(self, sender: Sender) -> bool:
        """Whether there has been a controller with this epoch, as far as anybody can tell."""
        stored, epoch = self._stored, sender.controller_epoch
        if not stored.store.is_shared:
            self._warn_of_imposter(sender)
            return False
        latest = 0
        for _ in range(1 if epoch == self._rejected else EPOCH_READS):
            if epoch <= self._hosting.controller_epoch:
                return True
            if not stored.is_connected:
                return True
            try:
                reading = run(latest_controller_epoch(stored.store))
                latest = await within(reading, self._sleep(READ_MS))
            except TooLate:
                return True
            if latest >= epoch or not latest:
                return True
            # The server of ZooKeeper that this broker uses may be behind.
            await self._sleep(EPOCH_PAUSE_MS)
        self._rejected = epoch
        logger.error(
            "rejected controller %d with epoch %d: by %s there has been none after epoch %d",
            sender.controller_id, epoch, paths.CONTROLLER_EPOCH, latest,
        )  # fmt: skip
        return False

    def _warn_of_imposter(self, sender: Sender) -> None:
        times = self._rejections.due()
        if times:
            logger.warning(
                "rejected controller %d with epoch %d (%d times): a broker without "
                "zookeeper.connect has no other controller",
                sender.controller_id, sender.controller_epoch, times,
            )  # fmt: skip

    async def _read(self, names: list[str]) -> None:
        """Wait at most READ_MS; a config that arrives later is applied then."""
        reading = self._stored.events.put(lambda: self._stored.read_topics(names))
        try:
            await within(reading, self._sleep(READ_MS))
        except (TooLate, StoreFailed, StoreError, WireError) as error:
            text = "topics %s begin with the broker's configs, as theirs cannot be read yet: %r"
            logger.warning(text, Whole(", ".join(names)), error)
