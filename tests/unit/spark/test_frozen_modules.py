"""What a Spark worker has imported is not collected again after each task."""

import gc
from collections.abc import Iterator

import pytest

from kbroker.spark import frozen_modules
from kbroker.spark.frozen_modules import freeze_modules


@pytest.fixture
def thawed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    gc.unfreeze()
    monkeypatch.setattr(frozen_modules, "_frozen_in", 0)
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("thawed")
def test_once_in_a_process() -> None:
    freeze_modules()
    assert any(one is frozen_modules.__dict__ for one in gc.get_objects()) is False
    count = gc.get_freeze_count()
    assert count > 1000
    later = [[number] for number in range(1000)]
    freeze_modules()
    assert gc.get_freeze_count() <= count, "what came later is frozen, too"
    assert len(later) == 1000


@pytest.mark.usefixtures("thawed")
def test_again_in_a_child(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frozen_modules.os, "getpid", lambda: 7)
    freeze_modules()
    gc.unfreeze()
    monkeypatch.setattr(frozen_modules.os, "getpid", lambda: 8)
    freeze_modules()
    assert gc.get_freeze_count() > 1000
