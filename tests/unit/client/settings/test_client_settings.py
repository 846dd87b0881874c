"""Settings of clients: names, values, and what is said of wrong ones."""

from __future__ import annotations

import pytest

from kbroker.client.errors import SettingRefused
from kbroker.client.settings.client_settings import (
    ClientSetting,
    ClientSettings,
    flag,
    listed,
    plugged,
    plugged_list,
    text,
    whole,
)

pytestmark = pytest.mark.unit

ROWS = {
    row.name: row
    for row in (
        ClientSetting("a.number", whole, 5, "", 0, 10),
        ClientSetting("a.flag", flag, True, ""),
        ClientSetting("a.word", text, "one", "", one_of=("one", "two")),
        ClientSetting("a.list", listed, (), ""),
        ClientSetting("old.thing", whole, 1, "", no_effect="there is no such thing"),
    )
}


def settings(config=None, **keywords):
    return ClientSettings(ROWS, config, keywords)


def test_names_may_be_dotted_or_python_s():
    found = settings({"a.number": "7"}, a_flag="FALSE", **{"a.word": "TWO"})

    assert (found["a.number"], found["a.flag"], found["a.word"]) == (7, False, "two")
    assert found.given == {"a.number", "a.flag", "a.word"}


def test_keywords_come_before_the_config_and_twice_is_an_error():
    with pytest.raises(SettingRefused, match="given twice"):
        settings({"a.number": 1}, a_number=2)


def test_none_is_the_default():
    found = settings(a_number=None, ssl_ca_location=None)

    assert found["a.number"] == 5
    assert found.given == frozenset()
    assert found.security.settings == {}


def test_unknown_setting_is_named_with_the_nearest():
    with pytest.raises(
        SettingRefused, match=r"a_numbr: unknown client setting; did you mean a\.number"
    ):
        settings(a_numbr=1)


def test_settings_of_security_are_known():
    found = settings(security_protocol="SSL", ssl_ca_location="/ca.pem")

    assert found.security.protocol == "SSL"
    with pytest.raises(SettingRefused, match=r"did you mean security\.protocol"):
        settings(security_protokol="SSL")
    with pytest.raises(SettingRefused, match="PEM"):
        settings({"security.protocol": "SSL", "ssl.truststore.type": "BKS"})


@pytest.mark.parametrize(
    ("name", "value", "advice"),
    [
        ("a.number", "x", "not a whole number"),
        ("a.number", True, "not a whole number"),
        ("a.number", 1.5, "not a whole number"),
        ("a.number", 11, "0 to 10"),
        ("a.number", -1, "0 to 10"),
        ("a.flag", "yes", "neither true nor false"),
        ("a.word", "three", "one, two"),
    ],
)
def test_wrong_value_is_refused_with_what_is_allowed(name, value, advice):
    with pytest.raises(SettingRefused, match=advice) as caught:
        settings({name: value})
    assert caught.value.setting == name


def test_lists_are_text_with_commas_or_python_s():
    assert listed("", " a:1, b:2,") == listed("", ["a:1", "b:2"]) == ("a:1", "b:2")
    assert listed("", 5) == (5,)


class Plugged:
    def __eq__(self, other: object) -> bool:
        return type(self) is type(other)


def test_classes_are_created_and_objects_taken():
    made = Plugged()

    assert plugged("", Plugged) == made
    assert plugged("", made) is made
    assert plugged("", len) is len
    assert plugged("", "builtins.len") is len
    assert plugged_list("", [Plugged, made]) == (made, made)
    with pytest.raises(SettingRefused, match="cannot load"):
        plugged("x", "no.such.thing")
    with pytest.raises(SettingRefused, match="cannot load"):
        plugged("x", "text")


def test_settings_without_effect_are_named():
    assert settings(old_thing=2).without_effect(ROWS) == ["old.thing"]
    assert settings().without_effect(ROWS) == []
