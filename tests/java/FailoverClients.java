import java.util.HashMap;
import java.util.List;
import java.util.ArrayList;
import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.RetriableException;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Clients of a cluster whose brokers are killed, until standard input ends.
 *
 * Arguments: bootstrap, the topics to produce and read, to commit, and for transactions, their
 * partitions, groups, the pause between attempts in ms. Prints a line for each success: what, its
 * partition or group, the monotonic clock in ns and the value, if any; "problem" and a text for
 * what must not happen.
 */
public final class FailoverClients {
    private interface Work {
        void run() throws Exception;
    }

    private static volatile boolean stopping;
    private final String bootstrap;
    private final String topic;
    private final String committed;
    private final String inTransactions;
    private final int partitions;
    private final int groups;
    private final long pace;

    private FailoverClients(String[] arguments) {
        bootstrap = arguments[0];
        topic = arguments[1];
        committed = arguments[2];
        inTransactions = arguments[3];
        partitions = Integer.parseInt(arguments[4]);
        groups = Integer.parseInt(arguments[5]);
        pace = Long.parseLong(arguments[6]);
    }

    public static void main(String[] arguments) throws Exception {
        FailoverClients clients = new FailoverClients(arguments);
        List<Thread> threads = new ArrayList<>();
        threads.add(clients.started(clients::produce));
        threads.add(clients.started(clients::read));
        threads.add(clients.started(clients::transact));
        for (int group = 0; group < clients.groups; group++) {
            int number = group;
            threads.add(clients.started(() -> clients.commit(number)));
        }
        while (System.in.read() >= 0) {
        }
        stopping = true;
        for (Thread thread : threads) {
            thread.join();
        }
    }

    private Thread started(Work work) {
        Thread thread = new Thread(() -> {
            try {
                work.run();
            } catch (Exception raised) {
                say("problem " + raised);
            }
        });
        thread.start();
        return thread;
    }

    private static synchronized void say(String line) {
        System.out.println(line);
    }

    private static void succeeded(String what, int where, String value) {
        say(what + " " + where + " " + System.nanoTime() + " " + value);
    }

    private Map<String, Object> settings() {
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", bootstrap);
        return settings;
    }

    private KafkaProducer<byte[], byte[]> producer(Map<String, Object> settings) {
        settings.put("acks", "all");
        settings.put("linger.ms", "0");
        return new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
    }

    private KafkaConsumer<byte[], byte[]> consumer(String group) {
        Map<String, Object> settings = settings();
        settings.put("group.id", group);
        settings.put("enable.auto.commit", "false");
        settings.put("auto.offset.reset", "earliest");
        return new KafkaConsumer<>(
            settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    private void produce() throws Exception {
        try (KafkaProducer<byte[], byte[]> producer = producer(settings())) {
            for (long number = 0; !stopping; Thread.sleep(pace)) {
                for (int partition = 0; partition < partitions; partition++) {
                    send(producer, partition, "java " + number++);
                }
            }
        }
    }

    private void send(KafkaProducer<byte[], byte[]> producer, int partition, String value) {
        producer.send(new ProducerRecord<>(topic, partition, null, value.getBytes()),
            (metadata, raised) -> {
                if (raised == null) {
                    succeeded("produce", partition, value);
                } else {
                    say("problem produce: " + raised);
                }
            });
    }

    private void read() {
        try (KafkaConsumer<byte[], byte[]> consumer = consumer("java-reader")) {
            List<TopicPartition> all = new ArrayList<>();
            for (int partition = 0; partition < partitions; partition++) {
                all.add(new TopicPartition(topic, partition));
            }
            consumer.assign(all);
            while (!stopping) {
                for (ConsumerRecord<byte[], byte[]> record
                        : consumer.poll(java.time.Duration.ofMillis(100))) {
                    succeeded("consume", record.partition(), "");
                }
            }
        }
    }

    private void commit(int group) throws Exception {
        try (KafkaConsumer<byte[], byte[]> consumer = consumer("java-group-" + group)) {
            TopicPartition place = new TopicPartition(committed, 0);
            for (long offset = 1; !stopping; Thread.sleep(pace)) {
                try {
                    consumer.commitSync(Map.of(place, new OffsetAndMetadata(offset++)));
                    succeeded("commit", group, "");
                } catch (RetriableException again) {
                    continue;
                }
            }
        }
    }

    private void transact() throws Exception {
        Map<String, Object> settings = settings();
        settings.put("transactional.id", "java-failover");
        try (KafkaProducer<byte[], byte[]> producer = producer(settings)) {
            insist(producer::initTransactions);
            for (int number = 0; !stopping; number++, Thread.sleep(pace)) {
                String value = "java transaction " + number;
                try {
                    producer.beginTransaction();
                    producer.send(new ProducerRecord<>(
                        inTransactions, number % partitions, null, value.getBytes()));
                    insist(producer::commitTransaction);
                } catch (KafkaException raised) {
                    producer.abortTransaction();
                    continue;
                }
                succeeded("transaction", 0, value);
            }
        }
    }

    private static void insist(Runnable step) {
        while (true) {
            try {
                step.run();
                return;
            } catch (TimeoutException again) {
                continue;
            }
        }
    }
}
