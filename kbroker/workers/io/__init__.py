"""The io worker: its loop, the partitions it hosts and the services it offers."""
