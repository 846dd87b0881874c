"""The slots of this run, for a controller process that starts."""

from __future__ import annotations

import os

from kbroker._ext.shared.partition_table import PartitionTable, region_size
from kbroker._ext.shared.slot_names import SlotNames
from kbroker.hosting.slots import JOURNAL_NAME, SlotAssignments
from kbroker.workers.base import ProcessContext


def slot_assignments(context: ProcessContext) -> SlotAssignments:
    """Those that earlier controller processes of this run have assigned. Raises OSError."""
    region, config = context.partition_table, context.config
    slot_bytes = region_size(1) - region_size(0)
    capacity = (len(region) - region_size(0)) // slot_bytes
    journal = os.path.join(context.runtime_dir, JOURNAL_NAME)
    if context.incarnation > 1 and not os.path.exists(journal):
        table = PartitionTable(region, capacity)
        if any(table.count_by_log_dir(len(config.log_dirs))):
            # Slots assigned again would have two io workers write to one log.
            raise FileNotFoundError(f"{journal} was removed while the broker was running")
    names = SlotNames(context.slot_names)
    return SlotAssignments(context.runtime_dir, capacity, config["num.io.threads"], names)
