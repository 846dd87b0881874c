"""Random logs, random fetches: every response is compared with a model of the log in memory."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.running.examples import examples
from support.storage.fetch_log import FetchBench

pytestmark = pytest.mark.property

APPEND = st.tuples(
    st.just("append"), st.integers(1, 20), st.integers(61, 3000), st.sampled_from([0, 0, 0, 5])
)
STEP = st.one_of(
    APPEND,
    APPEND,
    APPEND,
    st.tuples(st.sampled_from(["roll", "drop", "hold", "release", "start"]), st.integers(0, 100)),
    st.tuples(st.just("fetch"), st.integers(0, 100), st.integers(-10, 8000), st.booleans()),
    st.tuples(st.just("tail"), st.integers(0, 8000)),
)


class Run:
    """One engine and log; ``at`` is the position of a consumer that fetches continuously."""

    def __init__(self, folder: str, interval: int, version: int) -> None:
        self.bench = FetchBench(Path(folder), max_open_files=4)
        self.log = self.bench.log(index_interval=interval)
        self.version = version
        self.at = 0

    def append(self, records: int, size: int, gap: int) -> None:
        self.log.append(records, size, gap=gap)

    def roll(self, _share: int) -> None:
        if self.log.end[2] > 0:
            self.log.roll()

    def drop(self, _share: int) -> None:
        if len(self.log.sizes) > 1 and self.high_watermark[0] >= sorted(self.log.sizes)[1]:
            self.log.drop_segment()

    def hold(self, share: int) -> None:
        bases = [b.base_offset for b in self.log.batches if b.base_offset >= self.log.log_start]
        if bases:
            self.log.hold_back(bases[share * (len(bases) - 1) // 100])

    def release(self, _share: int) -> None:
        self.log.release()

    def start(self, share: int) -> None:
        low, high = self.log.log_start, self.high_watermark[0]
        self.log.start_at(max(low, low + share * (high - low) // 100))

    @property
    def high_watermark(self):
        return self.log.high_watermark or self.log.end

    def read(self, offset: int, limit: int) -> bytes:
        partition = self.bench.only(
            self.bench.fetch({("t", 0): offset}, self.version, partition_max_bytes=limit)
        )
        if not self.log.log_start <= offset <= self.log.end[0]:
            assert partition.error_code == 1
            return b""
        assert partition.error_code == 0
        assert partition.high_watermark == self.high_watermark[0]
        data = bytes(partition.records)
        assert data == self.log.expected(offset, self.high_watermark, max(limit, 0), first=True)
        return data

    def fetch(self, share: int, limit: int, beyond: bool) -> None:
        low, high = self.log.log_start, self.log.end[0]
        self.read(low + share * (high - low) // 100 + (3 if beyond else 0), limit)

    def tail(self, limit: int) -> None:
        """Fetch at ``at`` and continue after the last whole batch, as a consumer does."""
        self.at = max(self.at, self.log.log_start)
        taken = len(self.read(self.at, limit))
        for batch in self.log.batches:
            if batch.last_offset >= self.at:
                taken -= len(batch.data)
                if taken < 0:
                    break
                self.at = batch.last_offset + 1


@settings(max_examples=examples(120), deadline=None)
@given(
    st.lists(STEP, max_size=60),
    st.sampled_from([0, 200, 4096, 1 << 30]),
    st.integers(4, 18),
)
def test_fetch_brings_the_bytes_the_model_expects(steps, interval, version):
    with tempfile.TemporaryDirectory() as folder:
        run = Run(folder, interval, version)
        for name, *arguments in steps:
            getattr(run, name)(*arguments)
            run.tail(2000)


WANTS = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 30)), max_size=6, unique_by=lambda pair: pair[0]
)


@settings(max_examples=examples(100), deadline=None)
@given(
    st.lists(
        st.tuples(WANTS, st.lists(st.integers(0, 5), max_size=3), st.integers(0, 5)), max_size=15
    ),
    st.integers(100, 3000),
    st.sampled_from([8, 13]),
)
def test_session_responds_as_a_model_of_its_partitions(rounds, limit, version):
    """The model: a dict in order of service, and the last response about each partition."""
    with tempfile.TemporaryDirectory() as folder:
        bench = FetchBench(Path(folder))
        logs = bench.topic("t", 6)
        for log in logs:
            log.append_many(3, size=200)
        wanted = {0: 3, 3: 3}
        session = bench.fetch({("t", i): at for i, at in wanted.items()}, version, session_epoch=0)
        told = dict.fromkeys(wanted, 3)
        for epoch, (changes, forgotten, busy) in enumerate(rounds, 1):
            logs[busy].append(1, 300)
            for index, offset in changes:
                told.setdefault(index, -1)
                wanted[index] = offset
            for index in forgotten:
                wanted.pop(index, None)
                told.pop(index, None)
            response = bench.fetch(
                {("t", index): offset for index, offset in changes},
                version,
                session_id=session.session_id,
                session_epoch=epoch,
                forget=[("t", index) for index in forgotten],
                max_bytes=limit,
            )
            expected, served, left = {}, [], limit
            for index, offset in wanted.items():
                log = logs[index]
                if offset > log.end[0]:
                    expected[index] = (1, b"", -1)
                else:
                    data = log.expected(offset, log.end, left, first=not served)
                    if data or told[index] != log.end[0]:
                        expected[index] = (0, data, log.end[0])
                    if data:
                        served.append(index)
                        left = max(left - len(data), 0)
                told[index] = expected[index][2] if index in expected else told[index]
            for index in served:
                wanted[index] = wanted.pop(index)
            found = {
                index: (p.error_code, bytes(p.records), p.high_watermark)
                for (_, index), p in bench.partitions(response).items()
            }
            assert list(found.items()) == list(expected.items())
            if not wanted:
                assert response.session_id == 0
                return
