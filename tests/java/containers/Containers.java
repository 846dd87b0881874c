import java.time.Duration;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.testcontainers.kafka.ConfluentKafkaContainer;
import org.testcontainers.kafka.KafkaContainer;
import org.testcontainers.utility.DockerImageName;

/** Starts an image by each Kafka module of testcontainers, and says what a record comes back as. */
public class Containers {
    public static void main(String[] arguments) throws Exception {
        DockerImageName image = DockerImageName.parse(arguments[0]);
        try (var one = new KafkaContainer(image.asCompatibleSubstituteFor("apache/kafka"))) {
            one.start();
            System.out.println("apache " + roundTrip(one.getBootstrapServers()));
        }
        DockerImageName confluent = image.asCompatibleSubstituteFor("confluentinc/cp-kafka");
        try (var one = new ConfluentKafkaContainer(confluent)) {
            one.start();
            System.out.println("confluent " + roundTrip(one.getBootstrapServers()));
        }
        try (var one = new org.testcontainers.containers.KafkaContainer(confluent)) {
            one.start();
            System.out.println("zookeeper " + roundTrip(one.getBootstrapServers()));
        }
        System.exit(0);
    }

    private static String roundTrip(String bootstrap) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("group.id", "g");
        settings.put("auto.offset.reset", "earliest");
        try (var producer = new KafkaProducer<>(
                settings, new StringSerializer(), new StringSerializer())) {
            producer.send(new ProducerRecord<>("t", "hello")).get();
        }
        try (var consumer = new KafkaConsumer<>(
                settings, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of("t"));
            long end = System.currentTimeMillis() + 60_000;
            while (System.currentTimeMillis() < end) {
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofSeconds(1))) {
                    return record.value();
                }
            }
        }
        return "nothing";
    }
}
