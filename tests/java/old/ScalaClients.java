import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Properties;
import kafka.common.OffsetAndMetadata;
import kafka.common.OffsetMetadataAndError;
import kafka.common.TopicAndPartition;
import kafka.javaapi.OffsetCommitRequest;
import kafka.javaapi.OffsetFetchRequest;
import kafka.javaapi.consumer.SimpleConsumer;
import kafka.javaapi.producer.Producer;
import kafka.producer.ByteArrayPartitioner;
import kafka.producer.DefaultPartitioner;
import kafka.producer.KeyedMessage;
import kafka.producer.Partitioner;
import kafka.producer.ProducerConfig;

/** The clients of 0.8 that are written in Scala: each argument list is one job. */
public final class ScalaClients {
    private ScalaClients() {
    }

    public static void main(String[] arguments) throws Exception {
        switch (arguments[0]) {
            case "produce":
                produce(arguments);
                break;
            case "place":
                place(Integer.parseInt(arguments[1]));
                break;
            case "commit":
            case "committed":
                offsets(arguments);
                break;
            default:
                throw new IllegalArgumentException(arguments[0]);
        }
    }

    /** produce TOPIC COUNT SETTING=VALUE...: messages k0/v0 and so on; every fourth has no key. */
    private static void produce(String[] arguments) {
        Properties settings = new Properties();
        settings.put("serializer.class", "kafka.serializer.StringEncoder");
        for (int i = 3; i < arguments.length; i++) {
            String[] setting = arguments[i].split("=", 2);
            settings.put(setting[0], setting[1]);
        }
        Producer<String, String> producer = new Producer<>(new ProducerConfig(settings));
        List<KeyedMessage<String, String>> messages = new ArrayList<>();
        for (int i = 0; i < Integer.parseInt(arguments[2]); i++) {
            String key = i % 4 == 3 ? null : "k" + i;
            messages.add(new KeyedMessage<>(arguments[1], key, "v" + i));
        }
        producer.send(messages);
        producer.close();
    }

    /** Lines of a type, a tab and a key; prints the partition of each. */
    private static void place(int partitions) throws Exception {
        Partitioner ordinary = new DefaultPartitioner(null);
        Partitioner ofBytes = new ByteArrayPartitioner(null);
        BufferedReader in =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.split("\t", -1);
            Partitioner chosen = words[0].equals("bytes") ? ofBytes : ordinary;
            System.out.println("# " + chosen.partition(key(words[0], words[1]), partitions));
        }
    }

    private static Object key(String type, String text) {
        switch (type) {
            case "bytes":
                byte[] data = new byte[text.length() / 2];
                for (int i = 0; i < data.length; i++) {
                    data[i] = (byte) Integer.parseInt(text.substring(2 * i, 2 * i + 2), 16);
                }
                return data;
            case "int":
                return Integer.valueOf(text);
            case "long":
                return Long.valueOf(text);
            case "float":
                return Double.valueOf(text);
            case "bool":
                return Boolean.valueOf(text);
            default:
                return text;
        }
    }

    /** commit HOST PORT GROUP TOPIC PARTITION VERSION OFFSET METADATA; committed: the first six. */
    private static void offsets(String[] arguments) {
        SimpleConsumer consumer = new SimpleConsumer(
            arguments[1], Integer.parseInt(arguments[2]), 10_000, 65_536, "old");
        TopicAndPartition partition =
            new TopicAndPartition(arguments[4], Integer.parseInt(arguments[5]));
        short version = Short.parseShort(arguments[6]);
        try {
            if (arguments[0].equals("commit")) {
                OffsetAndMetadata offset =
                    new OffsetAndMetadata(Long.parseLong(arguments[7]), arguments[8], -1L);
                System.out.println("# " + consumer.commitOffsets(new OffsetCommitRequest(
                    arguments[3], Collections.singletonMap(partition, offset), 1, "old", version))
                    .errorCode(partition));
            } else {
                OffsetMetadataAndError found = consumer.fetchOffsets(new OffsetFetchRequest(
                    arguments[3], Collections.singletonList(partition), version, 1, "old"))
                    .offsets().get(partition);
                System.out.println(
                    "# " + found.offset() + " " + found.metadata() + " " + found.error());
            }
        } finally {
            consumer.close();
        }
    }
}
