import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import java.util.Collections;
import java.util.HashMap;
import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** The consumer since 0.9. */
public final class ConsumerReader implements OldClientDriver.Reader {
    @Override
    public ArrayNode read(String bootstrap, JsonNode call) {
        ArrayNode rows = OldClientDriver.JSON.createArrayNode();
        TopicPartition where =
            new TopicPartition(call.get("topic").asText(), call.get("partition").asInt());
        int count = call.get("count").asInt();
        long deadline = System.nanoTime() + (long) (call.get("timeout_s").asDouble() * 1e9);
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("enable.auto.commit", "false");
        settings.put("fetch.max.wait.ms", "100");
        settings.put("max.partition.fetch.bytes", call.get("bytes").asText());
        KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(
            settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
        try {
            consumer.assign(Collections.singletonList(where));
            consumer.seek(where, call.get("start").asLong());
            while (rows.size() < count && System.nanoTime() < deadline) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(100)) {
                    if (rows.size() < count) {
                        OldClientDriver.add(rows, record.offset(), record.value(), record.key());
                    }
                }
            }
        } finally {
            consumer.close();
        }
        return rows;
    }
}
