"""Whether what clients have told their programs is true, and keeps the promise of their role.

Writers: what was acknowledged is in the log, once if the role promises that; of an aborted
transaction nothing is. Readers: from where partitions were assigned, each record is returned once
and in order; an assignment begins neither after what was returned (records would be lost) nor
before what was committed. Committed offsets are not past what was returned.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable
from itertools import pairwise, zip_longest
from typing import Any

from fault.clients.feeds import Log
from fault.clients.roles import ADMINISTERS, COPIES, READS, WRITES, Role

Event = dict[str, Any]
LATE_FAILS_S = 10.0
SHOWN = 4


def by_time(histories: Iterable[list[Event]]) -> list[Event]:
    """The lines of several programs."""
    return sorted((one for lines in histories for one in lines), key=lambda one: one["at"])


def check_ends(lines: list[Event], is_exit: bool, ends_alone: bool = True) -> list[str]:
    """Of one program: calls within their time, nothing left if it ``ends_alone``."""
    found = []
    ends = [one for one in lines if one["what"] == "end"]
    if not ends:
        return ["the program did not come to its end"]
    end = ends[-1]
    if end["over"] > LATE_FAILS_S:
        found.append(f"{end['longest']} took {end['over']:.1f} s longer than it may")
    found += [one["error"] for one in lines if one["what"] == "broke" and not is_exit]
    found += [f"{one['call']} hangs" for one in lines if one["what"] == "hangs"]
    found += [f"{one['count']} futures never end" for one in lines if _is_open(one)]
    if ends_alone and not is_exit:
        for kind in ("threads", "warnings"):
            if end[kind]:
                found.append(f"{kind} left: {end[kind][:SHOWN]}")
        if end["raised"]:
            found.append(f"raised where nobody sees it: {end['raised'][:SHOWN]}")
        if end["sockets"] > 0:
            found.append(f"{end['sockets']} sockets left")
    return found


def _is_open(line: Event) -> bool:
    return line["what"] == "open" and line["count"] != 0


def check_writer(role: Role, lines: list[Event], log: Log, may_lose: bool = False) -> list[str]:
    """Of one writer, and what the log has in the end. may_lose: what only a leader had is gone."""
    name_of = Counter(value for rows in log.values() for _, value in rows)
    names = {value.split(":")[0] for value in name_of}
    offsets = {(p, offset): value for p, rows in log.items() for offset, value in rows}
    problems: list[str] = []
    prefix = next((one["who"] for one in lines if one["what"] == "name"), "")
    assert prefix or not names, names
    outcome: dict[tuple[int, int], str] = {}
    for one in lines:
        if one["what"] == "transaction":
            outcome |= dict.fromkeys(map(tuple, one["rows"]), one["outcome"])
            problems += _half(one, prefix, name_of)
    for partition, number, offset in () if may_lose else _rows(lines, "acked"):
        value = f"{prefix}:{partition}:{number}"
        wanted = outcome.get((partition, number), "unknown" if role.is_transactional else "acked")
        if wanted in ("acked", "committed") and not name_of[value]:
            problems.append(f"lost: {value} was acknowledged at {offset}")
        if wanted == "aborted" and name_of[value]:
            problems.append(f"aborted, and there: {value}")
        if wanted == "acked" and offset >= 0 and offsets.get((partition, offset)) != value:
            problems.append(f"{value} is not at {offset}: {offsets.get((partition, offset))}")
    if role.once:
        problems += [f"{count} times: {value}" for value, count in name_of.items() if count > 1]
    return problems


def _half(transaction: Event, prefix: str, there: Counter[str]) -> list[str]:
    """Whether a transaction is there in part only."""
    if transaction["outcome"] == "aborted":
        return []
    counts = {there[f"{prefix}:{p}:{n}"] > 0 for p, n in transaction["rows"]}
    if transaction["outcome"] == "committed" and counts - {True}:
        return [f"lost: records of a committed transaction: {transaction['rows'][:SHOWN]}"]
    return [f"half of a transaction: {transaction['rows'][:SHOWN]}"] if len(counts) > 1 else []


def _rows(lines: list[Event], what: str) -> Iterable[Any]:
    return (row for one in lines if one["what"] == what for row in one["rows"])


def check_copies(log: Log, copy: Log) -> list[str]:
    """Of a mirror: everything is there at least once, and in order as it comes first."""
    problems: list[str] = []
    for partition, rows in log.items():
        wanted = [value for _, value in rows]
        first = list(dict.fromkeys(value for _, value in copy[partition]))
        if missing := [value for value in wanted if value not in set(first)]:
            problems.append(f"lost: {len(missing)} records of {partition}, from {missing[0]}")
        elif first != wanted:
            place = next(n for n, (a, b) in enumerate(zip_longest(first, wanted)) if a != b)
            problems.append(f"partition {partition} has another order from {first[place]} on")
    return problems


class _Group:
    """The consumers of one topic, as their lines are read in the order of time."""

    def __init__(self, role: Role, log: Log) -> None:
        self.problems: list[str] = []
        self._role = role
        self._log = {p: dict(rows) for p, rows in log.items()}
        self._order = {p: [offset for offset, _ in rows] for p, rows in log.items()}
        self._place = {p: {o: n for n, o in enumerate(rows)} for p, rows in self._order.items()}
        self.returned: dict[int, set[int]] = defaultdict(set)
        self._high: dict[int, int] = defaultdict(int)  # after the last one returned to anybody
        self.told: dict[int, int] = defaultdict(int)  # committed, as was told
        self._told_before: dict[tuple[str, int], int] = {}  # the same, when it was assigned
        self._last: dict[tuple[str, int], int] = {}  # returned last, in this assignment

    def take(self, one: Event) -> None:
        what, who = one["what"], one["who"]
        if what in ("assigned", "revoked", "lost"):
            for partition in one["partitions"]:
                self._last.pop((who, partition), None)
                self._told_before[who, partition] = self.told[partition]
        elif what == "returned":
            for partition, offset, value in one["rows"]:
                self._returned(who, partition, offset, value)
        elif what == "committed":
            for partition, offset in one["offsets"]:
                self.told[partition] = max(self.told[partition], offset)
        elif what == "seen":
            for partition, offset in one["offsets"]:
                self._not_past(partition, offset, " while it ran")

    def _returned(self, who: str, partition: int, offset: int, value: str) -> None:
        at = f"partition {partition}, offset {offset}"
        if self._log[partition].get(offset) != value:
            self.problems.append(f"{at}: {value} was returned, {self._log[partition].get(offset)}")
            return
        place = self._place[partition][offset]
        before = self._last.get((who, partition))
        if before is None:
            self._begins(who, partition, offset, place)
        elif place != self._place[partition][before] + 1 and not self._role.once:
            self._begins(who, partition, offset, place)  # it does not tell of its assignments
        elif place != self._place[partition][before] + 1:
            how = "again" if offset <= before else "records lost:"
            self.problems.append(f"{how} {at} after {before}, by {who}")
        self._last[who, partition] = offset
        self.returned[partition].add(offset)
        self._high[partition] = max(self._high[partition], offset + 1)

    def _begins(self, who: str, partition: int, offset: int, place: int) -> None:
        """What is committed after the assignment does not count: a program that stands still
        between a call and its line, for longer than max.poll.interval, tells of records that
        another one has returned and committed meanwhile.
        """
        order = self._order[partition]
        expected = order[place - 1] + 1 if place else 0
        if expected > self._high[partition]:
            self.problems.append(
                f"lost: partition {partition} begins at {offset}, returned: {self._high[partition]}"
            )
        told = self._told_before.get((who, partition), self.told[partition])
        if offset < told:
            self.problems.append(
                f"back: partition {partition} begins at {offset}, committed: {told}"
            )

    def end(self, committed: dict[int, int], complete: bool) -> None:
        for partition, order in self._order.items():
            missing = [offset for offset in order if offset not in self.returned[partition]]
            if missing and complete:
                self.problems.append(
                    f"never returned: {len(missing)} records of partition {partition}, "
                    f"from {missing[0]}"
                )
        for partition, offset in committed.items():
            self._not_past(partition, offset)
            if offset < self.told[partition]:
                self.problems.append(
                    f"committed {offset} of partition {partition}, told {self.told[partition]}"
                )

    def _not_past(self, partition: int, offset: int, when: str = "") -> None:
        """Nothing is committed that was returned to nobody. Markers of transactions have offsets,
        too.
        """
        order, high = self._order.get(partition, []), self._high[partition]
        place = bisect_left(order, high)
        if place < len(order) and order[place] < offset:
            self.problems.append(
                f"committed {offset} of partition {partition}{when}, returned {high}"
            )


def check_seen(lines: list[Event]) -> list[str]:
    """Whether a committed offset went back while anybody looked."""
    found: dict[int, str] = {}
    last: dict[int, int] = {}
    for one in lines:
        for partition, offset in one["offsets"] if one["what"] == "seen" else ():
            if offset < last.get(partition, 0):
                found.setdefault(
                    partition,
                    f"committed offset of partition {partition} went back "
                    f"from {last[partition]} to {offset}",
                )
            last[partition] = max(last.get(partition, 0), offset)
    return list(found.values())


def check_readers(
    role: Role, lines: list[Event], log: Log, committed: dict[int, int], complete: bool
) -> list[str]:
    """Of all programs of a topic. complete: all must have been returned by now."""
    group = _Group(role, log)
    for one in lines:
        group.take(one)
    group.end(committed, complete)
    return group.problems


_PROGRESS = {WRITES: "acked", READS: "returned", COPIES: "copied", ADMINISTERS: "answered"}


def progress(role: Role, line: Event) -> set[int]:
    """The partitions in which a line is progress; 0 stands for that of an admin client."""
    if line["what"] == "transaction":
        is_so = line["outcome"] == "committed"
    elif role.is_transactional:
        is_so = False  # an acknowledgement is nothing without the end of its transaction
    else:
        is_so = line["what"] == _PROGRESS[role.does]
    if not is_so:
        return set()
    return {0} if role.does == ADMINISTERS else {row[0] for row in line["rows"]}


def longest_pauses(lines: list[Event], role: Role, since: float, until: float) -> dict[int, float]:
    """By partition (for calls: 0): the longest time without progress."""
    times: dict[int, list[float]] = defaultdict(list)
    for one in lines:
        for partition in progress(role, one):
            times[partition].append(one["at"])
    return {partition: gap(found, since, until) for partition, found in times.items()}


def gap(times: list[float], since: float, until: float) -> float:
    """The longest between two of them, and the bounds."""
    inside = [since, *(at for at in times if since <= at <= until), until]
    return max(later - before for before, later in pairwise(inside))
