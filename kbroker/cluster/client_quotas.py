"""Which quota applies to a client: the most specific one, as in Kafka."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from kbroker.metastore.entities import CLIENT_ID, IP, USER, parse_entity

# A user and a client id; "" where the quota is for all users, or for all of a user's client ids.
Sharing = tuple[str, str]


class AppliedQuota(NamedTuple):
    """bound: units a second. shared_by: the clients that use it up together."""

    bound: float
    shared_by: Sharing


class ClientQuotas:
    """The quotas of users and client ids.

    quotas: by entity, as in the image. defaults: for clients to which no other quota of the key
    applies (``quota.producer.default``).
    """

    def __init__(
        self, quotas: Mapping[str, Mapping[str, float]], defaults: Mapping[str, float] = {}
    ) -> None:
        # By key, and by user and client id: None is the default, "" that there is none of the type.
        self._bounds: dict[str, dict[tuple[str | None, str | None], float]] = {}
        for key, bound in defaults.items():
            self._bounds.setdefault(key, {})["", None] = bound
        for path, bounds in quotas.items():
            entity = parse_entity(path)
            if entity.has(IP):
                continue
            user = entity.name_of(USER) if entity.has(USER) else ""
            client_id = entity.name_of(CLIENT_ID) if entity.has(CLIENT_ID) else ""
            for key, bound in bounds.items():
                self._bounds.setdefault(key, {})[user, client_id] = bound

    def __bool__(self) -> bool:
        return bool(self._bounds)

    def find(self, key: str, user: str, client_id: str) -> AppliedQuota | None:
        """The quota that applies; None if none does."""
        bounds = self._bounds.get(key)
        if not bounds:
            return None
        both, of_user, of_client = (user, client_id), (user, ""), ("", client_id)
        order: tuple[tuple[tuple[str | None, str | None], Sharing], ...] = (
            (both, both),
            ((user, None), both),
            ((user, ""), of_user),
            ((None, client_id), both),
            ((None, None), both),
            ((None, ""), of_user),
            (("", client_id), of_client),
            (("", None), of_client),
        )
        for named, shared_by in order:
            bound = bounds.get(named)
            if bound is not None:
                return AppliedQuota(bound, shared_by)
        return None


def address_rates(quotas: Mapping[str, Mapping[str, float]], key: str) -> dict[str | None, float]:
    """The quotas of IP addresses; None: of all others."""
    rates: dict[str | None, float] = {}
    for path, bounds in quotas.items():
        if key in bounds and (entity := parse_entity(path)).has(IP):
            rates[entity.name_of(IP)] = bounds[key]
    return rates
