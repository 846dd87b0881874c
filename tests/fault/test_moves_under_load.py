"""Replicas move between log directories under load, and processes or the target directory die."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from fault.disks import MIB, failing_disk
from support.clients.log_dir_moves import alter, move_all, replicas, set_rate
from support.clients.wire_client import WireClient
from support.faults.history import History
from support.faults.load import TOPIC, Load, assert_consistent
from support.running.pace import hold

from kbroker.errors import ErrorCode
from kbroker.storage.moves.replica_move import SWITCH_BYTES
from kbroker.testing import Broker, wait_until

pytestmark = [pytest.mark.fault, pytest.mark.timeout(180)]

PARTITIONS = 4
KILLS = 4
RATE = 2 * MIB
NO_LIMIT = 1 << 50
# Less would be copied at once, when the move ends.
MOVED_MIN = 2 * SWITCH_BYTES
SETTINGS = {
    "log.segment.bytes": 200_000,
    "log.flush.interval.ms": 200,
    "log.segment.delete.delay.ms": 100,
}


def started_load(broker: Broker, history: History, seed: int) -> Load:
    with WireClient((broker.host, broker.port)) as client:
        client.create_topic(TOPIC, PARTITIONS)
    load = Load(broker, history, PARTITIONS, seed)
    for partition in range(PARTITIONS):
        load.raw_writer(partition)
        load.raw_writer(partition, idempotent=True)
    load.raw_reader(0)
    load.librdkafka_writer("rd-idempotent", enable_idempotence=True)
    load.librdkafka_reader("rd-reader")
    return load


def limit(broker: Broker, rate: int) -> None:
    """Set the throttle; a broker that has just been killed may need a retry."""

    def done() -> bool:
        with connected(broker) as client:
            set_rate(client, rate)
            return True

    wait_until(done, 20, "the throttle is set")


def connected(broker: Broker) -> WireClient:
    return WireClient((broker.host, broker.port))


def start_moves(broker: Broker, dirs: list[str]) -> dict[tuple[str, int], str]:
    """Send every replica to the other directory, once that is possible for all."""

    def begun() -> dict[tuple[str, int], str]:
        with connected(broker) as client:
            wanted = move_all(client, dirs)
            assert len([key for key in wanted if key[0] == TOPIC]) == PARTITIONS
            return wanted

    return wait_until(begun, 20, "the moves have begun")


def all_moved(broker: Broker, wanted: dict[tuple[str, int], str]) -> None:
    """Run the moves at full speed, and wait until they have completed."""
    limit(broker, NO_LIMIT)

    def moved() -> bool:
        with connected(broker) as client:
            assert not replicas(client, future=True)
            places = replicas(client)
            # A starting io worker does not know its replicas yet.
            assert {key: places.get(key) for key in wanted} == wanted
            return True

    wait_until(moved, 60, "every replica is where it was sent")


@pytest.mark.slow
@pytest.mark.parametrize("whole_tree", [False, True])
def test_kills_in_mid_move_lose_nothing_and_the_moves_end(
    tmp_path: Path, seed: int, scale: int, whole_tree: bool
) -> None:
    rng = random.Random(seed)
    history = History()
    dirs = [str(tmp_path / name) for name in ("a", "b")]
    kills = (KILLS // 2 if whole_tree else KILLS) * scale
    with Broker({**SETTINGS, "log.dirs": ",".join(dirs)}, directory=tmp_path / "x") as broker:
        with started_load(broker, history, seed) as load:
            hold(1)
            for _ in range(kills):
                limit(broker, RATE)
                wanted = start_moves(broker, dirs)
                hold(rng.random())
                if whole_tree:
                    broker.kill_all()
                    broker.start()
                else:
                    broker.kill("io", rng.randrange(2))
                all_moved(broker, wanted)
            load.stop()
        assert_consistent(broker, history, PARTITIONS)
        assert broker.stop() == 0
    for path in dirs:
        assert not list(Path(path).glob("*-future"))
        assert not list(Path(path).glob("*/moved.txt"))


@pytest.mark.slow
def test_target_that_fails_in_mid_move_takes_nothing_along(tmp_path: Path, seed: int) -> None:
    history = History()
    with failing_disk(tmp_path / "bad") as disk:
        good, bad = str(tmp_path / "good"), str(disk.path / "data")
        settings = {**SETTINGS, "log.dirs": f"{good},{bad}"}
        with Broker(settings, directory=tmp_path / "x") as broker:
            with connected(broker) as client:
                # All of them start in the good directory, whatever the order.
                asked = {good: {TOPIC: list(range(PARTITIONS))}}
                assert set(alter(client, asked).values()) == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
                set_rate(client, RATE // 8)
            with started_load(broker, history, seed) as load:
                wait_until(
                    lambda: all(size_of(good, number) > MOVED_MIN for number in range(2)),
                    60,
                    "enough is there to be moved",
                )
                with connected(broker) as client:
                    asked = {bad: {TOPIC: list(range(PARTITIONS))}}
                    assert set(alter(client, asked).values()) == {0}
                    wait_until(
                        lambda: {size_in(bad, number) > 0 for number in range(2)} == {True},
                        20,
                        "the moves are under way",
                    )
                disk.fail()
                wait_until(lambda: f"{bad} failed" in broker.log_text, 20, "the disk is noticed")
                hold(0.5)
                load.stop()
            assert_consistent(broker, history, PARTITIONS)
            with connected(broker) as client:
                places = replicas(client)
                assert {places[TOPIC, number] for number in range(PARTITIONS)} == {good}
                asked = {bad: {TOPIC: [0]}}
                assert alter(client, asked) == {(TOPIC, 0): ErrorCode.KAFKA_STORAGE_ERROR}
            broker.stop()

            disk.repair()
            broker.start()
            all_moved(broker, {(TOPIC, number): bad for number in range(PARTITIONS)})
            assert_consistent(broker, history, PARTITIONS)


def size_of(directory: str, number: int) -> int:
    """Bytes of a partition in its present directory."""
    found = Path(directory).glob(f"{TOPIC}-{number}/*.log")
    return sum(path.stat().st_size for path in found)


def size_in(directory: str, number: int) -> int:
    """Bytes of a partition in its future directory."""
    found = Path(directory).glob(f"{TOPIC}-{number}.*-future/*.log")
    return sum(path.stat().st_size for path in found)
