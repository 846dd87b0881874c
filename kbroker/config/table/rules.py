"""Checks and defaults that the tables share."""

from __future__ import annotations

import os
import re

from kbroker.config.key import Computed, ValueRule

_VERSION = re.compile(r"\d{1,2}\.\d{1,2}(\.\d{1,2})?(\.\d{1,2})?(-IV\d{1,2})?", re.ASCII)
_PROCESSES_MAX = 8  # BOUND: beyond this, the acceptor and the memory per process outweigh the gain


def core_count() -> int:
    """The number of cores this process may use: its affinity mask, limited by its control group's
    quota.
    """
    try:
        cores = len(os.sched_getaffinity(0))
    except (AttributeError, OSError):
        cores = os.cpu_count() or 1
    try:
        with open("/sys/fs/cgroup/cpu.max", encoding="ascii") as file:
            quota, _, period = file.read().strip().partition(" ")
        if quota != "max":
            cores = min(cores, -(-int(quota) // int(period)))
    except (OSError, ValueError, ZeroDivisionError):
        pass  # no such control group: the mask alone counts
    return max(1, cores)


def network_processes_by_cores() -> int:
    """Default number of network processes: half of the cores."""
    return max(1, min(_PROCESSES_MAX, core_count() // 2))


def io_processes_by_cores() -> int:
    """Default number of io workers: one per core.

    A batch costs an io process about twice what it costs a network process.
    """
    return min(_PROCESSES_MAX, core_count())


def _is_host_counts(text: str) -> bool:
    if not text:
        return True
    for pair in text.split(","):
        host, colon, count = pair.strip().rpartition(":")
        if not colon or not host or not (count.isascii() and count.isdigit()):
            return False
    return True


def _is_protocol_map(text: str) -> bool:
    names = set()
    for pair in text.split(","):
        name, colon, protocol = pair.strip().partition(":")
        if not colon or not name or protocol.upper() not in SECURITY_PROTOCOLS or name in names:
            return False
        names.add(name)
    return True


def _are_principals(text: str) -> bool:
    parts = [part.strip().partition(":") for part in text.split(";") if part.strip()]
    return all(kind and name for kind, _, name in parts)


SECURITY_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")

IO_BY_CORES = Computed("by cores", io_processes_by_cores)
NETWORK_BY_CORES = Computed("by cores", network_processes_by_cores)
GZIP_LEVEL = ValueRule("from 1 to 9, or -1", lambda level: level == -1 or 1 <= level <= 9)
HOST_COUNTS = ValueRule("address:number pairs separated by commas", _is_host_counts)
KAFKA_VERSION = ValueRule(
    "a Kafka version such as 2.7 or 2.7-IV2", lambda text: _VERSION.fullmatch(text) is not None
)
WITH_CLASSIC = ValueRule("a list that includes classic", lambda names: "classic" in names)
PROTOCOL_MAP = ValueRule("NAME:PROTOCOL pairs separated by commas", _is_protocol_map)
PRINCIPALS = ValueRule("principals as type:name separated by semicolons", _are_principals)
RACK_AWARE_SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
REPLICA_SELECTOR = ValueRule(
    f"empty or {RACK_AWARE_SELECTOR}", lambda name: name in ("", RACK_AWARE_SELECTOR)
)
KEY_DERIVATION = ValueRule(
    "PBKDF2WithHmacSHA1, -SHA224, -SHA256, -SHA384 or -SHA512",
    lambda name: re.fullmatch("(PBKDF2WithHmacSHA(1|224|256|384|512))?", name) is not None,
)
KEY_LENGTH = ValueRule("128, 192 or 256", lambda bits: bits in (128, 192, 256))
