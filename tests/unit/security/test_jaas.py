"""JAAS texts as they are in Kafka's properties and files."""

from __future__ import annotations

import pytest

from kbroker.security.sasl.jaas import JaasEntry, JaasError, parse, parse_file

pytestmark = pytest.mark.unit

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"


@pytest.mark.parametrize(
    ("text", "options"),
    [
        (f"{PLAIN} required;", {}),
        (f'{PLAIN} required username="a" user_a="b";', {"username": "a", "user_a": "b"}),
        (f"{PLAIN} required\n  username='a'\n  user_a = b ;\n", {"username": "a", "user_a": "b"}),
        (
            f'{PLAIN} REQUIRED user_a="p;q=\\"r\\\\" user_b=";";',
            {"user_a": 'p;q="r\\', "user_b": ";"},
        ),
        (f'{PLAIN} required // user_x="y"\n /* user_z="0"; */ user_a="#1";', {"user_a": "#1"}),
        (f'{PLAIN} required user_a-b.c="ü";', {"user_a-b.c": "ü"}),
    ],
)  # fmt: skip
def test_login_has_the_options_of_its_module(text, options):
    assert parse(text) == [JaasEntry(PLAIN, options)]
    assert parse(text)[0].kind == "PlainLoginModule"


@pytest.mark.parametrize(
    "text",
    ["", ";", PLAIN, f"{PLAIN} required", f"{PLAIN} required user_a;", f"{PLAIN} required user_a=;",
     f'{PLAIN} required user_a="hunter2', f'{PLAIN} user_a="hunter2";', f"{PLAIN} perhaps;",
     f"{PLAIN} required user_a=hunter2", "{", "=", f"{PLAIN} required a=b=c;", "x" * (2 << 20)],
)  # fmt: skip
def test_malformed_text_is_an_error_without_its_secrets(text):
    with pytest.raises(JaasError) as caught:
        parse(text)
    assert "hunter2" not in str(caught.value)


def test_file_has_sections():
    text = f"""
    // the brokers
    KafkaServer {{
        {PLAIN} required username="admin" password="x" user_admin="x";
        org.apache.kafka.common.security.scram.ScramLoginModule required;
    }};
    external.KafkaServer {{ {PLAIN} required user_bob="y"; }};
    Client {{}};
    """

    found = parse_file(text)

    assert list(found) == ["KafkaServer", "external.KafkaServer", "Client"]
    assert [login.kind for login in found["KafkaServer"]] == [
        "PlainLoginModule",
        "ScramLoginModule",
    ]
    assert found["external.KafkaServer"][0].options == {"user_bob": "y"}


@pytest.mark.parametrize("text", ["A {", "A { x required; }", "A { x required };", "A;", "A {} B"])
def test_malformed_file_is_an_error(text):
    with pytest.raises(JaasError):
        parse_file(text)
