"""The screen of ``kbroker top``: which part of the board is shown, how it is sorted and filtered,
and what a key changes. Pure: made from a board, for a terminal of some size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kbroker.cli.local.tables import COLUMNS, NO_GROUPS, cells, heading, size_text
from kbroker.wording import shown

# Key -> the section that it shows alone.
SECTION_KEYS = {
    "p": "processes",
    "t": "topics",
    "g": "groups",
    "c": "clients",
    "r": "requests",
}
HELP = "p t g c r: one list  a: all  < > i: sort  /: filter  b: broker  q: quit"
ALL = ""
ESCAPE, ENTER, BACKSPACES = "\x1b", ("\r", "\n"), ("\x7f", "\b")
# BOUND: characters of a filter, and of a cell but for the first one of a row.
FILTER_MAX, CELL_MAX = 249, 24
# A name gets no fewer characters than this, whatever the terminal.
NAME_MIN = 8
# Lines of findings on the screen with all sections.
FINDINGS_MAX = 3
_CUT = "…"
# Columns that are names: sorted from a to z, and to the left.
_TEXTS = frozenset({"process", "state", "topic", "client_id", "software", "listener", "api",
                    "group"})  # fmt: skip


@dataclass(frozen=True, slots=True)
class BoardView:
    """section: the one that is shown, or ALL. column: by which it is sorted, None: as the board has
    it. is_typing: keys go to the filter. others: how many brokers there are besides. number: of
    this one among them.
    """

    section: str = ALL
    column: int | None = None
    is_inverted: bool = False
    filter: str = ""
    is_typing: bool = False
    others: int = 0
    number: int = 1

    def pressed(self, key: str) -> BoardView:
        """The view after a key; the same if the key means nothing here."""
        if self.is_typing:
            return self._typed(key)
        if key in SECTION_KEYS:
            return replace(self, section=SECTION_KEYS[key], column=None, is_inverted=False)
        if key in ("a", ESCAPE):
            return BoardView(others=self.others, number=self.number)
        if key == "/":
            return replace(self, is_typing=True)
        if key == "i":
            return replace(self, is_inverted=not self.is_inverted)
        if key in "<>" and key:
            return self._sorted_by(1 if key == ">" else -1)
        return self

    def _typed(self, key: str) -> BoardView:
        if key in ENTER:
            return replace(self, is_typing=False)
        if key == ESCAPE:
            return replace(self, is_typing=False, filter="")
        if key in BACKSPACES:
            return replace(self, filter=self.filter[:-1])
        if key.isprintable() and len(self.filter) < FILTER_MAX:
            return replace(self, filter=self.filter + key)
        return self

    def _sorted_by(self, step: int) -> BoardView:
        """Of one section; from all of them, processes are the first."""
        section = self.section or "processes"
        count = len(COLUMNS[section])
        column = 0 if self.column is None else (self.column + step) % count
        if self.column is None and step < 0:
            column = count - 1
        return replace(self, section=section, column=column, is_inverted=False)

    def rows(self, section: str, rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """Those that the filter leaves, in the order that was chosen."""
        wanted = self.filter.lower()
        kept = [
            row
            for row in rows
            if not wanted or any(wanted in str(row[key]).lower() for key in _texts(section))
        ]
        if self.column is not None and section == self.section:
            key = list(COLUMNS[section])[self.column]
            known = [row for row in kept if row[key] is not None]
            # The largest figure first, names from a to z.
            known.sort(key=lambda row: row[key], reverse=(key not in _TEXTS) != self.is_inverted)
            return known + [row for row in kept if row[key] is None]
        return kept[::-1] if self.is_inverted and section == self.section else kept


def _texts(section: str) -> list[str]:
    return [key for key in COLUMNS[section] if key in _TEXTS]


def screen(board: Mapping[str, Any], view: BoardView, columns: int, lines: int) -> list[str]:
    """At most so many lines, each of at most so many characters."""
    which = f"[{view.number}/{view.others + 1}] " if view.others else ""
    head = [which + heading(board), *_health_lines(board)]
    foot = [_foot(view)]
    left = lines - len(head) - len(foot)
    if view.section:
        body = _section(board, view, view.section, columns, left)
    else:
        body = _sections(board, view, columns, left)
    body += [""] * (left - len(body))
    return [_cut(line, columns) for line in (*head, *body[: max(left, 0)], *foot)][:lines]


def _health_lines(board: Mapping[str, Any]) -> list[str]:
    """What is wrong, and the disks."""
    findings = board["findings"]
    rows = [f"{row['severity'].upper()} {row['subject']}: {row['what']}" for row in findings]
    more = len(rows) - FINDINGS_MAX
    if more > 0:
        rows = [*rows[: FINDINGS_MAX - 1], f"... {more + 1} more findings"]
    disks = [
        f"{row['path']}: "
        + (
            f"{size_text(row['free_bytes'])} of {size_text(row['total_bytes'])} free"
            if row["free_bytes"] is not None
            else "-"
        )
        for row in board["log_dirs"]
        if row["state"] == "online"
    ]
    return [*(shown(row, 1000) for row in rows or ["all is well"]), shown("  ".join(disks), 1000)]


def _foot(view: BoardView) -> str:
    if view.is_typing:
        return f"filter: {view.filter}_  (Enter: keep, Esc: none)"
    said = f"[{view.filter}] " if view.filter else ""
    text = HELP if view.others else HELP.replace("  b: broker", "")
    return said + text


def _sections(board: Mapping[str, Any], view: BoardView, columns: int, lines: int) -> list[str]:
    """All of them, a heading and some rows each. What some do not need, others get."""
    names = [name for name in SECTION_KEYS.values() if name in board]
    wanted = {name: 1 + max(1, len(view.rows(name, board[name] or ()))) for name in names}
    given = dict.fromkeys(names, 0)
    left = lines
    while left > 0 and any(given[name] < wanted[name] for name in names):
        for name in names:
            if left > 0 and given[name] < wanted[name]:
                given[name] += 1
                left -= 1
    sections = []
    for name in names:
        sections += _section(board, view, name, columns, given[name])
    return sections


def _section(
    board: Mapping[str, Any], view: BoardView, name: str, columns: int, lines: int
) -> list[str]:
    """A heading and rows. The heading says how many rows are not shown, and by what they are
    sorted.
    """
    if lines <= 0:
        return []
    if board.get(name) is None:
        return [NO_GROUPS if name == "groups" else f"{name}: -"][:lines]
    rows = view.rows(name, board[name])
    titles = list(COLUMNS[name].values())
    if view.column is not None and name == view.section:
        mark = "^" if view.is_inverted else "v"
        titles[view.column] += mark
    taken = rows[: lines - 1]
    if len(rows) > len(taken):
        titles[0] += f" +{len(rows) - len(taken):,}"
    return _columns(name, titles, taken, columns)


def _columns(
    name: str, titles: list[str], rows: Sequence[Mapping[str, Any]], columns: int
) -> list[str]:
    """The first column is a name, which gets what the others leave; figures are to the right."""
    keys = list(COLUMNS[name])
    grid = [titles] + [[shown(_text(cells(row)[key]), 1000) for key in keys] for row in rows]
    grid = [[line[0], *(_cut(cell, CELL_MAX) for cell in line[1:])] for line in grid]
    widths = [max(len(line[at]) for line in grid) for at in range(len(keys))]
    # Too narrow for all: the last ones go.
    while len(widths) > 2 and sum(widths[1:]) + 2 * (len(widths) - 1) + NAME_MIN > columns:
        widths.pop()
    widths[0] = min(widths[0], max(NAME_MIN, columns - sum(widths[1:]) - 2 * (len(widths) - 1)))
    return [
        "  ".join(
            _cut(cell, width).ljust(width) if key in _TEXTS else cell.rjust(width)
            for key, cell, width in zip(keys, line, widths, strict=False)
        ).rstrip()
        for line in grid
    ]


def _text(value: object) -> str:
    return "-" if value is None else str(value)


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: max(0, width - 1)] + _CUT
