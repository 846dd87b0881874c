"""Schemas of a registry, by what values name: confluent-kafka's client, within bounds."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, NamedTuple

AVRO, PROTOBUF, JSON = "AVRO", "PROTOBUF", "JSON"
# A request that takes longer is given up; what failed is not asked for again for a while.
REQUEST_S = 1.5
FAILED_S = 10.0
# BOUND: schemas that are kept, references of one in all, and characters of each.
SCHEMAS_MAX = 500
REFERENCES_MAX = 50
SCHEMA_CHARS_MAX = 1 << 20
# Of Protobuf: descriptors instead of the source.
_SERIALIZED = "serialized"


class RegistryError(Exception):
    """Why a value cannot be decoded."""


class RegisteredSchema(NamedTuple):
    """kind: AVRO, PROTOBUF or JSON. text: as the registry has it; of Protobuf a file descriptor in
    base64. references: (name, schema) of what it refers to, what it needs first.
    """

    kind: str
    text: str
    references: tuple[tuple[str, RegisteredSchema], ...] = ()


class SchemaRegistry:
    """settings: of confluent-kafka's ``SchemaRegistryClient``. Used by one thread."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        from confluent_kafka.schema_registry import SchemaRegistryClient

        self._client = SchemaRegistryClient(
            {"timeout": REQUEST_S, "max.retries": 0, "cache.capacity": SCHEMAS_MAX, **settings}
        )
        self._schemas: dict[int | str, RegisteredSchema] = {}
        self._failed: dict[int | str, tuple[float, str]] = {}
        self._silent_until = 0.0
        self._silence = ""

    def schema(self, name: int | str) -> RegisteredSchema:
        """By id or GUID. Raises RegistryError."""
        if name in self._schemas:
            return self._schemas[name]
        now = time.monotonic()
        if now < self._silent_until:
            raise RegistryError(self._silence)
        failed_at, why = self._failed.get(name, (-FAILED_S, ""))
        if now - failed_at < FAILED_S:
            raise RegistryError(why)
        try:
            schema = self._fetched(name)
        except RegistryError as error:
            _keep(self._failed, name, (time.monotonic(), str(error)))
            raise
        _keep(self._schemas, name, schema)
        return schema

    def _fetched(self, name: int | str) -> RegisteredSchema:
        from confluent_kafka.schema_registry.error import SchemaRegistryError

        try:
            schema = self._named(name)
            if schema.schema_type == PROTOBUF:
                schema = self._named(name, _SERIALIZED)
            return self._with_references(schema, [REFERENCES_MAX])
        except SchemaRegistryError as error:
            text = f"the registry has no schema {name}: {error.error_message}"[:300]
            raise RegistryError(text) from error
        except RegistryError:
            raise
        except Exception as error:  # of its transport, and of whatever else it has sent
            self._silent_until = time.monotonic() + FAILED_S
            self._silence = f"the registry does not answer: {type(error).__name__}: {error}"[:300]
            raise RegistryError(self._silence) from error

    def _named(self, name: int | str, form: str | None = None) -> Any:
        if isinstance(name, int):
            return self._client.get_schema(name, fmt=form)
        return self._client.get_schema_by_guid(name, fmt=form)

    def _with_references(self, schema: Any, left: list[int]) -> RegisteredSchema:
        kind, text = schema.schema_type or AVRO, schema.schema_str
        if kind not in (AVRO, PROTOBUF, JSON) or not isinstance(text, str):
            raise RegistryError(f"the registry has a schema of the kind {str(kind)[:40]}")
        if len(text) > SCHEMA_CHARS_MAX:
            raise RegistryError(
                f"the schema has {len(text)} characters, at most {SCHEMA_CHARS_MAX}"
            )
        references = []
        for each in schema.references or ():
            left[0] -= 1
            if left[0] < 0:
                raise RegistryError(f"the schema refers to more than {REFERENCES_MAX} others")
            form = _SERIALIZED if kind == PROTOBUF else None
            version = self._client.get_version(each.subject, each.version, fmt=form)
            references.append((each.name, self._with_references(version.schema, left)))
        return RegisteredSchema(kind, text, tuple(references))


def _keep(cache: dict[int | str, Any], name: int | str, value: Any) -> None:
    while len(cache) >= SCHEMAS_MAX:
        del cache[next(iter(cache))]
    cache[name] = value
