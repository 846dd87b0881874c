"""The metadata store: a tree of znodes with the durable state of the cluster."""
