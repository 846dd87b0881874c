"""Several cells with the same fault, at the same time: each role has a topic of its own."""

from __future__ import annotations

import itertools
import os
import random
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka import KafkaException
from fault.clients import checker, conditions
from fault.clients.administrators import CALLS
from fault.clients.commit_watch import CommitWatch
from fault.clients.coverage import to_meet
from fault.clients.faults import EPOCHS, FAULTS, UNSTEADY, Fault
from fault.clients.feeds import Feed, Topics, committed, read_log, touch_transactions
from fault.clients.leaders import administration, turn
from fault.clients.programs import Running
from fault.clients.progress import Progress
from fault.clients.proxies import HARMS
from fault.clients.roles import ADMINISTERS, COPIES, READS, ROLES, WRITES, Role
from fault.clients.scene import BROKERS, Stage
from support.running.pace import hold

from kbroker.testing import wait_until

PARTITIONS = 3
BEGIN_S = 300.0  # Spark on a busy machine
GOES_ON_S = 60.0
CATCH_UP_S = 60.0
AFTER_S = 1.0
PROGRESS_S = 2.0
SLOWER = 3
AT_ONCE = 6
TURN_S = 0.7  # between changes of leaders
EACH_S = 15.0  # harm of those of an unsteady broker
FEED = "feed"
INTERNAL = {"coordinator": "__consumer_offsets", "transactions": "__transaction_state"}

_numbers = itertools.count()


class Cell(NamedTuple):
    """By their names."""

    role: str
    fault: str


class Verdict(NamedTuple):
    """problem: "" if all is well. pauses: seconds, in words. output: what its programs have
    printed, if it failed.
    """

    cell: Cell
    problem: str
    pauses: str
    output: str = ""

    def line(self) -> str:
        return f"{self.cell.role:24} {self.cell.fault:22} {self.problem or 'ok'}; {self.pauses}"


class _Part:
    """A role with its topic and programs."""

    def __init__(self, cell: Cell, group: str, transactional_id: str) -> None:
        self.cell = cell
        self.role: Role = ROLES[cell.role]
        self.topic = f"exam-{os.getpid()}-{next(_numbers)}"
        self.group, self.transactional_id = group, transactional_id
        self.partitions = PARTITIONS
        self.programs: list[Running] = []
        self.progress = Progress(self.role, self.programs)
        self.watch: CommitWatch | None = None
        self.problems: list[str] = []
        self.pauses = self.figures = ""

    def lines(self) -> list[checker.Event]:
        seen = [] if self.watch is None else [list(self.watch.lines)]
        return checker.by_time([*(list(one.lines) for one in self.programs), *seen])

    @property
    def is_running(self) -> bool:
        return all(one.running for one in self.programs)

    def late(self, since: float) -> str:
        """What has made no progress since then; "" if all has."""
        wanted: set[Any] = set(range(self.partitions))
        if self.role.does == ADMINISTERS:
            wanted = set(CALLS)
        left = self.progress.missing(wanted, since)
        return f"{self.cell.role} stands still: {sorted(left)}" if left else ""


class Batch:
    """Cells of one fault."""

    def __init__(
        self, stage: Stage, cells: list[Cell], chance: random.Random, directory: Path
    ) -> None:
        self._stage = stage
        self._fault: Fault = FAULTS[cells[0].fault]
        self._chance, self._directory = chance, directory
        stage.mend()
        self._topics = Topics(stage.bootstrap())
        self._touch_coordinators()
        self._spread_coordinators()
        self._victim = self._choose_victim()
        self._parts = [
            _Part(cell, self._coordinated("coordinator"), self._coordinated("transactions"))
            for cell in cells
        ]
        self._reference = f"exam-{os.getpid()}-{next(_numbers)}"
        self._feeds: list[Feed] = []
        self._struck_at = self._healed_at = 0.0

    # -- who and where

    def _touch_coordinators(self) -> None:
        """The topics of coordinators are created by the first that asks."""
        bootstrap = self._stage.bootstrap()

        def answered() -> bool:
            try:
                touch_transactions(bootstrap)
                return committed(bootstrap, "exam-first", "none", 1) is not None
            except KafkaException as error:
                raise AssertionError(str(error)) from error

        wait_until(answered, 120, "groups and transactions work")

    def _spread_coordinators(self) -> None:
        """Each broker coordinates groups and transactions again, also one that was restarted."""
        counts = {name: len(self._stage.metadata(name).partitions) for name in INTERNAL.values()}

        def spread() -> bool:
            try:
                self._topics.elect_preferred(counts)
            except KafkaException as error:
                raise AssertionError(str(error)) from error
            for name in counts:
                leaders = {one.leader for one in self._stage.metadata(name).partitions.values()}
                assert leaders == set(range(BROKERS)), f"{name} is led by {leaders}"
            return True

        wait_until(spread, 60, "each broker coordinates")

    def _choose_victim(self) -> int:
        """The controller only where it is to be harmed."""
        controller = self._stage.metadata().membership.controller
        if self._fault.victim == "controller":
            return controller
        return self._chance.choice([n for n in range(BROKERS) if n != controller])

    def _coordinated(self, what: str) -> str:
        """A name that the victim coordinates, if that is the fault, else another broker. what: of
        INTERNAL.
        """
        wanted = self._fault.victim == "coordinator"
        rows = self._stage.metadata(INTERNAL[what]).partitions
        for number in range(1000):
            name = f"exam-{os.getpid()}-{next(_numbers)}-{number}"
            if (rows[coordinating_partition(name, len(rows))].leader == self._victim) == wanted:
                return name
        raise AssertionError(f"none is coordinated as wanted: {rows}")

    def _replicas(self) -> list[list[int]]:
        """The victim leads the first partition where it is to be harmed as a leader, else none."""
        others = [n for n in range(BROKERS) if n != self._victim]
        leaders = (
            [self._victim, *others] if self._fault.victim == "leader" else [*others, others[0]]
        )
        return [[one, *(n for n in range(BROKERS) if n != one)] for one in leaders]

    # -- the run

    def run(self) -> list[Verdict]:
        """Never raises for what a client does."""
        try:
            self._begin()
            self._all(lambda part: part.late(0.0), BEGIN_S, self._parts, " before the fault")
            self._check_begun()
            self._strike()
            self._go_on()
            self._finish()
        except Exception as error:
            traceback.print_exc()
            for part in self._parts:
                part.problems.append(f"the exam failed: {type(error).__name__}: {error}")
        finally:
            running = [one for part in self._parts for one in part.programs if one.running]
            with ThreadPoolExecutor(len(running) + 1) as pool:
                list(pool.map(Running.kill, running))
            for part in self._parts:
                if part.watch is not None:
                    part.watch.close()
        return list(map(self._verdict, self._parts))

    def _verdict(self, part: _Part) -> Verdict:
        problem = "; ".join(dict.fromkeys(part.problems))
        output = ""
        if problem:
            lasted = f"struck at {self._struck_at:.3f}, healed at {self._healed_at:.3f}"
            output = "\n".join([problem, lasted, *(one.output() for one in part.programs)])
        return Verdict(part.cell, problem[:1500], part.pauses, output)

    def _begin(self) -> None:
        fed: dict[str, int] = {self._reference: PARTITIONS}
        self._topics.create(self._reference, self._replicas())
        self._each(lambda part: self._topics.create(part.topic, self._replicas()))
        for part in self._parts:
            if part.role.does == COPIES:
                self._begin_copy(part)
            if part.role.does not in (READS, COPIES) or part.role.way == "to":
                continue
            if part.role.settings.get("isolation_level") == "read_committed":
                transactional = Feed(
                    self._stage.bootstrap(), {part.topic: PARTITIONS}, part.transactional_id
                )
                self._feeds.append(transactional)
            else:
                fed[part.topic] = PARTITIONS
        self._feeds.append(Feed(self._stage.bootstrap(), fed))
        for part in self._parts:
            for number in range(max(1, part.role.members)):
                part.programs.append(Running(self._plan(part, number), self._directory))
            if part.role.commits:
                bootstrap = self._stage.bootstrap()
                part.watch = CommitWatch(bootstrap, part.group, part.topic, PARTITIONS)

    def _begin_copy(self, part: _Part) -> None:
        """From or to brokers that are not harmed."""
        if part.role.way == "to":
            self._feeds.append(Feed(self._stage.side(), {part.topic: PARTITIONS}))

    def _plan(self, part: _Part, number: int) -> dict[str, Any]:
        settings: dict[str, Any] = {}
        if part.role.is_transactional:
            settings["transactional_id"] = part.transactional_id
        name = f"{part.topic}-{number}"
        if "group_instance_id" in part.role.settings:
            settings["group_instance_id"] = name
        if part.role.members:
            settings["group_id"] = part.group
        first = self._victim if self._fault.victim == "bootstrap" else (self._victim + 1) % BROKERS
        return {
            "role": part.cell.role,
            "name": name,
            "bootstrap": self._stage.entrance(first),
            "topic": part.topic,
            "partitions": PARTITIONS,
            "group": part.group,
            "mishap": self._fault.what if self._fault.is_mishap else "",
            "seed": self._chance.randrange(1 << 31),
            "settings": {**settings, **self._stage.scene.security},
            "zookeeper": self._stage.scene.zookeeper,
            "side": self._stage.side() if part.role.does == COPIES else "",
            "directory": str(self._directory / name),
        }

    def _all(
        self, late: Callable[[_Part], str], timeout: float, parts: list[_Part], why: str = ""
    ) -> None:
        """Wait until nothing is late; what still is, is a problem of its part. Time in which the
        other client stands still, too, does not count: the cluster or the machine is slow.
        """
        began = before = time.monotonic()
        left = timeout
        while left > 0 and before < began + SLOWER * timeout:
            if not any(late(part) for part in parts if part.is_running):
                break  # a program that has ended will do no more
            hold(0.2)
            now = time.monotonic()
            if self._reference_goes_on(now):
                left -= now - before
            before = now
        for part in parts:
            if found := late(part):
                part.problems.append(f"{found}{why}")

    def _reference_goes_on(self, now: float) -> bool:
        times = self._feeds[-1].acked
        rows = [times.get((self._reference, n)) for n in range(PARTITIONS)]
        return all(row and row[-1] > now - PROGRESS_S for row in rows)

    def _check_begun(self) -> None:
        """A fault says nothing of programs that do not run yet."""
        late = [part for part in self._parts if part.problems]
        assert len(late) * 2 <= len(self._parts), f"{len(late)} roles have not begun"

    def _strike(self) -> None:
        hold(1.0)
        self._struck_at = time.monotonic()
        if self._fault.is_mishap:
            for part in self._parts:
                for program in part.programs[:1]:
                    program.say("strike")
        elif self._fault.is_of_topic:
            self._each(self._change_topic)
        elif self._fault.what == EPOCHS:
            self._say("slow")
        elif self._fault.is_waiting:
            self._say("rest")
            for broker in range(BROKERS):
                self._stage.strike(self._fault.what, broker)
        elif self._fault.victim and self._fault.what != UNSTEADY:
            self._stage.strike(self._fault.what, self._victim)

    def _turn_leaders(self, until: float) -> None:
        topics = [self._reference, *(part.topic for part in self._parts)]
        with administration(self._stage.bootstrap()) as admin:
            while time.monotonic() < until:
                turn(admin, topics)
                hold(TURN_S)

    def _say(self, word: str) -> None:
        for part in self._parts:
            for program in part.programs:
                program.say(word)

    def _last(self, seconds: float) -> None:
        """The fault."""
        if self._fault.what == EPOCHS:
            self._turn_leaders(time.monotonic() + seconds)
            return
        if self._fault.what != UNSTEADY:
            hold(seconds)
            return
        for harm, _ in zip(itertools.cycle(HARMS), range(int(seconds / EACH_S)), strict=False):
            self._stage.strike(harm, self._victim)
            hold(EACH_S)

    def _change_topic(self, part: _Part) -> None:
        if self._fault.what == "topic grown":
            part.partitions = PARTITIONS + 1 if part.role.members else PARTITIONS
            self._topics.grow(part.topic, PARTITIONS + 1)
            for feed in self._feeds:
                if part.topic in feed.topics:
                    feed.topics[part.topic] = PARTITIONS + 1
            return
        self._topics.delete(part.topic)
        if self._fault.what == "topic recreated":
            self._topics.create(part.topic, self._replicas())
            for feed in self._feeds:
                if part.topic in feed.topics:
                    feed.renew()

    def _go_on(self) -> None:
        """While it lasts, if they can; and after it."""
        lasts = self._fault.lasts_s
        if lasts is not None:
            self._last(lasts)
            self._stage.heal()
        self._healed_at = time.monotonic()
        self._say("work")
        if self._fault.what in ("topic deleted", "program ends"):
            return
        since = self._struck_at if lasts is None else self._healed_at
        self._all(lambda part: part.late(since + AFTER_S), GOES_ON_S, self._parts, " for a minute")

    def _finish(self) -> None:
        for feed in self._feeds:
            feed.close()
        for part in self._parts:
            if part.watch is not None:
                part.watch.close()
        until = time.monotonic()
        if self._has_log:
            self._all(self._behind, CATCH_UP_S, [one for one in self._parts if _reads(one)])
        for part in self._parts:
            for program in part.programs:
                program.begin_end()
        for part in self._parts:
            part.problems += filter(None, (program.end() for program in part.programs))
        self._stage.mend()
        self._each(lambda part: self._judge(part, until))
        self._each(self._clear)

    def _clear(self, part: _Part) -> None:
        """What was wrong is kept, to be looked at. That a busy cluster is slow to delete a topic
        says nothing of a client.
        """
        if not part.problems and self._fault.what != "topic deleted":
            with suppress(AssertionError):
                self._topics.delete(part.topic)

    def _each(self, work: Callable[[_Part], None]) -> None:
        """Do it for each part; what is raised is a problem of that part."""

        def tried(part: _Part) -> None:
            try:
                work(part)
            except Exception as error:
                traceback.print_exc()
                part.problems.append(f"the exam failed: {type(error).__name__}: {error}")

        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(tried, self._parts))

    @property
    def _has_log(self) -> bool:
        """Whether the topic is the one that was there at the beginning, and all of it was read."""
        return self._fault.what not in ("topic deleted", "topic recreated", "program ends")

    def _behind(self, part: _Part) -> str:
        """What a reader has not returned yet, of what the feed knows to be there."""
        is_committed = part.role.settings.get("isolation_level") == "read_committed"
        ends: dict[int, int] = {}
        for feed in self._feeds:
            known = feed.committed_ends if is_committed else feed.ends
            for (topic, partition), end in known.items():
                if topic == part.topic:
                    ends[partition] = max(end, ends.get(partition, 0))
        left = part.progress.behind({p: end for p, end in ends.items() if p < part.partitions})
        return f"not read in a minute: {left}" if left else ""

    # -- the verdict

    def _judge(self, part: _Part, until: float) -> None:
        exits = self._fault.what == "program ends"
        for program in part.programs:
            part.problems += checker.check_ends(program.lines, exits, part.role.ends_alone)
        if self._fault.what not in ("topic deleted", "topic recreated"):
            self._compare(part)
            part.problems += checker.check_seen(part.lines())
        self._check_conditions(part, until)
        self._measure(part, until)

        if self._fault.what == "nothing":
            calls = {name for one in part.lines() for name in one.get("calls", ())}
            if unmet := sorted(to_meet(part.cell.role) - calls):
                part.problems.append(f"never called: {unmet}")

    def _compare(self, part: _Part) -> None:
        bootstrap = self._stage.bootstrap()
        count = PARTITIONS + (self._fault.what == "topic grown")
        if part.role.does == WRITES:
            log = read_log(bootstrap, part.topic, count)
            may_lose = part.role.is_of_leaders and self._fault.moves_leaders
            found = checker.check_writer(part.role, part.lines(), log, may_lose)
        elif part.role.does == COPIES:
            source, target = bootstrap, self._stage.side()
            if part.role.way == "to":
                source, target = target, source
            log = read_log(source, part.topic, PARTITIONS)
            copy = read_log(target, part.topic, PARTITIONS)
            found = checker.check_copies(log, copy)
        elif part.role.does == READS:
            log = read_log(bootstrap, part.topic, part.partitions)
            offsets: dict[int, int] = {}
            if part.role.commits:
                offsets = committed(bootstrap, part.group, part.topic, part.partitions)
            found = checker.check_readers(part.role, part.lines(), log, offsets, self._has_log)
        else:
            found = []
        part.problems += found[: checker.SHOWN]
        if len(found) > checker.SHOWN:
            part.problems.append(f"and {len(found) - checker.SHOWN} more")

    def _check_conditions(self, part: _Part, until: float) -> None:
        """Processor, memory, and the texts of errors."""
        lasted = self._struck_at, self._healed_at if self._fault.lasts_s is not None else until
        for program in part.programs:
            if self._fault.is_waiting and part.role.ends_alone:
                part.problems += conditions.check_waiting(program.lines, *lasted)
            if self._fault.is_long:
                part.problems += conditions.check_memory(program.lines, *lasted)
            if self._fault.victim:
                part.problems += conditions.check_errors(program.lines, *lasted)
        part.figures = conditions.figures([one.lines for one in part.programs], *lasted)

    def _measure(self, part: _Part, until: float) -> None:
        """How long each stood still, beside what confluent-kafka's producer did: for a reader, the
        one that feeds it, as nobody can read what is not written.
        """
        since = self._struck_at
        pauses = checker.longest_pauses(part.lines(), part.role, since, until)
        fed = next((one for one in self._feeds if part.topic in one.topics), self._feeds[-1])
        wanted = part.topic if part.topic in fed.topics else self._reference
        reference = {
            partition: checker.gap(times, since, until)
            for (topic, partition), times in fed.acked.items()
            if topic == wanted
        }
        overs = [one["over"] for one in part.lines() if one["what"] == "end"]
        failed = sum(len(one["rows"]) for one in part.lines() if one["what"] == "failed")
        texts = [
            f"pauses {_text(pauses)} s, confluent's writer {_text(reference)} s",
            f"calls {max(overs, default=0):.1f} s over" if max(overs, default=0) > 1 else "",
            f"{failed} records failed" if failed else "",
            f"load {os.getloadavg()[0]:.0f}",
            part.figures,
        ]
        part.pauses = ", ".join(filter(None, texts))


def _reads(part: _Part) -> bool:
    return part.role.does in (READS, COPIES)


def _text(seconds: dict[int, float]) -> str:
    """The first partition's, and the longest of others."""
    first = [f"{seconds[0]:.1f}"] if 0 in seconds else ["-"]
    others = [value for partition, value in seconds.items() if partition]
    return "/".join(first + ([f"{max(others):.1f}"] if others else []))


def coordinating_partition(name: str, count: int) -> int:
    """Which partition of a topic of coordinators has a name: by Java's hash, without its sign."""
    found = 0
    for one in name.encode():
        found = (found * 31 + one) & 0xFFFFFFFF
    return min(found, (1 << 32) - found) % count
