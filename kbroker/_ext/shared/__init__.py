"""Memory and messages that processes share: arenas, lanes, the partition table."""
