"""Kafka's wire protocol: message definitions, the codec compiled from them, headers, API keys."""
