"""Leaders and replicas: what the controller does when brokers come and go, and by request."""
