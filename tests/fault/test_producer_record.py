"""What is understood of a librdkafka producer's log, and that it is bounded."""

from __future__ import annotations

import logging
from contextlib import closing
from pathlib import Path

import pytest
from support.faults import producer_record
from support.faults.producer_record import EpochBegin, ProducerRecord

pytestmark = pytest.mark.fault

# As librdkafka 2.16 writes them.
HEAD = "[rdkafka#producer-2] [thrd:127.0.0.1:42091/2]: "
ACQUIRED = f"GETPID {HEAD}Acquired PID{{Id:1000,Epoch:0}}"
BUMPED = f"DRAIN {HEAD}All partitions drained, bumped epoch to PID{{Id:1000,Epoch:1}}"


def begins(why: str) -> str:
    return (
        f"DRAIN {HEAD}Beginning partition drain in state Assigned for PID{{Id:1000,Epoch:0}} epoch "
        f"bump for 2 partition(s) with in-flight requests: {why}"
    )


def epochs_of(path: Path, *lines: str) -> list[EpochBegin]:
    found: list[EpochBegin] = []
    with closing(ProducerRecord(path / "p.log", found)) as record:
        for line in lines:
            record.note(line)
    return found


@pytest.mark.parametrize(
    ("reasons", "is_given_up"),
    [
        (("7 message(s) timed out on fault [4]",), True),
        (("7 message(s) timed out on fault [4]", "1 message(s) timed out on fault [5]"), True),
        (("skipped sequence numbers",), False),
        (("7 message(s) timed out on fault [4]", "skipped sequence numbers"), False),
        (("message sequence gap",), False),
        (("unknown producer id",), False),
        ((), False),
    ],
)
def test_an_epoch_has_the_reasons_that_were_given_before_it(
    reasons: tuple[str, ...], is_given_up: bool, tmp_path: Path
) -> None:
    first, second = epochs_of(tmp_path, ACQUIRED, *map(begins, reasons), BUMPED)

    assert (first.producer, first.reasons) == ((1000, 0), ())
    assert (second.producer, second.reasons) == ((1000, 1), reasons)
    assert second.is_for_records_given_up is is_given_up


def test_the_file_is_bounded_and_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producer_record, "FILE_BYTES", 1000)
    for _ in range(2):
        with closing(ProducerRecord(tmp_path / "p.log", [])) as record:
            logger = record.settings["logger"]
            assert isinstance(logger, logging.Logger)
            for number in range(1000):
                logger.debug("line %d", number)

    files = list(tmp_path.glob("p.log*"))
    assert sum(file.stat().st_size for file in files) <= producer_record.FILES * 1000
    assert "line 999\n" in (tmp_path / "p.log").read_text()
