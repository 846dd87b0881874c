"""DescribeUserScramCredentials (50) and AlterUserScramCredentials (51): version 0.

COMPAT: errors and their texts are those of Kafka's brokers with ZooKeeper. Each user is changed as
a whole or not at all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from kbroker.errors import ErrorCode, WireError
from kbroker.handlers.context import RequestContext
from kbroker.handlers.registry import api
from kbroker.handlers.support.requirements import on_cluster
from kbroker.ipc.calls import ALTER_SCRAM, DESCRIBE_SCRAM, AlterScram, DescribeScram, ScramChange
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
)
from kbroker.protocol.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
)
from kbroker.security.operations import AclOperation
from kbroker.security.sasl.scram import (
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    NUMBERS,
    USER_NAME_MAX,
    is_of_empty_password,
)

if TYPE_CHECKING:
    Altered = AlterUserScramCredentialsResponse.AlterUserScramCredentialsResult
    Upsertion = AlterUserScramCredentialsRequest.ScramCredentialUpsertion

# BOUND: users per call, so that a large request does not block the controller process.
CALL_USERS_MAX = 100
# A user's name is part of a path in the store, where these mean something else.
NO_PATHS = (".", "..")
NO_PATH = "Username must not be '.' or '..'"
NO_PASSWORD = "Password must not be empty"
NO_NAME = "Username must not be empty"
LONG_NAME = f"Username must not have more than {USER_NAME_MAX} characters"


# -- describe


@api(
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
    versions=(0, 0),
    authorize=on_cluster(AclOperation.DESCRIBE),
)
async def handle_describe_user_scram_credentials(
    ctx: RequestContext, request: DescribeUserScramCredentialsRequest
) -> DescribeUserScramCredentialsResponse:
    """The mechanisms of the named users; of all that have any, without names."""
    named = Counter(user.name for user in request.users or ())
    if not named:
        users = await ctx.controller(DESCRIBE_SCRAM, DescribeScram(None))
        return DescribeUserScramCredentialsResponse(results=[described(*row) for row in users])
    errors = {name: error_of(name, count) for name, count in named.items()}
    asked = [name for name, error in errors.items() if error is None]
    infos: dict[str, Sequence[tuple[int, int]]] = {}
    for first in range(0, len(asked), CALL_USERS_MAX):
        part = DescribeScram(asked[first : first + CALL_USERS_MAX])
        users = await ctx.controller(DESCRIBE_SCRAM, part)
        infos |= {row.user: row.infos for row in users}
    results = []
    for name, error in errors.items():
        if error is None and not infos[name]:
            text = f"Attempt to describe a user credential that does not exist: {name}"
            error = WireError(ErrorCode.RESOURCE_NOT_FOUND, text)
        results.append(described(name, infos.get(name, ()), error))
    return DescribeUserScramCredentialsResponse(results=results)


def error_of(name: str, count: int) -> WireError | None:
    if not name:
        return WireError(ErrorCode.RESOURCE_NOT_FOUND, NO_NAME)
    if count > 1:
        text = (
            f"Cannot describe SCRAM credentials for the same user twice in a single request: {name}"
        )
        return WireError(ErrorCode.DUPLICATE_RESOURCE, text)
    if len(name) > USER_NAME_MAX:
        return WireError(ErrorCode.RESOURCE_NOT_FOUND, LONG_NAME)
    return None


def described(
    user: str, infos: Iterable[tuple[int, int]], error: WireError | None = None
) -> DescribeUserScramCredentialsResponse.DescribeUserScramCredentialsResult:
    cls = DescribeUserScramCredentialsResponse
    rows = [cls.CredentialInfo(mechanism=number, iterations=count) for number, count in infos]
    return cls.DescribeUserScramCredentialsResult(
        user=user,
        error_code=int(error.code) if error else 0,
        error_message=error.message if error else None,
        credential_infos=rows,
    )


# -- alter


def alter_failed(
    ctx: RequestContext, request: AlterUserScramCredentialsRequest, error: WireError
) -> AlterUserScramCredentialsResponse:
    """The same error for every user."""
    users = dict.fromkeys(name for name, _ in pairs(request))
    return AlterUserScramCredentialsResponse(results=[rejected(user, error) for user in users])


@api(
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
    versions=(0, 0),
    fail=alter_failed,
    authorize=on_cluster(AclOperation.ALTER),
)
async def handle_alter_user_scram_credentials(
    ctx: RequestContext, request: AlterUserScramCredentialsRequest
) -> AlterUserScramCredentialsResponse:
    """Set and delete credentials through the controller process."""
    errors = await rejections(ctx, request)
    changes: dict[str, list[ScramChange]] = {}
    async for change in ctx.each(changes_of(request)):
        changes.setdefault(change.user, []).append(change)
    accepted = [rows for user, rows in changes.items() if user not in errors]
    results = {user: rejected(user, error) async for user, error in ctx.each(errors.items())}
    for first in range(0, len(accepted), CALL_USERS_MAX):
        part = [row for rows in accepted[first : first + CALL_USERS_MAX] for row in rows]
        try:
            done = await ctx.controller(ALTER_SCRAM, AlterScram(part))
            results |= {user: result(user, code, text) for user, code, text in done}
        except WireError as error:
            # Users of earlier parts have been changed: only the others have failed.
            results |= {row.user: rejected(row.user, error.bare()) for row in part}
    return AlterUserScramCredentialsResponse(results=[results[user] for user in changes])


def pairs(request: AlterUserScramCredentialsRequest) -> Iterator[tuple[str, int]]:
    """User and mechanism of each entry."""
    yield from ((gone.name, gone.mechanism) for gone in request.deletions)
    yield from ((new.name, new.mechanism) for new in request.upsertions)


def changes_of(request: AlterUserScramCredentialsRequest) -> Iterator[ScramChange]:
    for gone in request.deletions:
        yield ScramChange(gone.name, gone.mechanism, 0, b"", b"")
    for new in request.upsertions:
        salt, password = bytes(new.salt), bytes(new.salted_password)
        yield ScramChange(new.name, new.mechanism, new.iterations, salt, password)


async def rejections(
    ctx: RequestContext, request: AlterUserScramCredentialsRequest
) -> dict[str, WireError]:
    """The users whose changes cannot be made, whatever is stored."""
    errors: dict[str, WireError] = {}
    async for gone in ctx.each(request.deletions):
        if not gone.name:
            errors[gone.name] = unacceptable(NO_NAME)
        elif gone.mechanism not in NUMBERS:
            errors[gone.name] = unknown()
    async for entry in ctx.each(request.upsertions):
        if not entry.name:
            errors[entry.name] = unacceptable(NO_NAME)
        elif entry.mechanism not in NUMBERS:
            errors[entry.name] = unknown()
        elif entry.iterations < ITERATIONS_MIN:
            errors[entry.name] = unacceptable("Too few iterations")
        elif entry.iterations > ITERATIONS_MAX:
            errors[entry.name] = unacceptable("Too many iterations")
        elif len(entry.name) > USER_NAME_MAX:
            errors[entry.name] = unacceptable(LONG_NAME)
        elif entry.name in NO_PATHS:
            errors[entry.name] = unacceptable(NO_PATH)
        elif await is_empty(ctx, entry):
            errors[entry.name] = unacceptable(NO_PASSWORD)
    seen: set[tuple[str, int]] = set()
    async for pair in ctx.each(pairs(request)):
        if pair in seen and pair[0] not in errors:
            errors[pair[0]] = WireError(
                ErrorCode.DUPLICATE_RESOURCE,
                "A user credential cannot be altered twice in the same request",
            )
        seen.add(pair)
    return errors


async def is_empty(ctx: RequestContext, entry: Upsertion) -> bool:
    """Whether its password is empty. Kafka's brokers cannot tell, but Java's clients refuse it."""
    salted, salt = bytes(entry.salted_password), bytes(entry.salt)
    mechanism, iterations = NUMBERS[entry.mechanism], entry.iterations
    return await ctx.process.beside.run(
        lambda: is_of_empty_password(mechanism, salted, salt, iterations)
    )


def unacceptable(text: str) -> WireError:
    return WireError(ErrorCode.UNACCEPTABLE_CREDENTIAL, text)


def unknown() -> WireError:
    return WireError(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")


def rejected(user: str, error: WireError) -> Altered:
    return result(user, int(error.code), error.message)


def result(user: str, code: int, message: str | None) -> Altered:
    return AlterUserScramCredentialsResponse.AlterUserScramCredentialsResult(
        user=user, error_code=code, error_message=message
    )
