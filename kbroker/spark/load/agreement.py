"""Whether a folder and its log of commits belong together.

Somebody may have removed the newest files of one of them, or brought one of them back from a copy.
A run that went by such a log would load records a second time, or leave them out for good: it must
be refused. ``published`` names the newest commit whose files are in their places, so that a log
which ends before it has lost commits. Where ``published`` says nothing of the newest commit (a run
was killed, or the file is lost), the files themselves are looked at: none may hold offsets that
no commit says are loaded.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from kbroker.spark.load import layout
from kbroker.spark.load.commits import Commit, CommitState
from kbroker.spark.load.writer import about

WAY_OUT = (
    "or move _kbroker/commits and _kbroker/checkpoint away and rebuild the log from the files "
    "with recover"
)


def lost_commits(root: Path, reach: int, known: int, by: str) -> str:
    """reach: the newest commit of the log. known: one that ``by`` names."""
    return (
        f"{root} is ahead of its log of commits, which ends at commit {reach}: {by} says that "
        f"commit {known} was loaded. Restore _kbroker/commits from commit {reach + 1} on; "
        f"{WAY_OUT}"
    )


def unknown_file(root: Path, reach: int, path: str) -> str:
    """path: of a file that ``ahead_of`` has found."""
    return (
        f"{root} is ahead of its log of commits, which ends at commit {reach}: {path} holds "
        f"records that no commit lists. Restore _kbroker/commits from commit {reach + 1} on; or "
        f"move that file away to load its records again; {WAY_OUT}"
    )


def published_number(name: str) -> int:
    """The number in the text of ``published``; 0 if it has none."""
    number = name.partition(" ")[0]
    return int(number) if number.isdecimal() else 0


def ahead_of(root: Path, state: CommitState, newest: Commit) -> Iterator[str]:
    """Paths of published files with records that no commit lists, in order.

    state: after ``newest``, whose own files may be anywhere. Files that others have put there are
    not meant, nor those of a topic that was deleted since. Looks at every name below ``data``.
    """
    listed = {one.path for one in newest.added} | set(newest.removed) | state.files.keys()
    for path in sorted((root / layout.DATA).rglob("*.parquet")):
        relative = path.relative_to(root).as_posix()
        numbers = layout.numbers_in(path.name)
        if numbers is None or relative in listed:
            continue
        topic = layout.partition_values(relative).get("topic") or ""
        partition, _, end = numbers
        if end <= state.ends.get(topic, {}).get(partition, 0):
            continue
        try:
            said = about(pq.read_metadata(path).metadata)
        except (pa.ArrowException, OSError):
            continue  # cut short by a crash: it holds nothing that counts
        if said.get("topic_id", "") in ("", state.topics.get(topic, said.get("topic_id", ""))):
            yield relative
