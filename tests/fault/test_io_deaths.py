"""The death of an io worker is invisible to idempotent and transactional producers."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from fault.io_death_exam import (
    PARTITIONS,
    SETTINGS,
    TOPIC,
    LibrdkafkaWriter,
    Writer,
    assert_unnoticed,
    go_writer,
    java_writer,
    killing,
)
from support.clients.wire_client import WireClient
from support.drivers.franz import go_missing
from support.drivers.java import java_missing
from support.running.grids import some_of

from kbroker.testing import Broker

pytestmark = [pytest.mark.fault, pytest.mark.timeout(900)]

KILLS = 5
KILLS_LONG = 40
JAVA = "4.3.0"

DISKS = ["page-cache", "synced"]
SIZES = [1, 2]
CLIENTS = pytest.mark.parametrize(
    "client",
    [
        "librdkafka",
        pytest.param(
            "java",
            marks=[
                pytest.mark.java,
                pytest.mark.skipif(bool(java_missing()), reason=java_missing()),
            ],
        ),
        pytest.param("go", marks=pytest.mark.skipif(bool(go_missing()), reason=go_missing())),
    ],
)


def writers_of(client: str, broker: Broker, transactional: bool) -> Sequence[Writer]:
    """Two of a client; with transactions, one of them commits offsets in them."""
    groups = ("", "its-group" if transactional else "")
    names = [f"{client}-{number}" for number in range(2)]
    if client == "librdkafka":
        return [
            LibrdkafkaWriter(broker, name, transactional=transactional, group=group)
            for name, group in zip(names, groups, strict=True)
        ]
    if client == "java":
        return [
            java_writer(broker, name, JAVA, transactional=transactional, group=group)
            for name, group in zip(names, groups, strict=True)
        ]
    return [
        go_writer(broker, name, transactional=transactional, group=group)
        for name, group in zip(names, groups, strict=True)
    ]


def run(
    client: str, io_workers: int, flush: str, kills: int, seed: int, transactional: bool = False
) -> None:
    config = {"flush_messages": "1"} if flush == "synced" else {}
    with Broker(SETTINGS, num_io_threads=io_workers) as broker:
        with WireClient((broker.host, broker.port)) as admin:
            admin.create_topic(TOPIC, PARTITIONS, **config)
        writers = writers_of(client, broker, transactional)
        with killing(broker, writers, kills, seed) as reports:
            assert_unnoticed(broker, reports)


@pytest.mark.parametrize(
    ("io_workers", "flush"),
    some_of(itertools.product(SIZES, DISKS), [(1, "synced")]),
)
def test_killed_io_worker_is_invisible_to_an_idempotent_producer(
    io_workers: int, flush: str, seed: int, scale: int
) -> None:
    run("librdkafka", io_workers, flush, KILLS * scale, seed)


@pytest.mark.parametrize("io_workers", some_of(SIZES, [2]))
def test_killed_io_worker_is_invisible_to_a_transactional_producer(
    io_workers: int, seed: int, scale: int
) -> None:
    run("librdkafka", io_workers, "page-cache", KILLS * scale, seed, transactional=True)


@pytest.mark.slow
@pytest.mark.parametrize("flush", DISKS)
@pytest.mark.parametrize("io_workers", SIZES)
@CLIENTS
def test_io_workers_killed_for_long_are_invisible_to_idempotent_producers(
    client: str, io_workers: int, flush: str, seed: int, scale: int
) -> None:
    run(client, io_workers, flush, KILLS_LONG * scale, seed)


@pytest.mark.slow
@pytest.mark.parametrize("flush", DISKS)
@pytest.mark.parametrize("io_workers", SIZES)
@CLIENTS
def test_io_workers_killed_for_long_are_invisible_to_transactional_producers(
    client: str, io_workers: int, flush: str, seed: int, scale: int
) -> None:
    run(client, io_workers, flush, KILLS_LONG * scale, seed, transactional=True)
