"""Levels of loggers, by Kafka's names, in a file that all processes follow."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from kbroker.log_levels import FILE_NAME, LogLevels, exists, level_of, names

pytestmark = pytest.mark.unit

NAME = "kbroker.ipc.rpc"


@pytest.fixture(autouse=True)
def kept() -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in (None, "kbroker", NAME)]
    before = [logger.level for logger in loggers]
    yield
    for logger, level in zip(loggers, before, strict=True):
        logger.setLevel(level)


def test_change_reaches_who_follows_and_is_taken_back(tmp_path: Path) -> None:
    logging.getLogger(NAME).setLevel(logging.NOTSET)
    logging.getLogger("kbroker").setLevel(logging.INFO)
    writer, reader = LogLevels(str(tmp_path)), LogLevels(str(tmp_path))

    writer.change([(NAME, "DEBUG")])
    logging.getLogger(NAME).setLevel(logging.NOTSET)  # as in another process
    reader.follow()
    assert level_of(NAME) == "DEBUG"
    assert level_of("kbroker") == "INFO"

    writer.change([(NAME, None)])
    reader.follow()
    assert level_of(NAME) == "INFO"


def test_levels_below_a_package_follow_it_unless_they_have_their_own(tmp_path: Path) -> None:
    levels = LogLevels(str(tmp_path))

    levels.change([("kbroker", "ERROR"), (NAME, "TRACE")])

    assert level_of("kbroker.ipc.mailbox") == "ERROR"
    assert level_of(NAME) == "TRACE"
    assert logging.getLogger(NAME).isEnabledFor(logging.DEBUG)


def test_restarted_process_finds_the_levels(tmp_path: Path) -> None:
    LogLevels(str(tmp_path)).change([("root", "FATAL")])
    logging.getLogger().setLevel(logging.INFO)

    LogLevels(str(tmp_path)).follow()

    assert level_of("root") == "FATAL"


def test_half_a_file_changes_nothing(tmp_path: Path) -> None:
    before = level_of(NAME)
    (tmp_path / FILE_NAME).write_text('{"kbroker.ipc')

    LogLevels(str(tmp_path)).follow()

    assert level_of(NAME) == before


def test_loggers_are_modules_of_this_broker() -> None:
    logging.getLogger(NAME)
    assert {"root", NAME} <= set(names())
    assert all(map(exists, names()))
    assert exists("kbroker.workers.io.io_worker")  # also where this process has not imported it
    assert exists("kbroker.storage")
    for name in ("kafka.server.KafkaApis", "kbroker.nothing", "kbroker..ipc", "kazoo", "", "os"):
        assert not exists(name), name
