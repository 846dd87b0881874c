"""ACLs that clients create and delete, in the controller process of the broker asked."""

from __future__ import annotations

from kbroker.ipc.calls.base import CHANGE_MS, CONTROLLER, NOBODY
from kbroker.ipc.documents import Document
from kbroker.ipc.operation import CallOperation
from kbroker.security.acls import AclBinding, AclFilter


class CreateAcls(Document):
    acls: list[AclBinding]
    asked_by: str = NOBODY


class AclResult(Document):
    error: int = 0
    message: str | None = None


class DeleteAcls(Document):
    filters: list[AclFilter]
    asked_by: str = NOBODY


class DeletedAcl(Document):
    """An ACL that a filter matches; with an error, it is still there."""

    acl: AclBinding
    error: int = 0
    message: str | None = None


class FilterDeletions(Document):
    """Of one filter. An ACL that several filters match is with the first."""

    acls: list[DeletedAcl]


# The results are in the order of the request. They are sent when all processes of this broker have
# the change.
CREATE_ACLS = CallOperation("create_acls", CreateAcls, list[AclResult], (CONTROLLER,), CHANGE_MS)
DELETE_ACLS = CallOperation(
    "delete_acls", DeleteAcls, list[FilterDeletions], (CONTROLLER,), CHANGE_MS
)
