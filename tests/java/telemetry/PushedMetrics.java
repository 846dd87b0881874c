import java.io.FileWriter;
import java.io.IOException;
import java.io.PrintWriter;
import java.util.List;
import java.util.Map;

import org.apache.kafka.common.metrics.KafkaMetric;
import org.apache.kafka.common.metrics.MetricsReporter;
import org.apache.kafka.server.telemetry.ClientTelemetry;
import org.apache.kafka.server.telemetry.ClientTelemetryReceiver;
import org.apache.kafka.shaded.io.opentelemetry.proto.common.v1.KeyValue;
import org.apache.kafka.shaded.io.opentelemetry.proto.metrics.v1.Metric;
import org.apache.kafka.shaded.io.opentelemetry.proto.metrics.v1.MetricsData;
import org.apache.kafka.shaded.io.opentelemetry.proto.metrics.v1.NumberDataPoint;
import org.apache.kafka.shaded.io.opentelemetry.proto.metrics.v1.ResourceMetrics;
import org.apache.kafka.shaded.io.opentelemetry.proto.metrics.v1.ScopeMetrics;

/**
 * A plug-in of a Kafka broker that writes what clients push, one number a line, into the file
 * that the system property pushed.metrics names.
 */
public class PushedMetrics implements MetricsReporter, ClientTelemetry {
    @Override
    public ClientTelemetryReceiver clientReceiver() {
        return (context, payload) -> {
            try {
                write(payload.isTerminating(), payload.clientInstanceId().toString(),
                      MetricsData.parseFrom(payload.data()));
            } catch (IOException error) {
                throw new RuntimeException(error);
            }
        };
    }

    private static synchronized void write(boolean isLast, String id, MetricsData data)
            throws IOException {
        String path = System.getProperty("pushed.metrics");
        try (PrintWriter out = new PrintWriter(new FileWriter(path, true))) {
            for (ResourceMetrics resource : data.getResourceMetricsList()) {
                String of = text(resource.getResource().getAttributesList());
                for (ScopeMetrics scope : resource.getScopeMetricsList()) {
                    for (Metric metric : scope.getMetricsList()) {
                        boolean isSum = metric.hasSum();
                        List<NumberDataPoint> points = isSum
                            ? metric.getSum().getDataPointsList()
                            : metric.getGauge().getDataPointsList();
                        String kind = isSum
                            ? metric.getSum().getAggregationTemporality().name() : "GAUGE";
                        for (NumberDataPoint point : points) {
                            out.printf("%s %s [%s] %s %s [%s] %s%n", isLast, id, of, kind,
                                       metric.getName(), text(point.getAttributesList()),
                                       point.getAsDouble());
                        }
                    }
                }
            }
        }
    }

    private static String text(List<KeyValue> pairs) {
        StringBuilder text = new StringBuilder();
        for (KeyValue pair : pairs) {
            text.append(text.length() == 0 ? "" : ",");
            text.append(pair.getKey()).append('=').append(pair.getValue().getStringValue());
        }
        return text.toString();
    }

    @Override
    public void init(List<KafkaMetric> metrics) { }

    @Override
    public void metricChange(KafkaMetric metric) { }

    @Override
    public void metricRemoval(KafkaMetric metric) { }

    @Override
    public void close() { }

    @Override
    public void configure(Map<String, ?> configs) { }
}
