"""ApiVersions (18): versions 0 to 4.

A newer version is answered by the dispatcher, in version 0 (KIP-511). Announced are those features
of Kafka that there are here: the consumer group protocol (KIP-848), the second transaction protocol
(KIP-890), and the level of metadata that stands for the release whose behaviour this is. In a
cluster, where a Kafka 2.7 may have to take over any group and transaction, none of them is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from kbroker.errors import ErrorCode
from kbroker.handlers.context import RequestContext
from kbroker.handlers.registry import announced, api
from kbroker.handlers.support.requirements import NOTHING
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse


class Feature(NamedTuple):
    """level: in effect, and the highest. lowest: what Kafka may have had before."""

    level: int
    lowest: int = 0


# Feature levels other than the finalized one cannot be set (UpdateFeatures).
FEATURES = {
    "group.version": Feature(1),
    "metadata.version": Feature(30, 30),  # 4.3-IV0
    "transaction.version": Feature(2),
}
FEATURES_EPOCH = 1

# COMPAT: versions that Kafka 4.3 has not released. They are announced if
# unstable.api.versions.enable is set, and served anyway.
UNSTABLE = {int(ApiKey.INIT_PRODUCER_ID): 6}

# COMPAT: Kafka's rules for a client's name and version; clients fall back to version 0 or close.
SOFTWARE_PATTERN = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9.-]*[a-zA-Z0-9])?")


@api(ApiKey.API_VERSIONS, versions=(0, 4), authorize=NOTHING)
async def handle_api_versions(
    ctx: RequestContext, request: ApiVersionsRequest
) -> ApiVersionsResponse:
    """List every API and its versions."""
    if ctx.api_version >= 3:
        for text in (request.client_software_name, request.client_software_version):
            if not SOFTWARE_PATTERN.fullmatch(text):
                return ApiVersionsResponse(error_code=int(ErrorCode.INVALID_REQUEST))
    entry = ApiVersionsResponse.ApiVersion
    response = ApiVersionsResponse(
        api_keys=[
            entry(api_key=key, min_version=first, max_version=last)
            for key, first, last in announced_to_clients(ctx)
        ]
    )
    if ctx.api_version >= 3:
        add_features(response, ctx.api_version, {} if ctx.config.uses_zookeeper else FEATURES)
    return response


def announced_to_clients(ctx: RequestContext) -> Iterator[tuple[int, int, int]]:
    """Like ``announced``, without versions in development unless they are enabled."""
    has_unstable = ctx.config["unstable.api.versions.enable"]
    for key, first, last in announced():
        unstable = UNSTABLE.get(key)
        yield key, first, last if has_unstable or unstable is None else min(last, unstable - 1)


def add_features(
    response: ApiVersionsResponse, version: int, features: Mapping[str, Feature]
) -> None:
    """Announce features."""
    # COMPAT: clients that send version 3 reject a minimum level of 0 (KIP-1022).
    lowest = 1 if version == 3 else 0
    supported = ApiVersionsResponse.SupportedFeatureKey
    finalized = ApiVersionsResponse.FinalizedFeatureKey
    response.finalized_features_epoch = FEATURES_EPOCH
    for name, (level, low) in features.items():
        response.supported_features.append(
            supported(name=name, min_version=max(low, lowest), max_version=level)
        )
        response.finalized_features.append(
            finalized(name=name, max_version_level=level, min_version_level=level)
        )
