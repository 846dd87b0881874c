"""What a librdkafka producer says of itself: the epochs that it began, and why; and all of its log.

An idempotent producer of librdkafka goes on in a new epoch when a record has passed
``message.timeout.ms``, as the sequence numbers behind it have a gap then. It waits until no request
is under way, and sends everything that has no response again, of *all* partitions, with sequence
numbers that no broker can recognise (rd_kafka_toppar_producer_serve in rdkafka_broker.c,
rd_kafka_idemp_drain_done in rdkafka_idempotence.c). What had been written and whose response was
late is then in the log twice, whichever broker it is: its maintainers say so in
https://github.com/confluentinc/librdkafka/issues/4953. A new epoch for any other reason is one
that a broker's error has caused.
"""

from __future__ import annotations

import logging
import re
import time
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import NamedTuple

# What explains a record that is there twice: epochs and sequences, batches, requests.
DEBUG = "eos,msg,protocol"
# BOUND: of the log of one producer; the oldest part goes first.
FILE_BYTES = 16 << 20
FILES = 4

_BEGINS = re.compile(
    r"Beginning partition drain .* (?:epoch bump|reset) for \d+ partition\(s\) "
    r"with in-flight requests: (?P<why>.*)",
    re.DOTALL,
)
_BUMPED = re.compile(r"All partitions drained, bumped epoch to PID\{Id:(\d+),Epoch:(\d+)\}")
_ACQUIRED = re.compile(r"Acquired PID\{Id:(\d+),Epoch:(\d+)\}")
_TIMED_OUT = re.compile(r"\d+ message\(s\) timed out on ")


class EpochBegin(NamedTuple):
    """A producer id and epoch, when the producer took it, and what made it do so."""

    at: float  # time.monotonic
    producer: tuple[int, int]
    reasons: tuple[str, ...]

    @property
    def is_for_records_given_up(self) -> bool:
        """Whether nothing but records that it gave up after ``message.timeout.ms`` led to it."""
        return bool(self.reasons) and all(map(_TIMED_OUT.match, self.reasons))


class ProducerRecord(logging.Handler):
    """Takes a producer's log, and appends its epochs to ``epochs``.

    ``settings`` belong into the producer's configuration.
    """

    def __init__(self, path: Path, epochs: list[EpochBegin]) -> None:
        super().__init__()
        self._epochs = epochs
        self._reasons: list[str] = []
        for old in path.parent.glob(f"{path.name}*"):
            old.unlink()
        self._file = RotatingFileHandler(path, maxBytes=FILE_BYTES, backupCount=FILES - 1)
        self._file.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
        self._logger = logging.Logger(path.stem)
        self._logger.addHandler(self)

    @property
    def settings(self) -> dict[str, object]:
        return {"debug": DEBUG, "logger": self._logger}

    def emit(self, record: logging.LogRecord) -> None:
        self._file.emit(record)
        self.note(record.getMessage())

    def note(self, line: str) -> None:
        """Remember the epoch that a line of the log tells of."""
        if begins := _BEGINS.search(line):
            self._reasons.append(begins["why"])
        elif begun := _BUMPED.search(line) or _ACQUIRED.search(line):
            producer = int(begun[1]), int(begun[2])
            self._epochs.append(EpochBegin(time.monotonic(), producer, tuple(self._reasons)))
            self._reasons.clear()

    def close(self) -> None:
        self._file.close()
        super().close()
