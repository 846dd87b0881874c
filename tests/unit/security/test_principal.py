"""Names of principals."""

from __future__ import annotations

import pytest

from kbroker.security.principal import (
    ANONYMOUS,
    NAME_BYTES_MAX,
    KafkaPrincipal,
    by,
    from_wire,
    of_user,
    parse,
)

pytestmark = pytest.mark.unit


def test_principal_anonymous_is_kafkas() -> None:
    assert str(ANONYMOUS) == "User:ANONYMOUS"


@pytest.mark.parametrize(
    "principal",
    [
        KafkaPrincipal("User", "alice"),
        KafkaPrincipal("User", "CN=zoë,OU=a:b"),
        KafkaPrincipal("Group", "admins"),
        KafkaPrincipal("User", "half \ud800 a character"),
        KafkaPrincipal("User", ""),
        ANONYMOUS,
    ],
    ids=["user", "distinguished-name", "other-type", "surrogate", "empty", "anonymous"],
)
def test_principal_survives_text_and_wire(principal: KafkaPrincipal) -> None:
    assert parse(str(principal)) == principal
    assert from_wire(principal.to_wire()) == principal


def test_principal_anonymous_takes_no_bytes_on_the_wire() -> None:
    assert ANONYMOUS.to_wire() == b""


@pytest.mark.parametrize("text", ["", "alice", ":alice"])
def test_principal_text_that_names_nobody_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="type:name"):
        parse(text)


@pytest.mark.parametrize("name", ["", "alice", "a:b", "a\0b", "ä" * (NAME_BYTES_MAX // 2)])
def test_principal_of_a_client_has_the_name_that_it_has_shown(name: str) -> None:
    """An empty one is that of a certificate without a subject; Kafka serves it."""
    assert of_user(name) == KafkaPrincipal("User", name)


@pytest.mark.parametrize("name", ["half \ud800", "x" * (NAME_BYTES_MAX + 1), "ä" * NAME_BYTES_MAX])
def test_principal_that_nobody_can_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="its name has"):
        of_user(name)


def test_principal_does_not_change() -> None:
    """Requests, cached responses and verdicts refer to it."""
    with pytest.raises(AttributeError):
        ANONYMOUS.name = "root"  # type: ignore[misc]


def test_principal_in_a_line_of_the_log_is_named_unless_it_is_anonymous() -> None:
    assert by("User:alice") == " for User:alice"
    assert by(str(ANONYMOUS)) == ""
