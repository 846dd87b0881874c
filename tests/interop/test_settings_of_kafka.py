"""The broker's configs compared with the table printed by Kafka 2.7."""

from __future__ import annotations

import html
import re
import subprocess
from typing import NamedTuple

import pytest
from support.drivers.java import FIRST_TEST_TIMEOUT_S, java_missing

from kbroker.config.broker_keys import BROKER_KEYS
from kbroker.config.key import DOUBLE, LIST, TYPE_NAMES, Key
from perf.kafka_distribution import kafka_libraries

pytestmark = [
    pytest.mark.interop,
    pytest.mark.java,
    pytest.mark.timeout(FIRST_TEST_TIMEOUT_S),
    pytest.mark.skipif(bool(java_missing()), reason=java_missing()),
]

VERSION = "2.7.2"
# The only rule there that is a list of Kafka's versions; kbroker has its own.
VERSIONS = "[0.8.0, "


class Row(NamedTuple):
    """A row of Kafka's table: ``default`` is empty if a value is required."""

    name: str
    type: str
    default: str
    valid: str
    importance: str


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    path = f"{kafka_libraries(version=VERSION)}/*"
    command = ["java", "-cp", path, "kafka.server.KafkaConfig"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = []
    for part in printed.split("<h4>")[1:]:
        name = re.search('<a id="([^"]+)"', part)
        assert name is not None
        cells = [html.unescape(text) for text in re.findall("<td>(.*?)</td>", part, re.S)]
        found.append(Row(name[1], *cells[:4]))
    return found


def default_of(row: Row, key: Key) -> object:
    text = re.sub(r" \(.*\)$", "", row.default)  # 1073741824 (1 gibibyte)
    if text == "null":
        return None
    if text == '""':
        return () if key.type == LIST else ""
    return float(text) if key.type == DOUBLE else key.parse(text)


def rules_in(row: Row) -> dict[str, object]:
    if not row.valid or row.valid.startswith(VERSIONS):
        return {}
    low = re.fullmatch(r"\[(\d+),\.\.\.\]", row.valid)
    if low:
        return {"low": int(low[1])}
    return {"one_of": set(row.valid.strip("[]").split(", "))}


def rules_of(key: Key) -> dict[str, object]:
    found = {"low": key.low, "high": key.high, "one_of": key.one_of, "check": key.check}
    rules = {name: rule for name, rule in found.items() if rule is not None}
    return rules | ({"one_of": set(key.one_of)} if key.one_of is not None else {})


def test_every_row_exists_with_type_and_importance(rows: list[Row]) -> None:
    assert len(rows) == 216
    for row in rows:
        key = BROKER_KEYS[row.name]
        assert TYPE_NAMES[key.type] == row.type.upper(), key
        assert key.importance == row.importance.upper(), key


def test_defaults_and_ranges_are_kafkas_unless_the_key_says_otherwise(rows: list[Row]) -> None:
    for row in rows:
        key = BROKER_KEYS[row.name]
        if not key.deviation:
            assert key.default == default_of(row, key), key
            assert rules_of(key) == rules_in(row), key
        elif row.valid:
            # A deviation may add a rule, never drop one.
            assert rules_in(row).items() <= rules_of(key).items(), key


def test_default_deviations_are_the_known_ones(rows: list[Row]) -> None:
    different = set()
    for row in rows:
        key = BROKER_KEYS[row.name]
        if not row.default or key.default != default_of(row, key):
            different.add(key.name)

    assert different == {
        "log.flush.interval.ms",
        "max.connection.creation.rate",
        "max.connections",
        "max.connections.per.ip",
        "num.io.threads",
        "num.network.threads",
        "queued.max.request.bytes",
        "zookeeper.connect",
    }
