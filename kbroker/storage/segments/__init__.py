"""The files of one log: segments, their indexes, snapshots of producers and leader epochs."""
