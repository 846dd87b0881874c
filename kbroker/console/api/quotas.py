"""Quotas of users, client ids and addresses."""

from __future__ import annotations

from kbroker.client.admin.quotas import CLIENT_ID, IP, USER, Entity, alter_quotas, describe_quotas
from kbroker.console.answers import ChangedQuotas, QuotaRow, Quotas
from kbroker.console.operation import (
    FLAG,
    SETTINGS,
    TEXT,
    TEXTS,
    CheckedRequest,
    Operation,
    Parameter,
    page_of,
    paging,
)
from kbroker.console.problems import BadRequest

KINDS = {"user": USER, "client_id": CLIENT_ID, "ip": IP}


def _list(asked: CheckedRequest) -> Quotas:
    values = asked.values
    rows: list[QuotaRow] = [
        {
            "entity": [{"type": kind, "name": name} for kind, name in entity],
            "quotas": quotas,
        }
        for entity, quotas in describe_quotas(asked.cluster, [], strict=False).items()
        if any(values["search"] in (name or "") for _, name in entity)
    ]
    page, after = page_of(rows, values, lambda row: str(row["entity"]))
    return {"total": len(rows), "quotas": list(page), "next_cursor": after}


def _alter(asked: CheckedRequest) -> ChangedQuotas:
    values = asked.values
    changes = {name: _number(name, text) for name, text in values["quotas"].items()}
    alter_quotas(asked.cluster, _entity(asked), changes, validate_only=values["dry_run"])
    return {"quotas": changes, "dry_run": values["dry_run"]}


def _entity(asked: CheckedRequest) -> Entity:
    """Whose. Raises BadRequest."""
    values = asked.values
    defaults = values["defaults"] or []
    for name in defaults:
        if values[name] is not None:
            raise BadRequest(f"{name} is either a name or among defaults")
    entity = tuple(
        (kind, values[name])
        for name, kind in KINDS.items()
        if values[name] is not None or name in defaults
    )
    if not entity:
        raise BadRequest("whose? Name a user, a client id or an address, or one of the defaults")
    return entity


def _number(name: str, text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        raise BadRequest(f"quotas: {name[:80]}={text!r:.80} is not a number") from None


OPERATIONS = (
    Operation(
        "GET",
        "/quotas",
        "Quotas of users, client ids and addresses",
        _list,
        Quotas,
        query=(
            Parameter("search", TEXT, "Only those whose name contains this.", "", length_max=1000),
            *paging(),
        ),
        needs="DESCRIBE_CONFIGS on the cluster",
        verb="quota list",
    ),
    Operation(
        "POST",
        "/quotas",
        "Set quotas of a user, of a client id, of both together, or of an address",
        _alter,
        ChangedQuotas,
        body=(
            Parameter("user", TEXT, "Its name.", length_max=1000),
            Parameter("client_id", TEXT, "Its client id.", length_max=1000),
            Parameter("ip", TEXT, "Its address.", length_max=100),
            Parameter(
                "defaults",
                TEXTS,
                "Of whoever has no quota of that kind.",
                one_of=tuple(KINDS),
                length_max=40,
                letter="d",
            ),
            Parameter(
                "quotas",
                SETTINGS,
                "Numbers as texts, such as producer_byte_rate; null unsets.",
                required=True,
            ),
            Parameter("dry_run", FLAG, "Only check whether it could be done.", False),
        ),
        needs="ALTER_CONFIGS on the cluster",
        verb="quota set",
        positional=("quotas",),
    ),
)
