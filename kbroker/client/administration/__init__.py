"""``KafkaAdminClient``: topics, configs, groups, users and the cluster itself, for programs."""
