"""The exporter process: figures of this broker over HTTP."""
