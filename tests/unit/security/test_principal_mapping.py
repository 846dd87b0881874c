"""ssl.principal.mapping.rules, and the names in certificates that they are applied to."""

from __future__ import annotations

import pytest

from kbroker.security.tls.certificate import name_of
from kbroker.security.tls.principal_mapping import MappingRuleError, PrincipalMapping

pytestmark = pytest.mark.unit

DUKE = "CN=Duke, OU=ServiceUsers, O=Org, C=US"


@pytest.mark.parametrize(
    ("rules", "subject", "name"),
    [
        ("DEFAULT", DUKE, DUKE),
        ("RULE:^CN=(.*?), OU=ServiceUsers.*$/$1/", DUKE, "Duke"),
        ("RULE:^CN=(.*?), OU=ServiceUsers.*$/$1/L", DUKE, "duke"),
        ("RULE:^CN=(.*?), OU=(.*?), O=(.*?), C=(.*?)$/$1@$2@$4/U", DUKE, "DUKE@SERVICEUSERS@US"),
        ("RULE:^CN=nobody$/x/,DEFAULT", DUKE, DUKE),
        ("RULE:^CN=nobody$/x/ , RULE:^CN=(\\w+).*$/$1/", DUKE, "Duke"),
        ("RULE:^CN=nobody$/x/", DUKE, None),
        ("RULE:^.*$/\\$1/", "CN=a", "$1"),
        ("RULE:^CN=(?<n>[^,]*).*$/${n}@x/L", DUKE, "duke@x"),
        ("RULE:^CN=(?<n>[^,]*).*$/\\${n}$1/", DUKE, "${n}Duke"),
        ("RULE:^CN=([^,]*)(?<who>, OU=x)?.*$/$1${who}/", DUKE, "Duke"),
    ],
)
def test_first_rule_that_matches_makes_the_name(rules: str, subject: str, name: str | None) -> None:
    assert PrincipalMapping(rules).name(subject) == name


@pytest.mark.parametrize(
    "rules",
    [
        "default",
        "RULE:^CN",
        "DEFAULT RULE:a/b/",
        "RULE:(/b/",
        "RULE:^CN=(.*)$/${n}/",
        "RULE:^CN=(?<n>.*)$/${n/",
    ],
)
def test_rules_that_are_none_are_refused(rules: str) -> None:
    with pytest.raises(MappingRuleError):
        PrincipalMapping(rules)


def attribute(identifier: str, tag: int, value: bytes) -> bytes:
    oid = bytes.fromhex(identifier)
    content = b"\x06" + bytes([len(oid)]) + oid + bytes([tag, len(value)]) + value
    content = b"\x30" + bytes([len(content)]) + content
    return b"\x31" + bytes([len(content)]) + content


CN, COUNTRY, EMAIL = "550403", "550406", "2a864886f70d010901"


@pytest.mark.parametrize(
    ("parts", "name"),
    [
        ([(COUNTRY, 0x13, b"US"), (CN, 0x0C, b"Duke")], "CN=Duke,C=US"),
        ([(CN, 0x0C, b"a,b+c")], "CN=a\\,b\\+c"),
        ([(CN, 0x0C, b" a ")], "CN=\\ a\\ "),
        ([(CN, 0x0C, "ä".encode())], "CN=ä"),
        ([(EMAIL, 0x16, b"a@b")], "1.2.840.113549.1.9.1=#1603614062"),
    ],
)
def test_subject_is_printed_as_java_does(parts: list[tuple[str, int, bytes]], name: str) -> None:
    assert name_of(b"".join(attribute(*part) for part in parts)) == name
