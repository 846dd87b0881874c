"""A broker's session in the cluster, and the controller that it may be elected to be."""
