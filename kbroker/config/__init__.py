"""Configs of brokers and topics: definitions, parsing, dynamic updates."""
