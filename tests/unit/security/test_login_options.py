"""Where the options of a login module are found."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbroker.config.loader import BrokerConfig
from kbroker.errors import ConfigError
from kbroker.security.sasl.login_options import login_options

pytestmark = pytest.mark.unit

MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
OWN = "listener.name.inside.plain.sasl.jaas.config"


def options(kind: str = "PlainLoginModule", **settings: str) -> dict[str, str]:
    config = BrokerConfig({name.replace("__", "."): value for name, value in settings.items()})
    return dict(login_options(config, config.of_listener("INSIDE", "PLAIN"), kind))


def test_listeners_own_config_comes_before_the_brokers_and_the_file(tmp_path: Path) -> None:
    file = tmp_path / "jaas.conf"
    file.write_text(f'KafkaServer {{ {MODULE} required who="file"; }};')
    settings = {"java.security.auth.login.config": str(file)}

    assert options(**settings) == {"who": "file"}
    settings["sasl.jaas.config"] = f'{MODULE} required who="broker";'
    assert options(**settings) == {"who": "broker"}
    settings[OWN] = f'{MODULE} required who="listener";'
    assert options(**settings) == {"who": "listener"}


def test_module_of_another_mechanism_counts_only_where_nobody_asked_for_it() -> None:
    other = 'x.ScramLoginModule required username="a" password="secret";'

    assert options(**{"sasl.jaas.config": other}) == {}
    with pytest.raises(ConfigError, match="one login module, a PlainLoginModule") as caught:
        options(**{OWN: other})
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("text", ["required;", 'x required a="b', "x required a=b"])
def test_malformed_text_is_refused_without_being_quoted(text: str) -> None:
    with pytest.raises(ConfigError, match="a login in Kafka's syntax") as caught:
        options(**{OWN: text})
    assert text not in str(caught.value)


def test_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing")
    with pytest.raises(ConfigError, match="a file that can be read"):
        options(**{"java.security.auth.login.config": missing})
