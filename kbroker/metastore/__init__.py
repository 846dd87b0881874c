"""The metadata store: a tree of nodes in which the cluster keeps what it must not forget."""
