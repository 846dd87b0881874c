"""The protocol that brokers speak among themselves, as ``inter.broker.protocol.version`` names it.

A version of Kafka may consist of several steps: 2.7 of 2.7-IV0, 2.7-IV1 and 2.7-IV2. COMPAT: texts
are read as in Kafka, which looks at the first two numbers only, and takes a version without a step
for its last one.
"""

from __future__ import annotations

from enum import IntEnum


class ProtocolVersion(IntEnum):
    """The versions that are supported, numbered as Kafka numbers them.

    Older ones know no fetch sessions, and say nothing of new replicas.
    """

    V1_1_IV0 = 14
    V2_0_IV0 = 15
    V2_0_IV1 = 16
    V2_1_IV0 = 17
    V2_1_IV1 = 18
    V2_1_IV2 = 19
    V2_2_IV0 = 20
    V2_2_IV1 = 21
    V2_3_IV0 = 22
    V2_3_IV1 = 23
    V2_4_IV0 = 24
    V2_4_IV1 = 25
    V2_5_IV0 = 26
    V2_6_IV0 = 27
    V2_7_IV0 = 28
    V2_7_IV1 = 29
    V2_7_IV2 = 30

    def __str__(self) -> str:
        numbers, _, step = self.name[1:].rpartition("_")
        return f"{numbers.replace('_', '.')}-{step}"


# A later step of a version replaces an earlier one.
_BY_TEXT = {
    text: version
    for version in ProtocolVersion
    for text in (str(version), str(version).partition("-")[0])
}


def find_version(text: str) -> ProtocolVersion | None:
    """Parse a version such as ``2.7``, ``2.7-IV2`` or ``2.7.0``; None if it does not exist or is
    not supported.
    """
    return _BY_TEXT.get(".".join(text.split(".")[:2]))


ALLOWED = "a version of Kafka's protocol from 1.1 to 2.7, such as 2.7 or 2.7-IV2"
