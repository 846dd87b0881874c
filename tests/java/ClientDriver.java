import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.TopicCollection;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Apache Kafka's Java clients, driven by one JSON object a line on standard input. Each is answered
 * by one line on standard output: {"result": ...} or {"code": Kafka's error code, "error": text}.
 * Bytes are base64. The only argument is an object, too: settings of every client.
 */
public final class ClientDriver {
    private static final long WAIT_S = 20;
    private static final ObjectMapper JSON = new ObjectMapper();
    private final Map<String, Object> common;
    private final Admin admin;
    private final Members members = new Members();
    private final Transactions transactions = new Transactions(members);
    private final Groups groups;

    private ClientDriver(Map<String, Object> common) {
        this.common = common;
        this.admin = Admin.create(common);
        this.groups = new Groups(admin);
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        ClientDriver driver = new ClientDriver(settings(JSON.readTree(arguments[0])));
        BufferedReader in =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            ObjectNode answer = JSON.createObjectNode();
            try {
                answer.set("result", JSON.valueToTree(driver.run(JSON.readTree(line))));
            } catch (Exception raised) {
                Throwable cause =
                    raised instanceof ExecutionException ? raised.getCause() : raised;
                if (Errors.forException(cause) == Errors.UNKNOWN_SERVER_ERROR
                        && cause.getCause() != null) {
                    cause = cause.getCause();
                }
                answer.put("code", Errors.forException(cause).code());
                answer.put("error", cause.toString());
            }
            out.println(JSON.writeValueAsString(answer));
        }
        driver.admin.close(Duration.ofSeconds(1));
    }

    private Object run(JsonNode call) throws Exception {
        String operation = call.get("op").asText();
        if (operation.startsWith("member_")) {
            return members.run(call);
        }
        if (operation.startsWith("transactions_")) {
            return transactions.run(call);
        }
        if (operation.startsWith("groups_")) {
            return groups.run(call);
        }
        switch (operation) {
            case "version":
                return version();
            case "produce":
                return produce(call);
            case "fetch":
                return fetch(call);
            case "offset_for_time":
                return offsetForTime(call);
            default:
                return administer(call);
        }
    }

    private static String version() throws Exception {
        Properties properties = new Properties();
        try (InputStream in = Admin.class.getResourceAsStream("/kafka/kafka-version.properties")) {
            properties.load(in);
        }
        return properties.getProperty("version");
    }

    // -- producer and consumer

    private static Map<String, Object> settings(JsonNode object) {
        Map<String, Object> settings = new HashMap<>();
        object.fields().forEachRemaining(
            entry -> settings.put(entry.getKey(), entry.getValue().asText()));
        return settings;
    }

    private Map<String, Object> settingsOf(JsonNode call) {
        Map<String, Object> settings = new HashMap<>(common);
        settings.putAll(settings(call.path("config")));
        return settings;
    }

    private List<Long> produce(JsonNode call) throws Exception {
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(
                settingsOf(call), new ByteArraySerializer(), new ByteArraySerializer())) {
            for (JsonNode message : call.get("messages")) {
                ProducerRecord<byte[], byte[]> record = new ProducerRecord<>(
                    call.get("topic").asText(), call.get("partition").asInt(),
                    message.hasNonNull("t") ? message.get("t").asLong() : null,
                    bytes(message.get("k")), bytes(message.get("v")));
                for (JsonNode header : message.path("h")) {
                    record.headers().add(header.get(0).asText(), bytes(header.get(1)));
                }
                sent.add(producer.send(record));
            }
            producer.flush();
        }
        List<Long> offsets = new ArrayList<>();
        for (Future<RecordMetadata> one : sent) {
            offsets.add(one.get(WAIT_S, TimeUnit.SECONDS).offset());
        }
        return offsets;
    }

    private KafkaConsumer<byte[], byte[]> consumer(JsonNode call) {
        Map<String, Object> settings = settingsOf(call);
        settings.put("enable.auto.commit", "false");
        return new KafkaConsumer<>(
            settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    private ArrayNode fetch(JsonNode call) {
        ArrayNode found = JSON.createArrayNode();
        List<TopicPartition> where = new ArrayList<>();
        call.get("partitions").forEach(number ->
            where.add(new TopicPartition(call.get("topic").asText(), number.asInt())));
        int count = call.get("count").asInt();
        long deadline = System.nanoTime() + (long) (call.get("timeout_s").asDouble() * 1e9);
        KafkaConsumer<byte[], byte[]> consumer = consumer(call);
        try {
            consumer.assign(where);
            String start = call.get("start").asText();
            if (start.equals("beginning")) {
                consumer.seekToBeginning(where);
            } else if (start.equals("end")) {
                consumer.seekToEnd(where);
            } else {
                where.forEach(one -> consumer.seek(one, Long.parseLong(start)));
            }
            while (found.size() < count && System.nanoTime() < deadline) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(100))) {
                    if (found.size() < count) {
                        found.add(stored(record));
                    }
                }
            }
        } finally {
            // Closing ends the fetch session, behind the fetch that is in flight by then.
            consumer.close(Duration.ofSeconds(1));
        }
        return found;
    }

    private static ArrayNode stored(ConsumerRecord<byte[], byte[]> record) {
        ArrayNode row = JSON.createArrayNode();
        row.add(record.offset()).add(text(record.value())).add(text(record.key()));
        ArrayNode headers = row.addArray();
        for (Header header : record.headers()) {
            headers.addArray().add(header.key()).add(text(header.value()));
        }
        return row.add(record.timestamp()).add(record.partition());
    }

    private long offsetForTime(JsonNode call) {
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(call)) {
            OffsetAndTimestamp found =
                consumer.offsetsForTimes(Map.of(where(call), call.get("time").asLong()))
                    .get(where(call));
            return found == null ? -1 : found.offset();
        }
    }

    // -- administration

    private Object administer(JsonNode call) throws Exception {
        String topic = call.path("topic").asText();
        switch (call.get("op").asText()) {
            case "offset":
                return await(admin.listOffsets(Map.of(where(call), offsetSpec(call)))
                    .partitionResult(where(call))).offset();
            case "create_topic":
                NewTopic created = new NewTopic(
                    topic, Optional.of(call.get("partitions").asInt()), Optional.empty());
                Map<String, String> config = new HashMap<>();
                call.path("config").fields().forEachRemaining(
                    entry -> config.put(entry.getKey(), entry.getValue().asText()));
                await(admin.createTopics(List.of(created.configs(config))).all());
                return null;
            case "delete_topic":
                await(admin.deleteTopics(List.of(topic)).all());
                return null;
            case "delete_topic_id":
                await(admin.deleteTopics(
                    TopicCollection.ofTopicIds(List.of(Uuid.fromString(call.get("id").asText()))))
                    .all());
                return null;
            case "create_partitions":
                await(admin.createPartitions(
                    Map.of(topic, NewPartitions.increaseTo(call.get("total").asInt()))).all());
                return null;
            case "describe_topic":
                return described(
                    await(admin.describeTopics(List.of(topic)).allTopicNames()).get(topic));
            case "describe_topic_id":
                Uuid id = Uuid.fromString(call.get("id").asText());
                return described(await(admin.describeTopics(
                    TopicCollection.ofTopicIds(List.of(id))).allTopicIds()).get(id));
            case "config":
                return configuration(resource(call));
            case "alter_topic_config":
                AlterConfigOp set = new AlterConfigOp(
                    new ConfigEntry(call.get("name").asText(), call.get("value").asText()),
                    AlterConfigOp.OpType.SET);
                await(admin.incrementalAlterConfigs(
                    Map.of(resource(call), List.of(set))).all());
                return null;
            case "delete_records":
                return await(admin.deleteRecords(Map.of(where(call),
                    RecordsToDelete.beforeOffset(call.get("before").asLong())))
                    .lowWatermarks().get(where(call))).lowWatermark();
            case "cluster":
                return cluster();
            case "log_dirs":
                return logDirs();
            default:
                throw new IllegalArgumentException("unknown operation in " + call);
        }
    }

    private static OffsetSpec offsetSpec(JsonNode call) {
        switch (call.get("which").asText()) {
            case "earliest":
                return OffsetSpec.earliest();
            case "latest":
                return OffsetSpec.latest();
            case "max_timestamp":
                return OffsetSpec.maxTimestamp();
            default:
                return OffsetSpec.forTimestamp(call.get("which").asLong());
        }
    }

    private static ObjectNode described(TopicDescription topic) {
        ObjectNode answer = JSON.createObjectNode();
        answer.put("name", topic.name()).put("id", topic.topicId().toString());
        return answer.put("partitions", topic.partitions().size());
    }

    private static ConfigResource resource(JsonNode call) {
        return new ConfigResource(
            ConfigResource.Type.valueOf(call.path("type").asText("TOPIC")),
            call.get("topic").asText());
    }

    private ObjectNode configuration(ConfigResource resource) throws Exception {
        ObjectNode answer = JSON.createObjectNode();
        for (ConfigEntry entry
                : await(admin.describeConfigs(List.of(resource)).all()).get(resource).entries()) {
            answer.put(entry.name(), entry.value());
        }
        return answer;
    }

    private ObjectNode cluster() throws Exception {
        var found = admin.describeCluster();
        ObjectNode answer = JSON.createObjectNode();
        answer.put("id", await(found.clusterId()));
        answer.put("controller", await(found.controller()).id());
        ObjectNode brokers = answer.putObject("brokers");
        for (Node node : await(found.nodes())) {
            brokers.put(node.idString(), node.host() + ":" + node.port());
        }
        return answer;
    }

    /** {"topic-partition": size} of all directories of broker 0. */
    private ObjectNode logDirs() throws Exception {
        ObjectNode answer = JSON.createObjectNode();
        await(admin.describeLogDirs(List.of(0)).allDescriptions()).get(0).forEach(
            (path, directory) -> directory.replicaInfos().forEach(
                (where, replica) -> answer.put(where.toString(), replica.size())));
        return answer;
    }

    // -- small things

    private static <T> T await(Future<T> future) throws Exception {
        return future.get(WAIT_S, TimeUnit.SECONDS);
    }

    private static TopicPartition where(JsonNode call) {
        return new TopicPartition(call.get("topic").asText(), call.path("partition").asInt());
    }

    private static byte[] bytes(JsonNode text) {
        return text == null || text.isNull() ? null : Base64.getDecoder().decode(text.asText());
    }

    private static String text(byte[] bytes) {
        return bytes == null ? null : Base64.getEncoder().encodeToString(bytes);
    }
}
