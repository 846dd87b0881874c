"""``kafka-consumer-perf-test``: what it sets of the consumer."""

from __future__ import annotations

import pytest

from kbroker.cli.kafka.consumer_performance import OPTIONS, _settings
from kbroker.cli.kafka.options import Given
from kbroker.client.consumer.consumer_settings import SETTINGS
from kbroker.client.settings.client_settings import ClientSettings

pytestmark = pytest.mark.unit


def test_only_what_is_asked_for_may_be_without_effect():
    """Of such a setting the consumer warns."""
    words = ("--bootstrap-server", "h:1", "--topic", "t", "--num-records", "1")

    def found(*more: str) -> ClientSettings:
        return ClientSettings(SETTINGS, _settings(Given(OPTIONS, (*words, *more))), {})

    assert [*found().without_effect(SETTINGS)] == []
    assert found("--socket-buffer-size", "7")["receive.buffer.bytes"] == 7
