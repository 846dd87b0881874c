"""Connection limits: counts and rates at their boundaries."""

from __future__ import annotations

import pytest

from kbroker.config.loader import BrokerConfig
from kbroker.workers.network.connection_limits import RATES_MAX, ConnectionLimits, TokenBucket

pytestmark = pytest.mark.unit

HOST, OTHER = "10.0.0.1", "10.0.0.2"


def limits(**settings: object) -> ConnectionLimits:
    names = {name.replace("_", "."): str(value) for name, value in settings.items()}
    made = ConnectionLimits(network_count=2, listener_count=1, now_ms=0)
    made.configure(BrokerConfig(names))
    return made


def test_total_is_reached_over_all_processes_and_freed_by_a_close() -> None:
    made = limits(max_connections=2)
    made.opened(0, HOST)
    assert made.wait_ms(0, 0) == 0
    made.opened(1, OTHER)
    assert made.wait_ms(0, 0) is None

    made.closed(0, HOST)

    assert made.wait_ms(0, 0) == 0


def test_address_is_rejected_at_its_limit_and_others_are_not() -> None:
    made = limits(max_connections_per_ip=2)
    for index in (0, 1):
        assert made.rejection(0, HOST, 0) is None
        made.opened(index, HOST)

    assert "max.connections.per.ip" in (made.rejection(0, HOST, 0) or "")
    assert made.rejection(0, OTHER, 0) is None


def test_exception_of_an_address_wins_over_the_limit() -> None:
    made = limits(max_connections_per_ip=1, max_connections_per_ip_overrides=f"{HOST}:2,{OTHER}:0")
    made.opened(0, HOST)

    assert made.rejection(0, HOST, 0) is None
    assert made.rejection(0, OTHER, 0) is not None


def test_exception_is_for_the_address_however_it_is_written() -> None:
    made = limits(max_connections_per_ip_overrides="0:0::1:0,::ffff:10.0.0.1:0")

    assert made.rejection(0, "::1", 0) is not None
    assert made.rejection(0, HOST, 0) is not None
    assert made.rejection(0, OTHER, 0) is None


def test_exception_of_a_host_name_is_for_its_addresses() -> None:
    """An address with a limit of its own keeps it."""
    settings = f"db.example:0,{OTHER}:9"
    made = limits(max_connections_per_ip_overrides=settings)
    assert list(made.named) == ["db.example"]

    made.resolved({"db.example": [HOST, OTHER]})

    for _ in range(2):
        assert made.rejection(0, HOST, 0) is not None
        assert made.rejection(0, OTHER, 0) is None
        made.configure(BrokerConfig({"max.connections.per.ip.overrides": settings}))


def test_listener_rate_makes_connections_wait() -> None:
    made = limits(max_connection_creation_rate=10)
    for _ in range(10):
        assert made.wait_ms(0, 0) == 0
        assert made.rejection(0, HOST, 0) is None

    assert made.wait_ms(0, 0) == 100
    assert made.wait_ms(0, 99) == 1
    assert made.wait_ms(0, 100) == 0


def test_address_rate_rejects_but_spares_loopback() -> None:
    made = limits(max_connection_creation_rate_per_ip=1)

    assert made.rejection(0, HOST, 0) is None
    assert "per.ip" in (made.rejection(0, HOST, 0) or "")
    assert made.rejection(0, HOST, 1000) is None
    assert all(made.rejection(0, "127.0.0.1", 0) is None for _ in range(5))


def test_remembered_rates_are_bounded() -> None:
    made = limits(max_connection_creation_rate=2**31 - 1)

    for number in range(RATES_MAX + 10):
        made.rejection(0, f"h{number}", 0)

    assert len(made._host_rates) == RATES_MAX


def test_dead_process_takes_its_connections_along_and_no_others() -> None:
    made = limits()
    made.opened(0, HOST)
    made.opened(1, HOST)

    made.forget(0)

    assert (made.total(0), made.total(1)) == (0, 1)
    assert made.of_host(HOST) == 1


def test_report_of_an_unknown_connection_counts_nothing_below_zero() -> None:
    made = limits()

    made.closed(0, HOST)

    assert made.total(0) == 0
    assert made.of_host(HOST) == 0


def test_adopted_connections_count_until_they_close() -> None:
    made = limits(max_connections=3, max_connections_per_ip=2)
    made.adopt(0, {HOST: 2, "other": 1})
    assert made.wait_ms(0, 0) is None
    assert "max.connections.per.ip" in (made.rejection(0, HOST, 0) or "")

    made.closed(0, HOST)

    assert made.total(0) == 2
    assert made.rejection(0, HOST, 0) is None


def test_changed_limits_apply_to_what_comes_next() -> None:
    made = limits(max_connections=1)
    made.opened(0, HOST)

    made.configure(BrokerConfig({"max.connections": "2"}))

    assert made.wait_ms(0, 0) == 0


def test_bucket_of_rate_0_never_gives() -> None:
    bucket = TokenBucket(0, 0)

    assert not bucket.take(10**9)
    assert bucket.wait_ms(10**9) > 0


def test_quota_of_an_address_wins_over_the_rate_of_all_addresses() -> None:
    made = limits(max_connection_creation_rate_per_ip=1)
    made.set_quotas({HOST: 3.0})
    assert [made.rejection(0, HOST, 0) is None for _ in range(4)] == [True] * 3 + [False]
    assert "its quota" in (made.rejection(0, HOST, 0) or "")
    assert made.rejection(0, HOST, 1000) is None
    assert [made.rejection(0, OTHER, 0) is None for _ in range(2)] == [True, False]


def test_default_quota_is_for_all_other_addresses_and_loopback_too() -> None:
    made = limits()
    made.set_quotas({HOST: 2.0, None: 1.0})
    assert [made.rejection(0, HOST, 0) is None for _ in range(3)] == [True, True, False]
    for host in (OTHER, "127.0.0.1"):
        assert [made.rejection(0, host, 0) is None for _ in range(2)] == [True, False]


def test_quota_of_addresses_is_removed() -> None:
    made = limits()
    made.set_quotas({None: 1.0})
    made.rejection(0, HOST, 0)
    assert made.rejection(0, HOST, 0) is not None
    made.set_quotas({None: 1.0})
    assert made.rejection(0, HOST, 0) is not None, "the same quotas again change nothing"
    made.set_quotas({})
    assert made.rejection(0, HOST, 0) is None
