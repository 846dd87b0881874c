import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.ConsumerGroupDescription;
import org.apache.kafka.clients.admin.ConsumerGroupListing;
import org.apache.kafka.clients.admin.ListOffsetsOptions;
import org.apache.kafka.clients.admin.MemberDescription;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.ProducerState;
import org.apache.kafka.clients.admin.TransactionDescription;
import org.apache.kafka.clients.admin.TransactionListing;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.GroupType;
import org.apache.kafka.common.IsolationLevel;
import org.apache.kafka.common.TopicPartition;

/** What an administrator asks about groups, their offsets and transactions. */
final class Groups {
    private static final long WAIT_S = 20;
    private static final ObjectMapper JSON = new ObjectMapper();
    private final Admin admin;

    Groups(Admin admin) {
        this.admin = admin;
    }

    Object run(JsonNode call) throws Exception {
        String group = call.path("group").asText();
        switch (call.get("op").asText()) {
            case "groups_describe":
                return described(
                    await(admin.describeConsumerGroups(List.of(group)).all()).get(group));
            case "groups_list":
                return listed();
            case "groups_delete":
                await(admin.deleteConsumerGroups(List.of(group)).all());
                return null;
            case "groups_offsets":
                return offsets(await(
                    admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata()));
            case "groups_alter_offsets":
                Map<TopicPartition, OffsetAndMetadata> wanted = new HashMap<>();
                for (JsonNode row : call.get("offsets")) {
                    wanted.put(where(row),
                        new OffsetAndMetadata(row.get(2).asLong(), row.get(3).asText()));
                }
                await(admin.alterConsumerGroupOffsets(group, wanted).all());
                return null;
            case "groups_delete_offsets":
                Set<TopicPartition> gone = new HashSet<>();
                call.get("partitions").forEach(row -> gone.add(where(row)));
                await(admin.deleteConsumerGroupOffsets(group, gone).all());
                return null;
            case "groups_transactions":
                ObjectNode states = JSON.createObjectNode();
                for (TransactionListing one : await(admin.listTransactions().all())) {
                    states.put(one.transactionalId(), one.state().toString());
                }
                return states;
            case "groups_transaction":
                return described(await(
                    admin.describeTransactions(List.of(call.get("transactional_id").asText()))
                        .all()).get(call.get("transactional_id").asText()));
            case "groups_producers":
                return producers(call);
            case "groups_stable_end":
                TopicPartition one =
                    new TopicPartition(call.get("topic").asText(), call.get("partition").asInt());
                return await(admin.listOffsets(Map.of(one, OffsetSpec.latest()),
                    new ListOffsetsOptions(IsolationLevel.READ_COMMITTED)).partitionResult(one))
                    .offset();
            default:
                throw new IllegalArgumentException("unknown operation in " + call);
        }
    }

    private static ObjectNode described(ConsumerGroupDescription group) {
        ObjectNode answer = JSON.createObjectNode();
        answer.put("state", group.state().toString());
        answer.put("assignor", group.partitionAssignor());
        ArrayNode members = answer.putArray("members");
        for (MemberDescription member : group.members()) {
            ObjectNode row = members.addObject();
            row.put("id", member.consumerId()).put("client", member.clientId());
            row.put("instance", member.groupInstanceId().orElse(""));
            ArrayNode owned = row.putArray("owned");
            member.assignment().topicPartitions().forEach(
                where -> owned.addArray().add(where.topic()).add(where.partition()));
        }
        return answer;
    }

    private ArrayNode listed() throws Exception {
        ArrayNode answer = JSON.createArrayNode();
        for (ConsumerGroupListing group : await(admin.listConsumerGroups().all())) {
            answer.addArray().add(group.groupId())
                .add(group.state().map(Object::toString).orElse(""))
                .add(group.type().map(GroupType::toString).orElse(""));
        }
        return answer;
    }

    private static ArrayNode offsets(Map<TopicPartition, OffsetAndMetadata> found) {
        ArrayNode answer = JSON.createArrayNode();
        found.forEach((where, offset) -> {
            if (offset != null) {
                answer.addArray().add(where.topic()).add(where.partition())
                    .add(offset.offset()).add(offset.metadata());
            }
        });
        return answer;
    }

    private static ObjectNode described(TransactionDescription found) {
        ObjectNode answer = JSON.createObjectNode();
        answer.put("state", found.state().toString()).put("producer_id", found.producerId());
        answer.put("producer_epoch", found.producerEpoch());
        answer.put("timeout_ms", found.transactionTimeoutMs());
        ArrayNode partitions = answer.putArray("partitions");
        found.topicPartitions().forEach(
            where -> partitions.addArray().add(where.topic()).add(where.partition()));
        return answer;
    }

    private ArrayNode producers(JsonNode call) throws Exception {
        TopicPartition where =
            new TopicPartition(call.get("topic").asText(), call.get("partition").asInt());
        ArrayNode answer = JSON.createArrayNode();
        for (ProducerState one : await(admin.describeProducers(List.of(where)).all())
                .get(where).activeProducers()) {
            answer.addArray().add(one.producerId()).add(one.producerEpoch())
                .add(one.lastSequence()).add(one.currentTransactionStartOffset().orElse(-1));
        }
        return answer;
    }

    private static TopicPartition where(JsonNode row) {
        return new TopicPartition(row.get(0).asText(), row.get(1).asInt());
    }

    private static <T> T await(Future<T> future) throws Exception {
        return future.get(WAIT_S, TimeUnit.SECONDS);
    }
}
