"""The broker's settings in the metadata store, as far as a start needs them.

A listener's key store may load by a stored password only, and processes inherit what is loaded. So
a broker that can have such passwords looks into the store before it forks, as Kafka does.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from functools import partial
from typing import Any

from kbroker.cluster.settings import DEFAULT, effective_config
from kbroker.cluster.stored_passwords import SECRET
from kbroker.config.loader import BrokerConfig
from kbroker.metastore import paths
from kbroker.metastore.store import StoreFailed
from kbroker.supervisor.child_question import answer_of_child

logger = logging.getLogger(__name__)

_DEFAULT_NODE = f"{paths.BROKER_CONFIGS}/<default>"


def config_at_start(config: BrokerConfig, broker_id: int, log_dirs: list[str]) -> BrokerConfig:
    """The configuration with the stored settings; the same one where there can be no passwords, or
    where the store cannot be read.
    """
    secured = any(each.uses_tls or each.uses_sasl for each in config.listeners)
    if not secured or not config[SECRET]:
        return config
    stored = answer_of_child(partial(_read, config, broker_id, log_dirs))
    if "error" in stored:
        logger.warning("starting without the stored settings: %s", stored["error"])
        return config
    return effective_config(config, stored, broker_id)


def _read(config: BrokerConfig, broker_id: int, log_dirs: list[str]) -> dict[str, Any]:
    """In the child: the layers of the image, or the error."""
    nodes = {f"{paths.BROKER_CONFIGS}/{broker_id}": str(broker_id), _DEFAULT_NODE: DEFAULT}
    try:
        stored = _nodes(config, log_dirs, list(nodes))
        return {name: paths.decode_config(stored[path]) for path, name in nodes.items()
                if path in stored}  # fmt: skip
    except (StoreFailed, OSError, ValueError, KeyError, TypeError) as error:
        return {"error": str(error)}


def _nodes(config: BrokerConfig, log_dirs: list[str], wanted: Collection[str]) -> dict[str, bytes]:
    if not config.uses_zookeeper:
        from kbroker.metastore.store_files import nodes_of_store

        return nodes_of_store(log_dirs, wanted)
    from kbroker.metastore.cluster_identity import NotAsked, nodes_in_zookeeper
    from kbroker.metastore.zookeeper_settings import settings_of

    try:
        return nodes_in_zookeeper(settings_of(config), wanted)
    except NotAsked as error:
        raise StoreFailed(f"ZooKeeper: {error}") from error
