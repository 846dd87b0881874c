"""A start without one of the previous data directories: no partition in it starts empty."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.clients.wire_client import EARLIEST, LATEST, WireClient, batch_of

from kbroker.errors import ErrorCode
from kbroker.testing import Broker
from kbroker.testing.broker import BrokerFailed

pytestmark = pytest.mark.integration

PARTITIONS = range(4)


@pytest.fixture
def dirs(tmp_path: Path) -> list[Path]:
    return [tmp_path / "a", tmp_path / "b"]


@pytest.fixture
def broker(dirs: list[Path]) -> Iterator[Broker]:
    """A stopped broker; topic t has a record in each partition, two partitions in each
    directory.
    """
    with Broker({"log.dirs": ",".join(map(str, dirs))}) as made:
        with WireClient((made.host, made.port)) as client:
            client.create_topic("t", len(PARTITIONS))
            answers = client.produce("t", {number: batch_of([b"x"]) for number in PARTITIONS})
            assert not any(response.error_code for response in answers.values())
        made.stop()
        yield made


def in_dir(directory: Path) -> set[int]:
    return {int(path.name[2:]) for path in directory.glob("t-*")}


def test_emptied_directory_is_offline_and_nothing_of_it_begins_again(
    broker: Broker, dirs: list[Path], tmp_path: Path
) -> None:
    """An unmounted disk: if its logs started at 0 again, nobody would notice the missing
    records.
    """
    away = in_dir(dirs[1])
    disk = dirs[1].rename(tmp_path / "disk")
    dirs[1].mkdir()

    broker.start()
    with WireClient((broker.host, broker.port)) as client:
        client.await_open("t", PARTITIONS)
        answers = client.produce("t", {number: batch_of([b"y"]) for number in PARTITIONS})
        client.create_topic("new", 2)
        client.produce("new", {number: batch_of([b"z"]) for number in range(2)})
    broker.stop()

    assert {number for number in PARTITIONS if answers[number].error_code} == away
    assert {answers[number].error_code for number in away} == {ErrorCode.KAFKA_STORAGE_ERROR}
    assert [path.name for path in dirs[1].iterdir()] == [".lock"]
    dirs[1].joinpath(".lock").unlink()
    dirs[1].rmdir()
    disk.rename(dirs[1])
    broker.start()
    with WireClient((broker.host, broker.port)) as client:
        for number in PARTITIONS:
            assert client.offset("t", number, EARLIEST) == 0
            assert client.offset("t", number, LATEST) == (1 if number in away else 2)


def test_directory_taken_out_is_refused_unless_its_partitions_are_elsewhere(
    broker: Broker, dirs: list[Path]
) -> None:
    broker.config["log.dirs"] = str(dirs[0])

    with pytest.raises(BrokerFailed, match=f"(?s)exited with 2.*{dirs[1]} as well"):
        broker.start()

    for number in in_dir(dirs[1]):
        dirs[1].joinpath(f"t-{number}").rename(dirs[0] / f"t-{number}")
    broker.start()
    with WireClient((broker.host, broker.port)) as client:
        assert [client.offset("t", number, LATEST) for number in PARTITIONS] == [1] * 4
