"""What a start logs of its settings, in the words of Kafka's documents (SMP-01)."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from kbroker.cli import start
from kbroker.supervisor import launch

pytestmark = pytest.mark.unit


def test_start_names_each_setting_that_overrides_a_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Passwords excepted. A line added to a copy of a file takes the place of an earlier one."""
    path = tmp_path / "server.properties"
    path.write_text("port=9092\nport=9093\nssl.keystore.password=hunter2\n")
    monkeypatch.setattr(launch, "launch", lambda *_: 0)
    monkeypatch.setattr(start.logcontext, "setup", lambda *_: None)
    caplog.set_level(logging.INFO, "kbroker.cli.start")

    assert start.main([str(path), "--override", "socket.send.buffer.bytes=1048576"]) == 0

    said = [record.getMessage() for record in caplog.records]
    at = said.index("Verifying properties")
    assert said[at + 1 : at + 4] == [
        "Property port is overridden to 9093",
        "Property socket.send.buffer.bytes is overridden to 1048576",
        "Property ssl.keystore.password is overridden to (hidden)",
    ]
    assert "port is set more than once; the last value is used" in said
