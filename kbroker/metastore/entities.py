"""Users, client ids, users with client ids, and IP addresses, as entities that have configs.

Kafka's layout: ``/config/users/<user>``, ``/config/users/<user>/clients/<client id>``,
``/config/clients/<client id>`` and ``/config/ips/<address>``. Their configs are quotas; those of a
user are SCRAM credentials, too. The *name* of an entity is its path below ``/config``.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from kbroker.metastore import paths

USER, CLIENT_ID, IP = "user", "client-id", "ip"  # as in requests
USERS, CLIENTS, IPS = "users", "clients", "ips"
KINDS = (USERS, CLIENTS, IPS)
_NAME = re.compile(r"users/([^/]+)(?:/clients/([^/]+))?|clients/([^/]+)|ips/([^/]+)")


class Entity(NamedTuple):
    """By type. A name of None is the default, for all names of the type that have no own configs.

    Valid are a user, a client id, both of them, or an IP address.
    """

    names: tuple[tuple[str, str | None], ...]

    def name_of(self, kind: str) -> str | None:
        return dict(self.names)[kind]

    def has(self, kind: str) -> bool:
        return any(own == kind for own, _ in self.names)

    @property
    def path(self) -> str:
        """Its name: the path below ``/config``."""
        name = {kind: sanitized(own) for kind, own in self.names}
        if IP in name:
            return f"{IPS}/{name[IP]}"
        if USER not in name:
            return f"{CLIENTS}/{name[CLIENT_ID]}"
        user = f"{USERS}/{name[USER]}"
        return f"{user}/{CLIENTS}/{name[CLIENT_ID]}" if CLIENT_ID in name else user


def entity(*, user: str | None = "", client_id: str | None = "", ip: str | None = "") -> Entity:
    """An entity by its names; an empty one is of a type that it does not have."""
    named = ((USER, user), (CLIENT_ID, client_id), (IP, ip))
    return Entity(tuple((kind, name) for kind, name in named if name != ""))


@lru_cache(maxsize=1000)
def sanitized(name: str | None) -> str:
    """As a part of a path: URL-encoded as by Kafka's Sanitizer."""
    from urllib.parse import quote  # costs every start some milliseconds

    if name is None:
        return paths.DEFAULT_ENTITY
    return quote(name, safe="").replace("~", "%7E")


def _name_in(part: str) -> str | None:
    from urllib.parse import unquote_plus

    return None if part == paths.DEFAULT_ENTITY else unquote_plus(part)


def is_entity(name: str) -> bool:
    """Whether an entity can have this name."""
    return _NAME.fullmatch(name) is not None


def parse_entity(name: str) -> Entity:
    """The entity with this name. Raises ValueError."""
    match = _NAME.fullmatch(name)
    if match is None:
        raise ValueError(f"{name!r} is neither a user nor a client id nor an IP address")
    user, of_user, client_id, ip = (
        "" if part is None else _name_in(part) for part in match.groups()
    )
    return entity(user=user, client_id=of_user if user != "" else client_id, ip=ip)


def entity_config(name: str) -> str:
    """The config node of an entity."""
    return f"{paths.CONFIG}/{name}"


def parents_of(name: str) -> list[str]:
    """The nodes above its config node that may be missing, the topmost first."""
    parts = name.split("/")
    return ["/".join((paths.CONFIG, *parts[:count])) for count in range(1, len(parts))]
