"""MBeans as JSON, as ``/jmx`` shows them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from typing import Any

from kbroker.exposition.http import HttpError, HttpRequest
from kbroker.exposition.mbeans import ATTRIBUTE, METER, Samples, attributes, object_name
from kbroker.exposition.meter_rates import MeterRates


def pattern_of(request: HttpRequest) -> str:
    """The names that a request wants. Raises HttpError."""
    if not request.query.keys() <= {"qry"}:
        raise HttpError(400, "only qry is allowed: a pattern of MBean names, with *")
    return request.query.get("qry", "*")


def jmx_pieces(samples_of: Iterable[Samples], rates: MeterRates, pattern: str) -> Iterator[str]:
    """The text, in pieces: the MBeans whose names match a pattern with ``*``."""
    yield '{"beans":[\n'
    separator = ""
    merged: dict[str, dict[str, Any]] = {}
    rates.look(time.monotonic())
    for bean, samples in samples_of:
        lines = []
        for tags, value in samples:
            name = object_name(bean, tags)
            # Of all meters, so that a pattern leaves no hole in their rates.
            late = rates.attributes(name, value) if bean.kind == METER else {}
            if not fnmatchcase(name, pattern):
                continue
            if bean.kind == ATTRIBUTE:
                merged.setdefault(name, {}).update(attributes(bean, value))
                continue
            lines.append(separator + json.dumps({"name": name} | attributes(bean, value) | late))
            separator = ",\n"
        yield "".join(lines)
    for name, row in merged.items():
        yield separator + json.dumps({"name": name} | row)
        separator = ",\n"
    yield "\n]}\n"
