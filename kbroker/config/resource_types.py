"""The types of resource that have settings, numbered as on the wire."""

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32

# For people.
NAMES = {
    TOPIC: "topic",
    BROKER: "broker",
    BROKER_LOGGER: "broker logger",
    CLIENT_METRICS: "client metrics subscription",
    GROUP: "group",
}
