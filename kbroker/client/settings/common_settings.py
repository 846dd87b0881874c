"""Settings that the producer and the consumer for applications share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kbroker.client.errors import SettingRefused
from kbroker.client.settings.client_settings import (
    INT_MAX,
    LONG_MAX,
    ClientSetting,
    ClientSettings,
    flag,
    listed,
    plugged_list,
    text,
    whole,
)

# Java's default, which is always there.
_JMX_REPORTER = "org.apache.kafka.common.metrics.JmxReporter"


def reporters(name: str, value: Any) -> tuple[Any, ...]:
    """Several of them."""
    return plugged_list(name, [one for one in listed(name, value) if one != _JMX_REPORTER])


COMMON = (
    ClientSetting(
        "bootstrap.servers",
        listed,
        (),
        "`host:port,host:port`, for the first connection; all brokers are found through them.",
    ),
    ClientSetting(
        "retry.backoff.ms",
        whole,
        100,
        "Pause before the first retry; doubles up to `retry.backoff.max.ms`.",
        0,
        INT_MAX,
    ),
    ClientSetting("retry.backoff.max.ms", whole, 1_000, "The longest of these pauses.", 0, INT_MAX),
    ClientSetting(
        "metric.reporters",
        reporters,
        (),
        "Objects with `init(metrics)`, `metric_change(metric)` and `close()`, told of each metric "
        "when it is created. `metrics()` has them all, in any case; so Java's `JmxReporter` has no "
        "effect.",
    ),
    ClientSetting(
        "metrics.num.samples", whole, 2, "Samples that rates are computed from.", 1, 1_000
    ),
    ClientSetting(
        "metrics.sample.window.ms", whole, 30_000, "Length of a sample.", 1, LONG_MAX // 1000
    ),
    ClientSetting(
        "reconnect.backoff.ms",
        whole,
        50,
        "Pause before a broker is connected to again; doubles up to `reconnect.backoff.max.ms`.",
        0,
        LONG_MAX // 1000,
    ),
    ClientSetting(
        "reconnect.backoff.max.ms", whole, 1_000, "The longest of these.", 0, LONG_MAX // 1000
    ),
    ClientSetting(
        "socket.connection.setup.timeout.ms",
        whole,
        10_000,
        "How long a connection may take until it can be used.",
        1,
        LONG_MAX // 1000,
    ),
    ClientSetting(
        "metadata.recovery.strategy",
        text,
        "rebootstrap",
        "What happens if no known broker answers.",
        one_of=("none", "rebootstrap"),
        no_effect="`bootstrap.servers` are always tried, too",
    ),
    ClientSetting(
        "client.dns.lookup",
        text,
        "use_all_dns_ips",
        "Which addresses of a host name are tried.",
        one_of=("use_all_dns_ips", "resolve_canonical_bootstrap_servers_only"),
        no_effect="all addresses are always tried",
    ),
    ClientSetting(
        "socket.connection.setup.timeout.max.ms",
        whole,
        30_000,
        "The longest of the growing timeouts.",
        1,
        LONG_MAX // 1000,
        no_effect="the timeout of a connection does not grow",
    ),
    ClientSetting(
        "metrics.recording.level",
        text,
        "info",
        "Which metrics are recorded.",
        one_of=("info", "debug", "trace"),
        no_effect="all are recorded",
    ),
    ClientSetting(
        "auto.include.jmx.reporter",
        flag,
        True,
        "JMX.",
        no_effect="there is no JMX; see `metrics()`",
    ),
    ClientSetting(
        "enable.metrics.push",
        flag,
        True,
        "Metrics are pushed to brokers that ask for them (KIP-714), and to no others.",
    ),
    ClientSetting(
        "kbroker.metrics.port",
        whole,
        None,
        "The client's metrics are served here by HTTP: `/metrics` for Prometheus, and `/jmx` by "
        "the names of MBeans. 0: any free port, which `metrics_address` has; unset: they are not. "
        "Clients of one process with the same port are served together.",
        0,
        65_535,
    ),
    ClientSetting(
        "kbroker.metrics.host",
        text,
        "127.0.0.1",
        "The address of that port; `0.0.0.0` or `::` lets other machines ask.",
    ),
    ClientSetting(
        "kbroker.metrics.hosts",
        listed,
        (),
        "Further names by which that port may be called, besides addresses, `localhost`, the name "
        "of the machine and `kbroker.metrics.host`; `*`: any. Others are refused, as a web page "
        "could read the metrics by one (DNS rebinding).",
    ),
)


def with_common(*rows: ClientSetting) -> dict[str, ClientSetting]:
    """By name, the common ones first."""
    return {row.name: row for row in (*COMMON, *rows)}


def read_settings(
    rows: Mapping[str, ClientSetting], config: Mapping[str, Any] | None, keywords: Mapping[str, Any]
) -> ClientSettings:
    """What is given, each setting by itself. Raises SettingRefused."""
    settings = ClientSettings(rows, config, keywords)
    if not settings["bootstrap.servers"]:
        raise SettingRefused("bootstrap.servers", "write host:port,host:port")
    return settings
