"""A directory as destination: tasks stage files, the driver commits them and renames them in place.

A commit lists where each file is staged and where it belongs. Publishing is renaming, one file
after the other, and repeating it changes nothing; so the next run first publishes the newest
commit again unless ``published`` names it, and every older one was published before the next was
written. What is published may be deleted by hand, as old folders of a lake are. Files of a staging
folder that no commit lists are left over from a run that died or lost: they may be removed once
no run can commit them any more, which ``fence`` sees to.

The directory must have hard links and atomic renames: a local disk, or NFS where all executors
mount it at the same path.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from kbroker.spark.load import agreement, layout, points
from kbroker.spark.load.columns import check_columns
from kbroker.spark.load.commits import Commit, LoadedFile, LoadError, LostRaceError
from kbroker.spark.load.destination import discarding
from kbroker.spark.load.log import CommitLog, DirectoryStore, sync_directory, temporary
from kbroker.spark.load.seen import SeenFile, files_below
from kbroker.spark.load.writer import FileOptions, RangeWriter
from kbroker.spark.plan import OffsetRange

# Sinks of tables, and their specific functions.
TABLES = (
    ("delta", "_delta_log", "a Delta table"),
    ("iceberg", "metadata/version-hint.text", "an Iceberg table"),
)
_FULL = (errno.ENOSPC, errno.EDQUOT)


class BusyError(LoadError):
    """Another run is at work on the destination."""


@dataclass(frozen=True, slots=True)
class DirectoryTaskSink:
    """The part of a destination that goes to the executors."""

    root: str
    staging: str
    files: FileOptions
    about: dict[str, str]

    def open(self, one: OffsetRange, attempt: str) -> RangeWriter:
        """A writer for one attempt at a range."""
        return self._open(one, attempt, self.files)

    def open_errors(self, one: OffsetRange, attempt: str) -> RangeWriter:
        """A writer for the records of the range that cannot be decoded."""
        files = replace(self.files, partition_by="none", topic_column=True)
        return self._open(one, f"{attempt}-bad", files)

    def _open(self, one: OffsetRange, attempt: str, files: FileOptions) -> RangeWriter:
        where = (one.topic, one.partition, one.start, one.end)
        about = self.about | ({"topic_id": one.topic_id} if one.topic_id else {})
        return RangeWriter(Path(self.root), self.staging, where, attempt, files, about)


class Directory:
    """See the module."""

    name = "dir"
    # Whether readers use the table's own log.
    is_table = False

    def __init__(self, root: str | Path, files: FileOptions | None = None) -> None:
        self.root = Path(root).absolute()
        self.files = files or FileOptions()
        self._store = DirectoryStore(self.root / layout.PRIVATE)
        self.log = CommitLog(self._store)
        # (run, kind, topic) whose columns fit. BOUND: the topics of a run.
        self._checked: set[tuple[str, str, str]] = set()

    def prepare(self) -> None:
        """Make the folders; raises LoadError when the place cannot be written, or belongs to a
        destination of another kind."""
        self.check_kind()
        try:
            (self.root / layout.STAGING).mkdir(parents=True, exist_ok=True)
            (self.root / layout.DATA).mkdir(exist_ok=True)
        except OSError as err:
            raise LoadError(f"cannot write to the destination {self.root}: {err}") from err

    def require(self) -> None:
        """Raises LoadError when nothing was ever loaded here."""
        if not (self.root / layout.PRIVATE).is_dir():
            raise LoadError(
                self.disagreement()
                or f"{self.root} is not the destination of a load: no {layout.PRIVATE}/"
            )
        self.check_kind()

    def check_kind(self) -> None:
        """Raises LoadError if there is a destination of another sink."""
        for sink, sign, kind in TABLES:
            if sink != self.name and (self.root / sign).exists():
                raise LoadError(f"{self.root} is {kind}: use --sink {sink}")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other runs of this machine away; the system lets go when the process ends.

        A courtesy: what keeps two runs from loading the same is the commit log alone.

        Raises BusyError when another run holds the lock.
        """
        descriptor = os.open(self.root / layout.LOCK, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as err:
                holder = os.read(descriptor, 100).decode(errors="replace").strip()
                raise BusyError(
                    f"another run is using {self.root} ({holder or 'unknown'}); wait for it to "
                    "end, or stop it"
                ) from err
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"process {os.getpid()}\n".encode(), 0)
            yield
        finally:
            os.close(descriptor)

    def task_sink(self, run: str, about: dict[str, str]) -> DirectoryTaskSink:
        """The sink for a run's tasks."""
        return DirectoryTaskSink(str(self.root), f"{layout.STAGING}/{run}", self.files, about)

    def recover(self, fence: Callable[[Commit | None], Commit]) -> Commit | None:
        """Finish what the newest commit began, and remove files that no commit will ever list.

        fence: writes an empty commit and returns it; called before anything is removed, so that
        the run which left it (and may still be alive) cannot commit it afterwards.

        Returns the newest commit. Raises LoadError when the files and the log do not belong
        together, or there are data files and no log.
        """
        newest = self.publish_newest()
        leftovers = self._leftovers()
        unfinished = self._store.leftovers()
        # For an empty folder, too: its run may be about to stage files in it.
        if leftovers or unfinished:
            newest = fence(newest)
        for one in leftovers:
            shutil.rmtree(one, ignore_errors=True)
        for one in unfinished:
            one.unlink(missing_ok=True)
        return newest

    def require_room(self, topics: Iterable[str]) -> None:
        """Files of both topics can coexist."""

    def discard(self, run: str) -> None:
        """Remove staged files: on a full disk, the next run could not even take a number before."""
        shutil.rmtree(self.root / layout.STAGING / run, ignore_errors=True)

    def commit(self, commit: Commit) -> None:
        """The commit point. Raises LostRaceError; LoadError when files do not fit the others."""
        with discarding(self, commit.run):
            self._check(commit)
        try:
            self._store.put(commit)
        except OSError as err:
            if err.errno in _FULL and self.log.read(commit.number) is None:
                self.discard(commit.run)
            raise

    def _check(self, commit: Commit) -> None:
        """Whether the staged files can be committed."""
        # Columns of a run's loads are the same: each topic is checked once.
        new = {(commit.run, commit.kind, one.topic) for one in commit.added}
        try:
            for folder in {os.path.dirname(one.staged) for one in (*commit.added, *commit.errors)}:
                sync_directory(self.root / folder)
            if not new <= self._checked:
                state = self.log.state()
                check_columns(self.root, commit, state, is_table=self.is_table)
        except FileNotFoundError as err:
            raise LostRaceError(
                "another run has removed what this one staged in "
                f"{self.root / layout.STAGING / commit.run}; nothing of this run was loaded. Run "
                "one load of a destination at a time"
            ) from err
        self._checked |= new

    def publish(self, commit: Commit) -> None:
        """Put the commit's files in their places and remove those it replaces; may be repeated.

        A reader sees a file whole or not at all; between the two steps it sees both the new files
        and those they replace.

        Raises LoadError when a file is neither staged nor in its place.
        """
        self._put_in_place(commit)
        self._remove(commit.removed)
        self._note_published(commit)

    def _remove(self, paths: Iterable[str]) -> None:
        gone = [self.root / path for path in paths]
        for one in gone:
            one.unlink(missing_ok=True)
        for folder in {one.parent for one in gone}:
            if folder.is_dir():
                sync_directory(folder)

    def unpublished(self) -> Commit | None:
        """The newest commit, when its files are not all in their places yet."""
        newest = self.log.newest()
        return None if newest is None or self._is_published(newest) else newest

    def moving(self) -> set[str]:
        """Files that the next ``publish`` puts in their places or removes, and has not lost."""
        newest = self.unpublished()
        if newest is None:
            return set()
        return set(newest.removed) | {
            one.path
            for one in (*newest.added, *newest.errors)
            if (self.root / one.staged).exists() or (self.root / one.path).exists()
        }

    def disagreement(self) -> str | None:
        # A run publishes its commits: published ones are checked first.
        published = self._published()
        newest = self.log.newest()
        if newest is None:
            if next((self.root / layout.DATA).rglob("*.parquet"), None) is None:
                return None
            return (
                f"{self.root} has data files but no log of commits: rebuild the log from them "
                "with recover, or load into another folder"
            )
        known = agreement.published_number(published)
        if known > newest.number:
            return agreement.lost_commits(self.root, newest.number, known, layout.PUBLISHED)
        known = self.log.last_summed_up()
        if known > self.log.numbers()[-1]:
            by = f"{layout.PRIVATE}/checkpoint"
            return agreement.lost_commits(self.root, newest.number, known, by)
        if published != _name_of(newest) or self._leftovers():
            strange = self._strange_file(newest)
            if strange is not None and self.log.newest() == newest:
                return agreement.unknown_file(self.root, newest.number, strange)
        return None

    def _strange_file(self, newest: Commit) -> str | None:
        """A file that readers see, with records that no commit lists."""
        return next(agreement.ahead_of(self.root, self.log.state(), newest), None)

    def _leftovers(self) -> list[Path]:
        """Staged files of runs in progress or of runs that failed."""
        staging = self.root / layout.STAGING
        return sorted(staging.iterdir()) if staging.is_dir() else []

    def publish_newest(self) -> Commit | None:
        """The newest commit, published now if it was not. Raises LoadError if there is a
        ``disagreement``.
        """
        if (said := self.disagreement()) is not None:
            raise LoadError(said)
        newest = self.log.newest()
        if newest is not None and not self._is_published(newest):
            self.publish(newest)
        return newest

    def _is_published(self, commit: Commit) -> bool:
        return self._published() == _name_of(commit)

    def _published(self) -> str:
        """The name of the newest commit whose files are in place; empty if it is lost."""
        try:
            return (self.root / layout.PUBLISHED).read_text()
        except FileNotFoundError:
            return ""

    def forget_published(self) -> None:
        """Called before a log is rebuilt, whose numbers are unrelated to those of the lost one."""
        (self.root / layout.PUBLISHED).unlink(missing_ok=True)
        sync_directory(self.root / layout.PRIVATE)

    def _note_published(self, commit: Commit) -> None:
        """Not synced: if it is lost, publishing is repeated."""
        path = self.root / layout.PUBLISHED
        with temporary(path, f"published-{os.getpid()}-{threading.get_ident()}") as whole:
            whole.write_text(_name_of(commit))
            whole.replace(path)

    def _put_in_place(self, commit: Commit) -> None:
        folders: set[Path] = set()
        for one in (*commit.added, *commit.errors):
            final = self.root / one.path
            final.parent.mkdir(parents=True, exist_ok=True)
            try:
                (self.root / one.staged).rename(final)
                folders.add(final.parent)
            except FileNotFoundError as err:
                if not final.exists() and not self._replaced(one, commit.number):
                    raise LoadError(
                        f"{final} is missing: commit {commit.number} lists it, but it is neither "
                        "in place nor staged. Restore it, or move _kbroker/commits and "
                        "_kbroker/checkpoint away and rebuild the log from the remaining files "
                        "with recover"
                    ) from err
            points.reach("publishing")
        for folder in folders:
            _sync_up_to(folder, self.root)

    def _replaced(self, one: LoadedFile, number: int) -> bool:
        """Whether a later commit has removed the file: then another run is ahead of this one."""
        newest = self.log.newest()
        return newest is not None and newest.number > number and not self._is_listed(one.path)

    def _is_listed(self, path: str) -> bool:
        state = self.log.state()
        return path in state.files or path in state.errors

    def out_of_place(self, files: Iterable[LoadedFile]) -> dict[str, str]:
        """By path, the problem of files that readers no longer see. Must not include files of an
        unpublished commit.
        """
        return {one.path: "missing" for one in files if not (self.root / one.path).exists()}

    def seen(self) -> list[SeenFile]:
        """The files that a reader sees now, also those of other writers. Raises LoadError."""
        return list(files_below(self.root))

    def ended(self, commit: Commit) -> None:
        """After a commit is published: empty folders go, the log is summed up when it is time."""
        shutil.rmtree(self.root / layout.STAGING / commit.run, ignore_errors=True)
        self.log.maybe_checkpoint(commit.number)

    def number_before(self, load: str) -> int:
        """The number at which a rebuilt log continues."""
        return 0

    def close(self) -> None:
        """Nothing to close."""


def _name_of(commit: Commit) -> str:
    """Includes the run, because a rebuilt log starts its numbers again."""
    return f"{commit.number} {commit.run}\n"


def _sync_up_to(folder: Path, root: Path) -> None:
    """Make the names of a folder and of its parents durable."""
    while True:
        sync_directory(folder)
        if folder == root or root not in folder.parents:
            return
        folder = folder.parent
