"""What a reader of a folder or table sees, whoever wrote it: its files, and rows deleted from them.

The log of commits says what was loaded. Since then, other writers may have rewritten files of a
table or deleted rows, and somebody may have removed or copied files of a folder by hand.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kbroker.spark.load import layout

if TYPE_CHECKING:
    import pyarrow as pa

# Table readers take these for hidden, except folders of a column whose name begins so.
_HIDING = ("_", ".")


@dataclass(frozen=True, slots=True)
class SeenFile:
    """A file of rows of one topic.

    path: below the root, or absolute if it is elsewhere. deleted: positions of the rows that the
    table has deleted without rewriting the file, ascending; None if there are none.
    """

    path: str
    topic: str
    deleted: pa.Array | None = None


def files_below(root: Path) -> Iterator[SeenFile]:
    """The files that a reader of the folder's data finds. Files outside of the folders of topics
    belong to no topic, and are left out.
    """
    for folder, folders, names in os.walk(root / layout.DATA):
        folders[:] = [one for one in folders if not one.startswith(_HIDING) or "=" in one]
        for name in names:
            if name.endswith(".parquet") and not name.startswith(_HIDING):
                path = Path(folder, name).relative_to(root).as_posix()
                if topic := layout.partition_values(path).get("topic"):
                    yield SeenFile(path, topic)
