import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Java clients from before record headers, driven as ClientDriver is. Arguments: the bootstrap
 * address, and the class that reads: SimpleReader (0.8, Scala) or ConsumerReader (0.9 and later).
 */
public final class OldClientDriver {
    private static final long WAIT_S = 20;
    static final ObjectMapper JSON = new ObjectMapper();

    /** Reads one partition from an offset on: rows of offset, value and key. */
    interface Reader {
        ArrayNode read(String bootstrap, JsonNode call) throws Exception;
    }

    private OldClientDriver() {
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        Reader reader =
            (Reader) Class.forName(arguments[1]).getDeclaredConstructor().newInstance();
        BufferedReader in =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            ObjectNode answer = JSON.createObjectNode();
            try {
                JsonNode call = JSON.readTree(line);
                answer.set("result", call.get("op").asText().equals("produce")
                    ? produce(arguments[0], call)
                    : reader.read(arguments[0], call));
            } catch (Exception raised) {
                answer.put("code", -1);
                answer.put("error", raised.toString());
            }
            out.println(JSON.writeValueAsString(answer));
        }
    }

    private static ArrayNode produce(String bootstrap, JsonNode call) throws Exception {
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", bootstrap);
        call.path("config").fields().forEachRemaining(
            entry -> settings.put(entry.getKey(), entry.getValue().asText()));
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(
            settings, new ByteArraySerializer(), new ByteArraySerializer());
        try {
            for (JsonNode message : call.get("messages")) {
                sent.add(producer.send(new ProducerRecord<>(
                    call.get("topic").asText(), call.get("partition").asInt(),
                    bytes(message.get("k")), bytes(message.get("v")))));
            }
        } finally {
            producer.close();
        }
        ArrayNode offsets = JSON.createArrayNode();
        for (Future<RecordMetadata> one : sent) {
            offsets.add(one.get(WAIT_S, TimeUnit.SECONDS).offset());
        }
        return offsets;
    }

    static void add(ArrayNode rows, long offset, byte[] value, byte[] key) {
        rows.addArray().add(offset).add(text(value)).add(text(key));
    }

    private static byte[] bytes(JsonNode text) {
        return text == null || text.isNull() ? null : Base64.getDecoder().decode(text.asText());
    }

    private static String text(byte[] data) {
        return data == null ? null : Base64.getEncoder().encodeToString(data);
    }
}
