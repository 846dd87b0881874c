"""The broker's registration, and the election of the controller.

Both are ephemeral nodes of the store's session. The broker epoch is the creation id of the
registration; the controller epoch is a number that only an election raises. A controller's writes
are conditional on the version of its node, so a controller that does not know yet that another was
elected changes nothing.
"""

from __future__ import annotations

import logging
from typing import Any, NamedTuple

from kbroker.cluster.control_requests import LiveBroker
from kbroker.cluster.features import SUPPORTED
from kbroker.config.protocol_version import ProtocolVersion
from kbroker.controller.store.topic_nodes import DAMAGED
from kbroker.metastore import paths
from kbroker.metastore.json_values import as_integer
from kbroker.metastore.settled import SettledStore
from kbroker.metastore.store import (
    BadVersion,
    Node,
    NodeExists,
    NoNode,
    StoreOperation,
    foreign_cluster,
)
from kbroker.types import BrokerId

logger = logging.getLogger(__name__)


class Registration(NamedTuple):
    """What a broker registers with. ``endpoints``: as in the cluster image. ``resumes``: the broker
    epoch of a registration whose process is continued by this one, which knows all that it knew.
    is_suspect: some logs may have lost their newest records in a power failure. session_ms: how
    long the registration of a broker that has died may last.
    """

    broker_id: BrokerId
    endpoints: list[list[Any]]
    rack: str | None
    cluster_id: str = ""  # that of the log directories; empty if the store is not shared
    protocol: ProtocolVersion = ProtocolVersion.V2_7_IV2
    resumes: int = -1
    is_suspect: bool = False
    session_ms: int = 18_000
    failover: bool = False  # whether it answers PeerStatus


class StoredRegistration(NamedTuple):
    """A registration in the store. ``epoch``: the broker epoch."""

    epoch: int
    session_id: int


class AlreadyRegistered(Exception):
    """Another session has registered this broker id. is_here: with this broker's addresses."""

    def __init__(self, text: str, session_id: int, *, is_here: bool = False) -> None:
        super().__init__(text)
        self.session_id = session_id
        self.is_here = is_here


class AddressTaken(Exception):
    """Another broker has registered an address of this one."""


class Elected(NamedTuple):
    """A won election. ``fence``: the condition of every write of this controller."""

    epoch: int
    fence: StoreOperation


async def check_cluster(store: SettledStore, cluster_id: str) -> None:
    """Raises WrongCluster if the store belongs to another cluster."""
    try:
        node = await store.get(paths.CLUSTER_ID)
    except NoNode:
        raise foreign_cluster(None, cluster_id) from None
    stored_id = paths.decode_cluster_id(node.data)
    if stored_id != cluster_id:
        raise foreign_cluster(stored_id, cluster_id)


async def check_addresses(store: SettledStore, me: Registration) -> None:
    """Raises AddressTaken if another broker is registered with an address of this one.

    Clients and brokers that mean one of them would reach the other.
    """
    ours = {(host, port) for _, host, port, _ in me.endpoints}
    for name in await store.children(paths.BROKER_IDS):
        path = f"{paths.BROKER_IDS}/{name}"
        if path == paths.broker(me.broker_id):
            continue
        try:
            endpoints, _ = paths.decode_broker((await store.get(path)).data)
        except NoNode:
            continue
        except DAMAGED as error:
            logger.error("ignoring the registration %s: %r", path, error)
            continue
        for _, host, port, _ in endpoints:
            if (host, port) in ours:
                raise AddressTaken(
                    f"broker {name} is registered with {host}:{port}, an address of this broker "
                    f"({me.broker_id}). Give each broker its own listeners, or "
                    "advertised.listeners; the registration of a broker that is gone ends after "
                    "its zookeeper.session.timeout.ms"
                )


async def register(
    store: SettledStore, me: Registration, session_id: int, now_ms: int
) -> StoredRegistration:
    """Register the broker for as long as the session lasts. Raises AlreadyRegistered.

    session_id: the store's session; one that was resumed has the registration already.
    """
    path = paths.broker(me.broker_id)
    document = paths.encode_broker(
        me.endpoints,
        me.rack,
        now_ms,
        me.protocol,
        is_suspect=me.is_suspect,
        features=SUPPORTED,
        failover=int(me.failover),
    )
    while True:
        try:
            await store.multi().create(path, document, ephemeral=True).commit()
            node = await store.get(path)
        except NodeExists:
            try:
                node = await store.get(path)
            except NoNode:
                continue  # its session ended in between
            if node.stat.owner_session != session_id:
                taken, is_here = _taken(me, node.data)
                raise AlreadyRegistered(taken, node.stat.owner_session, is_here=is_here) from None
            # The registration of the previous process, whose session was resumed.
            transaction = store.multi()
            if me.cluster_id and node.stat.created_id != me.resumes:
                # What the controller told that process is lost; it tells a new broker epoch all.
                transaction.delete(path, node.stat.version).create(path, document, ephemeral=True)
            else:
                text = "broker %d continues its registration with broker epoch %d"
                logger.info(text, me.broker_id, node.stat.created_id)
                transaction.set(path, document, node.stat.version)
            try:
                await transaction.commit()
                node = await store.get(path)
            except (NoNode, BadVersion):
                continue
        except NoNode as error:
            if error.path != path:
                raise
            continue  # the session, and its node, ended in between
        return StoredRegistration(node.stat.created_id, node.stat.owner_session)


async def latest_controller_epoch(store: SettledStore) -> int:
    """The epoch of the controller elected last; 0 before the first election, and if it cannot be
    read.
    """
    try:
        return _epoch(await store.get(paths.CONTROLLER_EPOCH), 0)
    except NoNode:
        return 0


def _epoch(node: Node, otherwise: int) -> int:
    try:
        return as_integer(node.data.decode())
    except ValueError as error:
        logger.error("ignoring the controller epoch in %s: %r", node.path, error)
        return otherwise


async def present_controller(store: SettledStore) -> tuple[int, LiveBroker] | None:
    """The elected broker and its endpoint; None if there is none."""
    try:
        node = await store.get(paths.CONTROLLER)
        broker_id = paths.decode_controller(node.data)
        document = (await store.get(paths.broker(broker_id))).data
        return broker_id, LiveBroker(*paths.decode_broker(document))
    except NoNode:
        return None
    except DAMAGED as error:
        logger.error(
            "cannot read who the controller is from %s and its registration: %r",
            paths.CONTROLLER,
            error,
        )
        return None


def _taken(me: Registration, document: bytes) -> tuple[str, bool]:
    """That another session has the broker id, which says where it and this broker are; and whether
    that is the same place.
    """
    try:
        endpoints = paths.decode_broker(document)[0]
        theirs, is_here = _places(endpoints), sorted(endpoints) == sorted(me.endpoints)
    except DAMAGED:
        theirs, is_here = "unknown addresses", False
    text = (
        f"broker {me.broker_id} is registered by another session ({theirs}), so this one "
        f"({_places(me.endpoints)}) cannot be. If that is another broker, stop it, or give one of "
        "them another broker.id; after a crash the session ends by itself, in its "
        "zookeeper.session.timeout.ms"
    )
    return text, is_here


def _places(endpoints: list[list[Any]]) -> str:
    return ", ".join(f"{name}://{host}:{port}" for name, host, port, _ in endpoints)


async def elect(
    store: SettledStore, broker_id: BrokerId, now_ms: int, latest_epoch: int = 0
) -> Elected | None:
    """Try to become the controller; None if another broker is. latest_epoch: that this broker has
    heard of, for a node that cannot be read.

    As in Kafka, ``/controller`` is created in one transaction with the next epoch, so there are no
    two controllers of one epoch.
    """
    transaction = store.multi()
    try:
        node = await store.get(paths.CONTROLLER_EPOCH)
    except NoNode:
        epoch, version = 1, 0
        transaction.create(paths.CONTROLLER_EPOCH, b"1")
    else:
        # Each election has set the node once, so its version is an epoch of its own.
        version = node.stat.version + 1
        epoch = _epoch(node, max(version, latest_epoch)) + 1
        transaction.set(paths.CONTROLLER_EPOCH, str(epoch).encode(), node.stat.version)
    document = paths.encode_controller(broker_id, now_ms)
    transaction.create(paths.CONTROLLER, document, ephemeral=True)
    try:
        await transaction.commit()
    except (NodeExists, BadVersion):
        return None
    return Elected(epoch, StoreOperation("check", paths.CONTROLLER_EPOCH, version=version))
