"""When a command starts Spark."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kbroker.spark import direct
from kbroker.spark.direct import InlineRunner, SparkMissing, runner_of

pytestmark = pytest.mark.unit


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str | None]]:
    """The started sessions: (app, master)."""
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    found: list[tuple[str, str | None]] = []

    def begin(app: str, master: str | None) -> Any:
        found.append((app, master))
        return SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=4))

    monkeypatch.setattr(direct, "session", begin)
    return found


def test_spark_starts_once_there_is_something_to_plan(
    started: list[tuple[str, str | None]],
) -> None:
    runner = runner_of("app", "local[4]")

    assert runner.run([], lambda work, attempt: [], "nothing") == []
    assert started == []
    assert [runner.parallelism, runner.parallelism] == [4, 4]
    assert started == [("app", "local[4]")]


def test_submitted_app_has_its_context_at_once(
    started: list[tuple[str, str | None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cluster manager waits for one, and treats an app that ends without it as failed."""
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")

    runner_of("app", None)

    assert started == [("app", None)]


def test_master_none_never_starts_it(started: list[tuple[str, str | None]]) -> None:
    assert isinstance(runner_of("app", "none"), InlineRunner)
    assert started == []


def test_spark_that_does_not_start_is_told_by_the_first_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)

    def refuse(app: str, master: str | None) -> Any:
        raise SparkMissing("no java")

    monkeypatch.setattr(direct, "session", refuse)
    runner = runner_of("app", None)

    with pytest.raises(SparkMissing, match="no java"):
        runner.run([[1]], lambda work, attempt: [], "job")
