"""What the health of a broker on this machine is made of, from its shared memory: it is asked
nothing, so this works while its processes are stuck, the exporter included.
"""

from __future__ import annotations

import os
import struct
import time

from kbroker.cli.arguments import CommandFailed
from kbroker.cli.local.runs import Run
from kbroker.health.broker import GONE_STATE, SUPERVISOR_NAME, BrokerFacts, ProcessFact
from kbroker.ipc.health_facts import STATE_NAMES, process_fact
from kbroker.ipc.log_dir_table import LogDirTable, region_size, space_of
from kbroker.ipc.named_memory import INDEX
from kbroker.ipc.process_kinds import ProcessKind
from kbroker.ipc.process_table import (
    FIELDS,
    HEAD_CELLS,
    HEARTBEAT_NS,
    INCARNATION,
    PID,
    STATE,
    Address,
)

_ROW = struct.Struct(f"{FIELDS}q")


def broker_facts(run: Run) -> BrokerFacts:
    """Raises CommandFailed if its memory cannot be read."""
    addresses = run.addresses
    data = run.read(INDEX, HEAD_CELLS * 8, len(addresses) * _ROW.size)
    rows = list(_ROW.iter_unpack(data))
    processes = [_process(run, *one) for one in zip(addresses, rows, strict=True)]
    paths = run.status["log_dirs"]
    as_root = run.user == "root" if run.user else os.geteuid() == 0
    try:
        table = LogDirTable(run.read("log-dirs", 0, region_size(len(paths))), len(paths))
    except CommandFailed:
        directories = []  # of another build; or another user may not read it
    else:
        # In another container the paths mean something else.
        sees_disks = run.sees_processes
        directories = [
            table.fact(index, path, space_of(path, as_root=as_root) if sees_disks else None)
            for index, path in enumerate(paths)
        ]
    return BrokerFacts(
        run.status["broker_id"],
        int(time.time() * 1000),
        processes,
        directories,
        run.is_running,
    )


def _process(run: Run, address: Address, row: tuple[int, ...]) -> ProcessFact:
    is_supervisor = address.kind == ProcessKind.SUPERVISOR
    name = SUPERVISOR_NAME if is_supervisor else address.title
    silent_ms = max(0, time.monotonic_ns() - row[HEARTBEAT_NS]) // 10**6
    state = STATE_NAMES.get(row[STATE], str(row[STATE]))
    pid = run.pid if is_supervisor else row[PID]
    if is_supervisor and not run.is_running:
        return ProcessFact(name, GONE_STATE, None)
    if not is_supervisor and run.can_see_all and not (pid and os.path.exists(f"/proc/{pid}")):
        state = GONE_STATE
    seen_pid = pid if run.sees_processes else 0
    return process_fact(address, state, silent_ms, row[INCARNATION], seen_pid)
