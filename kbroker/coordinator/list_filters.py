"""Filters of ListGroups and ListTransactions.

Every coordinator of a broker is asked for its part of a list, and has to read the filters. Long
ones are kept from them: the process that joins the parts applies them to the rows.
"""

from __future__ import annotations

from collections.abc import Callable

from kbroker.protocol.messages.list_groups import ListGroupsRequest
from kbroker.protocol.messages.list_transactions import ListTransactionsRequest

# BOUND: filters read by each of 50 coordinators: states, types and producer ids.
FILTERS_MAX = 100


def group_filter(request: ListGroupsRequest) -> Callable[[str, str], bool]:
    """Whether a group of this state and type is listed; without a filter, all are."""
    states = {state.strip().lower() for state in request.states_filter}
    types = {kind.strip().lower() for kind in request.types_filter}

    def is_listed(state: str, kind: str) -> bool:
        return (not states or state.lower() in states) and (not types or kind.lower() in types)

    return is_listed


def transaction_filter(request: ListTransactionsRequest) -> Callable[[str, int], bool]:
    """Whether a transaction with this state and producer id passes the filters."""
    states, producer_ids = set(request.state_filters), set(request.producer_id_filters)

    def is_listed(state: str, producer_id: int) -> bool:
        return (not states or state in states) and (not producer_ids or producer_id in producer_ids)

    return is_listed


def unfiltered_groups(request: ListGroupsRequest) -> ListGroupsRequest | None:
    """The request to coordinators when the filters are long; None: the client's request."""
    if len(request.states_filter) + len(request.types_filter) <= FILTERS_MAX:
        return None
    return ListGroupsRequest()


def unfiltered_transactions(request: ListTransactionsRequest) -> ListTransactionsRequest | None:
    """Like ``unfiltered_groups``; coordinators still apply the duration and the pattern."""
    if len(request.state_filters) + len(request.producer_id_filters) <= FILTERS_MAX:
        return None
    return ListTransactionsRequest(
        duration_filter=request.duration_filter,
        transactional_id_pattern=request.transactional_id_pattern,
    )
