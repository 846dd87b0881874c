"""``kafka-features``: levels by name, and what is asked of a cluster."""

from __future__ import annotations

import pytest

from kbroker.cli.kafka import features, table
from kbroker.cli.kafka.metadata_versions import NAMES, defaults, level_of, shown
from kbroker.cli.kafka.running import ToolFailed

pytestmark = pytest.mark.unit


def levels(*words: str) -> dict[str, int]:
    where = ["--bootstrap-server", "x:1"]
    return features._levels(features.TOOL.build().parse_args([*where, *words]))


def test_metadata_versions_are_numbered_as_kafka_does():
    assert (shown("metadata.version", 7), level_of("4.3-IV0")) == ("3.3-IV3", 30)
    assert (level_of("4.0"), shown("metadata.version", 99)) == (25, "UNKNOWN 99")
    assert shown("group.version", 1) == "1"
    assert len(NAMES) == len(set(NAMES)) == 31
    for name in ("3.0-IV1", "9.9", ""):
        with pytest.raises(ValueError):
            level_of(name)


def test_release_has_its_features_by_default():
    assert defaults(21)["kraft.version"] == 1
    assert defaults(23)["transaction.version"] == 0
    assert defaults(24)["transaction.version"] == 2
    assert defaults(20) == dict.fromkeys(defaults(20), 0)


def test_levels_are_those_of_features_or_of_a_release():
    assert levels("upgrade", "--feature", "a=1", "--feature", "b = 2") == {"a": 1, "b": 2}
    assert levels("disable", "--feature", "a") == {"a": 0}
    found = levels("upgrade", "--release-version", "4.0-IV3")
    assert found == {
        "metadata.version": 25,
        "kraft.version": 1,
        "transaction.version": 2,
        "group.version": 1,
    }
    assert levels("downgrade", "--release-version", "3.8-IV0")["group.version"] == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["upgrade", "--feature", "a"], "equals sign not found"),
        (["upgrade", "--feature", "a=x"], "unable to parse x as a short"),
        (["upgrade", "--feature", "a=1", "--feature", "a=2"], "more than once"),
        (["upgrade", "--metadata", "1.0"], "Unknown metadata.version 1.0. Supported"),
        (["upgrade", "--release-version", "4.0", "--feature", "a=1"], "Can not specify"),
    ],
)
def test_wrong_levels_are_refused(words, said):
    with pytest.raises(ToolFailed, match=said):
        levels(*words)


def test_mapping_and_needs_are_printed_without_a_cluster(capsys):
    assert table.main(["version-mapping", "--release-version", "4.1-IV0"], "kafka-features") == 0
    assert capsys.readouterr().out.splitlines()[:2] == [
        "metadata.version=26 (4.1-IV0)",
        "kraft.version=1",
    ]
    name = "eligible.leader.replicas.version"
    words = ["feature-dependencies", "--feature", f"{name}=1", "--feature", "group.version=1"]
    assert table.main(words, "kafka-features") == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{name}=1 requires:",
        "    metadata.version=23 (4.0-IV1)",
        "group.version=1 has no dependencies.",
    ]
    assert table.main(["feature-dependencies", "--feature", "x=1"], "kafka-features") == 1
    assert "Unknown feature: x" in capsys.readouterr().err
