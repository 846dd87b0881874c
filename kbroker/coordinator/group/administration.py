"""DescribeGroups, ListGroups and DeleteGroups, for groups of every kind."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from kbroker.coordinator.group.classic.classic_group import EMPTY, STABLE, ClassicGroup
from kbroker.coordinator.group.group import CLASSIC
from kbroker.coordinator.list_filters import group_filter
from kbroker.errors import ErrorCode, WireError
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages.delete_groups import DeleteGroupsResponse
from kbroker.protocol.messages.describe_groups import DescribeGroupsResponse
from kbroker.protocol.messages.list_groups import ListGroupsResponse
from kbroker.security.operations import Kind

if TYPE_CHECKING:
    from kbroker.coordinator.group.machine import GroupMachine
    from kbroker.coordinator.machine import Call, CoordinatorOperation

logger = logging.getLogger(__name__)

# The first version of DescribeGroups that reports an unknown group as an error.
NOT_FOUND_VERSION = 6
# The operations that everyone may do on a group: read, delete and describe it and its configs
# (KIP-430).
GROUP_OPERATIONS = Kind.GROUP.all_operations


class GroupAdministration:
    """Requests of administrators. A group that only committed offsets exists in offsets alone."""

    def __init__(self, machine: GroupMachine) -> None:
        self._machine = machine
        self.handlers = {
            ApiKey.DESCRIBE_GROUPS: self.describe,
            ApiKey.LIST_GROUPS: self.list_groups,
            ApiKey.DELETE_GROUPS: self.delete,
        }

    # -- DescribeGroups --------------------------------------------------------------------------

    def describe(self, op: CoordinatorOperation, call: Call) -> DescribeGroupsResponse:
        descriptions = []
        for group_id in call.request.groups:
            described = self._describe(group_id, call.version)
            if call.request.include_authorized_operations and not described.error_code:
                described.authorized_operations = GROUP_OPERATIONS
            descriptions.append(described)
        return DescribeGroupsResponse(groups=descriptions)

    def _describe(self, group_id: str, version: int) -> Any:
        group = self._machine.groups.get(group_id)
        if isinstance(group, ClassicGroup):
            return described_group(group)
        known = DescribeGroupsResponse.DescribedGroup(group_id=group_id, group_state="Dead")
        if group is None and self._machine.offsets.has_group(group_id):
            known.group_state = EMPTY
        elif version >= NOT_FOUND_VERSION:
            known.error_code = ErrorCode.GROUP_ID_NOT_FOUND
            known.error_message = (
                f"Group {group_id} not found."
                if group is None
                else f"Group {group_id} is not a classic group."
            )
        return known

    # -- ListGroups ------------------------------------------------------------------------------

    def list_groups(self, op: CoordinatorOperation, call: Call) -> ListGroupsResponse:
        is_listed = group_filter(call.request)
        listed = []
        for group_id, kind, state, protocol_type in self._all():
            if not is_listed(state, kind):
                continue
            listed.append(
                ListGroupsResponse.ListedGroup(
                    group_id=group_id,
                    protocol_type=protocol_type,
                    group_state=state,
                    group_type=kind,
                )
            )
        return ListGroupsResponse(groups=listed)

    def _all(self) -> list[tuple[str, str, str, str]]:
        """(group id, kind, state, protocol type) of every group."""
        groups = self._machine.groups
        rows = [(g.group_id, g.kind, g.state, g.protocol_type) for g in groups.values()]
        for group_id in self._machine.offsets.group_ids():
            if group_id not in groups:
                rows.append((group_id, CLASSIC, EMPTY, ""))
        return rows

    # -- DeleteGroups ----------------------------------------------------------------------------

    def delete(self, op: CoordinatorOperation, call: Call) -> DeleteGroupsResponse:
        """A row for each name, in order; a name that occurs twice is deleted once."""
        codes: dict[str, ErrorCode] = {}
        for group_id in dict.fromkeys(call.request.groups_names):
            try:
                self._delete(op, group_id)
                codes[group_id] = ErrorCode.NONE
            except WireError as error:
                codes[group_id] = error.code
        row = DeleteGroupsResponse.DeletableGroupResult
        return DeleteGroupsResponse(
            results=[
                row(group_id=group_id, error_code=codes[group_id])
                for group_id in call.request.groups_names
            ]
        )

    def _delete(self, op: CoordinatorOperation, group_id: str) -> None:
        group = self._machine.groups.get(group_id)
        if group is not None:
            group.check_deletion()
        elif not self._machine.offsets.has_group(group_id):
            raise WireError(ErrorCode.GROUP_ID_NOT_FOUND)
        # Offsets first: their replay may check whether the group still exists.
        self._machine.offsets.delete_group(op, group_id)
        if group is not None:
            group.delete(op)
        logger.info("group %s: deleted on request", group_id)


def described_group(group: ClassicGroup) -> Any:
    """A group as in DescribeGroups; subscriptions of members only while it is stable."""
    is_stable = group.state == STABLE
    protocol = (group.protocol or "") if is_stable else ""
    return DescribeGroupsResponse.DescribedGroup(
        group_id=group.group_id,
        group_state=group.state,
        protocol_type=group.protocol_type,
        protocol_data=protocol,
        members=[
            DescribeGroupsResponse.DescribedGroupMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.protocols.get(protocol, b"") if is_stable else b"",
                member_assignment=member.assignment,
            )
            for member in group.members.values()
        ],
    )
