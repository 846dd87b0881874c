"""The session that a data directory keeps for the next run, and those of somebody else."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path

import pytest

from kbroker.metastore.kept_session import FILE_NAME, KeptSession
from kbroker.metastore.session_file import SessionFile

pytestmark = pytest.mark.unit

OWNER = ("cluster", 1, "z:2181/k")
SESSION = (0x1234, b"\1\2\3")


def kept(path: Path, owner: tuple[str, int, str] = OWNER) -> KeptSession:
    return KeptSession(str(path), owner)


def test_session_is_kept_for_the_broker_alone(tmp_path: Path) -> None:
    kept(tmp_path).write((5, b"older"))
    kept(tmp_path).write(SESSION)
    assert kept(tmp_path).read() == SESSION
    assert (tmp_path / FILE_NAME).stat().st_mode & 0o777 == 0o600
    kept(tmp_path).remove()
    assert list(tmp_path.iterdir()) == []
    assert kept(tmp_path).read() is None


def test_session_file_of_a_run_keeps_and_removes_it(tmp_path: Path) -> None:
    data, runtime = tmp_path / "data", tmp_path / "run"
    data.mkdir()
    runtime.mkdir()
    file = SessionFile(str(runtime), "z:2181/k", kept(data))
    file.write(SESSION)
    assert kept(data).read() == file.read() == SESSION
    file.remove()
    assert kept(data).read() is None


@pytest.mark.parametrize("owner", [("other", 1, OWNER[2]), ("cluster", 2, OWNER[2]),
                                   ("cluster", 1, "elsewhere:2181")])  # fmt: skip
def test_session_of_somebody_else_is_ignored_with_a_line(
    tmp_path: Path, owner: tuple[str, int, str], caplog: pytest.LogCaptureFixture
) -> None:
    kept(tmp_path, owner).write(SESSION)
    with caplog.at_level(logging.WARNING):
        assert kept(tmp_path).read() is None
    (line,) = caplog.messages
    assert "it is of another broker, or a copy" in line


def test_copy_is_ignored_with_a_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The broker that it was copied from may live."""
    kept(tmp_path).write(SESSION)
    copy = tmp_path / "copy"
    copy.mkdir()
    shutil.copy2(tmp_path / FILE_NAME, copy)
    with caplog.at_level(logging.WARNING):
        assert kept(copy).read() is None
    assert len(caplog.messages) == 1


@pytest.mark.parametrize(
    "field, value",
    [("id", "5"), ("id", 0), ("id", None), ("password", "xy"), ("password", 5), ("inode", None)],
)
def test_damaged_field_is_ignored_with_a_line(
    tmp_path: Path, field: str, value: object, caplog: pytest.LogCaptureFixture
) -> None:
    kept(tmp_path).write(SESSION)
    file = tmp_path / FILE_NAME
    document = json.loads(file.read_text()) | {field: value}
    file.write_text(json.dumps(document))
    with caplog.at_level(logging.WARNING):
        assert kept(tmp_path).read() is None
    assert len(caplog.messages) == 1


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b"null", b"0" * 20_000])
def test_damaged_file_is_ignored_with_a_line(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / FILE_NAME).write_bytes(content)
    with caplog.at_level(logging.WARNING):
        assert kept(tmp_path).read() is None
    assert len(caplog.messages) == 1
    assert "01020" not in caplog.text, "no password is logged"
