import com.fasterxml.jackson.databind.JsonNode;
import java.time.Duration;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.ArrayList;
import java.util.List;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Transactional producers, by name. */
final class Transactions {
    private final Map<String, KafkaProducer<byte[], byte[]>> producers = new HashMap<>();
    private final Members members;

    Transactions(Members members) {
        this.members = members;
    }

    Object run(JsonNode call) throws Exception {
        String id = call.get("id").asText();
        if (call.get("op").asText().equals("transactions_open")) {
            Map<String, Object> settings = new HashMap<>();
            call.get("config").fields().forEachRemaining(
                entry -> settings.put(entry.getKey(), entry.getValue().asText()));
            producers.put(id, new KafkaProducer<>(
                settings, new ByteArraySerializer(), new ByteArraySerializer()));
            return null;
        }
        KafkaProducer<byte[], byte[]> producer = producers.get(id);
        switch (call.get("op").asText()) {
            case "transactions_init":
                producer.initTransactions();
                return null;
            case "transactions_begin":
                producer.beginTransaction();
                return null;
            case "transactions_send":
                return send(producer, call);
            case "transactions_offsets":
                producer.sendOffsetsToTransaction(offsets(call), group(call));
                return null;
            case "transactions_commit":
                producer.commitTransaction();
                return null;
            case "transactions_abort":
                producer.abortTransaction();
                return null;
            case "transactions_loop":
                return new TransactionLoop(producer, call).run();
            case "transactions_close":
                producers.remove(id).close(Duration.ofSeconds(call.path("wait_s").asLong(5)));
                return null;
            default:
                throw new IllegalArgumentException("unknown operation in " + call);
        }
    }

    private static List<Long> send(KafkaProducer<byte[], byte[]> producer, JsonNode call)
            throws Exception {
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        byte[] key = call.hasNonNull("key") ? call.get("key").asText().getBytes("UTF-8") : null;
        for (JsonNode value : call.get("values")) {
            sent.add(producer.send(new ProducerRecord<>(
                call.get("topic").asText(), call.get("partition").asInt(), key,
                value.asText().getBytes("UTF-8"))));
        }
        producer.flush();
        List<Long> offsets = new ArrayList<>();
        for (Future<RecordMetadata> one : sent) {
            try {
                offsets.add(one.get().offset());
            } catch (ExecutionException raised) {
                throw (Exception) raised.getCause();
            }
        }
        return offsets;
    }

    private static Map<TopicPartition, OffsetAndMetadata> offsets(JsonNode call) {
        Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
        for (JsonNode row : call.get("offsets")) {
            offsets.put(new TopicPartition(row.get(0).asText(), row.get(1).asInt()),
                new OffsetAndMetadata(row.get(2).asLong()));
        }
        return offsets;
    }

    private ConsumerGroupMetadata group(JsonNode call) throws Exception {
        return call.hasNonNull("member")
            ? members.metadata(call.get("member").asText())
            : new ConsumerGroupMetadata(call.get("group").asText());
    }
}
