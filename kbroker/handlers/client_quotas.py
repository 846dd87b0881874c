"""DescribeClientQuotas (48) and AlterClientQuotas (49): versions 0 to 1.

Quotas are in the metadata store, and through the cluster image in every process. Any broker alters
them. The checks and their messages are those of Kafka's controllers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from kbroker.config.quota_keys import CLIENT_QUOTAS, IP_QUOTAS, QuotaKey
from kbroker.errors import ErrorCode, WireError
from kbroker.handlers.context import RequestContext
from kbroker.handlers.registry import api
from kbroker.handlers.support.requirements import on_cluster
from kbroker.ipc.calls import ALTER_QUOTAS, AlterQuotas, EntityChange, SettingValue
from kbroker.metastore.entities import CLIENT_ID, IP, USER, Entity, parse_entity
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
)
from kbroker.protocol.messages.describe_client_quotas import (
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)
from kbroker.security.operations import AclOperation

ENTITY_TYPES = (USER, CLIENT_ID, IP)
# How a filter matches a name: this one, the default, any of its type.
EXACT, DEFAULT, SPECIFIED = range(3)
# BOUND: characters of a name, which becomes a path of the metadata store.
NAME_CHARS_MAX = 1000


def describe_failed(
    ctx: RequestContext, request: DescribeClientQuotasRequest, error: WireError
) -> DescribeClientQuotasResponse:
    return DescribeClientQuotasResponse(
        error_code=int(error.code), error_message=error.message, entries=None
    )


@api(
    ApiKey.DESCRIBE_CLIENT_QUOTAS,
    versions=(0, 1),
    fail=describe_failed,
    unjoined=ErrorCode.LEADER_NOT_AVAILABLE,
    authorize=on_cluster(AclOperation.DESCRIBE_CONFIGS),
)
async def handle_describe_client_quotas(
    ctx: RequestContext, request: DescribeClientQuotasRequest
) -> DescribeClientQuotasResponse:
    """The quotas of all entities that match the filter."""
    wanted = Filter(request)
    entry, value = DescribeClientQuotasResponse.EntryData, DescribeClientQuotasResponse.ValueData
    return DescribeClientQuotasResponse(
        entries=[
            entry(
                entity=named(entity),
                values=[value(key=key, value=number) for key, number in sorted(quotas.items())],
            )
            async for path, quotas in ctx.each(list(ctx.image.quotas.items()))
            if wanted.matches(entity := parse_entity(path))
        ]
    )


class Filter:
    """The filter of a DescribeClientQuotas."""

    def __init__(self, request: DescribeClientQuotasRequest) -> None:
        """Raises WireError."""
        self._exact: dict[str, str | None] = {}
        self._any: set[str] = set()
        self._is_strict = request.strict
        for component in request.components:
            self._add(component)
        if IP in self._types and len(self._types) > 1:
            raise WireError(
                ErrorCode.INVALID_REQUEST,
                "Invalid entity filter component combination. IP filter component should not be "
                "used with user or clientId filter component.",
            )

    @property
    def _types(self) -> set[str]:
        return self._any | self._exact.keys()

    def _add(self, component: DescribeClientQuotasRequest.ComponentData) -> None:
        kind, match = component.entity_type, component.match
        if kind not in ENTITY_TYPES:
            text = f"Unsupported entity type {kind[:100]!a}."
            raise WireError(ErrorCode.UNSUPPORTED_VERSION, text)
        problem = None
        if kind in self._types:
            problem = f"Entity type {kind} cannot appear more than once in the filter."
        elif component.match_type not in (EXACT, DEFAULT, SPECIFIED):
            problem = f"Unknown match type {component.match_type}"
        elif component.match_type == EXACT and match is None:
            problem = "Request specified MATCH_TYPE_EXACT, but set match string to null."
        elif component.match_type != EXACT and match is not None:
            problem = "Request specified a match string, which only MATCH_TYPE_EXACT has."
        if problem is not None:
            raise WireError(ErrorCode.INVALID_REQUEST, problem)
        if component.match_type == SPECIFIED:
            self._any.add(kind)
        else:
            self._exact[kind] = match

    def matches(self, entity: Entity) -> bool:
        if self._is_strict and len(entity.names) != len(self._types):
            return False
        return all(entity.has(kind) for kind in self._types) and all(
            entity.name_of(kind) == name for kind, name in self._exact.items()
        )


def alter_failed(
    ctx: RequestContext, request: AlterClientQuotasRequest, error: WireError
) -> AlterClientQuotasResponse:
    return AlterClientQuotasResponse(entries=[outcome(entry, error) for entry in request.entries])


@api(
    ApiKey.ALTER_CLIENT_QUOTAS,
    versions=(0, 1),
    fail=alter_failed,
    authorize=on_cluster(AclOperation.ALTER_CONFIGS),
)
async def handle_alter_client_quotas(
    ctx: RequestContext, request: AlterClientQuotasRequest
) -> AlterClientQuotasResponse:
    """Set and remove quotas. An entity changes as a whole; one that is rejected does not keep the
    others from changing.
    """
    counts = Counter([key_of(entry) async for entry in ctx.each(request.entries)])
    errors: list[WireError | None] = []
    changes: list[EntityChange] = []
    async for entry in ctx.each(request.entries):
        try:
            if counts[key_of(entry)] > 1:
                raise WireError(
                    ErrorCode.INVALID_REQUEST, f"Ignoring duplicate entity {key_of(entry)!a}"
                )
            changes.append(change_of(entry))
            errors.append(None)
        except WireError as error:
            errors.append(error.bare())
    if changes and not request.validate_only:
        try:
            await ctx.controller(ALTER_QUOTAS, AlterQuotas(changes))
        except WireError as error:
            errors = [known or error.bare() for known in errors]
    pairs = zip(request.entries, errors, strict=True)
    entries = [outcome(entry, error) async for entry, error in ctx.each(pairs)]
    return AlterClientQuotasResponse(entries=entries)


def key_of(entry: AlterClientQuotasRequest.EntryData) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((part.entity_type, part.entity_name or "") for part in entry.entity))


def change_of(entry: AlterClientQuotasRequest.EntryData) -> EntityChange:
    """The checked change of one entity. Raises WireError."""
    entity = entity_of(entry.entity)
    keys: Mapping[str, QuotaKey] = IP_QUOTAS if entity.has(IP) else CLIENT_QUOTAS
    configs: dict[str, str | None] = {}
    for op in entry.ops:
        problem = None
        if op.key in configs:
            problem = f"Duplicate quota key {op.key[:100]!a} for this entity"
        elif op.remove:
            # COMPAT: as in Kafka, a key that does not exist is not set, and so may be removed.
            configs[op.key] = None
        elif op.key not in keys:
            problem = f"Invalid configuration key {op.key[:100]!a}"
        else:
            problem = keys[op.key].problem(op.value)
            configs[op.key] = None if problem else keys[op.key].text(op.value)
        if problem is not None:
            raise WireError(ErrorCode.INVALID_REQUEST, problem)
    # Only quotas: the node of a user has credentials, too.
    settings = [SettingValue(key, value) for key, value in configs.items() if key in keys]
    return EntityChange(entity.path, settings)


def entity_of(parts: list[AlterClientQuotasRequest.EntityData]) -> Entity:
    """The entity, if it is one that can have quotas. Raises WireError."""
    names: dict[str, str | None] = {}
    for part in parts:
        kind, name = part.entity_type, part.entity_name
        if kind not in ENTITY_TYPES:
            raise WireError(
                ErrorCode.INVALID_REQUEST, f"Unhandled client quota entity type: {kind[:100]!a}"
            )
        if kind in names:
            raise WireError(
                ErrorCode.INVALID_REQUEST,
                f"Invalid client quota entity, duplicate entity entry {kind}",
            )
        if name == "":
            raise WireError(ErrorCode.INVALID_REQUEST, f"Empty {kind} not supported")
        if name is not None and (name in (".", "..") or len(name) > NAME_CHARS_MAX):
            text = f"{kind} {name[:100]!a} cannot have quotas: the metadata store has no such node"
            raise WireError(ErrorCode.INVALID_REQUEST, text)
        names[kind] = name
    if not names or (IP in names and len(names) > 1):
        raise WireError(
            ErrorCode.INVALID_REQUEST,
            "A client quota entity is a user, a client-id, both, or an ip.",
        )
    if names.get(IP) is not None:
        names[IP] = address(str(names[IP]))
    return Entity(tuple((kind, names[kind]) for kind in ENTITY_TYPES if kind in names))


def address(text: str) -> str:
    """The address in the form in which connections have it. Raises WireError.

    COMPAT: Kafka accepts host names too, but applies the quota of one to no connection.
    """
    import ipaddress  # only for requests of this kind

    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        raise WireError(ErrorCode.INVALID_REQUEST, f"{text[:100]!a} is not a valid IP.") from None


def outcome(
    entry: AlterClientQuotasRequest.EntryData, error: WireError | None
) -> AlterClientQuotasResponse.EntryData:
    return AlterClientQuotasResponse.EntryData(
        error_code=0 if error is None else int(error.code),
        error_message=None if error is None else error.message,
        entity=[
            AlterClientQuotasResponse.EntityData(
                entity_type=part.entity_type, entity_name=part.entity_name
            )
            for part in entry.entity
        ],
    )


def named(entity: Entity) -> list[DescribeClientQuotasResponse.EntityData]:
    """An entity in a response; a default has no name."""
    cls = DescribeClientQuotasResponse.EntityData
    return [cls(entity_type=kind, entity_name=name) for kind, name in entity.names]
