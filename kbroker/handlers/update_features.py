"""UpdateFeatures (57): versions 0 to 2.

A broker on its own has every feature at one level, where it stays. In a cluster the controller
finalizes those that all brokers support.
"""

from __future__ import annotations

from kbroker.errors import ErrorCode, WireError
from kbroker.handlers.api_versions import FEATURES
from kbroker.handlers.context import RequestContext
from kbroker.handlers.registry import api
from kbroker.handlers.support.requirements import on_cluster
from kbroker.ipc.calls import UPDATE_FEATURES, UpdateFeatures, WantedFeature
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages.update_features import UpdateFeaturesRequest, UpdateFeaturesResponse
from kbroker.security.operations import AclOperation

# From this version on there are no results.
WITHOUT_RESULTS = 2
# COMPAT: Kafka's text for an update that has succeeded.
NO_ERROR = "NONE"
# Version 0 allows a downgrade or not, as Kafka reads it: a safe one.
UPGRADE, SAFE_DOWNGRADE = 1, 2
# BOUND: of the updates that are passed on.
UPDATES_MAX = 100


@api(ApiKey.UPDATE_FEATURES, versions=(0, 2), authorize=on_cluster(AclOperation.ALTER))
async def handle_update_features(
    ctx: RequestContext, request: UpdateFeaturesRequest
) -> UpdateFeaturesResponse:
    """COMPAT: as in Kafka 4.3, all updates are made or none, in any version. The first error is
    that of the request.
    """
    updates = {update.feature: update for update in request.feature_updates}
    if ctx.config.uses_zookeeper:
        results = await update_cluster(ctx, request, list(updates.values()))
        errors = dict(zip(updates, results, strict=True))
    else:
        errors = {name: rejection(update) for name, update in updates.items()}
    rejected = next((error for error in errors.values() if error is not None), None)
    if rejected is not None:
        text = "The update failed for all features since the following feature had an error: "
        raise WireError(rejected.code, text + (rejected.message or ""))
    cls = UpdateFeaturesResponse.UpdatableFeatureResult
    response = UpdateFeaturesResponse(error_message=None)
    if ctx.api_version < WITHOUT_RESULTS:
        response.results = [cls(feature=feature, error_message=NO_ERROR) for feature in errors]
    return response


async def update_cluster(
    ctx: RequestContext,
    request: UpdateFeaturesRequest,
    updates: list[UpdateFeaturesRequest.FeatureUpdateKey],
) -> list[WireError | None]:
    """Have the controller finalize them; the error of each."""
    if len(updates) > UPDATES_MAX:
        raise WireError(ErrorCode.INVALID_REQUEST, f"more than {UPDATES_MAX} features")
    wanted = UpdateFeatures(
        [
            WantedFeature(update.feature, update.max_version_level, kind_of(ctx, update))
            for update in updates
        ],
        validate_only=request.validate_only,
    )
    results = await ctx.controller(UPDATE_FEATURES, wanted)
    return [
        WireError(ErrorCode(result.error), result.message or "") if result.error else None
        for result in results
    ]


def kind_of(ctx: RequestContext, update: UpdateFeaturesRequest.FeatureUpdateKey) -> int:
    """How the level may change."""
    if ctx.api_version > 0:
        return int(update.upgrade_type)
    return SAFE_DOWNGRADE if update.allow_downgrade else UPGRADE


def rejection(update: UpdateFeaturesRequest.FeatureUpdateKey) -> WireError | None:
    """The reason why a feature cannot be set to this level; None if it has it."""
    feature, level = update.feature, update.max_version_level
    if feature not in FEATURES:
        text = "this broker does not support this feature."
    elif level != FEATURES[feature].level:
        text = f"this broker supports version {FEATURES[feature].level} only."
    else:
        return None
    start = f"Invalid update version {level} for feature {ascii(feature[:100])[1:-1]}: "
    return WireError(ErrorCode.INVALID_UPDATE_VERSION, start + text)
