"""Quotas of users, client ids and addresses, of any Kafka from 2.6."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kbroker.client.connections.cluster import Cluster
from kbroker.client.connections.controller_calls import ask_controller, check

USER, CLIENT_ID, IP = "user", "client-id", "ip"
_EXACT, _DEFAULT, _ANY = 0, 1, 2

# What a quota is for: (type, name), where the name None is the default of the type.
Entity = tuple[tuple[str, str | None], ...]


class QuotaMatch(str):
    """A name to look for; ``DEFAULT`` and ``EVERY`` are no names."""


DEFAULT, EVERY = QuotaMatch("<default>"), QuotaMatch("<every>")


def describe_quotas(
    cluster: Cluster, wanted: Sequence[tuple[str, str]], *, strict: bool = True
) -> dict[Entity, dict[str, float]]:
    """The quotas of entities that have exactly these types, or without ``strict`` others, too; in
    the broker's order.

    wanted: (type, name); DEFAULT is the default of the type, EVERY all of its names and the
    default. Raises RejectedError.
    """
    from kbroker.protocol.messages.describe_client_quotas import (
        DescribeClientQuotasRequest as Request,
    )

    matches = {id(DEFAULT): _DEFAULT, id(EVERY): _ANY}
    components = [
        Request.ComponentData(
            entity_type=kind,
            match_type=matches.get(id(name), _EXACT),
            match=None if id(name) in matches else str(name),
        )
        for kind, name in wanted
    ]
    request = Request(components=components, strict=strict)
    response = cluster.call(None, request, what="describe quotas")
    check(response, "describe quotas")
    return {
        tuple((row.entity_type, row.entity_name) for row in entry.entity): {
            row.key: row.value for row in entry.values
        }
        for entry in response.entries or ()
    }


def alter_quotas(
    cluster: Cluster,
    entity: Entity,
    changes: Mapping[str, float | None],
    *,
    validate_only: bool = False,
) -> None:
    """Set or remove (None) quotas of an entity. Raises RejectedError."""
    from kbroker.protocol.messages.alter_client_quotas import AlterClientQuotasRequest as Request

    entry = Request.EntryData(
        entity=[Request.EntityData(entity_type=kind, entity_name=name) for kind, name in entity],
        ops=[
            Request.OpData(key=key, value=value or 0.0, remove=value is None)
            for key, value in changes.items()
        ],
    )
    response = ask_controller(
        cluster,
        Request(entries=[entry], validate_only=validate_only),
        "alter quotas",
        lambda found: [row.error_code for row in found.entries],
    )
    for row in response.entries:
        check(row, "alter quotas")
