"""Finds the destination of a folder, by its sink or by its content."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from kbroker.spark.load.directory import TABLES, Directory

if TYPE_CHECKING:
    from kbroker.spark.load.writer import FileOptions


def sink_of(place: str | Path) -> str:
    """The sink for an existing folder."""
    sinks = (sink for sink, sign, _ in TABLES if Path(place, sign).exists())
    return next(sinks, Directory.name)


def folder(sink: str, place: str | Path, files: FileOptions | None = None) -> Directory:
    """Raises LoadError if the library for its tables is missing."""
    if sink == "delta":
        from kbroker.spark.load.delta import Delta

        return Delta(place, files)
    if sink == "iceberg":
        from kbroker.spark.load.iceberg import Iceberg

        return Iceberg(place, files)
    return Directory(place, files)
