"""The network process: connections, and requests to coordinators."""
