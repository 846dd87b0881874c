"""The state of the exam of clients, which is kept with the project: what has passed at which
revision, what is open, and why.

``perf/results/clients-exam`` has a file for each kind of brokers, and README.md, which is made of
them. In these files ``why`` of an open cell is written by hand, and kept until the cell passes.
"""

from __future__ import annotations

import json
import subprocess
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from kbroker.wording import counted

ROOT = Path(__file__).resolve().parents[3]
PLACE = ROOT / "perf" / "results" / "clients-exam"
Cell = tuple[str, str]  # role and fault
_SHOWN = 300

_HEAD = """\
# State of the exam of clients

Written by `tools/exam.py clients --page`: what has passed, and what is open, of all cells of a
release ([docs/testing.md](../../../docs/testing.md#exam-of-clients)). The files beside it have the
cells by revision. *Changes* are the commits since then that have changed the client: cells of such
revisions are named below, and `--again` runs them, too.
"""
# Where a client is written.
_CLIENT = ("kbroker/client", "kbroker/wire", "ext/kbroker/_ext/client", "ext/kbroker/_ext/sockets")


@cache
def changes_since(revision: str) -> int:
    """How many commits have changed the client since a revision; -1 if it is not known here."""
    command = ["git", "rev-list", "--count", f"{revision}..HEAD", "--", *_CLIENT]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return int(done.stdout) if done.returncode == 0 else -1


def is_outdated(revision: str) -> bool:
    return changes_since(revision) != 0


class Ended(NamedTuple):
    """How a cell has ended last. problem: "" if it has passed. why: of the problem, by hand."""

    revision: str
    problem: str
    why: str = ""


State = dict[Cell, Ended]


def load(kind: str, place: Path = PLACE) -> State:
    """What is kept of this kind of brokers."""
    path = place / f"{kind}.json"
    if not path.exists():
        return {}
    kept = json.loads(path.read_text())
    found: State = {
        (role, fault): Ended(revision, "")
        for revision, faults in kept["passed"].items()
        for fault, roles in faults.items()
        for role in roles
    }
    for row in kept["open"]:
        ended = Ended(row["revision"], row["problem"], row.get("why", ""))
        found[row["role"], row["fault"]] = ended
    return found


def merge(state: State, rows: Iterable[Mapping[str, Any]]) -> State:
    """With what the rows of a run say; the last one of a cell counts. One in which the exam itself
    failed says nothing of the cell.
    """
    merged = dict(state)
    for row in rows:
        if "the exam failed" in row["problem"]:
            continue
        cell = row["role"], row["fault"]
        before = merged.get(cell)
        why = before.why if before is not None and row["problem"] else ""
        merged[cell] = Ended(row["revision"], row["problem"], why)
    return merged


def save(kind: str, state: State, place: Path = PLACE) -> None:
    """Keep it, sorted, so that a difference shows what has changed."""
    passed: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    open_ = []
    for (role, fault), ended in sorted(state.items()):
        if ended.problem:
            row = {"role": role, "fault": fault, "revision": ended.revision}
            open_.append({**row, "problem": ended.problem[:_SHOWN], "why": ended.why})
        else:
            passed[ended.revision][fault].append(role)
    place.mkdir(parents=True, exist_ok=True)
    kept = {"passed": passed, "open": open_}
    text = json.dumps(kept, indent=1, sort_keys=True)
    (place / f"{kind}.json").write_text(text + "\n")


def write(cells: Mapping[str, Collection[Cell]], place: Path = PLACE) -> None:
    """The page. cells: of a release, by kind of brokers."""
    parts = [_HEAD, *(_part(kind, load(kind, place), some) for kind, some in cells.items())]
    (place / "README.md").write_text("\n".join(parts))


def _part(kind: str, state: State, cells: Collection[Cell]) -> str:
    ended = {cell: state[cell] for cell in cells if cell in state}
    passed = Counter(one.revision for one in ended.values() if not one.problem)
    failed = {cell: one for cell, one in ended.items() if one.problem}
    lines = [f"## {kind}", "", f"{passed.total()} of {len(cells)} cells have passed.", ""]
    if passed:
        lines += ["| revision | cells | changes |", "| --- | --- | --- |"]
        for revision, count in passed.most_common():
            changes = changes_since(revision)
            lines.append(f"| {revision} | {count} | {'?' if changes < 0 else changes} |")
        lines.append("")
    if failed:
        lines += [
            "| open: role | fault | revision | problem | why |",
            "| --- | --- | --- | --- | --- |",
        ]
        for (role, fault), one in failed.items():
            row = [role, fault, one.revision, _cell(one.problem), _cell(one.why)]
            lines.append(f"| {' | '.join(row)} |")
        lines.append("")
    old = [cell for cell, one in ended.items() if not one.problem and is_outdated(one.revision)]
    lines += _listed("Passed before the client changed last", old, cells)
    lines += _listed("Not run yet", [cell for cell in cells if cell not in ended], cells)
    return "\n".join(lines)


def _listed(title: str, some: Collection[Cell], cells: Collection[Cell]) -> list[str]:
    """Of one fault after the other."""
    if not some:
        return []
    roles: dict[str, list[str]] = defaultdict(list)
    for role, fault in some:
        roles[fault].append(role)
    everyone = Counter(fault for _, fault in cells)
    lines = [f"{title}: {counted(len(some), 'cell')}.", ""]
    for fault, names in roles.items():
        is_all = len(names) == everyone[fault]
        lines.append(f"- {fault}: {'every role' if is_all else ', '.join(names)}")
    return [*lines, ""]


def _cell(text: str) -> str:
    line = text.splitlines()[0] if text else ""
    return line[:_SHOWN].replace("|", "\\|")
