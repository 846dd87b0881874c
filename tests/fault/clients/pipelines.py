"""Programs made of our clients: both mirror makers, a load, and a stream of Spark. What they write
is told as what they have done; the commands are processes of their own, as in use.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, TopicPartition
from fault.clients.feeds import QUIET

if TYPE_CHECKING:
    from fault.clients.program import Program

LOOK_S = 0.2
END_S = 60.0
# Ended by a signal, as it should be.
_ENDS = (0, 143, -signal.SIGTERM)
COMMANDS = Path(sys.executable).parent


@contextmanager
def command(
    program: Program, *arguments: str, ends: tuple[int, ...] = ()
) -> Iterator[subprocess.Popen[bytes]]:
    """One of ours, which runs until the program is stopped, and must not end before. ends: the exit
    codes with which it may, to be started again.
    """
    program.directory.mkdir(exist_ok=True)
    log = program.directory / "log"
    with log.open("ab") as file:
        began = subprocess.Popen(
            [str(COMMANDS / arguments[0]), *arguments[1:]],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
        )
    program.works_in = began.pid
    try:
        yield began
        if began.poll() not in (None, *ends):
            said = log.read_text(errors="replace")[-600:]
            program.told.tell("broke", error=f"{arguments[0]} ended: {began.returncode}: {said}")
    finally:
        began.terminate()
        try:
            code = began.wait(END_S)
        except subprocess.TimeoutExpired:
            began.kill()
            began.wait()
            program.told.tell("hangs", call=f"the end of {arguments[0]}")
        else:
            if code not in (*_ENDS, *ends):
                program.told.tell("broke", error=f"{arguments[0]} ended with {code}")


# -- mirrors


class Copy:
    """What a mirror has written to its target."""

    def __init__(self, program: Program, bootstrap: str) -> None:
        self.program = program
        config = {"bootstrap.servers": bootstrap, "group.id": "exam-copy", **QUIET}
        config |= {"enable.auto.commit": False, "auto.offset.reset": "earliest"}
        config["topic.metadata.refresh.interval.ms"] = 1_000
        self._consumer = Consumer(config)
        self._consumer.assign(
            [TopicPartition(program.topic, n, 0) for n in range(program.partitions)]
        )

    def tell(self) -> None:
        """Of what is new."""
        found = self._consumer.consume(500, LOOK_S)
        rows = [(one.partition(), one.value().decode()) for one in found if one.error() is None]
        if rows:
            self.program.told.tell("copied", rows=rows)

    def close(self) -> None:
        self._consumer.close()


def _copy(program: Program, target: str, *arguments: str) -> None:
    with command(program, *arguments) as process:
        copy = Copy(program, target)
        while not program.stopped and process.poll() is None:
            copy.tell()
        copy.close()


def mirror(program: Program) -> None:
    """``kbroker mirror``, from the brokers that are harmed."""
    _copy(
        program, program.side, "kbroker", "mirror", program.topic, "-b", program.bootstrap,
        "--to", program.side, "--group", program.group, "--keep-partitions", "--report", "10",
    )  # fmt: skip


def mirror_maker(program: Program) -> None:
    """``kafka-mirror-maker``, to the brokers that are harmed."""
    program.directory.mkdir(exist_ok=True)
    source, target = program.directory / "source", program.directory / "target"
    source.write_text(
        f"bootstrap.servers={program.side}\ngroup.id={program.group}\nauto.offset.reset=earliest\n"
    )
    target.write_text(f"bootstrap.servers={program.bootstrap}\nrequest.timeout.ms=4000\n")
    _copy(
        program, program.bootstrap, "kafka-mirror-maker", "--consumer.config", str(source),
        "--producer.config", str(target), "--whitelist", program.topic, "--keep.partitions",
        "--offset.commit.interval.ms", "1000",
    )  # fmt: skip


# -- a load


class Files:
    """Those of a load, each read once."""

    def __init__(self, program: Program, directory: Path) -> None:
        self.program, self.directory = program, directory
        self._known: set[Path] = set()

    def tell(self) -> None:
        """Of the rows of new ones, in their order: an hour's end divides a range of offsets."""
        new = set(self.directory.glob("data/**/*.parquet")) - self._known
        if new:
            self.program.told.tell(
                "returned", rows=sorted(row for path in new for row in _rows(path))
            )
        self._known |= new

    def check(self) -> None:
        """What a reader has seen must stay."""
        if gone := [path.name for path in self._known if not path.exists()]:
            self.program.told.tell("broke", error=f"files that were there are gone: {gone[:3]}")


def _rows(path: Path) -> list[tuple[int, int, str]]:
    import pyarrow.parquet as parquet

    table = parquet.ParquetFile(path).read(columns=["partition", "offset", "value"])
    return [(row["partition"], row["offset"], row["value"].decode()) for row in table.to_pylist()]


def load(program: Program) -> None:
    """``kbroker-load run --follow --master none``, into a folder."""
    directory = program.directory / "lake"
    directory.mkdir(parents=True, exist_ok=True)
    files = Files(program, directory)
    arguments = (
        "kbroker-load", "run", "--follow", "--follow-seconds", "1", "--master", "none",
        "--bootstrap", program.bootstrap, "--topics", program.topic, "--dest", str(directory),
        "--client-setting", "request.timeout.ms=4000",
    )  # fmt: skip
    while not program.stopped:  # as a service manager does, when brokers were away for a minute
        with command(program, *arguments, ends=(1,)) as process:
            while program.pause(LOOK_S) and process.poll() is None:
                files.tell()
    files.tell()
    files.check()


# -- Spark


def spark(program: Program) -> None:
    """A stream, each micro-batch told as it comes."""
    from kbroker.spark import builder, read_stream

    program.directory.mkdir()
    checkpoint = str(program.directory / "checkpoint")
    session = builder("exam").master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    options: dict[str, Any] = {"kafka.request.timeout.ms": 4000, "startingOffsets": "earliest"}
    frame = read_stream(
        session, program.bootstrap, program.topic, checkpoint=checkpoint,
        columns="value binary, partition int, offset long", **options,
    )  # fmt: skip

    def take(batch: Any, number: int) -> None:
        rows = [(row.partition, row.offset, bytes(row.value).decode()) for row in batch.collect()]
        if rows:
            program.told.tell("returned", rows=sorted(rows))

    query = (
        frame.writeStream.foreachBatch(take)
        .option("checkpointLocation", checkpoint)
        .trigger(processingTime="0 seconds")
        .start()
    )
    while program.pause(LOOK_S) and query.isActive:
        pass
    if (error := query.exception()) is not None:
        program.told.tell("broke", error=str(error)[:500])
    query.stop()
    session.stop()
