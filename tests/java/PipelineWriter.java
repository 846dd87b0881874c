import com.fasterxml.jackson.databind.ObjectMapper;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Numbered values to every partition, several batches in flight, until standard input ends.
 *
 * Arguments: bootstrap, topic, name, partitions, records a second, records without an answer at
 * most, records of a transaction or 0, its group or "". Prints a JSON object now and then, and when
 * everything is answered.
 */
public final class PipelineWriter {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static volatile boolean stopping;
    private final AtomicLong acked = new AtomicLong();
    private final List<String> errors = Collections.synchronizedList(new ArrayList<>());
    private long sent;
    private long transactions;

    public static void main(String[] arguments) throws Exception {
        Thread input = new Thread(() -> {
            try {
                while (System.in.read() >= 0) {
                }
            } catch (java.io.IOException gone) {
                // As good as its end.
            }
            stopping = true;
        });
        input.setDaemon(true);
        input.start();
        new PipelineWriter().run(arguments);
    }

    private void run(String[] arguments) throws Exception {
        String topic = arguments[1];
        String name = arguments[2];
        int partitions = Integer.parseInt(arguments[3]);
        int rate = Integer.parseInt(arguments[4]);
        Semaphore room = new Semaphore(Integer.parseInt(arguments[5]));
        int perTransaction = Integer.parseInt(arguments[6]);
        String group = arguments[7];
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("enable.idempotence", "true");
        settings.put("acks", "all");
        settings.put("linger.ms", "0");
        settings.put("batch.size", "2000");
        settings.put("max.in.flight.requests.per.connection", "5");
        if (perTransaction > 0) {
            settings.put("transactional.id", name);
        }
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(
                settings, new ByteArraySerializer(), new ByteArraySerializer())) {
            if (perTransaction > 0) {
                producer.initTransactions();
            }
            long number = 0;
            long began = System.nanoTime();
            while (!stopping) {
                if (perTransaction > 0) {
                    producer.beginTransaction();
                }
                long end = number + Math.max(10, perTransaction / partitions);
                for (; number < end; number++) {
                    for (int partition = 0; partition < partitions; partition++) {
                        send(producer, room, topic, name, partition, number);
                    }
                }
                if (perTransaction > 0) {
                    commit(producer, topic, group, number);
                }
                print();
                long due = began + (long) (sent * 1e9 / rate);
                long wait = (due - System.nanoTime()) / 1_000_000;
                if (wait > 0) {
                    Thread.sleep(wait);
                } else {
                    began -= wait * 1_000_000;
                }
            }
            producer.flush();
        } catch (Exception raised) {
            errors.add(raised.toString());
        }
        print();
    }

    private void send(
            KafkaProducer<byte[], byte[]> producer, Semaphore room, String topic, String name,
            int partition, long number) throws Exception {
        String text = String.format("%-100s", name + "|" + partition + "|" + number + "|");
        room.acquire();
        sent++;
        producer.send(
            new ProducerRecord<>(topic, partition, null, text.getBytes("UTF-8")),
            (metadata, raised) -> {
                room.release();
                if (raised == null) {
                    acked.incrementAndGet();
                } else {
                    errors.add(raised.toString());
                }
            });
    }

    private void commit(
            KafkaProducer<byte[], byte[]> producer, String topic, String group, long number) {
        if (!group.isEmpty()) {
            producer.sendOffsetsToTransaction(
                Map.of(new TopicPartition(topic, 0), new OffsetAndMetadata(number)),
                new ConsumerGroupMetadata(group));
        }
        producer.commitTransaction();
        transactions++;
    }

    private void print() throws Exception {
        synchronized (errors) {
            System.out.println(JSON.writeValueAsString(Map.of(
                "sent", sent, "acked", acked.get(), "errors", errors,
                "transactions", transactions)));
        }
        System.out.flush();
    }
}
