"""What this broker hosts: its replicas and their slots, and what its processes are told of them."""
