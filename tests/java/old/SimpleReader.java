import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import java.nio.ByteBuffer;
import kafka.api.FetchRequest;
import kafka.api.FetchRequestBuilder;
import kafka.javaapi.FetchResponse;
import kafka.javaapi.consumer.SimpleConsumer;
import kafka.message.MessageAndOffset;

/** The consumer of 0.8: Fetch version 0, no metadata, the broker of the bootstrap address. */
public final class SimpleReader implements OldClientDriver.Reader {
    @Override
    public ArrayNode read(String bootstrap, JsonNode call) throws Exception {
        ArrayNode rows = OldClientDriver.JSON.createArrayNode();
        String topic = call.get("topic").asText();
        int partition = call.get("partition").asInt();
        int count = call.get("count").asInt();
        long offset = call.get("start").asLong();
        long deadline = System.nanoTime() + (long) (call.get("timeout_s").asDouble() * 1e9);
        String[] address = bootstrap.split(":");
        SimpleConsumer consumer = new SimpleConsumer(
            address[0], Integer.parseInt(address[1]), 10_000, 65_536, "old");
        try {
            while (rows.size() < count && System.nanoTime() < deadline) {
                FetchRequest request = new FetchRequestBuilder().clientId("old").maxWait(100)
                    .minBytes(1).addFetch(topic, partition, offset, call.get("bytes").asInt())
                    .build();
                FetchResponse response = consumer.fetch(request);
                if (response.hasError()) {
                    throw new IllegalStateException(
                        "error " + response.errorCode(topic, partition));
                }
                for (MessageAndOffset found : response.messageSet(topic, partition)) {
                    if (found.offset() >= offset && rows.size() < count) {
                        OldClientDriver.add(rows, found.offset(),
                            bytes(found.message().payload()), bytes(found.message().key()));
                        offset = found.nextOffset();
                    }
                }
            }
        } finally {
            consumer.close();
        }
        return rows;
    }

    private static byte[] bytes(ByteBuffer data) {
        if (data == null) {
            return null;
        }
        byte[] copy = new byte[data.remaining()];
        data.get(copy);
        return copy;
    }
}
