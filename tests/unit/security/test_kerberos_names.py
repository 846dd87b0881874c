"""sasl.kerberos.principal.to.local.rules, and the principals that they are applied to."""

from __future__ import annotations

import pytest

from kbroker.security.sasl.kerberos_names import (
    NAME_CHARS_MAX,
    KerberosRuleError,
    NoUser,
    PrincipalRules,
    parse,
)

pytestmark = pytest.mark.unit

REALM = "EXAMPLE.ORG"
RULES = [
    "RULE:[1:$1](App\\..*)s/App\\.(.*)/$1/g",
    "RULE:[2:$1](App\\..*)s/App\\.(.*)/$1/g",
    "DEFAULT",
]


@pytest.mark.parametrize(
    ("rules", "principal", "user"),
    [
        (["DEFAULT"], "alice@EXAMPLE.ORG", "alice"),
        (["DEFAULT"], "kafka/host.example.org@EXAMPLE.ORG", "kafka"),
        (RULES, "App.service-name/example.com@REALM", "service-name"),
        (RULES, "App.service-name@REALM", "service-name"),
        (RULES, "user/host@EXAMPLE.ORG", "user"),
        (["RULE:[1:$1@$0](.*@OTHER)s/@.*//"], "bob@OTHER", "bob"),
        (["RULE:[1:$1]"], "bob@ANY", "bob"),
        (["RULE:[1:$1-$0]"], "bob@ANY", "bob-ANY"),
        (["RULE:[2:$1-$2]"], "a/b@ANY", "a-b"),
        (["RULE:[2:$2](.*)s/^(.).*$/$1$1/"], "a/bcd@ANY", "bb"),
        (["RULE:[1:$1]/L"], "Bob@ANY", "bob"),
        (["RULE:[1:$1]L"], "Bob@ANY", "bob"),
        (["RULE:[1:$1](.*)s/b/x/g/U"], "Bobb@ANY", "BOXX"),
        (["RULE:[1:$1]s/b/x/"], "abb@ANY", "axb"),
        (["RULE:[1:$1]s/b/x/g"], "abb@ANY", "axx"),
        (["RULE:[1:$1](no)", "RULE:[2:$1]", "RULE:[1:fixed]"], "bob@ANY", "fixed"),
        (["RULE:[1:$1](bo)", "RULE:[1:last]"], "bob@ANY", "last"),
    ],
)
def test_first_rule_that_applies_makes_the_user(
    rules: list[str], principal: str, user: str
) -> None:
    assert PrincipalRules(REALM, rules).user(principal) == user


@pytest.mark.parametrize(
    ("rules", "principal", "why"),
    [
        (["DEFAULT"], "alice@OTHER", "no rule of"),
        ([], "alice@EXAMPLE.ORG", "no rule of"),
        (["RULE:[2:$1]"], "alice@EXAMPLE.ORG", "no rule of"),
        (["RULE:[1:$1@$0]"], "alice@OTHER", "no simple name"),
        (["RULE:[2:$1/$2]", "DEFAULT"], "a/b@EXAMPLE.ORG", "no simple name"),
        (["RULE:[1:$1]s/.*//"], "alice@OTHER", "no simple name"),
        (["RULE:[1:$1]"], "a/b/c@OTHER", "malformed"),
    ],
)
def test_principal_without_a_rule_is_nobody(rules: list[str], principal: str, why: str) -> None:
    with pytest.raises(NoUser, match=why):
        PrincipalRules(REALM, rules).user(principal)


def test_without_a_default_realm_default_applies_to_nobody() -> None:
    with pytest.raises(NoUser):
        PrincipalRules("", ["DEFAULT"]).user("alice@EXAMPLE.ORG")


@pytest.mark.parametrize(
    "text",
    ["", "alice", "@R", "alice@", "/h@R", "a@b@R", "a/b/c@R", "a\\/b@R", "a\\@b@R", "a/b\\@c@R",
     "x" * NAME_CHARS_MAX + "@R"],
)  # fmt: skip
def test_name_that_could_be_read_in_two_ways_is_malformed(text: str) -> None:
    """Kafka takes the single component ``a/b``, which Kerberos writes ``a\\/b``, for two."""
    with pytest.raises(NoUser, match="malformed"):
        parse(text)


@pytest.mark.parametrize(
    "rule",
    ["default", "", "RULE", "RULE:[1:$1", "RULE:[:$1]", "RULE:[x:$1]", "RULE:[1:$1](a",
     "RULE:[1:$2]", "RULE:[2:$3]", "RULE:[9:$3]", "RULE:[1:$]", "RULE:[1:$x]", "RULE:[1:$1]s/a/b",
     "DEFAULT/L", "RULE:[1:$1]s/a/b/gg", "RULE:[1:$1]/LU", "RULE:[1:$1]((a)", "RULE:[1:$1]s/(/b/",
     "RULE:[1:$1]s/(?=a)/b/", "RULE:[1:$1] DEFAULT", "RULE:[1:" + "x" * 9000 + "]"],
)  # fmt: skip
def test_malformed_rule_is_refused(rule: str) -> None:
    with pytest.raises(KerberosRuleError):
        PrincipalRules(REALM, [rule, "DEFAULT"])


def test_hostile_name_takes_no_time() -> None:
    """With backtracking, this would take years."""
    rules = PrincipalRules(REALM, ["RULE:[1:$1]s/^(a*)*b$/x/"])
    name = "a" * 1000
    assert rules.user(f"{name}@{REALM}") == name
