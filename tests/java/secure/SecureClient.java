import java.io.BufferedReader;
import java.io.FileReader;
import java.io.InputStreamReader;
import java.io.Reader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.AdminClient;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Java clients of any version since 2.7 with the settings of a file, whose name is a line on
 * standard input: they look at the cluster, write a record to the topic that the property "topic"
 * names, and read it. The answer is a line: "ok", or "failed" and what the clients tell their user.
 */
public final class SecureClient {
    private static final long WAIT_S = 30;

    public static void main(String[] arguments) throws Exception {
        BufferedReader in =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            Properties settings = new Properties();
            try (Reader file = new FileReader(line, StandardCharsets.UTF_8)) {
                settings.load(file);
            }
            String answer = "ok";
            try {
                use(settings, (String) settings.remove("topic"));
            } catch (Exception raised) {
                answer = "failed " + told(raised);
            }
            System.out.println(answer.replace('\n', ' '));
            System.out.flush();
        }
    }

    private static String told(Throwable raised) {
        List<String> texts = new ArrayList<>();
        for (Throwable one = raised; one != null; one = one.getCause()) {
            texts.add(one.getClass().getSimpleName() + ": " + one.getMessage());
        }
        return String.join(" <- ", texts);
    }

    private static void use(Properties settings, String topic) throws Exception {
        try (AdminClient admin = AdminClient.create(settings)) {
            admin.describeCluster().nodes().get(WAIT_S, TimeUnit.SECONDS);
        }
        String value = "value " + System.nanoTime();
        try (KafkaProducer<String, String> producer =
                new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
            producer.send(new ProducerRecord<>(topic, 0, null, value))
                .get(WAIT_S, TimeUnit.SECONDS);
        }
        Properties reading = new Properties();
        reading.putAll(settings);
        reading.put("auto.offset.reset", "earliest");
        reading.put("enable.auto.commit", "false");
        try (KafkaConsumer<String, String> consumer =
                new KafkaConsumer<>(reading, new StringDeserializer(), new StringDeserializer())) {
            TopicPartition partition = new TopicPartition(topic, 0);
            consumer.assign(List.of(partition));
            consumer.seekToBeginning(List.of(partition));
            long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(WAIT_S);
            while (System.nanoTime() < end) {
                for (ConsumerRecord<String, String> one : consumer.poll(Duration.ofMillis(200))) {
                    if (one.value().equals(value)) {
                        return;
                    }
                }
            }
        }
        throw new IllegalStateException("the record was not read");
    }
}
