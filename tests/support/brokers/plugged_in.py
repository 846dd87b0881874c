"""Classes that settings of a broker name: an authorizer and policies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kbroker.security.operations import AclOperation, Kind
from kbroker.security.policies import ConfigRequest, PolicyViolation, TopicRequest
from kbroker.security.principal import KafkaPrincipal


class NamesAuthorizer:
    """Everybody may do everything to what has no ``secret`` in its name."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        self.properties = dict(properties)

    def allows_everything(self, principal: KafkaPrincipal, host: str) -> bool:
        return principal.name == "root"

    def authorize(
        self,
        principal: KafkaPrincipal,
        host: str,
        operation: AclOperation,
        kind: Kind,
        names: Sequence[str],
    ) -> list[bool]:
        return ["secret" not in name for name in names]

    def authorize_any(
        self, principal: KafkaPrincipal, host: str, operation: AclOperation, kind: Kind
    ) -> bool:
        return True


class FailingAuthorizer(NamesAuthorizer):
    def allows_everything(self, principal: KafkaPrincipal, host: str) -> bool:
        raise RuntimeError("broken")

    def authorize(self, *_: object) -> list[bool]:
        return [True, True, True]

    def authorize_any(self, *_: object) -> bool:
        raise RuntimeError("broken")


class RefusingAuthorizer(NamesAuthorizer):
    def __init__(self, properties: Mapping[str, str]) -> None:
        raise OSError("cannot reach the directory of users")


class TopicPolicy:
    """At most as many partitions as num.partitions of the properties says, or 4."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        self._most = int(properties.get("num.partitions", "4"))

    def validate(self, request: TopicRequest) -> None:
        if request.name == "breaks-policy":
            raise RuntimeError("broken")
        if request.num_partitions is not None and request.num_partitions > self._most:
            raise PolicyViolation(f"{request.name}: at most {self._most} partitions")


class ConfigPolicy:
    def __init__(self, properties: Mapping[str, str]) -> None:
        pass

    def validate(self, request: ConfigRequest) -> None:
        if "retention.ms" in request.configs:
            raise PolicyViolation(f"retention.ms of {request.kind} {request.name} is not yours")
