"""What Kafka's pages on monitoring name is there, or docs/metrics.md says why it is not."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Any

import pytest
from support.surfaces.kafka_monitoring import names

from kbroker.exposition.absent_mbeans import ABSENT
from kbroker.exposition.mbeans import Bean
from kbroker.workers import exporter

pytestmark = pytest.mark.unit


def beans(value: Any) -> Iterator[Bean]:
    """Those in the tables of a module."""
    if isinstance(value, Bean):
        yield value
    elif isinstance(value, dict):
        yield from beans(list(value.items()))
    elif isinstance(value, tuple | list):
        for each in value:
            yield from beans(each)


@pytest.fixture(scope="module")
def there() -> set[str]:
    modules = [
        importlib.import_module(f"{exporter.__name__}.{each.name}")
        for each in pkgutil.iter_modules(exporter.__path__)
    ]
    return {
        f"{bean.domain}:type={bean.type},name={bean.name}"
        for module in modules
        for bean in beans(list(vars(module).values()))
    }


@pytest.mark.parametrize("name", sorted(names()))
def test_name_is_there_or_has_a_reason(there: set[str], name: str) -> None:
    reasons = [row for row in ABSENT if any(fnmatchcase(name, each) for each in row.names)]

    assert (name in there) + len(reasons) == 1, reasons


def test_every_reason_is_for_something() -> None:
    patterns = [pattern for row in ABSENT for pattern in row.names]

    assert [each for each in patterns if not any(fnmatchcase(n, each) for n in names())] == []
