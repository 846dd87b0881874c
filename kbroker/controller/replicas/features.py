"""Finalizes features (KIP-584): on request, and by itself in a new cluster of kbrokers.

A feature is finalized at a level only while every broker supports it: every one that is registered,
and every one that has replicas, as that may be a Kafka which is just being restarted. Brokers learn
of it from the store (``stored_features``). The levels are written into Kafka's own node as well,
so that a Kafka 2.7 refuses to start: it could not load groups and transactions.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from kbroker.cluster.features import SUPPORTED, unsupported
from kbroker.config.protocol_version import ProtocolVersion, find_version
from kbroker.controller.election.events import EventQueue
from kbroker.controller.replicas.partition_writes import PartitionWrites
from kbroker.controller.store.store_failure import store_failure
from kbroker.controller.store.topic_nodes import DAMAGED
from kbroker.errors import ErrorCode, WireError
from kbroker.ipc.calls import FeatureResult, UpdateFeatures, WantedFeature
from kbroker.ipc.pending import Pending
from kbroker.ipc.process_table import Address
from kbroker.metastore import paths
from kbroker.metastore.store import BadVersion, NodeExists, NoNode

logger = logging.getLogger(__name__)

AUTOMATIC = "cluster.features.enable"
PROTOCOL = "inter.broker.protocol.version"
# Kafka looks at its node from this protocol on.
FIRST_GUARDED = ProtocolVersion.V2_7_IV0
# Kinds of change in requests. Version 0 has a flag instead, for the first two.
UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3


class StoredLevels(NamedTuple):
    """Finalized levels, and the version of their node; None if there is no node."""

    levels: dict[str, int]
    version: int | None


class FeatureLevels:
    """Of one controller."""

    def __init__(
        self, writes: PartitionWrites, events: EventQueue, setting: Callable[[str], Any]
    ) -> None:
        self._writes = writes
        self._events = events
        self._state = writes.state
        self._store = writes.store
        self._setting = setting

    # -- by itself ---------------------------------------------------------------------------

    def look(self) -> None:
        """Brokers have come or gone, or the controller has started."""
        if self._store.is_shared:
            self._writes.put(self._look)

    async def _look(self) -> None:
        try:
            present = await self._read()
        except WireError as error:
            logger.error("no feature can be finalized: %s", error.message)
            return
        if present.version is not None:
            self._report(present.levels)
        elif self._setting(AUTOMATIC) and not self._obstacles(SUPPORTED):
            try:
                await self._write(SUPPORTED, None)
            except (BadVersion, NodeExists):
                self.look()  # someone else has written them at the same time

    def _report(self, levels: Mapping[str, int]) -> None:
        for broker_id, broker in sorted(self._state.brokers.items()):
            lacking = unsupported(levels, broker.features or {})
            if lacking:
                text = (
                    "broker %d does not support %s, which is finalized in this cluster, so it "
                    "cannot load groups and transactions: stop it"
                )
                logger.error(text, broker_id, " and ".join(lacking))

    # -- on request --------------------------------------------------------------------------

    async def serve(self, sender: Address, asked: UpdateFeatures) -> list[FeatureResult]:
        """UpdateFeatures, from a client."""
        errors = await self.update(asked.updates, validate_only=asked.validate_only)
        return [
            FeatureResult(int(error.code), error.message) if error else FeatureResult(0, None)
            for error in errors
        ]

    def update(
        self, updates: Sequence[WantedFeature], *, validate_only: bool
    ) -> Pending[list[WireError | None]]:
        """The error of each update, in order; with one error nothing is changed."""
        return self._events.put(lambda: self._update(updates, validate_only))

    async def _update(
        self, updates: Sequence[WantedFeature], validate_only: bool
    ) -> list[WireError | None]:
        before = await self._read()
        errors = [
            self._rejection(update, before.levels.get(update.feature, 0)) for update in updates
        ]
        wanted = dict(before.levels)
        for update, error in zip(updates, errors, strict=True):
            if error is None:
                wanted[update.feature] = update.level
        levels = {name: level for name, level in wanted.items() if level}
        if validate_only or any(errors) or levels == before.levels:
            return errors
        try:
            await self._write(levels, before.version)
        except (BadVersion, NodeExists) as error:
            raise store_failure(error) from error
        return errors

    def _rejection(self, update: WantedFeature, present: int) -> WireError | None:
        """Why the feature cannot be set to this level."""
        name, level = update.feature, update.level
        if name not in SUPPORTED:
            text = "this broker does not support this feature."
        elif not 0 <= level <= SUPPORTED[name]:
            text = f"this broker supports versions 0 to {SUPPORTED[name]}."
        elif level > present:
            if update.kind != UPGRADE:
                text = "a downgrade was requested, but this is an upgrade."
            else:
                text = "; ".join(self._obstacles({name: level}))
        elif level < present and update.kind != UNSAFE_DOWNGRADE:
            text = (
                "there may be groups and transactions that a broker without it cannot load; only "
                "an unsafe downgrade disables it."
            )
        else:
            return None
        if not text:
            return None
        start = f"Invalid update version {level} for feature {ascii(name[:100])[1:-1]}: "
        return WireError(ErrorCode.INVALID_UPDATE_VERSION, start + text)

    def _obstacles(self, levels: Mapping[str, int]) -> list[str]:
        """Why these levels cannot be finalized now."""
        obstacles = []
        protocol = find_version(self._setting(PROTOCOL))
        if protocol is None or protocol < FIRST_GUARDED:
            obstacles.append(f"{PROTOCOL} is below {FIRST_GUARDED}")
        for broker_id, broker in sorted(self._state.brokers.items()):
            if broker.features is None:
                obstacles.append(f"broker {broker_id} is not a kbroker")
            elif lacking := unsupported(levels, broker.features):
                obstacles.append(f"broker {broker_id} does not support {' and '.join(lacking)}")
        absent = self._with_replicas() - self._state.brokers.keys()
        return obstacles + [
            f"broker {number}, which has replicas, is away" for number in sorted(absent)
        ]

    def _with_replicas(self) -> set[int]:
        topics = self._state.topics()
        return {
            broker_id
            for topic in topics
            for partition in topic.partitions
            for broker_id in partition.replicas
        }

    async def _read(self) -> StoredLevels:
        try:
            node = await self._store.get(paths.FEATURES)
        except NoNode:
            return StoredLevels({}, None)
        try:
            return StoredLevels(paths.decode_features(node.data), node.stat.version)
        except DAMAGED as error:
            text = f"{paths.FEATURES} in the metadata store cannot be read: {error!r}"
            raise WireError(ErrorCode.UNKNOWN_SERVER_ERROR, text) from error

    async def _write(self, levels: Mapping[str, int], version: int | None) -> None:
        """Raises BadVersion or NodeExists if somebody else has written in between.

        version: of the node that the levels are based on; None if there is none.
        """
        transaction = self._store.multi()
        if await self._store.exists(paths.KBROKER) is None:
            transaction.create(paths.KBROKER)
        kafkas = await self._store.exists(paths.KAFKAS_FEATURES)
        for path, at, document in (
            (paths.FEATURES, version, paths.encode_features(levels)),
            (
                paths.KAFKAS_FEATURES,
                None if kafkas is None else kafkas.version,
                paths.encode_kafkas_features(levels),
            ),
        ):
            if at is None:
                transaction.create(path, document)
            else:
                transaction.set(path, document, at)
        await transaction.commit()
        text = ", ".join(f"{name} {level}" for name, level in sorted(levels.items())) or "none"
        logger.info("finalized features: %s", text)
