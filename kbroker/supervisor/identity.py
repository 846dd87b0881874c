"""The broker id and the cluster id, if ZooKeeper has to be asked for them.

kazoo has threads, and the supervisor will fork: a child asks, and ends.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from kbroker.config.loader import BrokerConfig
from kbroker.errors import ConfigError

if TYPE_CHECKING:
    from kbroker.metastore.cluster_identity import Identity


def identity_in_cluster(config: BrokerConfig, known: Identity) -> Identity:
    """``known``, completed by ZooKeeper unless nothing is missing. Raises ConfigError."""
    from kbroker.metastore.cluster_identity import Identity
    from kbroker.metastore.zookeeper_settings import settings_of

    settings = settings_of(config)
    if known.is_settled:
        return known  # the controller process checks it; a start need not wait for ZooKeeper
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        _reply(writer, config, known)
    os.close(writer)
    with open(reader, "rb") as pipe:
        document = pipe.read()
    os.waitpid(child, 0)
    reply: dict[str, Any] = {"error": "the process that asks was killed"}
    if document:
        reply = json.loads(document)
    if "error" in reply:
        allowed = f"a ZooKeeper that can be asked for this broker's cluster ({reply['error']})"
        raise ConfigError("zookeeper.connect", settings.connect, allowed)
    return Identity(reply["broker_id"], reply["cluster_id"])


def _reply(writer: int, config: BrokerConfig, known: Identity) -> None:
    """In the child: write the identity, or the error, and exit."""
    status = 1
    try:
        with open(writer, "w") as pipe:
            json.dump(_ask(config, known), pipe)
        status = 0
    finally:
        os._exit(status)


def _ask(config: BrokerConfig, known: Identity) -> dict[str, object]:
    from kbroker.metastore.cluster_identity import NotAsked, ask_zookeeper
    from kbroker.metastore.store import WrongCluster
    from kbroker.metastore.zookeeper_settings import settings_of

    try:
        identity = ask_zookeeper(settings_of(config), known, config["reserved.broker.max.id"])
    except (WrongCluster, NotAsked, ConfigError, OSError, ValueError, KeyError) as error:
        return {"error": str(error)}
    return identity._asdict()
