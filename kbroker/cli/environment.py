"""Settings in the environment, by the names that the container image apache/kafka has for them.

``KAFKA_`` and the name of a setting in capitals: ``_`` stands for ``.``, ``__`` for ``_`` and
``___`` for ``-``, as in ``KAFKA_NUM_PARTITIONS`` and ``KAFKA_LISTENERS``. Variables with which that
image sets up Java are left out. Source: KIP-975.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping

from kbroker.cli.arguments import Usage

PREFIX = "KAFKA_"
# The id of a new cluster; the image formats its directories with it.
CLUSTER_ID = "CLUSTER_ID"
# Of Java and its logging, and of the image itself.
NO_SETTINGS = re.compile(
    r"KAFKA_(VERSION|OPTS|HEAP_OPTS|GC_LOG_OPTS|GC_LOG_ENABLED|JVM_PERFORMANCE_OPTS|CLUSTER_ID"
    r"|JMX_\w+|LOG4J\w*|TOOLS_LOG4J\w*|LOG_DIR|HOME|DATA_DIR|MODE|DEBUG|CLASSPATH|SCALA_VERSION)"
)
# What the image expects below its folder for files that are mounted.
MOUNTED_FILE = "/mnt/shared/config/server.properties"


def settings_of(environment: Mapping[str, str]) -> dict[str, str]:
    """The settings that an environment names; an empty variable is none."""
    settings = {}
    for name, text in sorted(environment.items()):
        if name.startswith(PREFIX) and text and not NO_SETTINGS.fullmatch(name):
            settings[setting_name(name)] = text
    return settings


def setting_name(variable: str) -> str:
    """``KAFKA_LISTENER_NAME_BROKER_SSL_KEYSTORE___TYPE`` becomes
    ``listener.name.broker.ssl.keystore-type``.
    """
    signs = {1: ".", 2: "_", 3: "-"}
    name = variable.removeprefix(PREFIX).lower()
    return re.sub("_{1,3}", lambda run: signs[len(run[0])], name)


def arguments(environment: Mapping[str, str], data: str | None) -> list[str]:
    """Those of ``kbroker-supervisor``: the mounted file, then what the environment says.

    data: the directory if neither names one. Without listeners, clients of this machine reach
    port 9092, as with that image.
    """
    words = ["--config", MOUNTED_FILE] if os.path.exists(MOUNTED_FILE) else []
    settings = settings_of(environment)
    if not words:
        if not settings.keys() & {"log.dir", "log.dirs"} and data is not None:
            settings["log.dirs"] = data
        if "listeners" not in settings:
            settings["listeners"] = "PLAINTEXT://:9092"
            settings.setdefault("advertised.listeners", "PLAINTEXT://localhost:9092")
    for name, text in settings.items():
        words += ["--override", f"{name}={text}"]
    return words


def ready_lines(settings: Mapping[str, str]) -> Iterator[str]:
    """What whoever starts a container of Kafka waits for in its output: testcontainers and
    scripts look for one of these.
    """
    number = settings.get("broker.id", settings.get("node.id", "0"))
    yield f"[KafkaServer id={number}] started"
    yield f"[BrokerServer id={number}] Transitioning from RECOVERY to RUNNING"
    yield f"[KafkaRaftServer nodeId={number}] Kafka Server started"


def give_cluster_id(environment: Mapping[str, str], words: list[str]) -> None:
    """Let new data directories belong to the cluster of ``CLUSTER_ID``, as the image does.

    words: those of ``arguments``. What is wrong with them, or with a directory, the broker says.
    Raises Usage.
    """
    wanted = environment.get(CLUSTER_ID, "")
    if not wanted:
        return
    from kbroker.config.loader import PropertiesError, load, parse_overrides
    from kbroker.errors import ConfigError
    from kbroker.metastore.store_files import holds_store
    from kbroker.supervisor.data_dirs import format_directory, read_meta
    from kbroker.uuids import parse_uuid

    try:
        parse_uuid(wanted)
    except ValueError:
        raise Usage(
            f"{CLUSTER_ID}={wanted} is no cluster's id: kafka-storage random-uuid makes one"
        ) from None
    file = words[1] if words[0] == "--config" else None
    pairs = [text for text in words if "=" in text]
    try:
        config, _ = load(file, parse_overrides(pairs))
        for path in [] if config.uses_zookeeper else config.log_dirs:
            if not read_meta(path) and not (os.path.isdir(path) and holds_store(path)):
                format_directory(path, -1, wanted)
    except (ConfigError, PropertiesError, OSError):
        return
