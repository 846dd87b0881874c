"""Runtime directories: created, found again, swept; only if their supervisor is dead."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from kbroker.errors import ConfigError
from kbroker.supervisor.runtime_dir import STATUS_NAME, RuntimeDir, sweep

pytestmark = pytest.mark.unit


@pytest.fixture
def base() -> Iterator[Path]:
    """A short path; pytest's own may be too long for a Unix socket."""
    with tempfile.TemporaryDirectory(prefix="kb-", dir="/tmp") as path:
        yield Path(path)


def test_directory_is_private_and_goes_with_its_run(base: Path) -> None:
    runtime = RuntimeDir.create(str(base))
    mode = stat.S_IMODE(os.stat(runtime.path).st_mode)

    runtime.remove()

    assert mode == 0o700
    assert os.listdir(base) == []


def test_base_of_a_single_broker_goes_too(base: Path) -> None:
    RuntimeDir.create(str(base / "x"), removes_base=True).remove()

    assert not (base / "x").exists()


def test_sweep_spares_a_living_run_and_removes_a_dead_one(base: Path) -> None:
    living = RuntimeDir.create(str(base))
    dead = RuntimeDir.create(str(base))
    os.close(dead._lock_fd)  # as the kernel does when its supervisor dies
    Path(dead.path, "io-0.1").touch()

    removed = sweep(str(base))

    assert removed == [os.path.basename(dead.path)]
    assert os.listdir(base) == [os.path.basename(living.path)]
    living.remove()


def test_sweep_leaves_strangers_alone(base: Path) -> None:
    (base / "kbroker-something").mkdir()
    (base / "other").mkdir()
    (base / "kbroker-file").touch()

    assert sweep(str(base)) == []

    assert sorted(os.listdir(base)) == ["kbroker-file", "kbroker-something", "other"]


def test_create_removes_what_a_killed_run_left(base: Path) -> None:
    dead = RuntimeDir.create(str(base))
    os.close(dead._lock_fd)

    runtime = RuntimeDir.create(str(base))

    assert os.listdir(base) == [os.path.basename(runtime.path)]
    runtime.remove()


def test_path_too_long_for_a_socket_is_refused_with_the_limit(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"runtime\.dir.*at most \d+ bytes"):
        RuntimeDir.create(str(tmp_path / ("x" * 80)))


def test_path_that_cannot_be_written_is_refused(base: Path) -> None:
    (base / "file").touch()

    with pytest.raises(ConfigError, match=r"runtime\.dir"):
        RuntimeDir.create(str(base / "file"))


def test_link_that_somebody_made_before_is_refused(base: Path) -> None:
    """Names in /tmp can be predicted: the sockets would be in another user's directory."""
    (base / "theirs").mkdir()
    (base / "kbroker").symlink_to(base / "theirs")

    with pytest.raises(ConfigError, match=r"runtime\.dir.*it is a link"):
        RuntimeDir.create(str(base / "kbroker"), removes_base=True)

    assert os.listdir(base / "theirs") == []


def test_link_that_the_operator_names_is_followed(base: Path) -> None:
    (base / "there").mkdir(mode=0o700)
    (base / "here").symlink_to(base / "there")

    runtime = RuntimeDir.create(str(base / "here"))

    assert os.path.dirname(runtime.path) == str(base / "there")
    runtime.remove()


def test_directory_of_another_user_is_refused(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = os.stat(base).st_uid
    monkeypatch.setattr(
        os,
        "lstat",
        lambda path: os.stat_result((stat.S_IFDIR | 0o700, 1, 1, 1, mine + 1, 0, 0, 0, 0, 0)),
    )

    with pytest.raises(ConfigError, match=rf"runtime\.dir.*user {mine + 1}"):
        RuntimeDir.create(str(base))

    assert os.listdir(base) == []


@pytest.mark.parametrize("mode", [0o770, 0o707])
def test_directory_that_others_can_write_to_is_refused(base: Path, mode: int) -> None:
    base.chmod(mode)

    with pytest.raises(ConfigError, match=r"runtime\.dir.*chmod go-w"):
        RuntimeDir.create(str(base))


def test_directory_where_nobody_can_remove_what_is_not_his_is_taken(base: Path) -> None:
    """runtime.dir=/tmp."""
    base.chmod(0o1777)

    RuntimeDir.create(str(base)).remove()


def test_full_disk_is_told_and_nothing_is_left(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)

    with pytest.raises(ConfigError, match=r"runtime\.dir.*\(No space left on device\)"):
        RuntimeDir.create(str(base))

    assert os.listdir(base) == []


def test_status_is_there_as_a_whole(base: Path) -> None:
    runtime = RuntimeDir.create(str(base))

    runtime.write_status({"pid": 1})

    assert json.loads(Path(runtime.path, STATUS_NAME).read_text()) == {"pid": 1}
    runtime.remove()


def test_directory_of_a_living_run_is_passed_over_by_systemd_tmpfiles(base: Path) -> None:
    """It removes files that were not touched for days, unless it cannot lock the directory. Without
    ``slots.journal``, a restarted controller process would assign other slots.
    """
    runtime = RuntimeDir.create(str(base))
    directory = os.open(runtime.path, os.O_RDONLY)
    try:
        with pytest.raises(BlockingIOError):
            fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)

        runtime.remove()

        fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(directory)


@pytest.mark.skipif(shutil.which("systemd-tmpfiles") is None, reason="needs systemd-tmpfiles")
def test_systemd_tmpfiles_leaves_all_files_of_a_living_run(base: Path) -> None:
    tidied = base / "tidied"
    runtime = RuntimeDir.create(str(tidied / "run"))
    Path(runtime.path, "slots.journal").touch()
    for path in Path(runtime.path).iterdir():
        os.utime(path, (0, 0))
    rule = base / "rule.conf"
    rule.write_text(f"d {tidied} - - - 0\n")

    subprocess.run(["systemd-tmpfiles", "--clean", str(rule)], check=True)

    assert {path.name for path in Path(runtime.path).iterdir()} == {"lock", "slots.journal"}
    runtime.remove()
