"""``kafka-storage``: an id for a new cluster, and directories that belong to it.

A broker of kbroker begins in an empty directory by itself, so that this is needed only by those
who go by the documents of Kafka from 3.3 on, or choose the id of their cluster.
"""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from typing import TYPE_CHECKING

from kbroker.cli.kafka.metadata_versions import LATEST, level_of
from kbroker.cli.kafka.parsers import ParsedTool, ToolParser
from kbroker.cli.kafka.running import ToolFailed

if TYPE_CHECKING:
    from kbroker.config.loader import BrokerConfig

_LATER = "start the broker, and then use"


def _build() -> ToolParser:
    parser = ToolParser(prog="kafka-storage", description="Directories of a new broker.")
    commands = parser.add_subparsers(dest="command", required=True)
    info = commands.add_parser("info", help="print what the directories are of")
    form = commands.add_parser("format", help="let directories belong to a cluster")
    for command in (info, form):
        command.add_argument("--config", "-c", required=True, help="the file of the broker")
    form.add_argument("--cluster-id", "-t", required=True, help="the id of the cluster")
    form.add_argument(
        "--ignore-formatted", "-g", action="store_true", help="leave out those that have an id"
    )
    form.add_argument("--release-version", "-r", help=f"a metadata version: {LATEST}")
    form.add_argument("--standalone", "-s", action="store_true", help="has no effect: it is one")
    for words, text in (
        (("--add-scram", "-S"), f"refused: {_LATER} kafka-configs"),
        (("--feature", "-f"), f"refused: {_LATER} kafka-features"),
        (("--initial-controllers", "-I"), "refused: a broker is its own controller"),
    ):
        form.add_argument(*words, action="append", help=text)
    form.add_argument("--no-initial-controllers", "-N", action="store_true", help="refused as well")
    commands.add_parser("random-uuid", help="print an id for a new cluster")
    return parser


def _run(given: Namespace) -> int:
    if given.command == "random-uuid":
        from kbroker.uuids import new_uuid, uuid_text

        print(uuid_text(new_uuid()))
        return 0
    config = _config(given.config)
    return _info(config) if given.command == "info" else _format(given, config)


def _config(path: str) -> BrokerConfig:
    """Raises ToolFailed."""
    from kbroker.config.loader import PropertiesError, load
    from kbroker.errors import ConfigError

    try:
        return load(path)[0]
    except OSError as error:
        raise ToolFailed(f"{path}: {error.strerror}") from error
    except (PropertiesError, ConfigError) as error:
        raise ToolFailed(f"{path}: {error}") from error


def _metadata(path: str) -> dict[str, str]:
    """What the directory is of. Raises ToolFailed."""
    from kbroker.errors import ConfigError
    from kbroker.supervisor.data_dirs import read_meta

    try:
        return read_meta(path)
    except ConfigError as error:
        raise ToolFailed(str(error)) from error


def _info(config: BrokerConfig) -> int:
    """1 if something is wrong with a directory."""
    problems, directories = [], []
    metadata: dict[str, str] = {}
    for path in config.log_dirs:
        if not os.path.isdir(path):
            is_there = os.path.exists(path)
            problems.append(f"{path} {'is not a directory' if is_there else 'does not exist'}")
            continue
        directories.append(path)
        own = _metadata(path)
        if not own:
            problems.append(f"{path} is not formatted.")
        metadata = metadata or own
    if directories:
        print(f"Found log director{'y' if len(directories) == 1 else 'ies'}:")
        print("".join(f"  {path}\n" for path in directories))
    if metadata:
        pairs = ", ".join(f"{key}={text}" for key, text in sorted(metadata.items()))
        print(f"Found metadata: {{{pairs}}}\n")
    if problems:
        print(f"Found problem{'' if len(problems) == 1 else 's'}:")
        print("".join(f"  {text}\n" for text in problems))
    return 1 if problems else 0


def _format(given: Namespace, config: BrokerConfig) -> int:
    from kbroker.supervisor.data_dirs import format_directory
    from kbroker.uuids import parse_uuid

    _refuse(given, config)
    try:
        parse_uuid(given.cluster_id)
    except ValueError:
        raise ToolFailed(
            f"Cluster ID string {given.cluster_id} does not appear to be a valid UUID: take one of "
            "kafka-storage random-uuid"
        ) from None
    new = []
    for path in config.log_dirs:
        own = _metadata(path)
        if not own and not _holds_store(path):
            new.append(path)
            continue
        if own.get("cluster.id", given.cluster_id) != given.cluster_id:
            raise ToolFailed(
                f"Invalid cluster.id in: {path}/meta.properties. Expected {given.cluster_id}, but "
                f"read {own['cluster.id']}"
            )
        if not given.ignore_formatted:
            raise ToolFailed(
                f"Log directory {path} is already formatted. Use --ignore-formatted to ignore this "
                "directory and format the others."
            )
    if not new:
        print("All of the log directories are already formatted.")
    for path in new:
        kind = "metadata" if path == config.log_dirs[0] else "data"
        print(f"Formatting {kind} directory {path} with metadata.version {LATEST}.")
        sys.stdout.flush()
        try:
            format_directory(path, config.broker_id, given.cluster_id)
        except OSError as error:
            raise ToolFailed(f"{path}: {error.strerror}") from error
    return 0


def _holds_store(path: str) -> bool:
    from kbroker.metastore.store_files import holds_store

    return os.path.isdir(path) and holds_store(path)


def _refuse(given: Namespace, config: BrokerConfig) -> None:
    """Raises ToolFailed for what a new directory of kbroker cannot be."""
    if config.uses_zookeeper:
        raise ToolFailed(
            "the file has zookeeper.connect: the id of the cluster is in ZooKeeper, where the "
            "first broker creates it; kafka-storage is not needed"
        )
    if given.release_version is not None:
        try:
            level = level_of(given.release_version)
        except ValueError:
            level = -1
        if level != level_of(LATEST):
            raise ToolFailed(
                f"--release-version {given.release_version}: a single broker has {LATEST}"
            )
    if given.add_scram:
        raise ToolFailed(f"--add-scram: {_LATER} kafka-configs --entity-type users")
    if given.feature:
        raise ToolFailed("--feature: a single broker has all of its features")
    if given.initial_controllers or given.no_initial_controllers:
        raise ToolFailed(
            "a broker is its own controller: leave out --initial-controllers and "
            "--no-initial-controllers; clusters of several brokers use ZooKeeper (docs/cluster.md)"
        )


TOOL = ParsedTool(_build, _run)
