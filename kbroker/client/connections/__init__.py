"""How a client reaches a cluster: its brokers, a connection to each, logins, retries."""
