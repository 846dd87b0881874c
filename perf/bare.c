/* The least that a broker must do, as the measure of kbroker's CPU: whole frames in, one pwrite each, a ready-made
   answer; and for a Fetch a ready-made head with sendfile. Nothing is checked, and a socket that takes no answer ends it.

   bare DIRECTORY FILE_TO_SEND SEND_BYTES ANSWER_HEX: prints its port. ANSWER_HEX: what follows the correlation id.  */
#define _GNU_SOURCE
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <unistd.h>

enum { RECEIVE_BYTES = 1 << 20, RESPONSES_BYTES = 1 << 20, EVENTS = 64 };

struct connection {
    int fd, log;
    off_t log_at, send_at;
    size_t have, send_left;
    char *in, *out;
};

static char answer[4096];
static size_t answer_bytes, chunk_bytes;
static int epoll_fd, sent_file;
static off_t sent_file_bytes;

static void must(int ok, const char *what) {
    if (!ok) {
        perror(what);
        exit(1);
    }
}

static uint32_t load(const char *p) {
    uint32_t wire;
    memcpy(&wire, p, 4);
    return be32toh(wire);
}

static void store(char *p, uint32_t value) {
    value = htobe32(value);
    memcpy(p, &value, 4);
}

static void watch(struct connection *c, int operation, uint32_t events) {
    struct epoll_event event = {.events = events, .data.ptr = c};
    must(epoll_ctl(epoll_fd, operation, c->fd, &event) == 0, "epoll_ctl");
}

static void send_chunk(struct connection *c) {
    while (c->send_left > 0) {
        ssize_t sent = sendfile(c->fd, sent_file, &c->send_at, c->send_left);
        if (sent < 0 && errno == EAGAIN)
            return watch(c, EPOLL_CTL_MOD, EPOLLIN | EPOLLOUT);
        must(sent > 0, "sendfile");
        c->send_left -= sent;
    }
    watch(c, EPOLL_CTL_MOD, EPOLLIN);
}

static void start_chunk(struct connection *c, const char *frame) {
    char head[8];
    if (c->send_at + (off_t)chunk_bytes > sent_file_bytes)
        c->send_at = 0;
    store(head, chunk_bytes + 4);
    memcpy(head + 4, frame + 8, 4);
    must(send(c->fd, head, 8, MSG_MORE | MSG_NOSIGNAL) == 8, "send");
    c->send_left = chunk_bytes;
    send_chunk(c);
}

static size_t take_produce(struct connection *c, const char *frame, size_t size, char *out) {
    must(pwrite(c->log, frame, size, c->log_at) == (ssize_t)size, "pwrite");
    c->log_at += size;
    store(out, answer_bytes + 4);
    memcpy(out + 4, frame + 8, 4);
    memcpy(out + 8, answer, answer_bytes);
    return 8 + answer_bytes;
}

static void receive(struct connection *c) {
    size_t at = 0, out = 0;
    ssize_t got = recv(c->fd, c->in + c->have, RECEIVE_BYTES - c->have, 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (got <= 0) {
        close(c->fd);
        close(c->log);
        free(c->in);
        free(c->out);
        free(c);
        return;
    }
    c->have += got;
    while (c->have - at >= 12 && c->have - at >= 4 + load(c->in + at)) {
        size_t size = 4 + load(c->in + at);
        if (c->in[at + 5] == 0)
            out += take_produce(c, c->in + at, size, c->out + out);
        else
            start_chunk(c, c->in + at);
        at += size;
    }
    memmove(c->in, c->in + at, c->have -= at);
    if (out > 0)
        must(send(c->fd, c->out, out, MSG_NOSIGNAL) == (ssize_t)out, "send");
}

static void accept_one(int listener, const char *directory) {
    static int number;
    char path[4096];
    struct connection *c = calloc(1, sizeof *c);
    int one = 1;
    c->fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
    must(c->fd >= 0, "accept4");
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    snprintf(path, sizeof path, "%s/%d.log", directory, number++);
    c->log = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    must(c->log >= 0, path);
    c->in = malloc(RECEIVE_BYTES);
    c->out = malloc(RESPONSES_BYTES);
    watch(c, EPOLL_CTL_ADD, EPOLLIN);
}

int main(int count, char **arguments) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    struct epoll_event events[EVENTS], listening = {.events = EPOLLIN};
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    must(count == 5, "usage: bare DIRECTORY FILE_TO_SEND SEND_BYTES ANSWER_HEX");
    sent_file = open(arguments[2], O_RDONLY);
    must(sent_file >= 0, arguments[2]);
    sent_file_bytes = lseek(sent_file, 0, SEEK_END);
    chunk_bytes = strtoul(arguments[3], NULL, 10);
    answer_bytes = strlen(arguments[4]) / 2;
    must(answer_bytes <= sizeof answer, "ANSWER_HEX");
    for (size_t i = 0; i < answer_bytes; i++)
        sscanf(arguments[4] + 2 * i, "%2hhx", &answer[i]);
    must(bind(listener, (struct sockaddr *)&address, size) == 0 && listen(listener, 128) == 0, "listen");
    getsockname(listener, (struct sockaddr *)&address, &size);
    printf("%d\n", ntohs(address.sin_port));
    fflush(stdout);
    epoll_fd = epoll_create1(0);
    must(epoll_ctl(epoll_fd, EPOLL_CTL_ADD, listener, &listening) == 0, "epoll_ctl");
    for (;;) {
        int ready = epoll_wait(epoll_fd, events, EVENTS, -1);
        for (int i = 0; i < ready; i++) {
            struct connection *c = events[i].data.ptr;
            if (c == NULL)
                accept_one(listener, arguments[1]);
            else if (events[i].events & EPOLLOUT)
                send_chunk(c);
            else
                receive(c);
        }
    }
}
