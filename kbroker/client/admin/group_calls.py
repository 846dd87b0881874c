"""Groups, their offsets, and transactions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kbroker.client.admin import groups as group_admin
from kbroker.client.admin import transactions as transaction_admin
from kbroker.client.admin.calls import AdminCalls
from kbroker.client.admin.groups import GroupState, ListedGroup, Progress
from kbroker.client.admin.transactions import ActiveProducer, ListedTransaction, TransactionState
from kbroker.client.batches import offsets
from kbroker.client.batches.offsets import Committed, TopicPartition
from kbroker.client.errors import ClientError, RejectedError


class GroupCalls(AdminCalls):
    """Results of several groups or partitions have an error in the place of each that is rejected,
    and None where a call has nothing to tell.
    """

    # -- groups (KIP-222)

    def list_groups(
        self, *, states: Iterable[str] | None = None, kinds: Iterable[str] | None = None
    ) -> list[ListedGroup]:
        """The groups of all brokers, sorted. states: such as Stable or Empty (KIP-518); kinds:
        ``classic``, ``consumer``, ... (KIP-848); None: all. Brokers before Kafka 2.6 and 3.8 tell
        neither.
        """
        wanted_states = None if states is None else {state.lower() for state in states}
        wanted_kinds = None if kinds is None else {kind.lower() for kind in kinds}
        return [
            row
            for row in self._do(group_admin.list_groups)
            if (wanted_states is None or row.state.lower() in wanted_states)
            and (wanted_kinds is None or row.kind.lower() in wanted_kinds)
        ]

    def describe_groups(self, groups: Iterable[str]) -> dict[str, GroupState | RejectedError]:
        """State and members of groups of the classic and the consumer protocol; GROUP_ID_NOT_FOUND
        for one that does not exist.
        """
        states: dict[str, GroupState | RejectedError] = {}
        for group in groups:
            try:
                states[group] = self._do(group_admin.describe_group, group)
            except RejectedError as error:
                states[group] = error
        return states

    def delete_groups(self, groups: Iterable[str]) -> dict[str, ClientError | None]:
        """Delete groups without members, with their offsets (KIP-229)."""
        return self._do(group_admin.delete_groups, groups)

    def remove_group_members(self, group: str, members: Iterable[str]) -> None:
        """Remove members, by their ids, from a group of the classic protocol (KIP-345). Raises
        RejectedError.
        """
        self._do(group_admin.remove_members, group, members)

    # -- offsets of groups (KIP-396, KIP-496)

    def group_progress(
        self, group: str, partitions: Iterable[TopicPartition] = ()
    ) -> list[Progress]:
        """Committed offset, first and last offset and lag, in records, of each partition that the
        group has committed offsets of, and of these partitions.
        """
        return self._do(group_admin.progress, group, partitions)

    def list_group_offsets(
        self,
        group: str,
        partitions: Iterable[TopicPartition] | None = None,
        *,
        require_stable: bool = True,
    ) -> dict[TopicPartition, Committed]:
        """The committed offsets of a group, None: of all partitions; those without one are left
        out. require_stable: wait until those of open transactions are decided (KIP-447). Raises
        RejectedError.
        """
        return self._do(offsets.committed, group, partitions, stable=require_stable)

    def alter_group_offsets(
        self, group: str, changes: Mapping[TopicPartition, int | tuple[int, str]]
    ) -> None:
        """Commit offsets, or (offset, metadata), of a group without members (KIP-396). Raises
        RejectedError, UNKNOWN_MEMBER_ID if it has members.
        """
        rows = {
            key: (value, "") if isinstance(value, int) else value for key, value in changes.items()
        }
        self._do(offsets.commit, group, rows)

    def delete_group_offsets(
        self, group: str, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, ClientError | None]:
        """Let a group have no offsets of these partitions (KIP-496); GROUP_SUBSCRIBED_TO_TOPIC for
        those of a topic that a member reads.
        """
        return self._do(group_admin.delete_offsets_each, group, partitions)

    # -- transactions (KIP-664, from Kafka 3.0)

    def list_transactions(
        self,
        *,
        states: Iterable[str] | None = None,
        producer_ids: Iterable[int] = (),
        longer_than_ms: int = -1,
        pattern: str | None = None,
    ) -> list[ListedTransaction]:
        """Transactional ids with their last transaction, by node. states: such as Ongoing.

        longer_than_ms: only those that are open for longer (KIP-994, from Kafka 3.8). pattern: a
        regular expression for the whole id (KIP-1152, from Kafka 4.1). Raises RejectedError,
        UnsupportedByBroker.
        """
        wanted = None if states is None else {state.lower() for state in states}
        listed = self._do(
            transaction_admin.list_transactions,
            producer_ids=producer_ids,
            longer_than_ms=longer_than_ms,
            pattern=pattern,
        )
        return [row for row in listed if wanted is None or row.state.lower() in wanted]

    def describe_transactions(
        self, transactional_ids: Iterable[str]
    ) -> dict[str, TransactionState | RejectedError]:
        """State, producer, timeout and partitions of transactions; TRANSACTIONAL_ID_NOT_FOUND for
        an id that no producer has used.
        """
        results: dict[str, TransactionState | RejectedError] = {}
        for name in transactional_ids:
            try:
                results[name] = self._do(transaction_admin.describe_transaction, name)
            except RejectedError as error:
                results[name] = error
        return results

    def describe_producers(
        self, partitions: Iterable[TopicPartition], *, node: int | None = None
    ) -> dict[TopicPartition, list[ActiveProducer]]:
        """Producers that have written to partitions, as the leaders know them or this broker does.
        Raises RejectedError for the first partition that has an error.
        """
        return self._do(transaction_admin.describe_producers, partitions, node)

    def abort_transaction(self, partition: TopicPartition, producer: ActiveProducer) -> None:
        """End the open transaction of a producer in one partition with an abort, whatever its
        coordinator says: only for a transaction that hangs. Raises RejectedError.
        """
        self._do(
            transaction_admin.abort_in_partition,
            partition,
            producer.producer_id,
            producer.producer_epoch,
            max(producer.coordinator_epoch, 0),
        )

    def fence_producers(self, transactional_ids: Iterable[str]) -> dict[str, ClientError | None]:
        """Abort the open transaction of each id, and let its producer do nothing more."""
        errors: dict[str, ClientError | None] = {}
        for name in transactional_ids:
            try:
                self._do(transaction_admin.force_terminate, name)
                errors[name] = None
            except RejectedError as error:
                errors[name] = error
        return errors
