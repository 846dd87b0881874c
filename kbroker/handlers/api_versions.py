"""ApiVersions (18): versions 0 to 4.

A newer version is answered by the dispatcher, in version 0 (KIP-511). Announced are those features
of Kafka that there are here: the consumer group protocol (KIP-848), the second transaction protocol
(KIP-890), and the level of metadata that stands for the release whose behaviour this is. In a
cluster the first two are in effect as far as they are finalized, and the metadata are Kafka 2.7's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from kbroker.cluster.features import SUPPORTED, Finalized
from kbroker.errors import ErrorCode
from kbroker.handlers.context import RequestContext
from kbroker.handlers.registry import HANDLERS, announced, api
from kbroker.handlers.support.requirements import NOTHING
from kbroker.protocol import codec
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse


class Feature(NamedTuple):
    """level: the highest. lowest: what Kafka may have had before."""

    level: int
    lowest: int = 0


METADATA_VERSION = "metadata.version"
FEATURES = {
    **{name: Feature(level) for name, level in SUPPORTED.items()},
    METADATA_VERSION: Feature(30, 30),  # 4.3-IV0
}

# COMPAT: versions that Kafka 4.3 has not released. They are announced if
# unstable.api.versions.enable is set, and served anyway.
UNSTABLE = {int(ApiKey.INIT_PRODUCER_ID): 6}

# Announced to connections that are made while a subscription asks for metrics.
TELEMETRY = frozenset({int(ApiKey.GET_TELEMETRY_SUBSCRIPTIONS), int(ApiKey.PUSH_TELEMETRY)})

ENCODED = "encoded ApiVersions"  # in ``ClusterImage.derived``, with a version: a response's body

# COMPAT: Kafka's rules for a client's name and version; clients fall back to version 0 or close.
SOFTWARE_PATTERN = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9.-]*[a-zA-Z0-9])?")


@api(ApiKey.API_VERSIONS, versions=(0, 4), authorize=NOTHING)
async def handle_api_versions(
    ctx: RequestContext, request: ApiVersionsRequest
) -> ApiVersionsResponse | bytes:
    """List every API and its versions. Each connection begins with it, and the response is the
    same: it is encoded once.
    """
    if ctx.api_version >= 3:
        for text in (request.client_software_name, request.client_software_version):
            if not SOFTWARE_PATTERN.fullmatch(text):
                return ApiVersionsResponse(error_code=int(ErrorCode.INVALID_REQUEST))
        ctx.connection.name_software(
            request.client_software_name.encode(), request.client_software_version.encode()
        )
    if ctx.process.loop.limits.on:  # there may be a throttle time in it
        return everything(ctx)
    encoded: bytes | None = ctx.image.derived.get((ENCODED, ctx.api_version))
    if encoded is None:
        encoded = codec.encode(everything(ctx), ctx.api_version)
        ctx.image.derived[ENCODED, ctx.api_version] = encoded
    ctx.process.times.note_error(ctx.api_key, int(ErrorCode.NONE))
    return encoded


def everything(ctx: RequestContext) -> ApiVersionsResponse:
    """All APIs and features, as of the image."""
    entry = ApiVersionsResponse.ApiVersion
    response = ApiVersionsResponse(
        api_keys=[
            entry(api_key=key, min_version=first, max_version=last)
            for key, first, last in announced_to_clients(ctx)
        ]
    )
    if ctx.api_version >= 3:
        features, finalized = dict(FEATURES), ctx.image.features
        if ctx.config.uses_zookeeper:
            del features[METADATA_VERSION]
        else:
            metadata = {METADATA_VERSION: FEATURES[METADATA_VERSION].level}
            finalized = finalized._replace(levels={**finalized.levels, **metadata})
        add_features(response, ctx.api_version, features, finalized)
    return response


def announced_to_clients(ctx: RequestContext) -> Iterator[tuple[int, int, int]]:
    """Like ``announced``, without versions in development unless they are enabled, and without what
    is not served in a cluster.

    COMPAT: Kafka announces telemetry where somebody takes it. librdkafka tells of it in a line.
    """
    wants_metrics = bool(ctx.image.client_metrics)
    in_cluster = ctx.config.uses_zookeeper
    has_unstable = ctx.config["unstable.api.versions.enable"]
    for key, first, last in announced():
        if in_cluster and key in HANDLERS and HANDLERS[key].alone:
            continue
        if key in TELEMETRY and not wants_metrics:
            continue
        unstable = UNSTABLE.get(key)
        yield key, first, last if has_unstable or unstable is None else min(last, unstable - 1)


def add_features(
    response: ApiVersionsResponse,
    version: int,
    features: Mapping[str, Feature],
    in_effect: Finalized,
) -> None:
    """Announce features that are supported, and those in effect."""
    # COMPAT: clients that send version 3 reject a minimum level of 0 (KIP-1022).
    lowest = 1 if version == 3 else 0
    supported = ApiVersionsResponse.SupportedFeatureKey
    finalized = ApiVersionsResponse.FinalizedFeatureKey
    response.finalized_features_epoch = in_effect.epoch
    for name, (level, low) in features.items():
        response.supported_features.append(
            supported(name=name, min_version=max(low, lowest), max_version=level)
        )
        present = in_effect.level(name)
        if present:
            response.finalized_features.append(
                finalized(name=name, max_version_level=present, min_version_level=present)
            )
