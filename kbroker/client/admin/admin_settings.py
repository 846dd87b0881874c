"""The settings of ``KafkaAdminClient``: names, defaults and meanings are those of Java's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kbroker.client.settings.client_settings import (
    INT_MAX,
    LONG_MAX,
    ClientSetting,
    ClientSettings,
    text,
    whole,
)
from kbroker.client.settings.common_settings import COMMON, read_settings

_PAUSES = "pauses between attempts grow from 20 ms to a second"
_NO_METRICS = "an admin client has no metrics"
_EVERY_CALL = "each call asks the brokers for what it needs"
# Why settings that the producer and the consumer obey change nothing here.
_NO_EFFECT = {
    "retry.backoff.ms": _PAUSES,
    "retry.backoff.max.ms": _PAUSES,
    "reconnect.backoff.ms": _PAUSES,
    "reconnect.backoff.max.ms": _PAUSES,
    "socket.connection.setup.timeout.ms": "a connection may take as long as a request",
    "metric.reporters": _NO_METRICS,
    "metrics.num.samples": _NO_METRICS,
    "metrics.sample.window.ms": _NO_METRICS,
    "enable.metrics.push": _NO_METRICS,
    "kbroker.metrics.port": _NO_METRICS,
    "kbroker.metrics.host": _NO_METRICS,
    "kbroker.metrics.hosts": _NO_METRICS,
}

SETTINGS = {
    row.name: row
    for row in (
        *(row._replace(no_effect=_NO_EFFECT.get(row.name, row.no_effect)) for row in COMMON),
        ClientSetting("client.id", text, "", "Name of this client in brokers' logs and quotas."),
        ClientSetting(
            "request.timeout.ms", whole, 30_000, "How long one request may take.", 1, INT_MAX
        ),
        ClientSetting(
            "default.api.timeout.ms",
            whole,
            60_000,
            "How long a call may take with all of its attempts; `within` changes it for some.",
            1,
            INT_MAX,
        ),
        ClientSetting(
            "retries",
            whole,
            INT_MAX,
            "Attempts after the first.",
            0,
            INT_MAX,
            no_effect="`default.api.timeout.ms` limits them",
        ),
        ClientSetting(
            "metadata.max.age.ms",
            whole,
            300_000,
            "When metadata is refreshed.",
            0,
            LONG_MAX // 1000,
            no_effect=_EVERY_CALL,
        ),
        ClientSetting(
            "metadata.recovery.rebootstrap.trigger.ms",
            whole,
            300_000,
            "When `bootstrap.servers` are tried again.",
            0,
            LONG_MAX // 1000,
            no_effect=_EVERY_CALL,
        ),
        ClientSetting(
            "connections.max.idle.ms",
            whole,
            300_000,
            "When an idle connection is closed.",
            -1,
            LONG_MAX // 1000,
            no_effect="brokers close idle connections, and the next call opens one again",
        ),
        ClientSetting(
            "receive.buffer.bytes",
            whole,
            65_536,
            "Size of the socket's buffer.",
            -1,
            INT_MAX,
            no_effect="the system chooses",
        ),
        ClientSetting(
            "send.buffer.bytes",
            whole,
            131_072,
            "Size of the socket's buffer.",
            -1,
            INT_MAX,
            no_effect="the system chooses",
        ),
    )
}


def admin_settings(config: Mapping[str, Any] | None, keywords: Mapping[str, Any]) -> ClientSettings:
    """Raises SettingRefused."""
    return read_settings(SETTINGS, config, keywords)
