"""The controller process: a broker's session and replicas, and the elected controller."""
