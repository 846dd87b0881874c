/* Preloaded into a broker: writes down what it does to files below a directory, and fails calls.
 *
 * KBROKER_SHIM_ROOT  the directory; everything else is left alone
 * KBROKER_SHIM_LOG   a file that gets one record for each change (tests/fault/write_log.py reads it)
 * KBROKER_SHIM_FAIL  a file of one `struct control`, mapped by every process: counts calls and says
 *                    which of them fails (tests/fault/failing_calls.py)
 *
 * A record is written after its call has returned and before the caller goes on, so what one call
 * caused comes behind it, in whatever process. A sync has two: what was written down before the
 * first of them is durable at the second.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

enum { READS = 1, WRITES = 2, SYNCS = 4, NAMES = 8, OPENS = 16, SPACE = 32 };

struct control {
    _Atomic int64_t calls;   /* of the chosen classes, so far */
    _Atomic int64_t fail_at; /* the number of the call that fails, from 1; 0: none */
    int64_t error;           /* its errno; 0: a write or read that comes back short */
    int64_t lasting;         /* whether every later one fails as well */
    int64_t classes;
    _Atomic int64_t hits;
    char what[256]; /* the call that failed first, and its file */
};

struct record {
    uint32_t magic;
    uint8_t op;
    uint8_t flag;
    uint16_t path_bytes;
    uint16_t other_bytes;
    uint16_t reserved;
    uint32_t thread;
    uint64_t inode;
    int64_t offset;
    int64_t data_bytes;
};

static const char *root, *log_path;
static size_t root_bytes;
static struct control *control;
static __thread int inside;

#define REAL(name) \
    static __typeof__(&name) real; \
    if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

/* A process that changes its title writes over the environment. */
static const char *copied(const char *name) {
    const char *value = getenv(name);
    return value ? strdup(value) : NULL;
}

__attribute__((constructor)) static void start(void) {
    root = copied("KBROKER_SHIM_ROOT");
    log_path = copied("KBROKER_SHIM_LOG");
    root_bytes = root ? strlen(root) : 0;
    const char *fail = getenv("KBROKER_SHIM_FAIL");
    if (!root || !fail) return;
    int fd = (int)syscall(SYS_openat, AT_FDCWD, fail, O_RDWR | O_CLOEXEC, 0);
    if (fd < 0) return;
    void *at = mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    syscall(SYS_close, fd);
    if (at != MAP_FAILED) control = at;
}

static int is_below(const char *path) {
    return root && !strncmp(path, root, root_bytes) &&
           (path[root_bytes] == '/' || path[root_bytes] == 0);
}

/* The path of a descriptor of a file or directory below the root, with its status. */
static int known_fd(int fd, char *path, struct stat *status) {
    if (!root || inside) return 0;
    int before = errno, found = 0;
    char link[64];
    if (!fstat(fd, status) && (S_ISREG(status->st_mode) || S_ISDIR(status->st_mode))) {
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        ssize_t size = readlink(link, path, PATH_MAX - 1);
        if (size > 0) {
            path[size] = 0;
            found = is_below(path);
        }
    }
    errno = before;
    return found;
}

static int known_path(int directory, const char *name, char *path) {
    if (!root || inside || !name) return 0;
    int before = errno;
    if (name[0] == '/') {
        snprintf(path, PATH_MAX, "%s", name);
    } else {
        char link[64], base[PATH_MAX];
        if (directory == AT_FDCWD) snprintf(link, sizeof link, "/proc/self/cwd");
        else snprintf(link, sizeof link, "/proc/self/fd/%d", directory);
        ssize_t size = readlink(link, base, sizeof base - 1);
        if (size <= 0) { errno = before; return 0; }
        base[size] = 0;
        if (snprintf(path, PATH_MAX, "%s/%s", base, name) >= PATH_MAX) return 0;
    }
    errno = before;
    return is_below(path);
}

static void note(char op, int flag, const char *path, const char *other, uint64_t inode,
                 int64_t offset, const struct iovec *data, int pieces, int64_t data_bytes) {
    if (!log_path) return;
    int before = errno;
    struct record head = {0x4b444c31, (uint8_t)op, (uint8_t)flag, (uint16_t)strlen(path),
                          (uint16_t)strlen(other), 0, (uint32_t)syscall(SYS_gettid), inode,
                          offset, data_bytes};
    char *whole = malloc(sizeof head + head.path_bytes + head.other_bytes + (size_t)data_bytes);
    if (whole) {
        char *to = whole;
        memcpy(to, &head, sizeof head), to += sizeof head;
        memcpy(to, path, head.path_bytes), to += head.path_bytes;
        memcpy(to, other, head.other_bytes), to += head.other_bytes;
        int64_t left = data_bytes;
        for (int i = 0; i < pieces && left; i++) {
            size_t take = (int64_t)data[i].iov_len < left ? data[i].iov_len : (size_t)left;
            memcpy(to, data[i].iov_base, take), to += take, left -= (int64_t)take;
        }
        int fd = (int)syscall(SYS_openat, AT_FDCWD, log_path,
                              O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
        if (fd >= 0) {
            if (syscall(SYS_write, fd, whole, to - whole) != to - whole) abort();
            syscall(SYS_close, fd);
        }
        free(whole);
    }
    errno = before;
}

/* 0: go on. 1: fail with errno set. 2: come back short. */
static int fails(int class, const char *call, const char *path) {
    if (!control || !(control->classes & class)) return 0;
    int64_t number = atomic_fetch_add(&control->calls, 1) + 1;
    int64_t at = atomic_load(&control->fail_at);
    if (at == 0 || (control->lasting ? number < at : number != at)) return 0;
    if (atomic_fetch_add(&control->hits, 1) == 0)
        snprintf(control->what, sizeof control->what, "%s %s", call, path);
    if (control->error == 0) return 2;
    errno = (int)control->error;
    return 1;
}

/* ---- opening and names ---- */

static int open_known(const char *call, int directory, const char *name, int flags, mode_t mode) {
    char path[PATH_MAX];
    if (!known_path(directory, name, path))
        return (int)syscall(SYS_openat, directory, name, flags, mode);
    if (fails(OPENS, call, path) == 1) return -1;
    struct stat status;
    int existed = 1;
    if (flags & O_CREAT) {
        inside = 1;
        existed = !lstat(path, &status);
        inside = 0;
    }
    int fd = (int)syscall(SYS_openat, directory, name, flags, mode);
    if (fd >= 0 && (flags & (O_CREAT | O_TRUNC)) && !fstat(fd, &status)) {
        if (!existed) note('C', 0, path, "", status.st_ino, 0, NULL, 0, 0);
        if (existed && (flags & O_TRUNC)) note('T', 0, path, "", status.st_ino, 0, NULL, 0, 0);
    }
    return fd;
}

#define OPEN(name) \
    EXPORT int name(const char *path, int flags, ...) { \
        va_list rest; \
        va_start(rest, flags); \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0; \
        va_end(rest); \
        return open_known("open", AT_FDCWD, path, flags, mode); \
    }
#define OPENAT(name) \
    EXPORT int name(int directory, const char *path, int flags, ...) { \
        va_list rest; \
        va_start(rest, flags); \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0; \
        va_end(rest); \
        return open_known("open", directory, path, flags, mode); \
    }
#undef open
#undef open64
OPEN(open) OPEN(open64) OPENAT(openat) OPENAT(openat64)

static int rename_known(int from_dir, const char *from, int to_dir, const char *to, unsigned flags) {
    char old[PATH_MAX], new[PATH_MAX];
    int known = known_path(from_dir, from, old) & known_path(to_dir, to, new);
    if (known && fails(NAMES, "rename", old) == 1) return -1;
    int result = (int)syscall(SYS_renameat2, from_dir, from, to_dir, to, flags);
    if (known && !result) note('R', 0, old, new, 0, 0, NULL, 0, 0);
    return result;
}
EXPORT int rename(const char *from, const char *to) {
    return rename_known(AT_FDCWD, from, AT_FDCWD, to, 0);
}
EXPORT int renameat(int from_dir, const char *from, int to_dir, const char *to) {
    return rename_known(from_dir, from, to_dir, to, 0);
}
EXPORT int renameat2(int from_dir, const char *from, int to_dir, const char *to, unsigned flags) {
    return rename_known(from_dir, from, to_dir, to, flags);
}

static int unlink_known(int directory, const char *name, int flags) {
    char path[PATH_MAX];
    int known = known_path(directory, name, path);
    if (known && fails(NAMES, "unlink", path) == 1) return -1;
    int result = (int)syscall(SYS_unlinkat, directory, name, flags);
    if (known && !result) note(flags & AT_REMOVEDIR ? 'X' : 'U', 0, path, "", 0, 0, NULL, 0, 0);
    return result;
}
EXPORT int unlink(const char *path) { return unlink_known(AT_FDCWD, path, 0); }
EXPORT int rmdir(const char *path) { return unlink_known(AT_FDCWD, path, AT_REMOVEDIR); }
EXPORT int unlinkat(int directory, const char *path, int flags) {
    return unlink_known(directory, path, flags);
}

static int mkdir_known(int directory, const char *name, mode_t mode) {
    char path[PATH_MAX];
    int known = known_path(directory, name, path);
    if (known && fails(NAMES, "mkdir", path) == 1) return -1;
    int result = (int)syscall(SYS_mkdirat, directory, name, mode);
    if (known && !result) note('D', 0, path, "", 0, 0, NULL, 0, 0);
    return result;
}
EXPORT int mkdir(const char *path, mode_t mode) { return mkdir_known(AT_FDCWD, path, mode); }
EXPORT int mkdirat(int directory, const char *path, mode_t mode) {
    return mkdir_known(directory, path, mode);
}

/* ---- bytes ---- */

static ssize_t write_known(int fd, const struct iovec *data, int pieces, int64_t offset) {
    char path[PATH_MAX];
    struct stat status;
    int known = known_fd(fd, path, &status) && S_ISREG(status.st_mode);
    struct iovec half = {data[0].iov_base, data[0].iov_len / 2};
    if (known) {
        int how = fails(WRITES, "write", path);
        if (how == 1) return -1;
        if (how == 2 && half.iov_len) data = &half, pieces = 1;
    }
    ssize_t done = offset < 0 ? syscall(SYS_writev, fd, data, pieces)
                              : syscall(SYS_pwritev, fd, data, pieces, offset, 0);
    if (known && done > 0) {
        if (offset < 0) offset = lseek(fd, 0, SEEK_CUR) - done;
        note('W', 0, path, "", status.st_ino, offset, data, pieces, done);
    }
    return done;
}
EXPORT ssize_t write(int fd, const void *from, size_t size) {
    struct iovec data = {(void *)from, size};
    return write_known(fd, &data, 1, -1);
}
EXPORT ssize_t writev(int fd, const struct iovec *data, int pieces) {
    return pieces < 1 ? syscall(SYS_writev, fd, data, pieces) : write_known(fd, data, pieces, -1);
}
#define PWRITE(name) \
    EXPORT ssize_t name(int fd, const void *from, size_t size, off_t offset) { \
        struct iovec data = {(void *)from, size}; \
        return write_known(fd, &data, 1, offset); \
    }
#define PWRITEV(name) \
    EXPORT ssize_t name(int fd, const struct iovec *data, int pieces, off_t offset) { \
        return write_known(fd, data, pieces, offset); \
    }
PWRITE(pwrite) PWRITE(pwrite64) PWRITEV(pwritev) PWRITEV(pwritev64)

static int read_fails(int fd, size_t *size) {
    char path[PATH_MAX];
    struct stat status;
    if (!control || !known_fd(fd, path, &status) || !S_ISREG(status.st_mode)) return 0;
    int how = fails(READS, "read", path);
    if (how == 2 && *size > 1) *size /= 2;
    return how == 1;
}
EXPORT ssize_t read(int fd, void *to, size_t size) {
    return read_fails(fd, &size) ? -1 : syscall(SYS_read, fd, to, size);
}
#define PREAD(name) \
    EXPORT ssize_t name(int fd, void *to, size_t size, off_t offset) { \
        return read_fails(fd, &size) ? -1 : syscall(SYS_pread64, fd, to, size, offset); \
    }
PREAD(pread) PREAD(pread64)
#define SENDFILE(name) \
    EXPORT ssize_t name(int to, int from, off_t *offset, size_t size) { \
        return read_fails(from, &size) ? -1 : syscall(SYS_sendfile, to, from, offset, size); \
    }
SENDFILE(sendfile) SENDFILE(sendfile64)

/* Stores into a mapping are not seen: what an index holds is written down when it is cut or synced. */
static void note_index(int fd, const char *path, const struct stat *status) {
    size_t bytes = strlen(path);
    if (!log_path || bytes < 5 || strcmp(path + bytes - 5, "index") || status->st_size == 0) return;
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    int again = (int)syscall(SYS_openat, AT_FDCWD, link, O_RDONLY | O_CLOEXEC, 0);
    if (again < 0) return;
    char *content = malloc((size_t)status->st_size);
    ssize_t size = content ? syscall(SYS_pread64, again, content, status->st_size, 0) : -1;
    struct iovec data = {content, size > 0 ? (size_t)size : 0};
    if (size > 0) note('W', 0, path, "", status->st_ino, 0, &data, 1, size);
    free(content);
    syscall(SYS_close, again);
}

static int cut_known(int fd, off_t size) {
    char path[PATH_MAX];
    struct stat status;
    int known = known_fd(fd, path, &status);
    if (known && fails(SPACE, "ftruncate", path) == 1) return -1;
    if (known) note_index(fd, path, &status);
    int result = (int)syscall(SYS_ftruncate, fd, size);
    if (known && !result) note('T', 0, path, "", status.st_ino, size, NULL, 0, 0);
    return result;
}
EXPORT int ftruncate(int fd, off_t size) { return cut_known(fd, size); }
EXPORT int ftruncate64(int fd, off_t size) { return cut_known(fd, size); }

static int cut_path(const char *name, off_t size) {
    char path[PATH_MAX];
    struct stat status;
    int known = known_path(AT_FDCWD, name, path);
    if (known && fails(SPACE, "truncate", path) == 1) return -1;
    int result = (int)syscall(SYS_truncate, name, size);
    if (known && !result && !stat(path, &status))
        note('T', 0, path, "", status.st_ino, size, NULL, 0, 0);
    return result;
}
EXPORT int truncate(const char *path, off_t size) { return cut_path(path, size); }
EXPORT int truncate64(const char *path, off_t size) { return cut_path(path, size); }

static int reserve_known(int fd, int mode, off_t offset, off_t size) {
    char path[PATH_MAX];
    struct stat status;
    int known = known_fd(fd, path, &status);
    if (known && fails(SPACE, "fallocate", path) == 1) return -1;
    int result = (int)syscall(SYS_fallocate, fd, mode, offset, size);
    if (known && !result && !mode && offset + size > status.st_size)
        note('T', 0, path, "", status.st_ino, offset + size, NULL, 0, 0);
    return result;
}
EXPORT int fallocate(int fd, int mode, off_t offset, off_t size) {
    return reserve_known(fd, mode, offset, size);
}
EXPORT int posix_fallocate(int fd, off_t offset, off_t size) {
    return reserve_known(fd, 0, offset, size) ? errno : 0;
}
EXPORT int posix_fallocate64(int fd, off_t offset, off_t size) {
    return reserve_known(fd, 0, offset, size) ? errno : 0;
}

/* ---- syncs ---- */

static int sync_known(const char *call, long number, int fd) {
    char path[PATH_MAX];
    struct stat status;
    int known = known_fd(fd, path, &status);
    if (known && fails(SYNCS, call, path) == 1) return -1;
    if (known) {
        if (S_ISREG(status.st_mode)) note_index(fd, path, &status);
        note('B', S_ISDIR(status.st_mode), path, "", status.st_ino, 0, NULL, 0, 0);
    }
    int result = number == SYS_syncfs || !log_path ? (int)syscall(number, fd) : 0;
    if (known && !result)
        note(number == SYS_syncfs ? 'A' : 'F', S_ISDIR(status.st_mode), path, "", status.st_ino, 0,
             NULL, 0, 0);
    return result;
}
EXPORT int fsync(int fd) { return sync_known("fsync", SYS_fsync, fd); }
EXPORT int fdatasync(int fd) { return sync_known("fdatasync", SYS_fdatasync, fd); }
EXPORT int syncfs(int fd) { return sync_known("syncfs", SYS_syncfs, fd); }
