"""Fetch in the network worker: sessions, purgatory, and the way of the bytes to the socket."""
