"""Finds the directories to work on: from the command line, or from a properties file."""

from __future__ import annotations

import os
from typing import NamedTuple

from kbroker.adopt.errors import MissingArgument
from kbroker.config.key import split_list
from kbroker.properties import PropertiesError, read_properties


class DirectoriesToAdopt(NamedTuple):
    """broker_id: -1 if the file does not set it."""

    log_dirs: list[str]
    broker_id: int
    metadata_log_dir: str | None


def source_of(
    config: str | None, log_dirs: str | None, metadata_log_dir: str | None = None
) -> DirectoriesToAdopt:
    """The settings of the command line, which override the file. Raises MissingArgument.

    The file may be one that Kafka used: only what names directories and the broker is looked at.
    """
    fields: dict[str, str] = {}
    if config is not None:
        try:
            fields = dict(read_properties(config))
        except OSError as error:
            raise MissingArgument(f"{config}: {os.strerror(error.errno or 0).lower()}") from error
        except PropertiesError as error:
            raise MissingArgument(f"{config}: {error}") from error
    text = log_dirs or fields.get("log.dirs") or fields.get("log.dir") or ""
    paths = list(dict.fromkeys(os.path.abspath(path) for path in split_list(text) if path))
    if not paths:
        where = f"{config} names no log.dirs" if config else "no directories given"
        raise MissingArgument(f"{where}; use --log-dirs DIR[,DIR...] (see --help)")
    number = fields.get("node.id", fields.get("broker.id", "-1")).strip()
    metadata = metadata_log_dir or fields.get("metadata.log.dir")
    return DirectoriesToAdopt(
        paths,
        int(number) if number.isdigit() else -1,
        os.path.abspath(metadata) if metadata else None,
    )
