import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.EOFException;
import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.util.ArrayList;
import java.util.List;
import org.apache.kafka.common.utils.Exit;

/**
 * Main classes of Kafka's tools, one after the other in this JVM. A request on stdin: how many words
 * and the words (the class first), then the tool's stdin; the response on stdout: exit code, what it
 * has printed on stdout and on stderr. Each text is four bytes of length and UTF-8.
 */
public final class ToolRunner {
    private static final class Ended extends Error {
        Ended() {
            super("ended", null, false, false);
        }
    }

    private static final PrintStream NOWHERE = new PrintStream(OutputStream.nullOutputStream());
    private static final List<Runnable> hooks = new ArrayList<>();
    private static volatile Integer code;

    public static void main(String[] words) throws Exception {
        DataInputStream requests = new DataInputStream(System.in);
        DataOutputStream responses = new DataOutputStream(System.out);
        Exit.Procedure end = (status, message) -> {
            if (code == null) {
                code = status;
                System.out.flush();
                System.err.flush();
            }
            System.setOut(NOWHERE);
            System.setErr(NOWHERE);
            throw new Ended();
        };
        Exit.setExitProcedure(end);
        Exit.setHaltProcedure(end);
        Exit.setShutdownHookAdder((name, hook) -> hooks.add(hook));
        try {
            while (true) {
                String[] given = new String[requests.readInt()];
                for (int at = 0; at < given.length; at++)
                    given[at] = new String(read(requests), "UTF-8");
                run(given, read(requests), responses);
            }
        } catch (EOFException done) {
            Runtime.getRuntime().halt(0);
        }
    }

    private static byte[] read(DataInputStream in) throws Exception {
        return in.readNBytes(in.readInt());
    }

    private static void run(String[] given, byte[] input, DataOutputStream responses)
            throws Exception {
        ByteArrayOutputStream out = new ByteArrayOutputStream(), err = new ByteArrayOutputStream();
        code = null;
        hooks.clear();
        System.setIn(new ByteArrayInputStream(input));
        System.setOut(new PrintStream(out, true));
        System.setErr(new PrintStream(err, true));
        String[] arguments = java.util.Arrays.copyOfRange(given, 1, given.length);
        int failed = 0;
        try {
            Class.forName(given[0]).getMethod("main", String[].class)
                .invoke(null, (Object) arguments);
        } catch (InvocationTargetException error) {
            if (!(error.getCause() instanceof Ended)) {
                error.getCause().printStackTrace();
                failed = 1;
            }
        }
        for (Runnable hook : hooks)
            hook.run();
        System.setOut(NOWHERE);
        System.setErr(NOWHERE);
        responses.writeInt(code == null ? failed : code);
        for (byte[] text : List.of(out.toByteArray(), err.toByteArray())) {
            responses.writeInt(text.length);
            responses.write(text);
        }
        responses.flush();
    }
}
