/* A client that costs little, for measuring brokers over TLS 1.3.

   tls_load load    HOST PORT CA SECONDS WARMUP COUNT PREFIX_FILE FRAME_FILE...
     COUNT sockets with one request in flight each; the n-th sends the n-th frame again and again (they are cycled).
     Each answer must have PREFIX_FILE's bytes after its correlation id up to the partition, and the error code 0.
   tls_load paced   HOST PORT CA SECONDS WARMUP COUNT PREFIX_FILE FRAME_FILE...
     The same, but each socket sends one request a second, all of them evenly spread; the warm-up begins when all are
     connected. CA may be "-": then without TLS. The frames may be
     for different partitions of a topic. A socket that has no answer yet sends nothing when its second is over.
   tls_load connect HOST PORT CA SECONDS WARMUP COUNT PREFIX_FILE FRAME_FILE
     COUNT threads: connect, full handshake, one request and its answer, close. A certificate is parsed once, and neither
     its chain nor the signature of the handshake is checked: clients have processors of their own for that.
   tls_load login   HOST PORT CA SECONDS WARMUP COUNT SALTED_FILE FRAME_FILE USER
     The same, but after the request a login of USER with SCRAM-SHA-512. SALTED_FILE has his salted password, which takes
     clients milliseconds to compute, by design.

   Prints "warm" when measuring begins, "done" when it ends, then one line: requests or connections, seconds, of
   ``load`` the latencies p50 and p99 in us, and the CPU seconds of this client while measuring. Any answer that is wrong
   ends it with 1.  */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>
#include <openssl/sha.h>
#include <openssl/ssl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { FRAME_BYTES = 1 << 16, EVENTS = 64, LATENCY_BUCKETS = 1 << 20, TOKEN_BYTES = 1024, NONCE_BYTES = 18 };

struct text {
    char data[FRAME_BYTES];
    size_t bytes;
};

struct connection {
    int fd;
    SSL *ssl; /* NULL: without TLS */
    const struct text *frame;
    size_t have;
    double sent_at;
    int waits; /* for an answer */
    char in[FRAME_BYTES];
};

static SSL_CTX *context;
static struct sockaddr_in address;
static struct text prefix;
static struct text *frames;
static int frame_count;
/* Of a login; NULL: connections only.  */
static const char *user;
static unsigned char client_key[SHA512_DIGEST_LENGTH], stored_key[SHA512_DIGEST_LENGTH];
static atomic_long counted;
static atomic_int measuring, ended, all_connected;
static int is_paced;
/* Bytes at the prefix's end that differ from frame to frame: the partition.  */
static size_t unlike;
/* Of one us each; the last one has all that are longer.  */
static uint32_t latencies[LATENCY_BUCKETS];

static void fail(const char *what) {
    fprintf(stderr, "tls_load: %s: %s\n", what, errno ? strerror(errno) : "wrong");
    ERR_print_errors_fp(stderr);
    exit(1);
}

static double seconds_of(clockid_t clock) {
    struct timespec at;
    clock_gettime(clock, &at);
    return (double)at.tv_sec + (double)at.tv_nsec / 1e9;
}

static double now(void) { return seconds_of(CLOCK_MONOTONIC); }

/* Whether OpenSSL checks what the broker proves: not where connections are counted.  */
static int checks = 1;

static int believe(X509_STORE_CTX *chain, void *nothing) {
    (void)chain, (void)nothing;
    return 1;
}

/* Found before OpenSSL's own: libssl asks it about the signature of the handshake.  */
int EVP_DigestVerify(EVP_MD_CTX *state, const unsigned char *signature, size_t bytes, const unsigned char *data,
                     size_t data_bytes) {
    if (!checks)
        return 1;
    if (EVP_DigestVerifyUpdate(state, data, data_bytes) != 1)
        return -1;
    return EVP_DigestVerifyFinal(state, signature, bytes);
}

/* So is this one: OpenSSL 3.0 takes longer to parse a certificate than for the rest of a handshake.  */
X509 *d2i_X509(X509 **into, const unsigned char **data, long bytes) {
    enum { KNOWN = 4, KNOWN_BYTES = 4096 };
    static struct {
        unsigned char data[KNOWN_BYTES];
        long bytes;
        X509 *parsed;
    } known[KNOWN];
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static X509 *(*parse)(X509 **, const unsigned char **, long);
    X509 *found = NULL;
    pthread_mutex_lock(&lock);
    if (parse == NULL)
        *(void **)&parse = dlsym(RTLD_NEXT, "d2i_X509");
    for (int n = 0; n < KNOWN && found == NULL && !checks && into != NULL && bytes <= KNOWN_BYTES; n++) {
        if (known[n].parsed == NULL) {
            const unsigned char *at = *data;
            known[n].parsed = parse(NULL, &at, bytes);
            known[n].bytes = bytes;
            memcpy(known[n].data, *data, (size_t)bytes);
        }
        if (known[n].bytes == bytes && memcmp(known[n].data, *data, (size_t)bytes) == 0)
            found = known[n].parsed;
    }
    pthread_mutex_unlock(&lock);
    if (found == NULL)
        return parse(into, data, bytes);
    X509_up_ref(found);
    X509_free(*into);
    *into = found;
    *data += bytes;
    return found;
}

static void read_file(const char *path, struct text *into) {
    FILE *file = fopen(path, "rb");
    if (file == NULL)
        fail(path);
    into->bytes = fread(into->data, 1, FRAME_BYTES, file);
    fclose(file);
}

static int connected(SSL **ssl) {
    int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address) != 0)
        fail("connect");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    *ssl = NULL;
    if (context == NULL)
        return fd;
    *ssl = SSL_new(context);
    if (*ssl == NULL || SSL_set_fd(*ssl, fd) != 1 || SSL_connect(*ssl) != 1)
        fail("TLS handshake");
    return fd;
}

/* Whether the answer in ``in`` is whole; ends the program if it is wrong.  */
static int answered(const char *in, size_t have) {
    uint32_t size;
    if (have < 4)
        return 0;
    memcpy(&size, in, 4);
    size = be32toh(size);
    if (size < 6 || size > FRAME_BYTES - 4)
        fail("the length of an answer");
    if (have < size + 4)
        return 0;
    if (have > size + 4)
        fail("more than one answer");
    if (size < 4 + prefix.bytes + 2 || memcmp(in + 8, prefix.data, prefix.bytes - unlike) != 0)
        fail("an answer");
    if (in[8 + prefix.bytes] != 0 || in[9 + prefix.bytes] != 0)
        fail("an error code");
    return 1;
}

static void ask(struct connection *c) {
    c->have = 0;
    c->waits = 1;
    c->sent_at = now();
    /* A request fits into the socket's buffer, as no other is in flight.  */
    int bytes = (int)c->frame->bytes;
    int sent = c->ssl != NULL ? SSL_write(c->ssl, c->frame->data, bytes)
                              : (int)send(c->fd, c->frame->data, (size_t)bytes, MSG_NOSIGNAL);
    if (sent != bytes)
        fail("a request");
}

/* Bytes that have arrived; 0: none yet.  */
static int receive(struct connection *c) {
    int got, room = (int)(FRAME_BYTES - c->have);
    if (c->ssl != NULL) {
        got = SSL_read(c->ssl, c->in + c->have, room);
        if (got <= 0 && SSL_get_error(c->ssl, got) == SSL_ERROR_WANT_READ)
            return 0;
    } else {
        got = (int)recv(c->fd, c->in + c->have, (size_t)room, 0);
        if (got < 0 && errno == EAGAIN)
            return 0;
    }
    if (got <= 0)
        fail("an answer");
    return got;
}

static void on_readable(struct connection *c) {
    for (int got; (got = receive(c)) > 0;) {
        c->have += (size_t)got;
        if (answered(c->in, c->have)) {
            if (atomic_load_explicit(&measuring, memory_order_relaxed)) {
                double us = (now() - c->sent_at) * 1e6;
                latencies[us < LATENCY_BUCKETS - 1 ? (uint32_t)us : LATENCY_BUCKETS - 1]++;
                atomic_fetch_add_explicit(&counted, 1, memory_order_relaxed);
            }
            c->waits = 0;
            if (!is_paced)
                ask(c);
            return; /* nothing else is under way: to ask OpenSSL for it would cost a system call */
        }
    }
}

/* Ask on the sockets whose turn has come; ``turn``: how many turns there were.  */
static long ask_due(struct connection *all, int sockets, long turn, double began) {
    for (long due = (long)((now() - began) * sockets); turn < due; turn++) {
        struct connection *c = &all[turn % sockets];
        if (!c->waits)
            ask(c);
    }
    return turn;
}

static void *load(void *count) {
    int poll = epoll_create1(0), sockets = *(int *)count;
    struct connection *all = calloc((size_t)sockets, sizeof *all);
    if (all == NULL || poll < 0)
        fail("memory");
    for (int n = 0; n < sockets; n++) {
        struct connection *c = &all[n];
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
        c->frame = &frames[n % frame_count];
        c->fd = connected(&c->ssl);
        fcntl(c->fd, F_SETFL, O_NONBLOCK);
        if (epoll_ctl(poll, EPOLL_CTL_ADD, c->fd, &event) != 0)
            fail("epoll_ctl");
        if (!is_paced)
            ask(c);
    }
    atomic_store(&all_connected, 1);
    long turn = 0;
    double began = now();
    while (!atomic_load(&ended)) {
        struct epoll_event events[EVENTS];
        if (is_paced)
            turn = ask_due(all, sockets, turn, began);
        int found = epoll_wait(poll, events, EVENTS, is_paced ? 1 : 100);
        for (int n = 0; n < found; n++)
            on_readable(events[n].data.ptr);
    }
    return NULL;
}

/* Send a request, and read its whole answer.  */
static size_t call(SSL *ssl, const char *frame, size_t bytes, char *in) {
    size_t have = 0;
    if (SSL_write(ssl, frame, (int)bytes) != (int)bytes)
        fail("SSL_write");
    while (!answered(in, have)) {
        int got = SSL_read(ssl, in + have, (int)(FRAME_BYTES - have));
        if (got <= 0)
            fail("SSL_read");
        have += (size_t)got;
    }
    return have;
}

static void put16(char **at, int value) {
    uint16_t big = htobe16((uint16_t)value);
    memcpy(*at, &big, 2);
    *at += 2;
}

static void put32(char **at, int value) {
    uint32_t big = htobe32((uint32_t)value);
    memcpy(*at, &big, 4);
    *at += 4;
}

/* Send a token with SaslAuthenticate 0; the broker's, with a zero behind it, comes into ``reply``.  */
static void authenticate(SSL *ssl, const char *token, char *reply, char *in) {
    char frame[TOKEN_BYTES + 32], *at = frame;
    size_t bytes = strlen(token);
    put32(&at, (int)(14 + bytes));
    put16(&at, 36);
    put16(&at, 0);
    put32(&at, 1);
    put16(&at, -1);
    put32(&at, (int)bytes);
    memcpy(at, token, bytes);
    size_t have = call(ssl, frame, 18 + bytes, in);
    /* Length, correlation id, error code and a text that is null or empty: then the bytes.  */
    uint32_t size;
    if (have < 16 || in[10] != in[11] || (in[10] != -1 && in[10] != 0))
        fail("the answer to a token");
    memcpy(&size, in + 12, 4);
    size = be32toh(size);
    if (size != have - 16 || size >= TOKEN_BYTES)
        fail("the length of a token");
    memcpy(reply, in + 16, size);
    reply[size] = 0;
}

static void base64(char *into, const unsigned char *data, int bytes) {
    EVP_EncodeBlock((unsigned char *)into, data, bytes);
}

/* RFC 5802, with the nonce that the first token names.  */
static void log_in(SSL *ssl, char *in) {
    unsigned char random[NONCE_BYTES], signature[SHA512_DIGEST_LENGTH];
    char nonce[2 * NONCE_BYTES], bare[TOKEN_BYTES / 4], token[TOKEN_BYTES], first[TOKEN_BYTES], without[TOKEN_BYTES];
    char proof[2 * SHA512_DIGEST_LENGTH], whole[3 * TOKEN_BYTES], last[TOKEN_BYTES];
    RAND_bytes(random, sizeof random);
    base64(nonce, random, sizeof random);
    snprintf(bare, sizeof bare, "n=%s,r=%s", user, nonce);
    snprintf(token, sizeof token, "n,,%s", bare);
    authenticate(ssl, token, first, in);
    size_t nonce_end = strcspn(first, ",");
    if (strncmp(first, "r=", 2) != 0 || first[nonce_end] != ',')
        fail("the broker's nonce");
    snprintf(without, sizeof without, "c=biws,%.*s", (int)nonce_end, first);
    snprintf(whole, sizeof whole, "%s,%s,%s", bare, first, without);
    HMAC(EVP_sha512(), stored_key, sizeof stored_key, (unsigned char *)whole, strlen(whole), signature, NULL);
    for (size_t n = 0; n < sizeof signature; n++)
        signature[n] ^= client_key[n];
    base64(proof, signature, sizeof signature);
    snprintf(token, sizeof token, "%.*s,p=%s", (int)(sizeof token - sizeof proof - 4), without, proof);
    authenticate(ssl, token, last, in);
    if (strncmp(last, "v=", 2) != 0)
        fail("the broker did not prove that it knows the password");
}

static void *reconnect(void *nothing) {
    char in[FRAME_BYTES];
    (void)nothing;
    while (!atomic_load(&ended)) {
        SSL *ssl;
        int fd = connected(&ssl);
        call(ssl, frames->data, frames->bytes, in);
        if (user != NULL)
            log_in(ssl, in);
        SSL_shutdown(ssl);
        SSL_free(ssl);
        close(fd);
        if (atomic_load(&measuring))
            atomic_fetch_add(&counted, 1);
    }
    return NULL;
}

static double percentile(double part) {
    uint64_t total = 0, seen = 0;
    for (int n = 0; n < LATENCY_BUCKETS; n++)
        total += latencies[n];
    for (int n = 0; n < LATENCY_BUCKETS; n++) {
        seen += latencies[n];
        if (total > 0 && (double)seen >= part * (double)total)
            return n + 0.5;
    }
    return 0;
}

static void wait_s(double seconds) {
    struct timespec pause = {.tv_sec = (time_t)seconds, .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9)};
    nanosleep(&pause, NULL);
}

static void prepare_tls(const char *authority, int is_load) {
    context = SSL_CTX_new(TLS_client_method());
    if (context == NULL || SSL_CTX_load_verify_locations(context, authority, NULL) != 1)
        fail(authority);
    SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION);
    if (is_paced)
        SSL_CTX_set_mode(context, SSL_MODE_RELEASE_BUFFERS); /* there are thousands, which mostly rest */
    else
        SSL_CTX_set_read_ahead(context, 1); /* a record by one system call, not its head first */
    SSL_CTX_set_verify(context, is_load ? SSL_VERIFY_PEER : SSL_VERIFY_NONE, NULL);
    if (!is_load) {
        /* SSL_VERIFY_NONE alone has the chain checked, and passes over the outcome.  */
        SSL_CTX_set_cert_verify_callback(context, believe, NULL);
        checks = 0;
    }
}

int main(int count, char **words) {
    if (count < 10) {
        fprintf(stderr, "see the head of tls_load.c\n");
        return 2;
    }
    signal(SIGPIPE, SIG_IGN); /* write() tells of it */
    is_paced = strcmp(words[1], "paced") == 0;
    unlike = is_paced ? 4 : 0;
    int is_load = is_paced || strcmp(words[1], "load") == 0, has_tls = strcmp(words[4], "-") != 0, number = atoi(words[7]);
    address.sin_family = AF_INET;
    address.sin_port = htons((uint16_t)atoi(words[3]));
    inet_pton(AF_INET, words[2], &address.sin_addr);
    if (has_tls)
        prepare_tls(words[4], is_load);
    read_file(words[8], &prefix);
    frame_count = count - 9;
    if (strcmp(words[1], "login") == 0) {
        user = words[10];
        frame_count = 1;
        HMAC(EVP_sha512(), prefix.data, (int)prefix.bytes, (unsigned char *)"Client Key", 10, client_key, NULL);
        SHA512(client_key, sizeof client_key, stored_key);
        prefix.bytes = 0;
    }
    frames = calloc((size_t)frame_count, sizeof *frames);
    for (int n = 0; n < frame_count; n++)
        read_file(words[9 + n], &frames[n]);
    int workers = is_load ? 1 : number;
    pthread_t *threads = calloc((size_t)workers, sizeof *threads);
    for (int n = 0; n < workers; n++)
        if (pthread_create(&threads[n], NULL, is_load ? load : reconnect, &number) != 0)
            fail("a thread");
    while (is_paced && !atomic_load(&all_connected))
        wait_s(0.01);
    if (is_paced) {
        puts("connected");
        fflush(stdout);
    }
    wait_s(atof(words[6]));
    puts("warm");
    fflush(stdout);
    atomic_store(&measuring, 1);
    double began = now(), used = seconds_of(CLOCK_PROCESS_CPUTIME_ID);
    wait_s(atof(words[5]));
    atomic_store(&measuring, 0);
    double seconds = now() - began;
    used = seconds_of(CLOCK_PROCESS_CPUTIME_ID) - used;
    puts("done");
    fflush(stdout);
    long total = atomic_load(&counted);
    atomic_store(&ended, 1);
    for (int n = 0; n < workers; n++)
        pthread_join(threads[n], NULL);
    printf("%ld %.6f %.1f %.1f %.6f\n", total, seconds, percentile(0.5), percentile(0.99), used);
    return 0;
}
