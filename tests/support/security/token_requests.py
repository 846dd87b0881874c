"""Delegation tokens by request, and logins with them."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

from support.security.secured import LoginRefused, SecuredClient

from kbroker.errors import ErrorCode
from kbroker.protocol.messages.create_delegation_token import CreateDelegationTokenRequest
from kbroker.protocol.messages.describe_delegation_token import DescribeDelegationTokenRequest
from kbroker.protocol.messages.expire_delegation_token import ExpireDelegationTokenRequest
from kbroker.protocol.messages.renew_delegation_token import RenewDelegationTokenRequest
from kbroker.wire import sasl

AT_ONCE = -1


def create(client: SecuredClient, *renewers: str, owner: str = "", lifetime_ms: int = -1) -> Any:
    """The response to a request for a token, with its id and secret."""
    cls = CreateDelegationTokenRequest
    named = [cls.CreatableRenewers(principal_type="User", principal_name=name) for name in renewers]
    request = cls(renewers=named, max_lifetime_ms=lifetime_ms)
    if owner:
        request.owner_principal_type, request.owner_principal_name = "User", owner
    return client.call(request, 3)


def renew(client: SecuredClient, token: Any, period_ms: int = -1) -> Any:
    return client.call(
        RenewDelegationTokenRequest(hmac=bytes(token.hmac), renew_period_ms=period_ms), 2
    )


def expire(client: SecuredClient, token: Any, period_ms: int = AT_ONCE) -> Any:
    return client.call(
        ExpireDelegationTokenRequest(hmac=bytes(token.hmac), expiry_time_period_ms=period_ms), 2
    )


def described(client: SecuredClient, owners: list[str] | None = None) -> list[Any]:
    """The tokens that the client sees."""
    cls = DescribeDelegationTokenRequest
    named = owners
    if owners is not None:
        owner = cls.DescribeDelegationTokenOwner
        named = [owner(principal_type="User", principal_name=name) for name in owners]
    response = client.call(cls(owners=named), 3)
    assert response.error_code == 0, ErrorCode(response.error_code)
    return list(response.tokens)


def secret_of(token: Any) -> str:
    """The password of a login with it."""
    return b64encode(bytes(token.hmac)).decode()


def logged_in(
    address: tuple[str, int], token_id: str, secret: str, mechanism: str = "SCRAM-SHA-512"
) -> SecuredClient:
    """A client that has logged in with a token. Raises LoginRefused."""
    client = SecuredClient(address)
    try:
        client.log_in_by(sasl.token_client(mechanism, token_id, secret), mechanism)
    except BaseException:
        client.close()
        raise
    return client


def refused(address: tuple[str, int], token_id: str, secret: str) -> str | None:
    """Why a login with the token is refused; None if it is not."""
    try:
        logged_in(address, token_id, secret).close()
    except LoginRefused as error:
        return error.message
    return None
