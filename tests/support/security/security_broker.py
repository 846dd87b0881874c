"""A broker of a few lines that keeps SCRAM credentials and ACLs as Kafka does."""

from __future__ import annotations

from typing import Any

from support.brokers.fake_broker import FakeBroker

from kbroker.protocol.api import ApiKey
from kbroker.protocol.message import Message
from kbroker.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsResponse,
)
from kbroker.protocol.messages.create_acls import CreateAclsResponse
from kbroker.protocol.messages.delete_acls import DeleteAclsResponse
from kbroker.protocol.messages.describe_acls import DescribeAclsResponse
from kbroker.protocol.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsResponse,
)
from kbroker.protocol.messages.metadata import MetadataResponse

ANY, MATCH, LITERAL, PREFIXED = 1, 2, 3, 4
NOT_FOUND, NOT_CONTROLLER = 91, 41
# (type, name, pattern, principal, host, operation, permission)
Row = tuple[int, str, int, str, str, int, int]


class SecurityBroker(FakeBroker):
    """moved: requests that are answered with NOT_CONTROLLER first."""

    def __init__(self, moved: int = 0) -> None:
        super().__init__(
            {
                ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: self.describe_users,
                ApiKey.ALTER_USER_SCRAM_CREDENTIALS: self.alter_users,
                ApiKey.CREATE_ACLS: self.create_acls,
                ApiKey.DESCRIBE_ACLS: self.describe_acls,
                ApiKey.DELETE_ACLS: self.delete_acls,
            },
            {int(key): key.versions for key in ApiKey if key < 52},
        )
        self.moved = moved
        # (user, mechanism) -> (iterations, salt, salted password)
        self.users: dict[tuple[str, int], tuple[int, bytes, bytes]] = {}
        self.acls: set[Row] = set()

    def metadata(self, request: Any, state: dict[str, Any]) -> Message:
        row = MetadataResponse.MetadataResponseBroker(node_id=7, host="127.0.0.1", port=self.port)
        return MetadataResponse(brokers=[row], controller_id=7, topics=[])

    # -- users

    def describe_users(self, request: Any, state: dict[str, Any]) -> Message:
        cls = DescribeUserScramCredentialsResponse.DescribeUserScramCredentialsResult
        names = sorted({name for name, _ in self.users})
        if request.users is not None:
            names = [row.name for row in request.users]
        results = []
        for name in names:
            infos = [
                DescribeUserScramCredentialsResponse.CredentialInfo(
                    mechanism=mechanism, iterations=found[0]
                )
                for (user, mechanism), found in self.users.items()
                if user == name
            ]
            code = 0 if infos else NOT_FOUND
            results.append(cls(user=name, error_code=code, credential_infos=infos))
        return DescribeUserScramCredentialsResponse(results=results)

    def alter_users(self, request: Any, state: dict[str, Any]) -> Message:
        cls = AlterUserScramCredentialsResponse.AlterUserScramCredentialsResult
        code = self._code()
        names = dict.fromkeys(row.name for row in [*request.deletions, *request.upsertions])
        if not code:
            for row in request.deletions:
                if self.users.pop((row.name, row.mechanism), None) is None:
                    code = NOT_FOUND
            for row in request.upsertions:
                self.users[row.name, row.mechanism] = (
                    row.iterations,
                    bytes(row.salt),
                    bytes(row.salted_password),
                )
        results = [cls(user=name, error_code=code) for name in names]
        return AlterUserScramCredentialsResponse(results=results)

    def _code(self) -> int:
        self.moved -= 1
        return NOT_CONTROLLER if self.moved >= 0 else 0

    # -- ACLs

    def create_acls(self, request: Any, state: dict[str, Any]) -> Message:
        for row in request.creations:
            self.acls.add(
                (
                    row.resource_type,
                    row.resource_name,
                    row.resource_pattern_type,
                    row.principal,
                    row.host,
                    row.operation,
                    row.permission_type,
                )
            )
        cls = CreateAclsResponse.AclCreationResult
        return CreateAclsResponse(results=[cls() for _ in request.creations])

    def describe_acls(self, request: Any, state: dict[str, Any]) -> Message:
        cls = DescribeAclsResponse.DescribeAclsResource
        resources = [
            cls(
                resource_type=kind,
                resource_name=name,
                pattern_type=pattern,
                acls=[
                    DescribeAclsResponse.AclDescription(
                        principal=principal,
                        host=host,
                        operation=operation,
                        permission_type=permission,
                    )
                ],
            )
            for kind, name, pattern, principal, host, operation, permission in self.matching(
                request
            )
        ]
        return DescribeAclsResponse(resources=resources)

    def delete_acls(self, request: Any, state: dict[str, Any]) -> Message:
        cls = DeleteAclsResponse.DeleteAclsFilterResult
        results = []
        for each in request.filters:
            found = self.matching(each)
            self.acls -= set(found)
            rows = [
                DeleteAclsResponse.DeleteAclsMatchingAcl(
                    resource_type=kind,
                    resource_name=name,
                    pattern_type=pattern,
                    principal=principal,
                    host=host,
                    operation=operation,
                    permission_type=permission,
                )
                for kind, name, pattern, principal, host, operation, permission in found
            ]
            results.append(cls(matching_acls=rows))
        return DeleteAclsResponse(filter_results=results)

    def matching(self, wanted: Any) -> list[Row]:
        return sorted(row for row in self.acls if matches(wanted, row))


def matches(wanted: Any, row: Row) -> bool:
    """As AclBindingFilter and ResourcePatternFilter are documented."""
    kind, name, pattern, principal, host, operation, permission = row
    asked = wanted.resource_name_filter
    if wanted.resource_type_filter not in (ANY, kind) or wanted.operation not in (ANY, operation):
        return False
    if wanted.permission_type not in (ANY, permission):
        return False
    if wanted.principal_filter not in (None, principal) or wanted.host_filter not in (None, host):
        return False
    if wanted.pattern_type_filter not in (ANY, MATCH, pattern):
        return False
    if asked is None or asked == name:
        return True
    if wanted.pattern_type_filter != MATCH:
        return False
    return name == "*" if pattern == LITERAL else asked.startswith(name)
