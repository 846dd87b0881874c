"""Reporters that ``metric.reporters`` names."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class FileReporter:
    """Writes what it is told into the file ``reporter.file``."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        self._path = Path(properties["reporter.file"])
        self._metrics: list[Any] = []

    def _write(self, what: str, metric: Any = None) -> None:
        row: dict[str, Any] = {"what": what}
        if metric is not None:
            row |= {"name": metric.name, "group": metric.group, "tags": metric.tags,
                    "domain": metric.domain, "attribute": metric.attribute,
                    "value": metric.value()}  # fmt: skip
        with self._path.open("a") as file:
            file.write(json.dumps(row) + "\n")

    def init(self, metrics: list[Any]) -> None:
        self._write("init")

    def metric_change(self, metric: Any) -> None:
        self._write("change", metric)

    def metric_removal(self, metric: Any) -> None:
        self._write("removal", metric)

    def close(self) -> None:
        self._write("close")


class HangingReporter(FileReporter):
    def init(self, metrics: list[Any]) -> None:
        time.sleep(3600)


class RaisingReporter(FileReporter):
    def metric_change(self, metric: Any) -> None:
        raise RuntimeError("no")


class Incomplete:
    def init(self, metrics: list[Any]) -> None: ...
