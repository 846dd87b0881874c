"""The quotas of clients in shared memory: throttle times, and a bounded number of cells."""

from __future__ import annotations

import os

import pytest

from kbroker._ext.shared.quota_table import Quota, QuotaTable, region_size
from kbroker.ipc.regions import create_region

pytestmark = pytest.mark.unit

T = 7_000_000  # the beginning of a sample
SAMPLES, SAMPLE_MS = 11, 1000


def table_of(cells: int = 64, samples: int = SAMPLES) -> QuotaTable:
    return QuotaTable(bytearray(region_size(cells)), samples, SAMPLE_MS)


def test_client_within_its_quota_is_not_throttled() -> None:
    quota = Quota(table_of(), 1, 100.0)
    assert quota.throttle_ms(T) == 0
    quota.add(1000, T)  # what it gets in ten samples
    assert quota.throttle_ms(T) == 0
    assert quota.ahead_ms(T) == 10_000


def test_throttle_time_is_how_long_the_excess_takes_at_the_quota() -> None:
    """Kafka: (rate - bound) / bound * window."""
    quota = Quota(table_of(), 1, 100.0)
    quota.add(1500, T)
    assert quota.throttle_ms(T) == 5000
    assert quota.throttle_ms(T + 300) == 4700
    assert quota.throttle_ms(T + 5000) == 0


def test_what_was_not_used_may_be_used_for_all_samples_but_one() -> None:
    quota = Quota(table_of(), 1, 100.0)
    quota.add(1000, T)
    assert quota.throttle_ms(T) == 0
    quota.add(700, T + 6000)
    assert quota.throttle_ms(T + 6000) == 1000
    quota.add(1000, T + 60_000)
    assert quota.throttle_ms(T + 60_000) == 0


def test_steady_use_at_the_quota_is_never_throttled_and_above_it_is() -> None:
    for rate, is_throttled in ((100, False), (105, True)):
        quota = Quota(table_of(), 1, 100.0)
        throttled = 0
        for step in range(1100):
            quota.add(rate // 5, T + 200 * step)
            throttled += quota.throttle_ms(T + 200 * step) > 0
        assert (throttled > 0) is is_throttled


@pytest.mark.parametrize("size", [10, 60, 300, 3000])
def test_client_that_waits_as_told_is_kept_to_its_quota(size: int) -> None:
    """A client that sends as fast as it may, for five minutes of a simulated clock."""
    quota = Quota(table_of(), 1, 100.0)
    now, sent, from_ms = T, 0, T + 30_000
    while now < T + 330_000:
        quota.add(size, now)
        sent += size if now >= from_ms else 0
        now += 1 + quota.throttle_ms(now)
    assert sent / 300 == pytest.approx(100, rel=0.05)


@pytest.mark.parametrize("size", [1000, 10_000])
@pytest.mark.parametrize("clients", [10, 100])
def test_clients_that_share_a_quota_are_kept_to_it_together(clients: int, size: int) -> None:
    quota = Quota(table_of(), 1, 100_000.0)
    due = [T + number for number in range(clients)]
    sent = 0
    while min(due) < T + 330_000:
        who = due.index(min(due))
        now = due[who]
        quota.add(size, now)
        sent += size if now >= T + 30_000 else 0
        due[who] = now + 1 + quota.throttle_ms(now)
    assert sent / 300 == pytest.approx(100_000, rel=0.05)


def test_equal_keys_share_a_cell_and_others_do_not() -> None:
    table = table_of()
    mine, also_mine, other = Quota(table, 5, 100.0), Quota(table, 5, 100.0), Quota(table, 6, 100.0)
    mine.add(300, T)
    assert (also_mine.ahead_ms(T), other.ahead_ms(T)) == (3000, 0)


def test_processes_add_to_one_count() -> None:
    region = create_region("kbroker-test-quotas", region_size(64))
    quota = Quota(QuotaTable(region, SAMPLES, SAMPLE_MS), 9, 1000.0)
    children = []
    for _ in range(4):
        pid = os.fork()
        if pid == 0:
            own = Quota(QuotaTable(region, SAMPLES, SAMPLE_MS), 9, 1000.0)
            for _ in range(10_000):
                own.add(1, T)
            os._exit(0)
        children.append(pid)
    for pid in children:
        assert os.waitpid(pid, 0)[1] == 0
    assert quota.ahead_ms(T) == 40_000


def test_idle_cell_is_taken_by_another_client() -> None:
    """Clients can invent ids without end, but only as many can be ahead as there are cells."""
    table = table_of(cells=16)
    for generation in range(20):
        now = T + generation * SAMPLES * SAMPLE_MS
        quotas = [Quota(table, 1 + 16 * generation + n, 100.0) for n in range(16)]
        for number, quota in enumerate(quotas):
            quota.add(number + 1, now)
        assert [q.ahead_ms(now) for q in quotas] == [10 * (n + 1) for n in range(16)]


def test_client_for_which_there_is_no_cell_shares_one() -> None:
    table = table_of(cells=16)
    present = [Quota(table, 1 + n, 100.0) for n in range(16)]
    for quota in present:
        quota.add(100, T)
    late = Quota(table, 17, 100.0)  # at home in the same place as 1
    late.add(50, T)
    assert late.ahead_ms(T) == 1500
    assert present[0].ahead_ms(T) == 1500
    assert [quota.ahead_ms(T) for quota in present[1:]] == [1000] * 15
    # As soon as there is room it has its own.
    after = T + 2 * SAMPLE_MS
    late.add(50, after)
    assert late.ahead_ms(after) == 500


def test_excess_that_is_remembered_is_bounded() -> None:
    quota = Quota(table_of(), 1, 0.0)
    quota.add(2**62, T)
    quota.add(2**62, T)
    assert quota.throttle_ms(T) == 3_600_000
    quota = Quota(table_of(), 1, 1.0, forgets=True)
    quota.add(2**62, T)
    assert quota.throttle_ms(T) == 10_000


@pytest.mark.parametrize(("size", "samples", "sample_ms"), [(8, 11, 1), (999, 0, 1), (999, 1, 0)])
def test_table_without_room_or_samples_is_refused(size: int, samples: int, sample_ms: int) -> None:
    with pytest.raises(ValueError, match="no quotas have"):
        QuotaTable(bytearray(size), samples, sample_ms)


def test_what_is_used_is_counted_for_people_until_its_cell_has_another_owner() -> None:
    table = table_of(cells=1)
    first, same = Quota(table, 1, 100.0), Quota(table, 1, 100.0)
    first.add(300, T)
    same.add(40, T)
    assert (first.used(T), same.used(T)) == (340, 340)
    later = T + 60_000
    other = Quota(table, 2, 100.0)
    other.add(7, later)
    assert other.used(later) == 7
