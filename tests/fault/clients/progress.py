"""How far the programs of a cell are, by what they have told; each line is looked at once, as an
exam looks five times a second for minutes.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from fault.clients import checker
from fault.clients.programs import Running
from fault.clients.roles import Role


class Progress:
    """programs: of one role; more may come."""

    def __init__(self, role: Role, programs: list[Running]) -> None:
        self._role, self._programs = role, programs
        self._taken: dict[str, int] = defaultdict(int)  # lines, by program
        self._last: dict[Any, float] = defaultdict(float)  # time, by partition, or call
        self._high: dict[int, int] = defaultdict(int)
        self._copied: dict[int, set[str]] = defaultdict(set)

    def _take(self) -> None:
        for program in self._programs:
            count = len(program.lines)
            for line in program.lines[self._taken[program.name] : count]:
                self._take_line(line)
            self._taken[program.name] = count

    def _take_line(self, line: checker.Event) -> None:
        if line["what"] == "answered":
            self._last[line["call"]] = line["at"]
        for partition in checker.progress(self._role, line):
            self._last[partition] = max(self._last[partition], line["at"])
        if line["what"] == "returned":
            for partition, offset, _ in line["rows"]:
                self._high[partition] = max(self._high[partition], offset + 1)
        elif line["what"] == "copied":
            for partition, value in line["rows"]:
                self._copied[partition].add(value)

    def missing(self, wanted: set[Any], since: float) -> set[Any]:
        """The partitions, or calls, of these in which nothing has come since then."""
        self._take()
        return {one for one in wanted if self._last[one] <= since}

    def behind(self, ends: dict[int, int]) -> dict[int, int]:
        """How many records were not returned, or copied, of those below these ends."""
        self._take()
        done = self._high | {partition: len(rows) for partition, rows in self._copied.items()}
        left = {partition: end - done.get(partition, 0) for partition, end in ends.items()}
        return {partition: count for partition, count in left.items() if count > 0}
