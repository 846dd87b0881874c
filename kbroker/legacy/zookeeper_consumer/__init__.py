"""The high-level consumer of Kafka 0.8, whose groups share partitions by ZooKeeper."""

from kbroker.legacy.zookeeper_consumer.consumer_connector import Consumer as Consumer
from kbroker.legacy.zookeeper_consumer.consumer_connector import (
    ConsumerConnector as ConsumerConnector,
)
from kbroker.legacy.zookeeper_consumer.consumer_errors import (
    ConsumerTimeout as ConsumerTimeout,
)
from kbroker.legacy.zookeeper_consumer.consumer_errors import (
    NoInitialOffset as NoInitialOffset,
)
from kbroker.legacy.zookeeper_consumer.consumer_errors import (
    RebalanceFailed as RebalanceFailed,
)
from kbroker.legacy.zookeeper_consumer.kafka_stream import Decoder as Decoder
from kbroker.legacy.zookeeper_consumer.kafka_stream import DefaultDecoder as DefaultDecoder
from kbroker.legacy.zookeeper_consumer.kafka_stream import KafkaStream as KafkaStream
from kbroker.legacy.zookeeper_consumer.kafka_stream import (
    MessageAndMetadata as MessageAndMetadata,
)
from kbroker.legacy.zookeeper_consumer.kafka_stream import StringDecoder as StringDecoder
from kbroker.legacy.zookeeper_consumer.topic_filters import Blacklist as Blacklist
from kbroker.legacy.zookeeper_consumer.topic_filters import TopicFilter as TopicFilter
from kbroker.legacy.zookeeper_consumer.topic_filters import Whitelist as Whitelist
from kbroker.legacy.zookeeper_consumer.zookeeper_consumer_settings import (
    ConsumerConfig as ConsumerConfig,
)
