"""What a cluster has in ZooKeeper, for tools that take ``--zookeeper``: brokers, groups, nodes."""
