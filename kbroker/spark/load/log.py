"""The commit log of a load: numbered commits, each put there once and never changed.

Every ``CHECKPOINT_EVERY`` commits their sum is written beside them, so that a start reads that and
the few commits after it, however long the log is; ``expire`` drops commits that a checkpoint has
summed up. In a directory a commit is written under a temporary name, synced, and linked to its
number. The link is the commit point and fails when the number exists, so that of any number of
runs one wins.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, Protocol

from kbroker.spark.load import points
from kbroker.spark.load.commits import Commit, CommitState, CorruptLogError, LostRaceError

CHECKPOINT_EVERY = 100
_TEMPORARY = ".tmp"
_NUMBERED = re.compile(r"(\d{12})\.json")

Kind = Literal["commits", "checkpoint"]


class LogStore(Protocol):
    """Numbered texts in two kinds, somewhere."""

    def numbers(self, kind: Kind) -> list[int]:
        """All numbers of a kind, ascending."""
        ...

    def read(self, kind: Kind, number: int) -> bytes | str | None:
        """One text; None if it does not exist (any more)."""
        ...

    def replace(self, kind: Kind, number: int, text: str) -> None:
        """Write or overwrite a text, whole or not at all."""
        ...

    def drop(self, kind: Kind, number: int) -> None:
        """Remove a text, if it exists."""
        ...


class CommitLog:
    """Reads and sums up the commits of a store; writing one is the destination's commit point."""

    def __init__(self, store: LogStore) -> None:
        self._store = store

    def newest(self) -> Commit | None:
        """The newest commit, or None in an empty log."""
        numbers = self.numbers()
        return self._read_present(numbers[-1]) if numbers else None

    def numbers(self) -> list[int]:
        """The numbers of all commits that are kept, ascending."""
        return self._store.numbers("commits")

    def last_summed_up(self) -> int:
        """The newest commit that a checkpoint has summed up; 0 without one."""
        return max(self._store.numbers("checkpoint"), default=0)

    def last_change(self) -> Commit | None:
        """The newest commit that is kept and has files to add or to remove."""
        for number in reversed(self.numbers()):
            commit = self._read_present(number)
            if commit.added or commit.removed:
                return commit
        return None

    def read(self, number: int) -> Commit | None:
        """One commit; None if it does not exist (any more). Raises CorruptLogError."""
        text = self._store.read("commits", number)
        if text is None:
            return None
        try:
            commit = Commit.from_json(text)
        except CorruptLogError as err:
            raise CorruptLogError(f"commit {number} of {self._store}: {err}") from err
        if commit.number != number:
            raise CorruptLogError(f"commit {number} of {self._store} claims to be {commit.number}")
        return commit

    def _read_present(self, number: int) -> Commit:
        commit = self.read(number)
        if commit is None:
            raise CorruptLogError(f"commit {number} has disappeared from {self._store}")
        return commit

    def after(self, number: int) -> Iterator[Commit]:
        """Every commit with a higher number, ascending."""
        for one in self.numbers():
            if one > number:
                yield self._read_present(one)

    def state(self, number: int | None = None) -> CommitState:
        """The sum of all commits, or of those up to ``number``.

        Raises CorruptLogError when a commit is missing that no checkpoint has summed up.
        """
        usable = [
            one for one in self._store.numbers("checkpoint") if number is None or one <= number
        ]
        state = CommitState()
        if usable:
            text = self._store.read("checkpoint", usable[-1])
            try:
                state = CommitState.from_json(text or b"")
            except CorruptLogError as err:
                raise CorruptLogError(
                    f"checkpoint {usable[-1]} of {self._store}: {err}; remove it; it is rebuilt "
                    "as long as no commit has expired"
                ) from err
        for commit in self.after(state.number):
            if number is not None and commit.number > number:
                break
            state.apply(commit)
        if number is not None and state.number != number:
            numbers = self.numbers()
            kept = f"{numbers[0]} to {numbers[-1]}" if numbers else "none"
            raise CorruptLogError(
                f"commit {number} is not in the log: it has expired or never existed; the log has "
                f"{kept}"
            )
        return state

    def maybe_checkpoint(self, number: int) -> bool:
        """Sum up the commits up to ``number`` when it is time to."""
        if number % CHECKPOINT_EVERY:
            return False
        self.checkpoint()
        return True

    def checkpoint(self) -> CommitState:
        """Sum up all commits. Two concurrent runs write the same."""
        state = self.state()
        if state.number:
            self._store.replace("checkpoint", state.number, state.to_json())
        for number in self._store.numbers("checkpoint")[:-2]:
            self._store.drop("checkpoint", number)
        return state

    def begin_after(self, number: int, load: str) -> None:
        """Let an empty log continue from a number, as if all commits up to it had expired; older
        checkpoints are removed.
        """
        for older in self._store.numbers("checkpoint"):
            self._store.drop("checkpoint", older)
        if number:
            state = CommitState(number=number, load=load)
            self._store.replace("checkpoint", number, state.to_json())

    def expire(self, before_ms: int) -> int:
        """Drop commits older than ``before_ms``, after summing them up; returns their number.

        The newest commit stays, whatever its age.
        """
        state = self.checkpoint()
        dropped = 0
        for number in self.numbers():
            if number >= state.number or self._read_present(number).written_ms >= before_ms:
                break
            # An older checkpoint is useless without the commits that follow it.
            for older in self._store.numbers("checkpoint"):
                if older < state.number:
                    self._store.drop("checkpoint", older)
            self._store.drop("commits", number)
            dropped += 1
        return dropped


class DirectoryStore:
    """A folder for each kind. Many processes may use it concurrently."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def __str__(self) -> str:
        return str(self._root)

    def numbers(self, kind: Kind) -> list[int]:
        try:
            names = os.listdir(self._root / kind)
        except FileNotFoundError:
            return []
        return sorted(int(match[1]) for name in names if (match := _NUMBERED.fullmatch(name)))

    def read(self, kind: Kind, number: int) -> bytes | None:
        try:
            return self._path(kind, number).read_bytes()
        except FileNotFoundError:
            return None

    def replace(self, kind: Kind, number: int, text: str) -> None:
        path = self._path(kind, number)
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary(path, f"{path.name}.{os.getpid()}") as whole:
            write_synced(whole, text.encode())
            whole.replace(path)
        sync_directory(path.parent)

    def drop(self, kind: Kind, number: int) -> None:
        self._path(kind, number).unlink(missing_ok=True)

    def _path(self, kind: Kind, number: int) -> Path:
        return self._root / kind / f"{number:012d}.json"

    def put(self, commit: Commit) -> None:
        """Write ``commit`` under its number; raises LostRaceError when that number is taken.

        When this returns, the commit is on disk. Whatever else happens before the link, there is
        no commit.
        """
        path = self._path("commits", commit.number)
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary(path, f"{commit.run}-{os.getpid()}") as whole:
            write_synced(whole, commit.to_json().encode())
            points.reach("commit-written")
            try:
                os.link(whole, path)
            except (FileExistsError, FileNotFoundError) as err:  # or taken for a leftover
                raise LostRaceError(lost_race(commit, self._root.parent)) from err
        sync_directory(path.parent)

    def leftovers(self) -> list[Path]:
        """Temporary files of runs that were killed while writing them, or are writing them now."""
        folders = (self._root / "commits", self._root / "checkpoint")
        return [path for folder in folders for path in sorted(folder.glob(f".*{_TEMPORARY}"))]


def lost_race(commit: Commit, where: object) -> str:
    """The error of a run whose commit number was taken by another run."""
    return (
        f"another run has written commit {commit.number} of {where}; nothing of this run was "
        "loaded. Run one load of a destination at a time"
    )


@contextmanager
def temporary(path: Path, name: str) -> Iterator[Path]:
    """A temporary path beside ``path``; the file is removed afterwards, even on a full disk."""
    path_beside = path.with_name(f".{name}{_TEMPORARY}")
    try:
        yield path_beside
    finally:
        path_beside.unlink(missing_ok=True)


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
