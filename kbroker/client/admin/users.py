"""Users and their SCRAM credentials, of any Kafka from 2.7."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from kbroker.client.connections.cluster import Cluster
from kbroker.client.connections.controller_calls import ask_controller, check
from kbroker.protocol.messages.alter_user_scram_credentials import AlterUserScramCredentialsRequest
from kbroker.protocol.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
)

# WIRE: the numbers of KIP-554.
MECHANISMS = {"SCRAM-SHA-256": 1, "SCRAM-SHA-512": 2}
# Kafka accepts 4096 to 16384.
ITERATIONS = 8192
# Salts look like those of Kafka's own clients: another form would tell users that exist from the
# ones that a broker makes up a salt for.
# As Java's clients make a salt, so that none tells who has made it, or whether it is made up.
_SALT_BITS = 130
_DIGESTS = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}


class Credential(NamedTuple):
    """That a user has a SCRAM credential; what is in it, no broker tells."""

    user: str
    mechanism: str
    iterations: int


def list_credentials(cluster: Cluster, users: Iterable[str] | None = None) -> list[Credential]:
    """The credentials of these users, of all without ``users``, sorted.

    Raises RejectedError, RESOURCE_NOT_FOUND for a user that has none.
    """
    row = DescribeUserScramCredentialsRequest.UserName
    named = None if users is None else [row(name=name) for name in users]
    if named == []:
        return []
    response = ask_controller(
        cluster,
        DescribeUserScramCredentialsRequest(users=named),
        "describe SCRAM credentials",
        lambda found: [found.error_code, *(each.error_code for each in found.results)],
    )
    check(response, "SCRAM credentials")
    names = {number: name for name, number in MECHANISMS.items()}
    credentials = []
    for result in response.results:
        check(result, f"user {result.user}")
        for info in result.credential_infos:
            mechanism = names.get(info.mechanism, f"mechanism {info.mechanism}")
            credentials.append(Credential(result.user, mechanism, info.iterations))
    return sorted(credentials)


def set_password(
    cluster: Cluster,
    user: str,
    password: str,
    mechanisms: Sequence[str],
    iterations: int = ITERATIONS,
) -> None:
    """Let a user log in with a password, by these mechanisms. The password does not leave this
    process; the broker gets what it needs to check one.

    Raises RejectedError, and ValueError for an empty password.
    """
    if not password:
        raise ValueError(f"the password of user {user!r} is empty")
    row = AlterUserScramCredentialsRequest.ScramCredentialUpsertion
    for mechanism in mechanisms:
        salt = _in_base_36(secrets.randbits(_SALT_BITS)).encode()
        salted = hashlib.pbkdf2_hmac(_DIGESTS[mechanism], password.encode(), salt, iterations)
        credential = row(
            name=user,
            mechanism=MECHANISMS[mechanism],
            iterations=iterations,
            salt=salt,
            salted_password=salted,
        )
        # COMPAT: KRaft's controller takes a user once in a request.
        _alter(cluster, AlterUserScramCredentialsRequest(deletions=[], upsertions=[credential]))


def _in_base_36(number: int) -> str:
    digits = ""
    while number or not digits:
        number, digit = divmod(number, 36)
        digits = "0123456789abcdefghijklmnopqrstuvwxyz"[digit] + digits
    return digits


def delete_credentials(cluster: Cluster, credentials: Iterable[Credential]) -> None:
    """Raises RejectedError."""
    row = AlterUserScramCredentialsRequest.ScramCredentialDeletion
    for each in credentials:
        deletion = row(name=each.user, mechanism=MECHANISMS[each.mechanism])
        _alter(cluster, AlterUserScramCredentialsRequest(deletions=[deletion], upsertions=[]))


def _alter(cluster: Cluster, request: AlterUserScramCredentialsRequest) -> None:
    response = ask_controller(
        cluster,
        request,
        "alter SCRAM credentials",
        lambda found: [each.error_code for each in found.results],
    )
    for result in response.results:
        check(result, f"user {result.user}")
