"""The interface of a destination, and the choice of one by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Protocol

from kbroker.spark.load.commits import LoadError

if TYPE_CHECKING:
    import pyarrow as pa

    from kbroker.spark.load.commits import Commit
    from kbroker.spark.load.log import CommitLog
    from kbroker.spark.load.writer import WrittenRange
    from kbroker.spark.plan import OffsetRange


_DATABASES = ("sqlite:", "jdbc:", "postgres:", "postgresql:")


def names_database(place: str) -> bool:
    """Whether that is the URL of a database, and not a folder."""
    return "://" in place or place.startswith(_DATABASES)


def refuse_url(place: str) -> None:
    """Raises LoadError for a URL; the message has only its kind, in case of a password in it."""
    if place.startswith(_DATABASES):
        raise LoadError("--dest is a database, not a folder; use --sink jdbc")
    if names_database(place):
        kind = place.partition(":")[0]
        raise LoadError(
            f"--dest is not a folder but an address of {kind}: give the path of a folder, mounted "
            "if it is on another machine"
        )


class Writer(Protocol):
    """Takes the rows of one attempt at one range."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Add rows, which are in offset order."""
        ...

    def finish(self) -> WrittenRange:
        """Make everything durable; until then, nothing may be relied on."""
        ...


class TaskSink(Protocol):
    """The part of a destination that goes to the executors: it pickles."""

    def open(self, one: OffsetRange, attempt: str) -> Writer:
        """A writer for one attempt at a range."""
        ...

    def open_errors(self, one: OffsetRange, attempt: str) -> Writer:
        """A writer for the records of the range that cannot be decoded."""
        ...


class Destination(Protocol):
    """The place where a load puts records, together with the log of its commits."""

    @property
    def log(self) -> CommitLog:
        """The commits."""
        ...

    def prepare(self) -> None:
        """Create what must exist before the first run; raises LoadError if that fails."""
        ...

    def require(self) -> None:
        """Raises LoadError when nothing was ever loaded here."""
        ...

    def locked(self) -> AbstractContextManager[None]:
        """Keep other runs away, as far as one machine can; raises BusyError."""
        ...

    def task_sink(self, run: str, about: dict[str, str]) -> TaskSink:
        """The sink for a run's tasks."""
        ...

    def recover(self, fence: Callable[[Commit | None], Commit]) -> Commit | None:
        """Finish the newest commit and remove leftovers; returns the newest commit.

        fence: called with the newest commit before leftovers are removed, so that the run that left
        them cannot commit them any more.

        Raises LoadError where there is a ``disagreement``; then nothing is changed.
        """
        ...

    def disagreement(self) -> str | None:
        """The problem and its remedy if the data and the commit log do not match, because commits
        or their data are lost. Runs that rely on such a log are refused; a run in progress is not a
        mismatch.
        """
        ...

    def require_room(self, topics: Iterable[str]) -> None:
        """Raises LoadError if rows of recreated topics cannot be stored beside those of the old
        ones.
        """
        ...

    def discard(self, run: str) -> None:
        """Remove what a run has staged and will not commit; ``recover`` removes the rest."""
        ...

    def commit(self, commit: Commit) -> None:
        """The commit point. Raises LostRaceError when the number is taken."""
        ...

    def publish(self, commit: Commit) -> None:
        """Let readers see the commit; may be repeated."""
        ...

    def ended(self, commit: Commit) -> None:
        """Tidy up after a published commit."""
        ...

    def close(self) -> None:
        """Close connections."""
        ...


@contextmanager
def discarding(destination: Destination, run: str) -> Iterator[None]:
    """Remove the files that a run stages in the block if it ends with an error."""
    try:
        yield
    except BaseException:
        destination.discard(run)
        raise
