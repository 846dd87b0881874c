"""Which ZooKeeper a broker of ``kafka-server-start`` uses if its settings name none: the one that
``zookeeper-server-start`` has started on this machine, as in the first steps of Kafka's documents.

Only directories that are new, or that a broker with ZooKeeper has written, are used with it: those
with a metadata store belong to a single broker, and never change by which processes run.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from kbroker.cli.kafka.running import ToolFailed
from kbroker.cli.kafka.server_stop import processes
from kbroker.properties import PropertiesError, read_properties

if TYPE_CHECKING:
    from kbroker.config.loader import BrokerConfig

MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
SCRIPT_NAME = "zookeeper-server-start"
_META_NAME = "meta.properties"
# A cluster to try things with begins with one broker, which has all replicas of internal topics.
_FIRST_STEPS = {
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
}


class Choice(NamedTuple):
    """overrides: settings that are added. note: a line for stderr, or None."""

    overrides: dict[str, str]
    note: str | None = None


def choose(config: BrokerConfig, running: Sequence[str]) -> Choice:
    """config: what the file and the options say. running: addresses of ZooKeepers.

    Raises ToolFailed if the directories are of a broker with ZooKeeper and none runs, or several
    run.
    """
    from kbroker.metastore.store_files import places_of_store

    if config.is_set("zookeeper.connect") or config.is_set("process.roles"):
        return Choice({})
    places = config.log_dirs
    if own := next(iter(places_of_store(places)), None):
        if not running:
            return Choice({})
        return Choice(
            {},
            f"{own} holds the metadata of a single broker, so ZooKeeper at {running[0]} is not "
            "used: for that, give another directory with --override log.dirs=DIR",
        )
    if len(running) > 1:
        raise ToolFailed(
            f"ZooKeepers at {', '.join(running)} run here: set zookeeper.connect to one"
        )
    if running:
        settings = {"zookeeper.connect": running[0]}
        settings |= {name: text for name, text in _FIRST_STEPS.items() if not config.is_set(name)}
        shown = ", ".join(f"{name}={text}" for name, text in settings.items())
        return Choice(settings, f"using the ZooKeeper that {SCRIPT_NAME} has started: {shown}")
    if written := next((each for each in places if _is_of_a_cluster(each)), None):
        raise ToolFailed(
            f"{written} was written by a broker with ZooKeeper, and none runs here: start it with "
            f"{SCRIPT_NAME}, or set zookeeper.connect. To make the directory that of a "
            "single broker, run kbroker-adopt"
        )
    return Choice({})


def running_zookeepers(own_jars: str, root: str = "/proc") -> list[str]:
    """``localhost:port`` of each ZooKeeper that the script has started here, also of one that it
    is about to start. own_jars: the class path of this installation.
    """
    addresses: dict[str, None] = {}
    for pid, line in processes(root):
        words = line.split(" ")
        names = {os.path.basename(word).removesuffix(".sh") for word in words[:-1]}
        starting = SCRIPT_NAME in names
        if not starting and (MAIN not in words or own_jars not in words):
            continue
        try:
            home = os.readlink(f"{root}/{pid}/cwd")
            settings = dict(read_properties(os.path.join(home, words[-1]), regular_only=True))
        except (OSError, PropertiesError):
            continue
        port = settings.get("clientPort", "")
        if port.isdecimal() and port != "0":
            addresses[f"localhost:{port}"] = None
    return list(addresses)


def _is_of_a_cluster(place: str) -> bool:
    """Whether a broker has written the directory that kept its metadata in ZooKeeper."""
    try:
        meta = dict(read_properties(os.path.join(place, _META_NAME), regular_only=True))
    except (OSError, PropertiesError):
        return False
    return meta.get("version") == "0"
