"""Which stops of a machine make the logs of a directory suspect."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbroker.storage.checkpoint import OffsetCheckpoint
from kbroker.storage.dirs import boots
from kbroker.storage.formats import BOOT_ID_NAME, SUSPECT_PARTITIONS

pytestmark = pytest.mark.unit


@pytest.fixture
def boot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file with the boot id of the machine, and a directory ``logs`` with two partitions."""
    path = tmp_path / "boot_id"
    path.write_text("first\n")
    monkeypatch.setattr(boots, "BOOT_ID_PATH", str(path))
    for name in ("a-0", "a-1"):
        (tmp_path / "logs" / name).mkdir(parents=True)
    return path


def start(boot: Path, *, was_clean: bool, boot_id: str | None = None) -> bool:
    if boot_id is not None:
        boot.write_text(f"{boot_id}\n")
    return boots.note_start(str(boot.parent / "logs"), was_clean=was_clean)


def suspects(boot: Path) -> set[tuple[str, int]]:
    return set(OffsetCheckpoint(str(boot.parent / "logs"), SUSPECT_PARTITIONS).read() or ())


def test_killed_broker_on_the_same_boot_has_lost_nothing(boot: Path) -> None:
    """The page cache has survived it."""
    start(boot, was_clean=True)

    assert not start(boot, was_clean=False)
    assert suspects(boot) == set()


def test_machine_that_lost_power_makes_every_partition_suspect(boot: Path) -> None:
    start(boot, was_clean=True)

    assert start(boot, was_clean=False, boot_id="second")
    assert suspects(boot) == {("a", 0), ("a", 1)}
    assert boots.has_suspects(str(boot.parent / "logs"))
    assert (boot.parent / "logs" / BOOT_ID_NAME).read_text() == "second\n"


def test_machine_restarted_after_a_clean_stop_is_sound(boot: Path) -> None:
    start(boot, was_clean=True)

    assert not start(boot, was_clean=True, boot_id="second")
    assert not boots.has_suspects(str(boot.parent / "logs"))
    assert not start(boot, was_clean=False)
    assert suspects(boot) == set()


def test_partitions_stay_suspect_over_stops_of_any_kind(boot: Path) -> None:
    """Until each of them has been compared with its other replicas."""
    start(boot, was_clean=True)
    start(boot, was_clean=False, boot_id="second")
    OffsetCheckpoint(str(boot.parent / "logs"), SUSPECT_PARTITIONS).merge({}, [("a", 1)])

    start(boot, was_clean=True)
    start(boot, was_clean=False)

    assert suspects(boot) == {("a", 0)}


def test_directory_without_a_boot_id_was_used_by_somebody_else_since(boot: Path) -> None:
    """By Kafka, or a version that kept none: what happened to it is unknown."""
    assert start(boot, was_clean=False)
    assert suspects(boot) == {("a", 0), ("a", 1)}


@pytest.mark.parametrize("was_clean", [True, False])
def test_system_without_boot_ids_counts_as_another_boot(boot: Path, was_clean: bool) -> None:
    boot.unlink()

    assert start(boot, was_clean=was_clean) is not was_clean
    assert not (boot.parent / "logs" / BOOT_ID_NAME).exists()
