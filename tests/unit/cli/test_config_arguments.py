"""``NAME=VALUE`` arguments: names are checked before anything is sent."""

from __future__ import annotations

import pytest

from kbroker.cli import config_arguments
from kbroker.cli.arguments import Usage

pytestmark = pytest.mark.unit


def test_values_may_be_empty_or_have_an_equals_sign():
    assert config_arguments.pairs("client-metrics", ["match=client_id=a", "metrics="]) == {
        "match": "client_id=a",
        "metrics": "",
    }


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("topic", "retention.ms"),
        ("broker", "log.retention.ms"),
        ("broker", "listener.name.external.ssl.keystore.location"),
        ("group", "consumer.session.timeout.ms"),
        ("client-metrics", "interval.ms"),
        ("broker-logger", "whatever.it.logs"),
    ],
)
def test_known_name_is_accepted(kind, name):
    config_arguments.check_name(kind, name)


@pytest.mark.parametrize(
    ("kind", "name", "text"),
    [
        ("topic", "log.retention.ms", "did you mean retention.ms?"),
        ("broker", "log.retention.mss", "did you mean log.retention.ms?"),
        ("group", "session.timeout.ms", "did you mean consumer.session.timeout.ms?"),
        ("client-metrics", "xxxx", "there are interval.ms, match, metrics"),
    ],
)
def test_unknown_name_has_the_nearest(kind, name, text):
    with pytest.raises(Usage) as caught:
        config_arguments.check_name(kind, name)

    assert str(caught.value) == f"no setting {name!r} of a {kind}: {text}"
