"""A program that calls every method of the admin client, one after the other, again and again."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from kbroker.client import KafkaAdminClient, TopicPartition
from kbroker.client.admin import configs as config_admin
from kbroker.client.admin.acls import Acl
from kbroker.client.admin.reassignments import PartitionReplica
from kbroker.client.admin.topics import NewTopic
from kbroker.client.admin.transactions import ActiveProducer
from kbroker.client.admin.users import Credential
from kbroker.client.errors import ClientError, RejectedError, UnsupportedByBroker
from kbroker.errors import ErrorCode

if TYPE_CHECKING:
    from fault.clients.program import Program

PAUSE_S = 0.01
REST_S = 1.0
_ACL = Acl("TOPIC", "exam", "LITERAL", "User:exam", "*", "READ", "ALLOW")
_NOBODY = ActiveProducer(1 << 40, 0, 0, 0, 0, 0)
_ENTITY = (("user", "exam"),)
# Retriable for a program that wants it otherwise; the election has been answered.
_ANSWERS = (ErrorCode.ELECTION_NOT_NEEDED, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE)


class Place(dict[str, Any]):
    """What calls are about. number: of the round."""

    def __init__(self, topic: str, group: str, node: int) -> None:
        super().__init__()
        self.topic, self.group, self.node = topic, group, node
        self.number = 0

    @property
    def first(self) -> TopicPartition:
        return TopicPartition(self.topic, 0)

    @property
    def scratch(self) -> str:
        return f"{self.topic}-scratch-{self.number}"

    @property
    def replica(self) -> PartitionReplica:
        return PartitionReplica(self.topic, 0, self.node)


Call = Callable[[Any, Place], Any]
# In an order in which they can succeed. A refusal of the brokers is an answer.
CALLS: dict[str, Call] = {
    "list_topics": lambda admin, at: admin.list_topics(),
    "describe_topics": lambda admin, at: admin.describe_topics([at.topic]),
    "create_topics": lambda admin, at: admin.create_topics([NewTopic(at.scratch, 1, 2)]),
    "create_partitions": lambda admin, at: admin.create_partitions({at.scratch: 2}),
    "delete_topics": lambda admin, at: admin.delete_topics([at.scratch]),
    "describe_configs": lambda admin, at: admin.describe_configs(config_admin.TOPIC, [at.topic]),
    "alter_configs": lambda admin, at: admin.alter_configs(
        config_admin.TOPIC, at.topic, {"retention.ms": str(86_400_000 + at.number)}
    ),
    "list_config_resources": lambda admin, at: admin.list_config_resources(
        config_admin.CLIENT_METRICS
    ),
    "list_offsets": lambda admin, at: admin.list_offsets({at.first: -1}),
    "delete_records": lambda admin, at: admin.delete_records({at.first: 0}),
    "elect_leaders": lambda admin, at: admin.elect_leaders([at.first]),
    "alter_partition_reassignments": lambda admin, at: admin.alter_partition_reassignments(
        {at.first: None}
    ),
    "list_partition_reassignments": lambda admin, at: admin.list_partition_reassignments(),
    "describe_log_dirs": lambda admin, at: admin.describe_log_dirs([at.node]),
    "describe_replica_log_dirs": lambda admin, at: admin.describe_replica_log_dirs([at.replica]),
    "alter_replica_log_dirs": lambda admin, at: admin.alter_replica_log_dirs(
        {at.replica: "/nowhere"}
    ),
    "alter_group_offsets": lambda admin, at: admin.alter_group_offsets(at.group, {at.first: 0}),
    "list_group_offsets": lambda admin, at: admin.list_group_offsets(at.group),
    "group_progress": lambda admin, at: admin.group_progress(at.group),
    "list_groups": lambda admin, at: admin.list_groups(),
    "describe_groups": lambda admin, at: admin.describe_groups([at.group]),
    "remove_group_members": lambda admin, at: admin.remove_group_members(at.group, ["nobody"]),
    "delete_group_offsets": lambda admin, at: admin.delete_group_offsets(at.group, [at.first]),
    "delete_groups": lambda admin, at: admin.delete_groups([at.group]),
    "list_transactions": lambda admin, at: admin.list_transactions(),
    "describe_transactions": lambda admin, at: admin.describe_transactions([at.group]),
    "describe_producers": lambda admin, at: admin.describe_producers([at.first]),
    "abort_transaction": lambda admin, at: admin.abort_transaction(at.first, _NOBODY),
    "fence_producers": lambda admin, at: admin.fence_producers([at.group]),
    "create_acls": lambda admin, at: admin.create_acls([_ACL]),
    "describe_acls": lambda admin, at: admin.describe_acls(),
    "delete_acls": lambda admin, at: admin.delete_acls([_ACL]),
    "set_password": lambda admin, at: admin.set_password("exam", "secret", iterations=4096),
    "describe_user_scram_credentials": lambda admin, at: admin.describe_user_scram_credentials(),
    "delete_user_scram_credentials": lambda admin, at: admin.delete_user_scram_credentials(
        [Credential("exam", "SCRAM-SHA-512", 0)]
    ),
    "create_delegation_token": lambda admin, at: admin.create_delegation_token(),
    "renew_delegation_token": lambda admin, at: admin.renew_delegation_token(b"nobody's"),
    "expire_delegation_token": lambda admin, at: admin.expire_delegation_token(b"nobody's"),
    "describe_delegation_tokens": lambda admin, at: admin.describe_delegation_tokens(),
    "alter_client_quotas": lambda admin, at: admin.alter_client_quotas(
        _ENTITY, {"producer_byte_rate": 1e9}
    ),
    "describe_client_quotas": lambda admin, at: admin.describe_client_quotas(_ENTITY),
    "describe_cluster": lambda admin, at: admin.describe_cluster(),
    "describe_brokers": lambda admin, at: admin.describe_brokers(),
    "unregister_broker": lambda admin, at: admin.unregister_broker(99),
    "describe_features": lambda admin, at: admin.describe_features(),
    "update_features": lambda admin, at: admin.update_features({"exam": 1}, validate_only=True),
    "within": lambda admin, at: admin.within(3).describe_cluster(),
}


def _is_no_answer(error: ClientError) -> bool:
    return error.retriable and error.code not in _ANSWERS


def administer(program: Program) -> None:
    """Until the program is stopped; each answer is progress."""
    admin = KafkaAdminClient(**program.settings)
    limit = program.settings["default_api_timeout_ms"] / 1000
    at = Place(program.topic, program.group, program.chance.randrange(3))
    for name in itertools.cycle(CALLS):
        if not program.pause(REST_S if program.resting else PAUSE_S):
            break
        if name == next(iter(CALLS)):
            at.number += 1
            at.node = (at.node + 1) % 3
        try:
            found = program.told.call(
                name, 3.0 if name == "within" else limit, partial(CALLS[name], admin, at)
            )
        except (RejectedError, UnsupportedByBroker) as error:
            if error.retriable:
                continue
        except ClientError:
            continue
        else:
            rows = found.values() if isinstance(found, dict) else ()
            if any(isinstance(row, ClientError) and _is_no_answer(row) for row in rows):
                program.told.tell("error", call=name, error=str(found)[:500])
                continue
        program.told.tell("answered", call=name)
    program.told.call("close", 1.0, admin.close)
