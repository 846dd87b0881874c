"""Coordinators of groups and transactions: state machines in the io worker that owns their log.

``machine`` is the contract, ``shard`` runs one machine on one partition of an internal topic
(docs/decisions/0005-coordinators.md).
"""

import kbroker.record  # noqa: F401 - extensions need its codecs
