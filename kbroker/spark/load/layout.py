"""The paths of a load below its destination, and the hour or day that a record belongs to.

::

    data/topic=T/dt=2026-11-21/hr=06/T-0-START-END-ATTEMPT.parquet
    _kbroker/commits/000000000001.json     _kbroker/checkpoint/     _kbroker/{lock,published}
    _kbroker/staging/RUN/...               _kbroker/errors/T-0-START-END-ATTEMPT.parquet

Readers of tables take ``name=value`` folders as columns and skip names that begin with ``_``.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import Literal

DATA = "data"
PRIVATE = "_kbroker"
STAGING = f"{PRIVATE}/staging"
ERRORS = f"{PRIVATE}/errors"
LOCK = f"{PRIVATE}/lock"
PUBLISHED = f"{PRIVATE}/published"
# Of an Iceberg table.
ICEBERG_METADATA = "metadata"

# BOUND: file names have 255 bytes, topic names up to 249 ASCII characters. A longer topic is
# truncated in file names; the folder has the whole name.
TOPIC_MAX = 150
# Table readers treat files that begin with one of these as hidden; topic names may.
_HIDING = "_."

# In the name of a file: partition, start and end.
_NUMBERS = re.compile(r"-(\d+)-(\d{20})-(\d{20})-[^/]*\.parquet$")

PartitionBy = Literal["hour", "day", "none"]
# The value that table readers take for "no value": records without a timestamp from the producer,
# or with one outside 1970 to 9999. Spark would read all days as strings because of one outside, and
# microseconds given as milliseconds are hours apart, each with its own folder.
NO_TIME = "__HIVE_DEFAULT_PARTITION__"
TIME_END_US = 253_402_300_800_000_000
HOUR_US = 3_600_000_000
UNIT_US = {"hour": HOUR_US, "day": 24 * HOUR_US}
# The part of the folder names that table readers see.
FOLDER_COLUMNS: dict[PartitionBy, tuple[str, ...]] = {
    "none": ("topic",),
    "day": ("topic", "dt"),
    "hour": ("topic", "dt", "hr"),
}


def folder(topic: str, partition_by: PartitionBy, unit: int | None) -> str:
    """The folder of a topic's records of one hour or day.

    unit: hours or days since 1970 in UTC; None for records without a time.
    """
    path = f"{DATA}/topic={topic}"
    if partition_by == "none":
        return path
    if unit is None:
        hour = f"/hr={NO_TIME}" if partition_by == "hour" else ""
        return f"{path}/dt={NO_TIME}{hour}"
    at = time.gmtime(unit * UNIT_US[partition_by] // 1_000_000)
    day = f"{at.tm_year:04d}-{at.tm_mon:02d}-{at.tm_mday:02d}"
    return f"{path}/dt={day}" + (f"/hr={at.tm_hour:02d}" if partition_by == "hour" else "")


def partitioned_by(columns: Sequence[str]) -> str:
    """The ``--partition-by`` with so many folder columns; ``?`` if there is none."""
    partitionings = (by for by, made in FOLDER_COLUMNS.items() if len(made) == len(columns))
    return next(partitionings, "?")


def file_name(topic: str, partition: int, start: int, end: int, attempt: str) -> str:
    """The name of a data file. ``attempt`` is unique for every attempt to write the range."""
    shown = topic.lstrip(_HIDING) or "topic"
    return f"{shown[:TOPIC_MAX]}-{partition}-{start:020d}-{end:020d}-{attempt}.parquet"


def numbers_in(name: str) -> tuple[int, int, int] | None:
    """Partition, start and end in the name of a file; None if it does not belong to a load."""
    match = _NUMBERS.search(name)
    return (int(match[1]), int(match[2]), int(match[3])) if match is not None else None


def partition_values(path: str) -> dict[str, str | None]:
    """The ``name=value`` folders of a file's path; a missing time is None."""
    values: dict[str, str | None] = {}
    for part in path.split("/")[1:-1]:
        name, _, value = part.partition("=")
        values[name] = None if value == NO_TIME else value
    return values
