"""The broker id and the cluster id, if ZooKeeper has to be asked for them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from kbroker.config.loader import BrokerConfig
from kbroker.errors import ConfigError
from kbroker.supervisor.child_question import answer_of_child

if TYPE_CHECKING:
    from kbroker.metastore.cluster_identity import ClusterIdentity


def identity_in_cluster(config: BrokerConfig, known: ClusterIdentity) -> ClusterIdentity:
    """``known``, completed by ZooKeeper unless nothing is missing. Raises ConfigError."""
    from kbroker.metastore.cluster_identity import ClusterIdentity
    from kbroker.metastore.zookeeper_settings import settings_of

    settings = settings_of(config)
    if known.is_settled:
        return known  # the controller process checks it; a start need not wait for ZooKeeper
    reply = answer_of_child(partial(_ask, config, known))
    if "error" in reply:
        allowed = f"a ZooKeeper that can be asked for this broker's cluster ({reply['error']})"
        raise ConfigError("zookeeper.connect", settings.connect, allowed)
    return ClusterIdentity(reply["broker_id"], reply["cluster_id"])


def _ask(config: BrokerConfig, known: ClusterIdentity) -> dict[str, Any]:
    from kbroker.metastore.cluster_identity import NotAsked, ask_zookeeper
    from kbroker.metastore.store import WrongCluster
    from kbroker.metastore.zookeeper_settings import settings_of

    try:
        identity = ask_zookeeper(settings_of(config), known, config["reserved.broker.max.id"])
    except (WrongCluster, NotAsked, ConfigError, OSError, ValueError, KeyError) as error:
        return {"error": str(error)}
    return identity._asdict()
