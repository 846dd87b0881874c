"""The replicas on this broker, their slots, and the cluster image for its processes."""
