"""The failpoints of a load, by name, for tests.

``KBROKER_LOAD_CRASH_AT=NAME`` or ``NAME:N`` kills the process group at the place called NAME, the
N-th time it is reached in a process (the first, without a number); nothing is flushed or closed.
"""

from __future__ import annotations

import os
import signal

VARIABLE = "KBROKER_LOAD_CRASH_AT"

POINTS = (
    "recovered",  # leftovers are removed, nothing is planned
    "planned",  # ranges are known, no task has run
    "task-writing",  # in a task: a file is open and partly written
    "task-staged",  # in a task: its files are complete, the driver does not know
    "staged",  # the driver has the results of all tasks
    "commit-written",  # the commit has its temporary name
    "committed",  # the commit has its number, nothing is published
    "publishing",  # one file of several is published
    "published",  # the group's offsets and the metrics are not
)

# While a commit is published to an Iceberg table.
ICEBERG_POINTS = (
    "version-written",  # under its temporary name
    # Visible to readers that look for the newest; the hint names the previous version.
    "version-linked",
)

# In ``recover``, which rebuilds a log.
RECOVER_POINTS = (
    "recover-begun",  # the log's first number is known, there is no commit
    "recover-committed",  # replaced files are still there
)

_reached: dict[str, int] = {}


def reach(name: str) -> None:
    """Kill this process here when the environment asks for it."""
    wanted = os.environ.get(VARIABLE)
    if not wanted:
        return
    point, _, nth = wanted.partition(":")
    if point != name:
        return
    _reached[name] = _reached.get(name, 0) + 1
    if _reached[name] == int(nth or 1):
        os.killpg(os.getpgid(0), signal.SIGKILL)
