from kbroker._ext.shared.replication_quota import ReplicationQuota

class PartitionReader:
    quota: ReplicationQuota | None
