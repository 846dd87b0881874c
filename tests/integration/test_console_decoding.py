"""Keys and values decoded by the schemas of a registry, which may be slow, or lie."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from support.running.grids import some_of
from support.surfaces.console_calls import got
from support.surfaces.schema_registry import FakeRegistry, schema_registry

from kbroker.client import KafkaProducer
from kbroker.console.decoding import Decoding
from kbroker.schemas.framing import Framed
from kbroker.testing import Broker, wait_until

pytestmark = pytest.mark.integration

# A list that is as deep as its value has bytes: each level is a call in the C of a decoder.
ENDLESS = {
    "type": "record",
    "name": "Node",
    "fields": [{"name": "next", "type": ["null", "Node"]}],
}

POINT = {
    "type": "record",
    "name": "Point",
    "fields": [{"name": "x", "type": "int"}, {"name": "y", "type": "int"}],
}


@contextmanager
def registry_of_schemas() -> Iterator[FakeRegistry]:
    with schema_registry() as started:
        started.schemas[1] = {"schema": '"string"'}
        started.schemas[2] = {"schema": json.dumps({"type": "array", "items": "null"})}
        started.schemas[3] = {"schema": json.dumps(ENDLESS)}
        started.schemas[4] = {"schema": "{}", "schemaType": "JSON"}
        started.schemas[7] = {"schema": json.dumps(POINT)}
        yield started


@contextmanager
def broker_of(registry: FakeRegistry) -> Iterator[Broker]:
    settings = {"console.schema.registry.url": registry.url}
    with Broker(settings) as started:
        got(started, "/topics", {"name": "schemas", "partitions": 1})
        yield started


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    with registry_of_schemas() as started:
        yield started


@pytest.fixture
def broker(registry: FakeRegistry) -> Iterator[Broker]:
    with broker_of(registry) as started:
        yield started


@pytest.fixture(scope="module")
def shared() -> Iterator[tuple[Broker, FakeRegistry]]:
    """For tests after which registry and decoder are as before."""
    with registry_of_schemas() as registry, broker_of(registry) as broker:
        yield broker, registry


@pytest.fixture
def well(shared: tuple[Broker, FakeRegistry]) -> Iterator[tuple[Broker, FakeRegistry]]:
    yield shared
    broker, _ = shared
    got(broker, "/topics/schemas", method="DELETE")
    got(broker, "/topics", {"name": "schemas", "partitions": 1})


def write(broker: Broker, *values: bytes) -> None:
    with KafkaProducer(bootstrap_servers=broker.bootstrap) as producer:
        for value in values:
            producer.send("schemas", value)


def named(schema: int, payload: bytes) -> bytes:
    return b"\0" + schema.to_bytes(4, "big") + payload


def values(broker: Broker) -> list[dict]:
    found = got(broker, "/topics/schemas/messages?from=earliest")["records"]
    return [row["value"] for row in found]


def values_when_decoded(broker: Broker, harmful: int = 0) -> list[dict]:
    """When the first one is, and so many are known to be harmful: a busy machine takes more than
    one page to begin with it, or again.
    """
    found: list[dict] = []

    def is_decoded() -> bool:
        found[:] = values(broker)
        errors = [row["decoded"].get("error", "") for row in found if "decoded" in row]
        known = sum("too much" in error for error in errors)
        return "text" in found[0]["decoded"] and known == harmful

    wait_until(is_decoded, 90)
    return found


def test_values_are_decoded_by_the_schemas_that_they_name(
    well: tuple[Broker, FakeRegistry],
) -> None:
    broker, registry = well
    write(broker, named(1, b"\x04hi"), b"plain", named(4, b'{"a":1}'), named(9, b"x"), b"\0")

    first, plain, third, unknown, short = values_when_decoded(broker)
    asked = len(registry.requests)
    values(broker)

    assert first["decoded"] == {"schema": 1, "format": "AVRO", "text": '"hi"', "cut": False}
    assert third["decoded"]["text"] == '{"a":1}'
    assert "no schema 9" in unknown["decoded"]["error"]
    assert "decoded" not in plain and "decoded" not in short
    # What was fetched is kept, and what is not there, too.
    assert len(registry.requests) == asked


def test_decoded_values_are_searched(well: tuple[Broker, FakeRegistry]) -> None:
    """Each is found on its own, and the next page begins behind it."""
    broker, _ = well
    write(broker, named(1, b"\x04hi"), *(named(7, bytes((2 * n, 2))) for n in (21, 20, 21)))
    values_when_decoded(broker)
    path = "/topics/schemas/messages?from=earliest&search=%22x%22%3A%2021&limit=1"

    first = got(broker, path)
    second = got(broker, f"{path}&positions={first['next'][0]}")
    third = got(broker, f"{path}&positions={second['next'][0]}")
    everything = got(broker, path.replace("limit=1", "limit=9"))

    assert [row["offset"] for row in first["records"] + second["records"]] == [1, 3]
    assert (first["scanned"], first["complete"], first["not_decoded"]) == (2, False, 0)
    assert third["records"] == [] and third["complete"]
    assert [row["offset"] for row in everything["records"]] == [1, 3]


# A value of two hundred thousand levels, and a list of 2**40 elements that take no bytes.
DEEP = named(3, b"\x02" * 200_000)
MANY = named(2, b"\x80\x80\x80\x80\x80\x80\x02\x00")


@pytest.mark.parametrize("harmful", some_of([[DEEP], [DEEP, MANY]], [[DEEP]]), ids=["one", "two"])
def test_value_that_ends_its_decoder_costs_its_decoding_alone(
    well: tuple[Broker, FakeRegistry], harmful: list[bytes]
) -> None:
    broker, _ = well
    write(broker, named(1, b"\x04hi"), *harmful)

    found = values_when_decoded(broker, harmful=len(harmful))

    assert found[0]["decoded"]["text"] == '"hi"'
    assert all("error" in row["decoded"] for row in found[1:])
    assert [row["size"] for row in found[1:]] == [len(value) for value in harmful]
    assert got(broker, "/overview")["health"]["status"] == "ok"


@pytest.mark.parametrize(
    "lie",
    [b"", b"[]", b"\xff", b'{"schema": 5}', b'{"schema": "nothing"}', b"[" * 100_000,
     b'{"schema": "\\"string\\"", "schemaType": "XML"}', b'{"schema":"' + b" " * (3 << 20) + b'"}'],
    ids=lambda lie: repr(lie[:40]),
)  # fmt: skip
@pytest.mark.slow
def test_registry_that_lies_costs_the_decoding_alone(
    broker: Broker, registry: FakeRegistry, lie: bytes
) -> None:
    registry.raw = lie
    write(broker, named(1, b"\x04hi"))
    found: list[dict] = []

    def has_asked() -> bool:
        found[:] = values(broker)
        return bool(registry.requests) and "read again" not in found[0]["decoded"].get("error", "")

    wait_until(has_asked, 90)
    (value,) = found

    assert value["text"] == "\0\0\0\0\x01\x04hi" and value["size"] == 8
    assert set(value["decoded"]) == {"schema", "error"}
    assert got(broker, "/overview")["health"]["status"] == "ok"


def test_registry_that_is_silent_is_waited_for_once(broker: Broker, registry: FakeRegistry) -> None:
    write(broker, named(1, b"\x04hi"))
    (value,) = values_when_decoded(broker)
    registry.silent = True
    write(broker, named(5, b"x"))

    known, waited = values(broker)
    asked = len(registry.requests)
    began = time.monotonic()
    again = values(broker)

    assert value["decoded"]["text"] == known["decoded"]["text"] == '"hi"'
    assert "not answer" in waited["decoded"]["error"]
    assert "not answer" in again[1]["decoded"]["error"]
    assert len(registry.requests) == asked, f"after {time.monotonic() - began:.1f} s"


def test_decoder_ends_with_its_broker(broker: Broker, registry: FakeRegistry) -> None:
    """As the fixture of all tests sees, which finds processes that are left."""
    write(broker, named(1, b"\x04hi"))

    (value,) = values_when_decoded(broker)

    assert value["decoded"]["text"] == '"hi"'


@pytest.mark.own_process
def test_decoder_is_heard_by_a_process_with_many_files(registry: FakeRegistry) -> None:
    """``select.select`` raises ValueError for a descriptor above 1,023."""
    for _ in range(1_100):
        os.open(os.devnull, os.O_RDONLY)
    decoding = Decoding({"url": registry.url})

    wait_until(lambda: decoding.decode([Framed(1, b"\x04hi")])[0].get("text") == '"hi"', 90)
