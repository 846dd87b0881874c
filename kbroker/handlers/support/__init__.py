"""What several handlers share; nothing in here answers a request by itself."""
