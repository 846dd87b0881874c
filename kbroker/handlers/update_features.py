"""UpdateFeatures (57): versions 0 to 2. Every feature has one level here, and stays at it."""

from __future__ import annotations

from typing import Any

from kbroker.errors import ErrorCode, WireError
from kbroker.handlers.api_versions import FEATURES
from kbroker.handlers.context import RequestContext
from kbroker.handlers.registry import api
from kbroker.handlers.support.requirements import on_cluster
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages.update_features import UpdateFeaturesRequest, UpdateFeaturesResponse
from kbroker.security.operations import AclOperation

# From this version on there is one error for the whole request.
ALL_OR_NOTHING = 2


@api(ApiKey.UPDATE_FEATURES, versions=(0, 2), authorize=on_cluster(AclOperation.ALTER))
async def handle_update_features(
    ctx: RequestContext, request: UpdateFeaturesRequest
) -> UpdateFeaturesResponse:
    """Accept requests that change nothing."""
    errors = {update.feature: rejection(update) for update in request.feature_updates}
    rejected = next((error for error in errors.values() if error is not None), None)
    if rejected is not None and ctx.api_version >= ALL_OR_NOTHING:
        raise WireError(rejected.code, f"No feature was updated: {rejected.message}")
    cls = UpdateFeaturesResponse.UpdatableFeatureResult
    response = UpdateFeaturesResponse(error_message=None)
    if ctx.api_version < ALL_OR_NOTHING:
        response.results = [
            cls(feature=feature, error_message=None)
            if error is None
            else cls(feature=feature, error_code=int(error.code), error_message=error.message)
            for feature, error in errors.items()
        ]
    return response


def rejection(update: Any) -> WireError | None:
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
