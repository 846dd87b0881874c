import java.util.Base64;
import kafka.utils.PasswordEncoder;
import org.apache.kafka.common.config.types.Password;
import scala.Option;

/**
 * Encrypts or decrypts with Kafka 2.7's own class: {@code encode SECRET PASSWORD} or {@code decode
 * SECRET TEXT}, with the algorithms of the other arguments (cipher, key length, iterations).
 */
public final class StoredPassword {
    public static void main(String[] args) {
        PasswordEncoder encoder =
                new PasswordEncoder(
                        new Password(args[1]),
                        Option.<String>empty(),
                        args[3],
                        Integer.parseInt(args[4]),
                        Integer.parseInt(args[5]));
        if (args[0].equals("encode")) {
            System.out.println(encoder.encode(new Password(args[2])));
        } else {
            byte[] decoded = encoder.decode(args[2]).value().getBytes();
            System.out.println(Base64.getEncoder().encodeToString(decoded));
        }
    }
}
