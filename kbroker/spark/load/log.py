"""The commit log of a load in a directory: numbered files, each put there once and never changed.

A commit is written under a temporary name, synced, and linked to its number. The link is the commit
point and fails when the number exists, so that of any number of runs one wins. Every
``CHECKPOINT_EVERY`` commits the sum of them is written beside the log, so that a start reads that
and the few commits after it, however long the log is; ``expire`` drops commits that a checkpoint
has summed up.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from kbroker.spark.load import points
from kbroker.spark.load.commits import Commit, CorruptLogError, LostRaceError, State

CHECKPOINT_EVERY = 100
_NUMBERED = re.compile(r"(\d{12})\.json")


class CommitLog(Protocol):
    """What a run needs of a log, wherever it is kept."""

    def newest(self) -> Commit | None:
        """The newest commit, or None in an empty log."""
        ...

    def read(self, number: int) -> Commit | None:
        """One commit; None when it is not there (any more)."""
        ...

    def state(self, number: int | None = None) -> State:
        """The sum of all commits, or of those up to ``number``."""
        ...


class DirectoryLog:
    """See the module. Many processes may use one directory at the same time."""

    def __init__(self, root: Path) -> None:
        self.commits = root / "commits"
        self.checkpoints = root / "checkpoint"

    def newest(self) -> Commit | None:
        numbers = self.numbers()
        return self._read_present(numbers[-1]) if numbers else None

    def numbers(self) -> list[int]:
        """The numbers of all commits that are kept, ascending."""
        return _numbers_in(self.commits)

    def read(self, number: int) -> Commit | None:
        try:
            text = _numbered(self.commits, number).read_bytes()
        except FileNotFoundError:
            return None
        try:
            found = Commit.from_json(text)
        except CorruptLogError as err:
            raise CorruptLogError(f"{_numbered(self.commits, number)}: {err}") from err
        if found.number != number:
            raise CorruptLogError(f"{_numbered(self.commits, number)} holds commit {found.number}")
        return found

    def _read_present(self, number: int) -> Commit:
        found = self.read(number)
        if found is None:
            raise CorruptLogError(f"commit {number} has vanished from {self.commits}")
        return found

    def after(self, number: int) -> Iterator[Commit]:
        """Every commit with a higher number, ascending."""
        for one in self.numbers():
            if one > number:
                yield self._read_present(one)

    def state(self, number: int | None = None) -> State:
        """Raises CorruptLogError when a commit is missing that no checkpoint has summed up."""
        usable = [one for one in _numbers_in(self.checkpoints) if number is None or one <= number]
        found = State()
        if usable:
            path = _numbered(self.checkpoints, usable[-1])
            try:
                found = State.from_json(path.read_bytes())
            except CorruptLogError as err:
                raise CorruptLogError(f"{path}: {err}; remove it, and it is made again") from err
        for commit in self.after(found.number):
            if number is not None and commit.number > number:
                break
            found.apply(commit)
        if number is not None and found.number != number:
            raise CorruptLogError(
                f"commit {number} is not in the log: it has expired or never was; "
                f"the log keeps {self._kept()}"
            )
        return found

    def _kept(self) -> str:
        numbers = self.numbers()
        return f"{numbers[0]} to {numbers[-1]}" if numbers else "none"

    def put(self, commit: Commit) -> None:
        """Write ``commit`` under its number; raises LostRaceError when that number is taken.

        When this returns, the commit is on disk. Whatever else happens before the link, there is
        no commit.
        """
        self.commits.mkdir(parents=True, exist_ok=True)
        path = _numbered(self.commits, commit.number)
        temporary = self.commits / f".{commit.run}-{os.getpid()}.tmp"
        write_synced(temporary, commit.to_json().encode())
        points.reach("commit-written")
        try:
            os.link(temporary, path)
        except FileExistsError as err:
            raise LostRaceError(
                f"another run has written commit {commit.number} of {self.commits.parent.parent}; "
                "nothing of this run was loaded. Run one load of a destination at a time"
            ) from err
        finally:
            temporary.unlink(missing_ok=True)
        sync_directory(self.commits)

    def maybe_checkpoint(self, number: int) -> bool:
        """Sum up the commits up to ``number`` when it is time to."""
        if number % CHECKPOINT_EVERY:
            return False
        self.checkpoint()
        return True

    def checkpoint(self) -> State:
        """Sum up all commits. Two runs that do so at the same time write the same."""
        found = self.state()
        self.checkpoints.mkdir(parents=True, exist_ok=True)
        path = _numbered(self.checkpoints, found.number)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        write_synced(temporary, found.to_json().encode())
        temporary.replace(path)
        sync_directory(self.checkpoints)
        for number in _numbers_in(self.checkpoints)[:-2]:
            _numbered(self.checkpoints, number).unlink(missing_ok=True)
        return found

    def expire(self, before_ms: int) -> int:
        """Drop commits older than ``before_ms``, after summing them up; how many were dropped.

        The newest commit stays, whatever its age.
        """
        state = self.checkpoint()
        dropped = 0
        for number in self.numbers():
            if number >= state.number or self._read_present(number).written_ms >= before_ms:
                break
            _numbered(self.commits, number).unlink()
            dropped += 1
        for number in _numbers_in(self.checkpoints):
            if number != state.number:
                _numbered(self.checkpoints, number).unlink(missing_ok=True)
        return dropped


def write_synced(path: Path, content: bytes) -> None:
    """Write a whole file and sync it."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync_directory(path: Path) -> None:
    """Make names in ``path`` durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _numbered(folder: Path, number: int) -> Path:
    return folder / f"{number:012d}.json"


def _numbers_in(folder: Path) -> list[int]:
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    return sorted(int(match[1]) for name in names if (match := _NUMBERED.fullmatch(name)))
