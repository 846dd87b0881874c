import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.regex.Pattern;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * Members of groups. Each is polled by a thread of its own, which notes what it is given; times are
 * those of the system's monotonic clock, in seconds.
 */
final class Members {
    private static final long WAIT_S = 20;
    private static final ObjectMapper JSON = new ObjectMapper();
    private final Map<String, Member> members = new HashMap<>();

    Object run(JsonNode call) throws Exception {
        String id = call.get("id").asText();
        switch (call.get("op").asText()) {
            case "member_open":
                members.put(id, new Member(call));
                return null;
            case "member_drain":
                return members.get(id).drain();
            case "member_commit":
                members.get(id).ask(() -> members.get(id).commit());
                return null;
            case "member_close":
                return members.remove(id).close();
            default:
                throw new IllegalArgumentException("unknown operation in " + call);
        }
    }

    /** Where the member stands in its group, for the offsets of a transaction. */
    ConsumerGroupMetadata metadata(String id) throws Exception {
        Member member = members.get(id);
        return member.ask(() -> member.consumer.groupMetadata());
    }

    private static ArrayNode rows(Collection<TopicPartition> partitions) {
        ArrayNode rows = JSON.createArrayNode();
        partitions.forEach(one -> rows.addArray().add(one.topic()).add(one.partition()));
        return rows;
    }

    private static double now() {
        return System.nanoTime() / 1e9;
    }

    /** One consumer and its thread. */
    private static final class Member implements ConsumerRebalanceListener {
        private final KafkaConsumer<byte[], byte[]> consumer;
        private final Thread thread;
        private final BlockingQueue<Runnable> asked = new LinkedBlockingQueue<>();
        private final boolean commitsOnRevoke;
        private final Map<TopicPartition, OffsetAndMetadata> next = new HashMap<>();
        private volatile boolean stopping;
        // Guarded by this: what the thread has seen since the last drain, and what is its now.
        private final Set<TopicPartition> owned = new HashSet<>();
        private ArrayNode moves = JSON.createArrayNode();
        private ArrayNode taken = JSON.createArrayNode();
        private String error;

        Member(JsonNode call) throws Exception {
            Map<String, Object> settings = new HashMap<>();
            call.get("config").fields().forEachRemaining(
                entry -> settings.put(entry.getKey(), entry.getValue().asText()));
            commitsOnRevoke = call.get("commit_on_revoke").asBoolean();
            consumer = new KafkaConsumer<>(
                settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
            subscribe(call);
            thread = new Thread(this::work, "member " + call.get("id").asText());
            thread.setDaemon(true);
            thread.start();
        }

        private void subscribe(JsonNode call) throws Exception {
            if (call.hasNonNull("server_pattern")) {
                // Of Kafka 4; by name, for earlier libraries must compile this too.
                Class<?> type =
                    Class.forName("org.apache.kafka.clients.consumer.SubscriptionPattern");
                Object pattern = type.getConstructor(String.class)
                    .newInstance(call.get("server_pattern").asText());
                KafkaConsumer.class
                    .getMethod("subscribe", type, ConsumerRebalanceListener.class)
                    .invoke(consumer, pattern, this);
            } else if (call.hasNonNull("pattern")) {
                consumer.subscribe(Pattern.compile(call.get("pattern").asText()), this);
            } else {
                List<String> topics = new ArrayList<>();
                call.get("topics").forEach(topic -> topics.add(topic.asText()));
                consumer.subscribe(topics, this);
            }
        }

        private void work() {
            try {
                while (!stopping) {
                    for (Runnable one = asked.poll(); one != null; one = asked.poll()) {
                        one.run();
                    }
                    for (ConsumerRecord<byte[], byte[]> record
                            : consumer.poll(Duration.ofMillis(50))) {
                        take(record);
                    }
                }
                consumer.close(Duration.ofSeconds(WAIT_S));
            } catch (RuntimeException raised) {
                synchronized (this) {
                    error = raised.toString();
                }
                consumer.close(Duration.ofSeconds(1));
            }
            move("closed", new HashSet<>(owned));
        }

        private synchronized void take(ConsumerRecord<byte[], byte[]> record) {
            TopicPartition where = new TopicPartition(record.topic(), record.partition());
            next.put(where, new OffsetAndMetadata(record.offset() + 1));
            taken.addArray().add(now()).add(record.topic()).add(record.partition())
                .add(record.offset()).add(new String(record.value(), StandardCharsets.UTF_8));
        }

        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
            move("assigned", partitions);
        }

        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
            if (commitsOnRevoke) {
                commit();
            }
            partitions.forEach(next::remove);
            move("revoked", partitions);
        }

        @Override
        public void onPartitionsLost(Collection<TopicPartition> partitions) {
            partitions.forEach(next::remove);
            move("lost", partitions);
        }

        private synchronized void move(String kind, Collection<TopicPartition> partitions) {
            if (kind.equals("assigned")) {
                owned.addAll(partitions);
            } else {
                owned.removeAll(partitions);
            }
            ArrayNode row = moves.addArray().add(now()).add(kind);
            row.add(rows(partitions));
        }

        Void commit() {
            if (!next.isEmpty()) {
                consumer.commitSync(next, Duration.ofSeconds(WAIT_S));
            }
            return null;
        }

        /** Run something in the member's thread, between two polls. */
        <T> T ask(Callable<T> work) throws Exception {
            CompletableFuture<T> done = new CompletableFuture<>();
            asked.add(() -> {
                try {
                    done.complete(work.call());
                } catch (Exception raised) {
                    done.completeExceptionally(raised);
                }
            });
            return done.get(WAIT_S, TimeUnit.SECONDS);
        }

        synchronized ObjectNode drain() {
            ObjectNode answer = JSON.createObjectNode();
            answer.set("owned", rows(owned));
            answer.set("moves", moves);
            answer.set("taken", taken);
            answer.put("error", error);
            moves = JSON.createArrayNode();
            taken = JSON.createArrayNode();
            return answer;
        }

        ObjectNode close() throws InterruptedException {
            stopping = true;
            thread.join(TimeUnit.SECONDS.toMillis(WAIT_S + 5));
            if (thread.isAlive()) {
                throw new IllegalStateException("the member does not end");
            }
            return drain();
        }
    }
}
