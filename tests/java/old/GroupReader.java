import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import kafka.consumer.Consumer;
import kafka.consumer.ConsumerConfig;
import kafka.consumer.ConsumerIterator;
import kafka.consumer.KafkaStream;
import kafka.consumer.Whitelist;
import kafka.javaapi.consumer.ConsumerConnector;
import kafka.message.MessageAndMetadata;

/**
 * A member of a group by ZooKeeper, of 0.8. Arguments: what it reads, +topic=streams or
 * +~regex=streams, and its settings, name=value. Standard input: commit, or end. Standard output:
 * row STREAM TOPIC PARTITION OFFSET VALUE for each message, committed, and ended.
 */
public final class GroupReader {
    private GroupReader() {
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        Properties settings = new Properties();
        Map<String, Integer> counts = new HashMap<>();
        for (String argument : arguments) {
            int at = argument.indexOf('=');
            String name = argument.substring(0, at);
            String value = argument.substring(at + 1);
            if (name.startsWith("+")) {
                counts.put(name.substring(1), Integer.valueOf(value));
            } else {
                settings.put(name, value);
            }
        }
        ConsumerConnector connector =
            Consumer.createJavaConsumerConnector(new ConsumerConfig(settings));
        List<KafkaStream<byte[], byte[]>> streams = new ArrayList<>();
        String first = counts.keySet().iterator().next();
        if (first.startsWith("~")) {
            streams.addAll(connector.createMessageStreamsByFilter(
                new Whitelist(first.substring(1)), counts.get(first)));
        } else {
            connector.createMessageStreams(counts).values().forEach(streams::addAll);
        }
        for (int number = 0; number < streams.size(); number++) {
            String name = Integer.toString(number);
            ConsumerIterator<byte[], byte[]> rows = streams.get(number).iterator();
            Thread thread = new Thread(() -> {
                while (rows.hasNext()) {
                    MessageAndMetadata<byte[], byte[]> row = rows.next();
                    out.println(String.join(" ", "row", name, row.topic(),
                        Integer.toString(row.partition()), Long.toString(row.offset()),
                        Base64.getEncoder().encodeToString(row.message())));
                }
            });
            thread.setDaemon(true);
            thread.start();
        }
        out.println("ready");
        BufferedReader in =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            if (line.equals("commit")) {
                connector.commitOffsets();
                out.println("committed");
            } else {
                break;
            }
        }
        connector.shutdown();
        out.println("ended");
        System.exit(0);
    }
}
