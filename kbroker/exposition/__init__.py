"""Figures as others read them: HTTP, Prometheus's text, and Kafka's MBeans as JSON.

Of a broker (``workers/exporter``) and of a client (``client/metrics_page``).
"""
