"""Fetch in the network process: sessions, purgatory, and sending bytes to the socket."""
