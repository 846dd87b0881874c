"""The modules imported by a Spark worker are not garbage collected after each task."""

import gc

import pytest

from kbroker.spark import worker_process
from kbroker.spark.worker_process import prepare_worker


@pytest.fixture
def thawed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a new process. What a test freezes stays so, as tests/conftest.py wants it."""
    gc.unfreeze()
    monkeypatch.setattr(worker_process, "_prepared_in", 0)


@pytest.mark.usefixtures("thawed")
def test_once_in_a_process() -> None:
    prepare_worker()
    assert any(one is worker_process.__dict__ for one in gc.get_objects()) is False
    count = gc.get_freeze_count()
    assert count > 1000
    later = [[number] for number in range(1000)]
    prepare_worker()
    assert gc.get_freeze_count() <= count, "what came later is frozen, too"
    assert len(later) == 1000


@pytest.mark.usefixtures("thawed")
def test_again_in_a_child(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_process.os, "getpid", lambda: 7)
    prepare_worker()
    gc.unfreeze()
    monkeypatch.setattr(worker_process.os, "getpid", lambda: 8)
    prepare_worker()
    assert gc.get_freeze_count() > 1000
