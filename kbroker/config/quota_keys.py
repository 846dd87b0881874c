"""The quotas of clients: their keys, the values that each may have, and what stored ones mean."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import NamedTuple

from kbroker.config.key import LONG_MAX

INT_MAX = (1 << 31) - 1

PRODUCE = "producer_byte_rate"
FETCH = "consumer_byte_rate"
REQUEST = "request_percentage"
MUTATION = "controller_mutation_rate"
CONNECTION = "connection_creation_rate"


class QuotaKey(NamedTuple):
    """largest: of a whole number; None: any positive number."""

    name: str
    largest: int | None

    def problem(self, value: float) -> str | None:
        """Why this cannot be the value; None if it can."""
        if not value > 0 or math.isinf(value):
            return f"Quota {self.name} must be greater than 0"
        if self.largest is None:
            return None
        if value > self.largest:
            return f"Proposed value for {self.name} is too large: at most {self.largest}"
        if abs(value - round(value)) > 1e-6:
            return f"{self.name} cannot be a fractional value."
        return None

    def text(self, value: float) -> str:
        """The value as Kafka stores it."""
        return repr(float(value)) if self.largest is None else str(round(value))

    def parse(self, text: str) -> float:
        """A stored value. Raises ValueError; tools of older Kafkas store anything."""
        pattern = _NUMBER if self.largest is None else _WHOLE
        if not pattern.fullmatch(text):
            raise ValueError(f"{self.name}={text!r} is not a number")
        return float(text)


_WHOLE = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,3})?", re.ASCII)

# Of users, client ids, and both.
CLIENT_QUOTAS = {
    key.name: key
    for key in (
        QuotaKey(PRODUCE, LONG_MAX),
        QuotaKey(FETCH, LONG_MAX),
        QuotaKey(REQUEST, None),
        QuotaKey(MUTATION, None),
    )
}
# Of IP addresses.
IP_QUOTAS = {CONNECTION: QuotaKey(CONNECTION, INT_MAX)}


def read_quotas(
    config: Mapping[str, str], keys: Mapping[str, QuotaKey]
) -> tuple[dict[str, float], list[str]]:
    """The quotas among the configs of an entity, and the errors of those that cannot be read. What
    else is there, such as a user's credentials, is left out.
    """
    quotas: dict[str, float] = {}
    errors = []
    for name, key in keys.items():
        if name in config:
            try:
                quotas[name] = key.parse(config[name])
            except ValueError as error:
                errors.append(str(error))
    return quotas, errors
