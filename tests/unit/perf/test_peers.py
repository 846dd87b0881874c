"""The other brokers of the comparison: built, found, or named as missing."""

import os

import pytest

from perf import peers

pytestmark = pytest.mark.unit


def test_kfake_without_go_says_what_is_missing(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RuntimeError, match="needs go"):
        peers.kfake_program(tmp_path / "cache")


def test_kfake_is_built_once_for_its_sources(monkeypatch, tmp_path):
    """With a fake go that only records its calls."""
    go = tmp_path / "go"
    go.write_text('#!/bin/sh\necho "$@" >> "$0.calls"\ntouch "$3"\n')
    go.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    for _ in range(2):
        program = peers.kfake_program(tmp_path / "cache")
        assert program.exists()
    assert (tmp_path / "go.calls").read_text().splitlines() == [f"build -o {program} ."]


def test_tansu_is_run_from_the_path_or_named_as_missing(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RuntimeError, match="no tansu"):
        peers.TansuBroker(tmp_path)
    (tmp_path / "tansu").touch(mode=0o755)
    broker = peers.TansuBroker(tmp_path)
    assert broker.command() == [str(tmp_path / "tansu"), "broker"]
    assert str(broker.port) in broker.environment()["LISTENER_URL"]
    broker.stop()
