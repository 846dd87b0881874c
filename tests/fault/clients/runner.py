"""Runs cells of the exam of clients: roles beside each other, one fault, and what must hold.

    python tests/fault/clients/runner.py --size commit
    python tests/fault/clients/runner.py --role cooperative --fault 'leader killed'

A line for each cell; results are kept in build/clients-exam, where ``--resume`` finds them, as it
finds what ``--page`` has taken from there into perf/results/clients-exam. Beside them is a file for
each cell that failed, with what its programs have printed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).resolve().parents[n]) for n in (2, 3)]

from fault.clients import page
from fault.clients.batch import Batch, Cell, Verdict
from fault.clients.faults import FAULTS, UNSTEADY
from fault.clients.kafka_scenes import Kafka27Scene, KRaftScene
from fault.clients.proxies import OF_FRAMES
from fault.clients.roles import CONSUMER_PROTOCOL, ROLES, SEPARATE, ZOOKEEPER
from fault.clients.scene import KbrokerScene, Scene, Stage
from fault.clients.secured_scene import SaslSslScene

ROOT = Path(__file__).resolve().parents[3]
TOGETHER = 5
SHOWN = 20
SIZES = ("commit", "pairs", "night", "release")
SCENES: dict[str, Callable[[Path], Scene]] = {
    "kbroker": KbrokerScene,
    "kbroker-sasl-ssl": SaslSslScene,
    "kafka-2.7.2": Kafka27Scene,
    "kraft-3.9": KRaftScene,
}
# The cells of a commit: each kind of role, and each kind of fault, once.
COMMIT: dict[str, tuple[str, ...]] = {
    "leader killed": ("idempotent producer", "assign poll", "cooperative", "asyncio producer"),
    "coordinator stopped": ("classic eager", "transactional producer", "admin"),
    "leader silent": ("send_many producer", "assign columns", "consumer protocol"),
    "two cancels": ("asyncio columns", "asyncio member"),
    "everybody silent": ("idempotent producer", "cooperative", "wire reader", "0.8 producer"),
}
# A night has these faults, with all roles.
NIGHT = (
    "nothing", "leader killed", "leader stopped", "leader silent", "leader once", "leader errors",
    "coordinator killed", "coordinator stopped", "coordinator silent", "coordinator errors",
    "controller killed", "bootstrap silent", "topic deleted", "topic recreated", "topic grown",
    "max.poll.interval", "one cancel", "two cancels", "callbacks raise", "fork", "program ends",
    "leader replaced", "epochs change", "everybody silent", "everybody cut",
)  # fmt: skip

# The pairs of a release: these faults with each role, and each fault with the first writer and the
# first reader that it fits. They say of other brokers what the whole of it would take a day for.
PAIRED_FAULTS = ("leader killed", "leader silent")
PAIRED_ROLES = (("idempotent producer", "asyncio producer"), ("cooperative", "asyncio member"))


class Results:
    """Of cells, in a file: a line of JSON for each that was run; the last one counts. kept: what
    was known before.
    """

    def __init__(self, path: Path, kept: page.State | None = None) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self.known = {Cell(*cell): ended.problem for cell, ended in (kept or {}).items()}
        self._revisions = {Cell(*cell): ended.revision for cell, ended in (kept or {}).items()}
        for row in self.rows():
            cell = Cell(row["role"], row["fault"])
            self.known[cell] = row["problem"]
            self._revisions[cell] = row.get("revision", "")

    def forget(self, is_outdated: Callable[[str], bool]) -> None:
        """What is known of revisions of which this is true."""
        for cell, revision in self._revisions.items():
            if is_outdated(revision):
                self.known.pop(cell, None)

    def rows(self) -> list[dict[str, Any]]:
        """All lines."""
        if not self._path.exists():
            return []
        return [json.loads(line) for line in self._path.read_text().splitlines()]

    def add(self, verdict: Verdict) -> None:
        self.known[verdict.cell] = verdict.problem
        row = {**verdict.cell._asdict(), "problem": verdict.problem, "revision": revision()}
        with self._path.open("a") as file:
            file.write(json.dumps({**row, "pauses": verdict.pauses}) + "\n")
        output = self.output_path(verdict.cell)
        output.unlink(missing_ok=True)
        if verdict.output:
            output.parent.mkdir(exist_ok=True)
            output.write_text(verdict.output)

    def output_path(self, cell: Cell) -> Path:
        """What its programs have printed, if it failed when it was run last."""
        return self._path.parent / f"{self._path.stem} output" / f"{cell.role}, {cell.fault}.txt"


def revision() -> str:
    command = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.strip()


# What clusters do not have.
_LACKS = {
    "kafka-2.7.2": (CONSUMER_PROTOCOL,),
    "kraft-3.9": (ZOOKEEPER,),
    "kbroker-sasl-ssl": (ZOOKEEPER, SEPARATE),
}
SECURED_SCENES = ("kbroker-sasl-ssl",)
# With TLS and logins: ways to connect, and faults that have new connections made.
SECURED = (
    "nothing", "leader killed", "leader silent", "leader cut", "leader once", "leader late",
    "coordinator stopped", "controller killed", "bootstrap moved", "leader replaced",
    "everybody silent", "everybody cut", "epochs change",
)  # fmt: skip
SECURED_ROLES = (
    "idempotent producer", "transactional producer", "asyncio producer", "assign poll",
    "cooperative", "consumer protocol", "asyncio member", "wire producer", "wire reader", "admin",
)  # fmt: skip


class Wanted(NamedTuple):
    """size: commit, pairs, night or release; roles, faults: only these."""

    size: str
    roles: list[str]
    faults: list[str]

    def cells(self, brokers: str = "kbroker") -> list[Cell]:
        """Of one fault after the other."""
        found = [
            Cell(role, fault)
            for fault in self.faults or self._faults(brokers)
            for role in ROLES
            if FAULTS[fault].fits(ROLES[role]) and _has(brokers, role, fault)
        ]
        if self.roles or self.faults:
            return [cell for cell in found if not self.roles or cell.role in self.roles]
        if brokers in SECURED_SCENES:
            return [cell for cell in found if cell.role in SECURED_ROLES]
        if self.size == "commit":
            return [cell for cell in found if cell.role in COMMIT[cell.fault]]
        return _pairs(found) if self.size == "pairs" else found

    def _faults(self, brokers: str) -> list[str]:
        if self.roles:
            return list(FAULTS)
        if brokers in SECURED_SCENES:
            return [one for one in SECURED if self.size != "commit" or one in COMMIT]
        return list({"commit": COMMIT, "night": NIGHT}.get(self.size, FAULTS))


def _pairs(cells: list[Cell]) -> list[Cell]:
    there = set(cells)
    chosen = {cell for cell in cells if cell.fault in PAIRED_FAULTS}
    for fault in dict.fromkeys(cell.fault for cell in cells):
        for roles in PAIRED_ROLES:
            fitting = [Cell(role, fault) for role in roles if Cell(role, fault) in there]
            chosen.update(fitting[:1])
    return [cell for cell in cells if cell in chosen]


def _has(brokers: str, role: str, fault: str) -> bool:
    """Whether such a cluster has what the role needs, and can be harmed like that."""
    if brokers in SECURED_SCENES and FAULTS[fault].what in (*OF_FRAMES, UNSTEADY):
        return False
    return not set(ROLES[role].needs) & set(_LACKS.get(brokers, ()))


def batches(cells: Iterable[Cell], together: int) -> Iterator[list[Cell]]:
    """Cells of the same fault, so many at a time."""
    open_: list[Cell] = []
    for cell in cells:
        if open_ and (open_[0].fault != cell.fault or len(open_) == together):
            yield open_
            open_ = []
        open_.append(cell)
    if open_:
        yield open_


def run(
    cells: list[Cell], kind: str, results: Results, *, together: int = TOGETHER, seed: int
) -> list[Verdict]:
    """All of them, on one cluster; prints a line for each."""
    print(f"{len(cells)} cells on {kind}, KBROKER_FAULT_SEED={seed}", flush=True)
    chance = random.Random(seed)
    found: list[Verdict] = []
    with tempfile.TemporaryDirectory(prefix="clients-exam-") as directory:
        stage = Stage(SCENES[kind](Path(directory) / "cluster"))
        try:
            for some in batches(cells, together):
                for verdict in Batch(stage, some, chance, Path(directory)).run():
                    print(verdict.line(), flush=True)
                    results.add(verdict)
                    found.append(verdict)
        finally:
            stage.close()
    return found


def summary(cells: list[Cell], results: Results) -> str:
    """Names the cells that failed or were not run."""
    failed = [cell for cell in cells if results.known.get(cell)]
    missing = [cell for cell in cells if cell not in results.known]
    passed = len(cells) - len(failed) - len(missing)
    lines = [f"{passed} of {len(cells)} cells passed"]
    for cell in failed:
        lines.append(f"failed: {cell.role} × {cell.fault}: {results.known[cell]}")
        if (output := results.output_path(cell)).exists():
            lines.append(f"  what its programs have printed: {output}")
    lines += [f"not run: {cell.role} × {cell.fault}" for cell in missing[:SHOWN]]
    if len(missing) > SHOWN:
        lines.append(f"and {len(missing) - SHOWN} more were not run")
    return "\n".join(lines)


def write_page(kind: str, results: Results) -> None:
    """Keep what is known of these brokers with the project."""
    page.save(kind, page.merge(page.load(kind), results.rows()))
    page.write({one: Wanted("release", [], []).cells(one) for one in SCENES})


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--size", choices=SIZES, default="commit")
    parser.add_argument("--brokers", choices=sorted(SCENES), default="kbroker")
    parser.add_argument("--resume", action="store_true", help="only cells that have not passed")
    parser.add_argument(
        "--again", action="store_true", help="--resume, and cells of before the client changed last"
    )
    parser.add_argument("--role", action="append", choices=list(ROLES), default=[])
    parser.add_argument("--fault", action="append", choices=list(FAULTS), default=[])
    parser.add_argument("--together", type=int, default=TOGETHER, help="roles at a time")
    parser.add_argument("--page", action="store_true", help="only keep the results: no cell is run")
    parser.add_argument("--results", type=Path, default=ROOT / "build" / "clients-exam")
    options = parser.parse_args()
    cells = Wanted(options.size, options.role, options.fault).cells(options.brokers)
    results = Results(options.results / f"{options.brokers}.jsonl", page.load(options.brokers))
    if options.page:
        write_page(options.brokers, results)
        return 0
    if options.again:
        results.forget(page.is_outdated)
    elif not options.resume:
        for cell in cells:
            results.known.pop(cell, None)
    seed = int(os.environ.get("KBROKER_FAULT_SEED") or time.time_ns() % (1 << 31))
    left = [cell for cell in cells if results.known.get(cell, "not run")]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # after the brokers
    try:
        if left:
            run(left, options.brokers, results, together=options.together, seed=seed)
    finally:
        print(summary(cells, results), flush=True)
    return 0 if not any(results.known.get(cell, "not run") for cell in cells) else 1


if __name__ == "__main__":
    sys.exit(main())
