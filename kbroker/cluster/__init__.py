"""The broker's view of the cluster."""
