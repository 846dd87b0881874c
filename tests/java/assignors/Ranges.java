import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Assignment;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.GroupSubscription;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Subscription;
import org.apache.kafka.clients.consumer.RangeAssignor;
import org.apache.kafka.common.Cluster;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.PartitionInfo;
import org.apache.kafka.common.TopicPartition;

/**
 * Java's range assignor: each line of stdin is a group, member:rack:topic,topic;... and, behind |,
 * topic:partition:racks;... with a letter for the rack of each replica. Prints a line for each.
 */
public final class Ranges {
    public static void main(String[] words) throws Exception {
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String[] halves = line.split("\\|", -1);
            GroupSubscription group = new GroupSubscription(members(halves[0]));
            Map<String, Assignment> found = new RangeAssignor().assign(cluster(halves[1]), group).groupAssignment();
            List<String> texts = new ArrayList<>();
            for (Map.Entry<String, Assignment> row : new TreeMap<>(found).entrySet()) {
                List<String> names = new ArrayList<>();
                for (TopicPartition each : row.getValue().partitions()) {
                    names.add(each.topic() + each.partition());
                }
                texts.add(row.getKey() + "=" + String.join(",", names.stream().sorted().toList()));
            }
            System.out.println(String.join(" ", texts));
        }
    }

    private static Map<String, Subscription> members(String text) {
        Map<String, Subscription> found = new HashMap<>();
        for (String each : text.split(";")) {
            String[] fields = each.split(":", -1);
            Optional<String> rack = fields[1].isEmpty() ? Optional.empty() : Optional.of(fields[1]);
            List<String> topics = Arrays.asList(fields[2].split(","));
            found.put(fields[0], new Subscription(topics, null, List.of(), -1, rack));
        }
        return found;
    }

    private static Cluster cluster(String text) {
        List<Node> nodes = new ArrayList<>();
        List<PartitionInfo> partitions = new ArrayList<>();
        for (String each : text.split(";")) {
            String[] fields = each.split(":", -1);
            Node[] replicas = new Node[fields[2].length()];
            for (int at = 0; at < replicas.length; at++) {
                replicas[at] = new Node(nodes.size(), "host", 1, fields[2].substring(at, at + 1));
                nodes.add(replicas[at]);
            }
            int number = Integer.parseInt(fields[1]);
            partitions.add(new PartitionInfo(fields[0], number, null, replicas, replicas));
        }
        return new Cluster("cluster", nodes, partitions, Set.of(), Set.of());
    }
}
