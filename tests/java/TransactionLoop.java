import com.fasterxml.jackson.databind.JsonNode;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.TimeoutException;

/**
 * Transactions back to back: records to every partition in every other one, offsets of a group in
 * each. What fails is aborted; the first abort that fails, too, is fatal and ends the loop.
 */
final class TransactionLoop {
    /** A group has so many transactions before it is the turn of the next. */
    private static final int GROUP_TURN = 50;

    private final KafkaProducer<byte[], byte[]> producer;
    private final String topic;
    private final int partitions;
    private final List<String> groups = new ArrayList<>();
    private final int first;
    private final int count;
    private final long deadline;
    private final Map<String, Integer> committed = new HashMap<>();
    private final List<String> errors = new ArrayList<>();
    private int sending;
    private int commits;
    private int aborts;

    TransactionLoop(KafkaProducer<byte[], byte[]> producer, JsonNode call) {
        this.producer = producer;
        topic = call.get("topic").asText();
        partitions = call.get("partitions").asInt();
        call.get("groups").forEach(group -> groups.add(group.asText()));
        first = call.get("first").asInt();
        count = call.get("count").asInt();
        deadline = System.nanoTime() + 1_000_000 * call.get("limit_ms").asLong();
    }

    Map<String, Object> run() {
        int number = first;
        boolean alive = true;
        while (alive && number < first + count && System.nanoTime() < deadline) {
            alive = transaction(number++);
        }
        Map<String, Object> result = new HashMap<>();
        result.put("next", number);
        result.put("commits", commits);
        result.put("aborts", aborts);
        result.put("sending", sending);
        result.put("committed", committed);
        result.put("errors", errors);
        result.put("fatal", !alive);
        return result;
    }

    private boolean transaction(int number) {
        String group = groups.get(number / GROUP_TURN % groups.size());
        boolean sends = number % 2 == 0;
        try {
            producer.beginTransaction();
            for (int partition = 0; sends && partition < partitions; partition++) {
                producer.send(new ProducerRecord<>(
                    topic, partition, null, Integer.toString(number).getBytes()));
            }
            producer.sendOffsetsToTransaction(
                Map.of(new TopicPartition(topic, 0), new OffsetAndMetadata(number)),
                new ConsumerGroupMetadata(group));
            insist(producer::commitTransaction);
        } catch (KafkaException raised) {
            errors.add(number + ": " + raised + " because of " + raised.getCause());
            return abort();
        }
        commits++;
        sending += sends ? 1 : 0;
        committed.put(group, number);
        return true;
    }

    /** An end that takes too long is not decided: the producer asks for the same again. */
    private void insist(Runnable end) {
        while (true) {
            try {
                end.run();
                return;
            } catch (TimeoutException late) {
                errors.add("late: " + late);
            }
        }
    }

    private boolean abort() {
        try {
            insist(producer::abortTransaction);
            aborts++;
            return true;
        } catch (KafkaException raised) {
            errors.add("fatal: " + raised + " because of " + raised.getCause());
            return false;
        }
    }
}
