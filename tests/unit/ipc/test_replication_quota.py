"""The quotas of replication in shared memory."""

from __future__ import annotations

import os

import pytest

from kbroker._ext.shared.replication_quota import (
    FOLLOWER,
    LEADER,
    SAMPLES_MAX,
    ReplicationQuota,
    region_size,
)
from kbroker.config.key import LONG_MAX
from kbroker.ipc.regions import create_region

pytestmark = pytest.mark.unit

T = 7_000_000  # the beginning of a period


def quota(rate: int, samples: int = 3, sample_ms: int = 1000) -> ReplicationQuota:
    made = ReplicationQuota(bytearray(region_size(samples)), LEADER, sample_ms)
    made.rate = rate
    return made


def test_rate_is_that_of_the_time_since_the_oldest_sample() -> None:
    used = quota(100)
    used.add(100, T)
    assert not used.is_exceeded(T)  # as if it took the whole first period

    used.add(100, T + 500)

    assert used.is_exceeded(T + 1999)
    assert not used.is_exceeded(T + 2000)


def test_what_was_not_used_may_be_used_as_long_as_samples_are_kept() -> None:
    used = quota(100, samples=3)
    used.add(1, T)
    used.add(250, T + 2600)
    assert not used.is_exceeded(T + 2600)
    assert used.is_exceeded(T + 3000), "the first count is forgotten"


@pytest.mark.parametrize("idle_ms", [0, 5_000, 11_000])
def test_copy_keeps_its_rate_from_the_first_byte_on(idle_ms: int) -> None:
    """Of a copy in small responses, which is measured in test_cluster_throttles.py: what it may
    get beyond its rate is what a little use some seconds ago has left over, and not for longer than
    samples are kept.
    """
    rate, response, left = 1_000_000, 50_000, 20_000_000
    used = quota(rate, samples=11)
    used.add(1, T)
    now = began = T + idle_ms
    while left > 0:
        if used.is_exceeded(now):
            now += 10
        else:
            used.add(response, now)
            left -= response
    saved = idle_ms if idle_ms < 11_000 else 0
    assert 20_000 - saved - 100 <= now - began <= 20_000 - saved + 100


def test_old_samples_are_forgotten() -> None:
    used = quota(1, samples=3)
    used.add(1_000_000, T + 124)
    assert used.is_exceeded(T + 2999)
    assert not used.is_exceeded(T + 3000)

    used.add(1, T + 3000)  # in the place of the first

    assert not used.is_exceeded(T + 3000)


def test_first_sample_begins_when_it_is_used() -> None:
    used = quota(1000)
    used.add(1500, T + 900)
    assert used.is_exceeded(T + 2300)
    assert not used.is_exceeded(T + 2400)


def test_wait_lasts_until_the_rate_is_within_the_quota() -> None:
    used = quota(100, samples=11)
    assert used.wait_ms(T) == 0
    used.add(300, T)
    assert used.wait_ms(T) == 2000
    assert used.wait_ms(T + 2500) == 500
    assert used.wait_ms(T + 3000) == 0

    used.add(1 << 39, T + 3000)
    assert used.wait_ms(T + 3000) == 11_000, "no longer than samples are kept"


def test_no_rate_is_no_limit_and_a_rate_can_change() -> None:
    used = ReplicationQuota(bytearray(region_size(3)), LEADER, 1000)
    assert used.rate == LONG_MAX
    used.add(1 << 39, T)
    assert not used.is_exceeded(T)
    used.rate = 1000
    assert used.is_exceeded(T)
    used.rate = LONG_MAX - 1
    assert not used.is_exceeded(T)


def test_rate_of_zero_lets_nothing_more_through() -> None:
    used = quota(0)
    assert not used.is_exceeded(T)
    used.add(1, T)
    assert used.is_exceeded(T + 1)
    assert used.wait_ms(T + 1) > 0


def test_count_of_a_sample_does_not_overflow() -> None:
    used = quota(1 << 50)
    for _ in range(3):
        used.add(1 << 40, T)
    assert not used.is_exceeded(T)
    used.rate = (1 << 40) - 2
    assert used.is_exceeded(T)


def test_processes_share_the_counts_of_each_quota() -> None:
    region = create_region("test-quotas", region_size(3))
    ours = ReplicationQuota(region, LEADER, 1000)
    other = ReplicationQuota(region, FOLLOWER, 1000)
    ours.rate = other.rate = 39_999
    children = []
    for number in range(4):
        child = os.fork()
        if child == 0:
            theirs = ReplicationQuota(region, LEADER, 1000)
            for _ in range(10_000):
                theirs.add(1, T + number)
            os._exit(0)
        children.append(child)
    for child in children:  # and no other child of this process
        assert os.waitpid(child, 0)[1] == 0

    assert ours.is_exceeded(T)
    ours.rate = 40_000
    assert not ours.is_exceeded(T)
    assert not other.is_exceeded(T)


@pytest.mark.parametrize(
    ("size", "which", "sample_ms"),
    [(0, LEADER, 1), (64, LEADER, 1), (128, 2, 1), (128, -1, 1), (128, LEADER, 0)],
)
def test_impossible_quota_is_rejected(size: int, which: int, sample_ms: int) -> None:
    with pytest.raises(ValueError, match="no quota"):
        ReplicationQuota(bytearray(size), which, sample_ms)


def test_number_of_samples_is_limited() -> None:
    assert region_size(1 << 30) == region_size(SAMPLES_MAX)
