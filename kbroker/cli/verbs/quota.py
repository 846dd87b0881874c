"""``kbroker quota``: how much clients may do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kbroker.cli.arguments import table_text
from kbroker.cli.operation_verbs import VerbView, actions_of
from kbroker.console.api.quotas import OPERATIONS

_COLUMNS = {"entity": "OF", "quota": "QUOTA", "value": "VALUE"}
_EPILOG = """\
Rates are bytes, or mutations of topics, a second: producer_byte_rate, consumer_byte_rate,
controller_mutation_rate; request_percentage is of a thread; connection_creation_rate is for
addresses. A quota of a user and a client id together comes before that of the user.

examples:
  kbroker quota set --user alice producer_byte_rate=10000000 consumer_byte_rate=20000000
  kbroker quota set --default user producer_byte_rate=1000000
  kbroker quota set --user alice --unset producer_byte_rate
  kbroker quota set --ip 10.1.2.3 connection_creation_rate=10"""


def _listed(document: Mapping[str, Any]) -> str:
    rows = [
        {"entity": _entity(each["entity"]), "quota": name, "value": _number(value)}
        for each in document["quotas"]
        for name, value in each["quotas"].items()
    ]
    return table_text(_COLUMNS, rows) if rows else "no quotas"


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else f"{value:g}"


def _entity(parts: list[dict[str, Any]]) -> str:
    return ", ".join(
        f"{each['type']} {each['name']}" if each["name"] is not None else f"any {each['type']}"
        for each in parts
    )


def _changed(document: Mapping[str, Any]) -> str:
    word = "could change" if document["dry_run"] else "changed"
    changes = [
        f"{name}=default" if value is None else f"{name}={_number(value)}"
        for name, value in document["quotas"].items()
    ]
    return f"{word} {', '.join(changes)}"


ACTIONS = actions_of(OPERATIONS, {"list": VerbView(_listed), "set": VerbView(_changed, _EPILOG)})
