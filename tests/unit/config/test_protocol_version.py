"""inter.broker.protocol.version: parsing of versions."""

from __future__ import annotations

import pytest

from kbroker.config.loader import BrokerConfig
from kbroker.config.protocol_version import ProtocolVersion, find_version
from kbroker.errors import ConfigError

pytestmark = pytest.mark.unit

NAME = "inter.broker.protocol.version"
# From Kafka 2.7's list of versions: names, versions and their numbers.
KAFKAS = {
    "1.1": ("1.1-IV0", 14),
    "2.0": ("2.0-IV1", 16),
    "2.1": ("2.1-IV2", 19),
    "2.2": ("2.2-IV1", 21),
    "2.3": ("2.3-IV1", 23),
    "2.4": ("2.4-IV1", 25),
    "2.5": ("2.5-IV0", 26),
    "2.6": ("2.6-IV0", 27),
    "2.7": ("2.7-IV2", 30),
}


@pytest.mark.parametrize("text", KAFKAS)
def test_version_without_a_step_is_its_last_one(text):
    found = find_version(text)

    assert (str(found), found) == KAFKAS[text]


@pytest.mark.parametrize("version", ProtocolVersion)
def test_version_with_a_step_is_read_as_it_is_written(version):
    assert find_version(str(version)) is version


@pytest.mark.parametrize("text", ["2.7.0", "2.7.2.1", "2.7.0-IV0"])
def test_third_number_is_not_looked_at(text):
    assert find_version(text) is ProtocolVersion.V2_7_IV2


def test_default_is_the_last_step_of_2_7():
    assert BrokerConfig().protocol_version is ProtocolVersion.V2_7_IV2


def test_configured_version_counts():
    assert BrokerConfig({NAME: "2.4"}).protocol_version is ProtocolVersion.V2_4_IV1


@pytest.mark.parametrize(
    "text", ["", "1", "2", "1.0", "0.11.0", "0.8.2.1", "2.7-IV3", "2.7-iv2", "2.8", "3.9", "x"]
)
def test_other_versions_are_refused_and_the_text_says_what_is_allowed(text):
    with pytest.raises(ConfigError, match=r"from 1\.1 to 2\.7"):
        BrokerConfig({NAME: text, "zookeeper.connect": "127.0.0.1"})


@pytest.mark.parametrize("text", ["3.9", "3.9-IV0", "0.8.2.1"])
def test_broker_that_stands_alone_takes_the_files_of_any_kafka(text):
    assert BrokerConfig({NAME: text}).protocol_version is ProtocolVersion.V2_7_IV2
