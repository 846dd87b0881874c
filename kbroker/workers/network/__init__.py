"""The network worker: connections, and the way to coordinators."""
