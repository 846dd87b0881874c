"""Every type of file is torn, flipped, zeroed, emptied, extended and removed between a kill and the
next start (exam E3).

The broker starts, or rejects and names the file. It serves what was stored, at its offset, or
nothing; what was synced before the damage stays; what is lost is said; and it goes on from there.
Each kind of damage, and each file, is in what is not slow; every pair of them is in the whole.
"""

from __future__ import annotations

import itertools
import random
import shutil
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from fault.damage import ALL_DAMAGES, DAMAGES
from support.clients.wire_client import EARLIEST, LATEST, WireClient, batch_of
from support.running.grids import some_of

from kbroker.errors import ErrorCode
from kbroker.metastore.store_files import COPY_NAME, FILE_NAME, WAL_NAME
from kbroker.record.batch import Record, iterate_batches
from kbroker.testing import Broker, BrokerFailed, wait_until

pytestmark = [pytest.mark.fault, pytest.mark.timeout(180)]

TOPIC = "damaged"
SETTINGS = {"log.segment.bytes": 8000, "log.index.interval.bytes": 1000, "broker.id": 0}
SYNCED_BATCHES, LATER_BATCHES = 33, 20
BATCH_RECORDS = 3
RECOVERY_POINT = SYNCED_BATCHES * BATCH_RECORDS
END = (SYNCED_BATCHES + LATER_BATCHES) * BATCH_RECORDS

# One partition for each kind of file below it, so that one start tries all of them.
UNTOUCHED = 0
PARTITION_FILES = {
    1: "active .log",
    2: "sealed .log",
    3: "recovered .log",
    4: "active .index",
    5: "sealed .index",
    6: "active .timeindex",
    7: "sealed .timeindex",
    8: ".snapshot",
    9: "leader-epoch-checkpoint",
    10: "partition.metadata",
}
PARTITIONS = 1 + len(PARTITION_FILES)
CHECKPOINTS = (
    "recovery-point-offset-checkpoint",
    "log-start-offset-checkpoint",
    "replication-offset-checkpoint",
)
LATE_TOPICS = 5
# The possible errors of the whole partition; both are retriable, and mean "not available now".
OFFLINE = {ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_LEADER_OR_FOLLOWER}
# The possible errors of a reader at a damaged batch.
DAMAGED = OFFLINE | {ErrorCode.CORRUPT_MESSAGE}


def value_at(partition: int, offset: int) -> bytes:
    return b"%d-%d-" % (partition, offset) + b"v" * 300


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The data of a broker that was shut down once and killed later."""
    directory = tmp_path_factory.mktemp("damage")
    with Broker(SETTINGS, directory=directory / "broker") as broker:
        with WireClient((broker.host, broker.port)) as client:
            client.create_topic(TOPIC, PARTITIONS)
            producer = client.init_producer_id()
        fill(broker, producer, 0, SYNCED_BATCHES)
        broker.restart()
        fill(broker, producer, SYNCED_BATCHES, LATER_BATCHES)
        broker.kill_all()
        yield broker.data_dir


def fill(broker: Broker, producer: tuple[int, int], first_batch: int, count: int) -> None:
    with WireClient((broker.host, broker.port)) as client:
        for number in range(first_batch, first_batch + count):
            base = number * BATCH_RECORDS
            batches = {
                partition: batch_of(
                    [value_at(partition, base + delta) for delta in range(BATCH_RECORDS)],
                    producer_id=producer[0],
                    producer_epoch=producer[1],
                    base_sequence=base,
                )
                for partition in range(PARTITIONS)
            }
            answers = client.produce(TOPIC, batches)
            assert {response.error_code for response in answers.values()} == {0}


def file_of(data_dir: Path, partition: int) -> Path:
    """The file named by ``PARTITION_FILES``."""
    directory = data_dir / f"{TOPIC}-{partition}"
    what = PARTITION_FILES[partition]
    if "." not in what or what == "partition.metadata":
        return directory / what
    role, _, suffix = what.rpartition(" ")
    files = sorted(directory.glob(f"*{suffix}"))
    if role == "recovered":  # holds the recovery point: begins synced, ends unsynced
        return [path for path in files if int(path.stem) <= RECOVERY_POINT][-1]
    return files[1] if role == "sealed" else files[-1]


class Survivor:
    """A broker on a damaged copy of the template."""

    def __init__(
        self, template: Path, directory: Path, settings: Mapping[str, object] | None = None
    ) -> None:
        self.broker = Broker(
            {**SETTINGS, **(settings or {})}, directory=directory, start_timeout=60
        )
        shutil.copytree(template, self.broker.data_dir)
        self.data_dir = self.broker.data_dir

    def __enter__(self) -> Survivor:
        return self

    def __exit__(self, *exception: object) -> None:
        self.broker.close()

    def start(self) -> None:
        """Start it and wait until every process serves."""
        before = self.broker.log_text.count("processes are ready")
        self.broker.start()
        wait_until(
            lambda: self.broker.log_text.count("processes are ready") > before, 10, "all ready"
        )

    def said_damaged(self) -> list[str]:
        """The files named in ERROR lines."""
        lines = self.broker.log_text.splitlines()
        return [
            line.partition(": damaged at")[0].split()[-1]
            for line in lines
            if ": damaged at" in line
        ]

    def damaged_segments(self) -> float:
        """The value of the gauge."""
        name = "kbroker_log_segments_damaged"
        with urllib.request.urlopen(f"{self.broker.metrics_url}/metrics", timeout=30) as response:
            lines = response.read().decode().splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))

    def wait_for_line(self, path: Path) -> None:
        """Wait until the log mentions the file, or its partition; damage found by readers is
        reported within a tick.
        """
        broker = self.broker
        wait_until(lambda: is_mentioned(broker.log_text, path), 10, f"a line about {path}")

    def read(self, partition: int) -> tuple[list[Record], str]:
        """(records from the start on, the error that ends them before the log end)."""
        found: list[Record] = []
        with WireClient((self.broker.host, self.broker.port)) as client:
            try:
                offset = client.offset(TOPIC, partition, EARLIEST)
                end = client.offset(TOPIC, partition, LATEST)
            except AssertionError as error:
                return found, str(error)
            while offset < end:
                response = client.fetch(TOPIC, partition, offset)
                if response.error_code:
                    assert ErrorCode(response.error_code) in DAMAGED, response.error_code
                    return found, f"error {response.error_code}"
                before = offset
                for batch in iterate_batches(bytes(response.records or b""), partial_tail=True):
                    batch.check()
                    found += [r for r in batch.records() if r.offset >= offset]
                    offset = batch.next_offset
                assert offset > before, f"nothing at {offset} of {end} in partition {partition}"
        return found, ""

    def check(self, partition: int, *, any_start: bool = False) -> tuple[int, str]:
        """(number of records served, the error after them); asserts that each is correct."""
        records, why = self.read(partition)
        start = records[0].offset if records and any_start else 0
        for position, record in enumerate(records, start):
            assert record.offset == position, f"offset {record.offset} came as number {position}"
            if record.value != b"new":
                assert record.value == value_at(partition, record.offset)
        return len(records), why

    def append(self, partition: int) -> None:
        """The broker continues: a new record is stored and read back, wherever the log is
        served.
        """
        with WireClient((self.broker.host, self.broker.port)) as client:
            response = client.produce(TOPIC, {partition: batch_of([b"new"])})[partition]
            if response.error_code:
                assert ErrorCode(response.error_code) in OFFLINE, response
                return
            fetched = client.fetch(TOPIC, partition, response.base_offset)
            (batch,) = iterate_batches(bytes(fetched.records))
            assert [(r.offset, r.value) for r in batch.records()] == [
                (response.base_offset, b"new")
            ]


def is_mentioned(text: str, path: Path) -> bool:
    """Whether the log mentions a file, or its partition."""
    return path.name in text or path.parent.name in text


@pytest.mark.parametrize(
    ("how", "threads"),
    some_of(
        [*((how, 1) for how in DAMAGES), ("tear", 16), ("flip", 16)],
        [("tear", 1), ("flip", 16)],
    ),
)
def test_damaged_partition_files_lose_at_most_what_was_not_synced(
    template: Path, tmp_path: Path, how: str, threads: int, seed: int
) -> None:
    """threads: for recovery, so that the logs are recovered one after another, and in parallel."""
    chance = random.Random(seed)
    more = {"num.recovery.threads.per.data.dir": threads}
    with Survivor(template, tmp_path / "b", more) as survivor:
        damaged = {p: file_of(survivor.data_dir, p) for p in PARTITION_FILES}
        base = {p: int(f.stem) for p, f in damaged.items() if f.suffix == ".log"}
        for path in damaged.values():
            DAMAGES[how](path, chance)
        survivor.start()

        served = {p: survivor.check(p) for p in range(PARTITIONS)}
        print(how, served)
        log = survivor.broker.log_text

        assert served[UNTOUCHED] == (END, "")
        for partition, what in PARTITION_FILES.items():
            count, why = served[partition]
            if partition in base:  # a .log: nothing before the file may be missing, unless offline
                assert count >= min(base[partition], END) or "error" in why, (what, count, why)
                assert count >= RECOVERY_POINT or why, (what, count, "lost and not said")
                if how.startswith("append"):
                    assert (count, why) == (END, ""), what
                if count < END:
                    survivor.wait_for_line(damaged[partition])
            elif what == "partition.metadata":
                assert count == END or is_mentioned(log, damaged[partition]), (what, count, why)
            else:
                assert (count, why) == (END, ""), what
        assert "Traceback" not in log, log[log.index("Traceback") - 500 :][:3000]

        for partition in range(PARTITIONS):
            survivor.append(partition)
        survivor.broker.stop()
        survivor.start()
        for partition in range(PARTITIONS):
            survivor.check(partition)


@pytest.mark.parametrize(
    "how",
    some_of(
        ALL_DAMAGES,
        ["swap", "rewrite_field"],
    ),
)
def test_damage_of_before_a_clean_start_is_never_served(
    template: Path, tmp_path: Path, how: str, seed: int
) -> None:
    """A start does not read those files: the first reader does, before anything is sent."""
    chance = random.Random(seed)
    more = {"num.network.threads": 2, "metrics.port": 0}
    with Survivor(template, tmp_path / "b", more) as survivor:
        survivor.start()
        assert survivor.broker.stop() == 0
        spoiled = {}
        for partition in range(1, PARTITIONS):
            logs = sorted((survivor.data_dir / f"{TOPIC}-{partition}").glob("*.log"))
            spoiled[partition] = chance.choice(logs[:-1])
            ALL_DAMAGES[how](spoiled[partition], chance)
        survivor.start()

        for _ in range(3):  # of either network process
            assert survivor.check(UNTOUCHED) == (END, "")
            for partition, path in spoiled.items():
                if (
                    survivor.check(partition, any_start=True)[0] < END
                ):  # the start of the log may be missing
                    survivor.wait_for_line(path)
        assert "Traceback" not in survivor.broker.log_text, survivor.broker.log_text[-3000:]
        said = survivor.said_damaged()
        assert len(said) == len(set(said)), "each segment is said once"
        wait_until(
            lambda: survivor.damaged_segments() == len(survivor.said_damaged()),
            10,
            "the gauge counts as many as are said",
        )


@pytest.mark.parametrize(
    ("name", "how"),
    some_of(
        itertools.product(CHECKPOINTS, DAMAGES),
        list(zip(CHECKPOINTS, DAMAGES, strict=False)),
    ),
)
def test_damaged_checkpoint_costs_no_record(
    template: Path, tmp_path: Path, how: str, name: str, seed: int
) -> None:
    with Survivor(template, tmp_path / "b") as survivor:
        DAMAGES[how](survivor.data_dir / name, random.Random(seed))
        survivor.start()

        for partition in range(PARTITIONS):
            count, why = survivor.check(partition, any_start=how == "flip")
            # The format has no checksum: a flipped digit is another number. A recovery point above
            # the log end is damage and reported; a later log start offset is believed.
            if (count, why) != (END, ""):
                assert how == "flip", (count, why)
                log = survivor.broker.log_text
                assert name.startswith("log-start") or f"{TOPIC}-{partition}" in log
        survivor.append(UNTOUCHED)


@pytest.mark.parametrize("how", some_of(DAMAGES, ["flip", "remove"]))
def test_damaged_meta_properties_is_named_or_harmless(
    template: Path, tmp_path: Path, how: str, seed: int
) -> None:
    with Survivor(template, tmp_path / "b") as survivor:
        DAMAGES[how](survivor.data_dir / "meta.properties", random.Random(seed))
        try:
            survivor.start()
        except BrokerFailed:
            assert "meta.properties" in survivor.broker.log_text, survivor.broker.log_text[-1500:]
            assert "Traceback" not in survivor.broker.log_text
            return

        for partition in range(PARTITIONS):
            assert survivor.check(partition) == (END, "")


@pytest.mark.parametrize(
    ("name", "how"),
    some_of(
        [
            *((FILE_NAME, how) for how in DAMAGES),
            *((WAL_NAME, how) for how in ("tear", "flip", "zero_all", "remove")),
            (COPY_NAME, "flip"),
        ],
        [
            *((FILE_NAME, how) for how in ("flip", "remove")),
            (WAL_NAME, "tear"),
            (COPY_NAME, "flip"),
        ],
    ),
)
@pytest.mark.slow
def test_damaged_metadata_store_costs_no_record(
    template: Path, tmp_path: Path, name: str, how: str, seed: int
) -> None:
    """It has a copy, and topics missing in both are found in the directories."""
    with Survivor(template, tmp_path / "b") as survivor:
        survivor.start()
        with WireClient((survivor.broker.host, survivor.broker.port)) as client:
            for number in range(LATE_TOPICS):
                client.create_topic(f"late-{number}", 1)
                answers = client.produce(f"late-{number}", {0: batch_of([b"late"])})
                assert answers[0].error_code == 0
        survivor.broker.kill_all()
        path = survivor.data_dir / name
        whole = path.read_bytes() if path.exists() else b""
        if path.exists():
            DAMAGES[how](path, random.Random(seed))
        survivor.start()

        for partition in range(PARTITIONS):
            assert survivor.check(partition) == (END, "")
        with WireClient((survivor.broker.host, survivor.broker.port)) as client:
            for number in range(LATE_TOPICS):
                assert client.offset(f"late-{number}", 0, LATEST) == 1, number
        survivor.append(UNTOUCHED)
        log = survivor.broker.log_text
        assert "Traceback" not in log
        told = FILE_NAME in log or "not in the metadata store" in log
        print(name, how, len(whole), "told" if told else "unharmed")


def test_marker_beside_a_torn_log_hides_nothing(template: Path, tmp_path: Path) -> None:
    """A wrong clean shutdown marker: the torn log is truncated anyway."""
    with Survivor(template, tmp_path / "b") as survivor:
        path = file_of(survivor.data_dir, 1)
        (survivor.data_dir / ".kafka_cleanshutdown").touch()
        DAMAGES["tear"](path, random.Random(7))
        survivor.start()

        count, why = survivor.check(1)
        assert count >= RECOVERY_POINT and why == ""
        assert survivor.check(UNTOUCHED) == (END, "")
        survivor.append(1)


@pytest.mark.parametrize("clean", [True, False], ids=["after-a-clean-stop", "after-a-kill"])
def test_log_start_beyond_the_end_of_the_log_deletes_nothing(
    template: Path, tmp_path: Path, clean: bool
) -> None:
    with Survivor(template, tmp_path / "b") as survivor:
        checkpoint = survivor.data_dir / "log-start-offset-checkpoint"
        if clean:
            survivor.start()
            survivor.broker.stop()
        good = checkpoint.read_text()
        assert f"{TOPIC} 2 0\n" in good
        checkpoint.write_text(good.replace(f"{TOPIC} 2 0\n", f"{TOPIC} 2 900\n"))
        survivor.start()

        assert [survivor.check(n) for n in range(PARTITIONS)] == [(END, "")] * PARTITIONS
        assert "says that it starts at 900" in survivor.broker.log_text
        survivor.append(2)
        assert survivor.broker.stop() == 0
        assert f"{TOPIC} 2 0\n" in checkpoint.read_text(), "and it is mended"


def test_first_directory_dead_leaves_the_others_in_service(tmp_path: Path) -> None:
    """At the first start, and later when the metadata is in another directory."""
    dead, good = tmp_path / "dead", tmp_path / "good"
    dead.touch()
    settings = {"log.dirs": f"{dead},{good}"}
    for _ in range(2):
        with Broker(settings, directory=tmp_path / "b", start_timeout=60) as broker:
            assert f"data directory {dead} cannot be used and is left out" in broker.log_text
            with WireClient((broker.host, broker.port)) as client:
                if not client.metadata(TOPIC).topics[0].partitions:
                    client.create_topic(TOPIC)
                assert client.produce(TOPIC, {0: batch_of([b"v"])})[0].error_code == 0
    assert (good / FILE_NAME).exists()
