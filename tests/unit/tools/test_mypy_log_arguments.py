"""What a log line would show as a ``repr`` is found by mypy, and what has words is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbroker.cluster.control_requests import ControlResponse
from kbroker.errors import ErrorCode

api = pytest.importorskip("mypy.api")

pytestmark = pytest.mark.unit

PLUGIN = Path(__file__).resolve().parents[3] / "tools" / "mypy_log_arguments.py"
SOURCE = """
import logging
from typing import NamedTuple

logger = logging.getLogger(__name__)


class Raw(NamedTuple):
    error: int


class Said(NamedTuple):
    error: int

    def __str__(self) -> str:
        return "said"


class Code(int):
    pass


class Failed(Exception):
    pass


def tell(raw: Raw, said: Said, maybe: Raw | None, code: Code, error: Failed) -> None:
    logger.info("%s %s %d %s", "text", said, code, error)
    logger.error("%s %s", said, raw)
    logger.debug("%s", maybe, extra={"event": "x"})
    logger.warning("%s", raw.error)
"""


def test_objects_without_words_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "kbroker"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "one.py").write_text(SOURCE)
    (tmp_path / "mypy.ini").write_text(f"[mypy]\nplugins = {PLUGIN}\n")
    monkeypatch.chdir(tmp_path)

    out, err, _ = api.run(["--config-file", "mypy.ini", "--cache-dir", "cache", "-p", "kbroker"])

    found = [line.split(": error: ") for line in out.splitlines() if ": error: " in line]
    assert [where for where, _ in found] == ["kbroker/one.py:29", "kbroker/one.py:30"], out + err
    assert all("would show the repr of a Raw" in what for _, what in found)


def test_rejected_control_request_is_told_in_words() -> None:
    stale = ControlResponse(ErrorCode.STALE_BROKER_EPOCH)
    failed = ControlResponse(partitions={("t", 0): ErrorCode.KAFKA_STORAGE_ERROR})
    assert (str(stale), str(failed)) == ("STALE_BROKER_EPOCH", "t-0 KAFKA_STORAGE_ERROR")
