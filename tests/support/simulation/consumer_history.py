"""What consumers have returned and committed in a simulation, and whether that may be so.

(a) What a partition returns follows what it returned before: the record before it in its log was
    returned, unless it is deleted, or not committed and not to be read; and nothing is returned
    twice while the partition is not given up, or the program seeks. Only after an unclean election
    may what was returned meanwhile be no longer in the log.
(b) Reading begins at the log's start, at an offset that was committed, or that the program names.
(c) A commit is of the member and generation that made it, and says nothing of what was not
    returned; without an unclean election, committed offsets never go back. Of partitions that are
    given up in an orderly way, all that was returned is committed, if that is automatic.
(d) A consumer does not run in circles: its steps and requests in a second are bounded.
(e) A partition whose leader and coordinator are well is read, whatever is wrong with the others.
"""

from __future__ import annotations

from collections import defaultdict, deque
from typing import TYPE_CHECKING, Any

from support.simulation.simulated_brokers import Brokers, Key, World
from support.simulation.simulated_group import Accepted
from support.simulation.simulated_logs import Record

from kbroker.client.consumer.commits import CommittingMember
from kbroker.client.consumer.partitions import ReadPartition

if TYPE_CHECKING:
    from support.simulation.simulated_program import Program, Row

STEPS_A_SECOND = 150
REQUESTS_A_SECOND = 200
STALL_S = 12.0


class _Reading:
    """A partition, from when it was taken over until it is given up, or until another topic has its
    name. next: behind the last record, or what the program has named. topic: which of that name.
    """

    def __init__(self, part: ReadPartition, topic: int) -> None:
        self.part = part
        self.topic = topic
        self.uids: set[int] = set()
        self.last = -1
        self.next: int | None = None


class History:
    """Every method raises AssertionError for what may not be."""

    def __init__(self, world: World, brokers: Brokers, unclean: bool, has_group: bool) -> None:
        self.has_group = has_group
        self.world = world
        self.brokers = brokers
        self.unclean = unclean
        self.count = 0
        self.is_away = False  # a program does not poll
        self.is_slow = False  # programs take fewer records than there are
        self._returned_at: dict[Key, float] = defaultdict(float)
        self.checked = 0  # partitions, for progress
        self.seen: set[int] = set()
        self.prefix: dict[Key, int] = defaultdict(int)
        self.begins: dict[Key, set[int]] = defaultdict(lambda: {0})
        self.topics: dict[Key, int] = defaultdict(int)  # how often it was recreated
        self.topic_of: dict[int, int] = {}  # which of these a record is in, if not the first
        self.commits: list[Accepted] = []
        self.errors: list[Any] = []
        self._wrong: list[str] = []  # said where an exception would be caught
        self._readings: dict[tuple[int, Key], _Reading] = {}
        self._highest: dict[Key, int] = {}
        self._steps: dict[int, deque[float]] = defaultdict(deque)
        self._requests: deque[tuple[float, int]] = deque()

    # -- records

    def returned(self, program: Program, found: list[Row]) -> None:
        """By a call, in this order."""
        for one in found:
            record = self.brokers.records[one.uid]
            key = one.key
            assert record.offset == one.offset, f"{key}: {record} at {one.offset}"
            reading = self._reading(program, key, self.topic_of.get(one.uid, 0))
            assert reading.part is not program.paused.get(key), f"{key} is paused"
            if reading.topic < self.topics[key]:
                assert record.offset >= (reading.next or 0), f"{key}: {record} was returned twice"
            elif reading.next is None:
                self._check_begin(key, record)
            elif self.unclean:
                self._check_next_unclean(key, reading, record)
            else:
                self._check_follows(key, reading.next, record)
            reading.uids.add(record.uid)
            reading.last, reading.next = record.uid, record.offset + 1
            self.seen.add(record.uid)
            self.count += 1
        for key in {one.key for one in found}:
            self._returned_at[key] = self.world.now
            self._extend(key)

    def _reading(self, program: Program, key: Key, topic: int) -> _Reading:
        part = program.core.fetcher.parts[key]
        reading = self._readings.get((program.number, key))
        if reading is None or reading.part is not part or reading.topic < topic:
            reading = self._readings[program.number, key] = _Reading(part, topic)
        assert reading.topic == topic, f"{key}: a record of a former topic after one of the next"
        return reading

    def sought(self, program: Program, key: Key, offset: int) -> None:
        """The program continues there. What it skips is not missing."""
        self.begins[key].add(offset)  # if it has not heard yet of the topic that is there now
        reading = self._readings.get((program.number, key))
        if reading is not None or not self.topics[key]:
            topic = 0 if reading is None else reading.topic
            self._reading(program, key, topic).next = offset
        self._skip(key, offset)
        self._extend(key)

    def _check_begin(self, key: Key, record: Record) -> None:
        if self.topics[key] and not self.brokers.has_ids:
            self._skip(key, record.offset)  # nothing tells that the topic is another one
        elif not self.unclean:
            begin = max(one for one in self.begins[key] if one <= record.offset)
            missed = self._skipped(key, begin, record)
            assert not missed, f"{key} begins at {record}, and not at {missed[0]}"

    def recreated(self, key: Key) -> None:
        """The topic of that name is another one, and empty."""
        self.topics[key] += 1
        self.prefix[key] = 0
        self.begins[key] = {0}

    def appended(self, key: Key, first: int) -> None:
        """Records from this offset on."""
        for record in self.brokers.leads[key].log.records(False, first):
            self.topic_of[record.uid] = self.topics[key]

    def _skip(self, key: Key, before: int) -> None:
        for record in self.brokers.leads[key].log.records(False, 0, before):
            self.seen.add(record.uid)

    def _check_follows(self, key: Key, after: int, record: Record) -> None:
        assert record.offset >= after, f"{key}: {record} was returned twice"
        missed = self._skipped(key, after, record)
        assert not missed, f"{key}: {record} is returned, and not {missed[0]}"
        log = self.brokers.leads[key].log
        if self.brokers.read_committed:
            assert log.is_committed(record), f"{key}: {record} is not committed"

    def _skipped(self, key: Key, after: int, record: Record) -> list[Record]:
        if after == record.offset:
            return []
        log = self.brokers.leads[key].log
        return log.records(self.brokers.read_committed, after, record.offset)

    def _check_next_unclean(self, key: Key, reading: _Reading, record: Record) -> None:
        assert record.uid not in reading.uids, f"{key}: {record} was returned twice"
        if record.before != reading.last:
            lost = self.brokers.records[reading.last]
            log = {one.uid for one in self.brokers.leads[key].log.records(False)}
            assert reading.last not in log, f"{key}: {record} after {lost}"
            # If all that it has returned was cut, it goes on at or before its begin. By now, what
            # was before that may have been cut, too.
            first = min(self.brokers.records[uid].offset for uid in reading.uids)
            assert record.before in reading.uids or record.offset <= first, (
                f"{key}: {record} after {lost}, which is no longer in the log"
            )

    def _extend(self, key: Key) -> None:
        """How far all records were returned, without a gap."""
        if self.unclean:
            return
        log = self.brokers.leads[key].log
        for record in log.records(self.brokers.read_committed, self.prefix[key]):
            if record.uid not in self.seen:
                self.prefix[key] = record.offset
                return
        self.prefix[key] = self.brokers.readable(log)

    def missing(self) -> list[tuple[Key, Record]]:
        """What was returned by nobody. Without ids, positions of a former topic are those of the
        next one, as far as its log goes.
        """
        return [
            (key, record)
            for key, lead in self.brokers.leads.items()
            if self.brokers.has_ids or not self.topics[key]
            for record in lead.log.records(self.brokers.read_committed)
            if record.uid not in self.seen
        ]

    def deleted(self, key: Key) -> None:
        """The log begins later now."""
        self.begins[key].add(self.brokers.leads[key].log.start)
        self._extend(key)

    # -- commits

    def accepted(self, one: Accepted) -> None:
        """By the coordinator, before it takes effect."""
        self.commits.append(one)
        self.begins[one.key].add(one.offset)
        if one.tag:
            member, _, made = one.tag.partition("/")
            assert member == one.member, f"{one} was made by {member}"
            if one.since < 0:
                assert int(made) == one.generation, f"{one} was made in generation {made}"
            else:
                assert int(made) >= one.since, f"{one} was made in epoch {made}"
        if not self.unclean:
            self._extend(one.key)
            assert one.offset <= self.prefix[one.key], f"{one}: {self.prefix[one.key]} returned"
            before = self._highest.get(one.key, 0)
            assert one.offset >= before, f"{one}: goes back from {before}"
            self._highest[one.key] = one.offset

    def commit_ended(self, offsets: Any, who: CommittingMember, error: Exception | None) -> None:
        """The program is told. Success: the coordinator has accepted all of it."""
        if error is not None:
            return
        tag = f"{who.member}/{who.generation}"
        done = {(one.key, one.offset) for one in self.commits if one.tag == tag}
        wanted = {(key, row.offset) for key, row in offsets.items()}
        if not wanted <= done:
            self._wrong.append(f"told success of {wanted - done} by {tag}")

    def revoked(self, program: Program, keys: list[Key]) -> None:
        """A program that commits by itself gives partitions up."""
        for key in [] if self.unclean else keys:
            reading = self._readings.get((program.number, key))
            if reading is not None and reading.part is program.core.fetcher.parts.get(key):
                last = self.brokers.records[reading.last]
                if program.committing.get(key, -1) <= last.offset:
                    self._wrong.append(f"{key} is given up, and not committed behind {last}")

    # -- circles

    def stepped(self, number: int, useful: bool) -> None:
        assert not self._wrong, self._wrong[0]
        if not useful:
            self._bounded(self._steps[number], STEPS_A_SECOND, "steps")
        self._requests.append((self.world.now, self.brokers.requests))
        while self._requests[0][0] < self.world.now - 1:
            self._requests.popleft()
        made = self.brokers.requests - self._requests[0][1]
        assert made <= REQUESTS_A_SECOND, f"{made} requests in a second"

    def _bounded(self, times: deque[float], most: int, what: str) -> None:
        times.append(self.world.now)
        while times[0] < self.world.now - 1:
            times.popleft()
        assert len(times) <= most, f"{len(times)} {what} in a second"

    def raised(self, number: int, error: Exception) -> None:
        """By ``poll``."""
        self.errors.append((self.world.now, number, error))

    # -- progress

    def check_progress(self) -> None:
        """(e), for what was appended a while ago where nothing has happened since."""
        now, brokers = self.world.now, self.brokers
        if self.has_group and not brokers.is_well(brokers.nodes[brokers.coordinator]):
            return
        for key, lead in brokers.leads.items():
            leader = brokers.nodes[lead.leader]
            is_quiet = (
                not self.is_away
                and now - brokers.disturbed[key] >= STALL_S
                and brokers.is_well(leader)
            )
            if self.topics[key] and not brokers.has_ids:
                continue
            if not is_quiet or leader.errors or leader.slow_s or key in brokers.refused:
                continue
            if self.is_slow and now - self._returned_at[key] < STALL_S:
                continue  # it has its turns
            ends = [end for at, end in brokers.appended_at[key] if at <= now - STALL_S]
            after = ends[-1] if ends else 0
            for record in lead.log.records(brokers.read_committed, self.prefix[key], after):
                assert record.uid in self.seen, f"{key}: {record} is not returned"
            self.checked += 1
