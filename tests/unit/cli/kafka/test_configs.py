"""``kafka-configs``: which things are meant, and which settings."""

from __future__ import annotations

import pytest

from kbroker.cli.kafka import table
from kbroker.cli.kafka.config_entities import _alter_user, _entity_hash, _entity_text
from kbroker.cli.kafka.configs import OPTIONS, added, entity_names, entity_types
from kbroker.cli.kafka.java_words import string_hash
from kbroker.cli.kafka.options import Given
from kbroker.cli.kafka.running import ToolFailed
from kbroker.client.admin.users import set_password

pytestmark = pytest.mark.unit


def given(*words: str) -> Given:
    return Given(OPTIONS, words)


def test_types_and_names_are_in_the_order_of_the_command_line():
    words = ("--entity-type", "users", "--entity-default", "--entity-type", "clients")

    found = given(*words, "--entity-name", "app")

    assert entity_types(found) == ["users", "clients"]
    assert entity_names(found) == ["", "app"]


def test_short_forms_name_types_and_defaults():
    found = given("--client", "app", "--user-defaults")

    assert entity_types(found) == ["clients", "users"]
    assert entity_names(found) == ["app", ""]


def test_values_with_commas_are_in_brackets(tmp_path):
    path = tmp_path / "more"
    path.write_text("a=1\n")
    text = "k1=v1, k2 = [v2,v3],k3=[x=y,z=],k4="

    assert added(given("--add-config", text)) == {
        "k1": "v1",
        "k2": "v2,v3",
        "k3": "x=y,z=",
        "k4": "",
    }
    assert added(given("--add-config-file", str(path))) == {"a": "1"}


@pytest.mark.parametrize(
    ("text", "why"),
    [("k", "all configs to be added must be in the format"), ("k!=1", "Invalid character found")],
)
def test_what_is_no_setting_is_refused(text, why):
    with pytest.raises(ToolFailed, match=why):
        added(given("--add-config", text))


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--describe"], "Either --bootstrap-server or --bootstrap-controller must be specified."),
        (["--describe", "--bootstrap-server", "b"], "At least one entity type must be specified"),
        (
            ["--describe", "--bootstrap-server", "b", "--broker", "x"],
            "The entity name for brokers must be a valid integer broker id, but it is: x",
        ),
        (
            ["--alter", "--bootstrap-server", "b", "--topic", "t"],
            "At least one of --add-config, --add-config-file, or --delete-config must be specified "
            "with --alter",
        ),
    ],
)
def test_wrong_use_is_one_line(capsys, words, line):
    assert table.main(words, "kafka-configs") == 1
    assert capsys.readouterr().err == f"{line}\n"


def test_entities_of_quotas_have_java_s_text_and_hash_code():
    entity = (("user", "alice"), ("client-id", None))

    assert _entity_text(entity) == "user-principal 'alice', the default client-id"
    expected = 31 + (string_hash("user") ^ string_hash("alice")) + string_hash("client-id")
    assert _entity_hash(entity) == expected & 0xFFFFFFFF


def test_empty_scram_password_is_refused():
    """Whoever named no password could log in by it."""
    with pytest.raises(ToolFailed, match="password for SCRAM-SHA-256 is empty"):
        _alter_user(None, "alice", {"SCRAM-SHA-256": "iterations=8192,password="}, [])
    with pytest.raises(ValueError, match="user 'alice' is empty"):
        set_password(None, "alice", "", ["SCRAM-SHA-512"])
