/* Preloaded into a process, lets its calls on files of a folder named "faulty" fail, or ends it after one of them. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

enum { NONE, SYNC, READ, WRITE };

static int armed = NONE, to_skip, to_fail, with_error, n_failed;

/* Let the calls of a kind fail, after the first `skip` of them, `times` times; error -1 ends the process instead. */
void arm_fault(int kind, int skip, int times, int error) {
    armed = kind, to_skip = skip, to_fail = times, with_error = error, n_failed = 0;
}

int count_faults(void) { return n_failed; }

static int fails(int file, int kind) {
    char link[64], path[4096];
    if (kind != armed || to_fail == 0) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    if (!strstr(path, "/faulty/")) return 0;
    if (to_skip > 0) return to_skip--, 0;
    to_fail--, n_failed++;
    errno = with_error;
    return 1;
}

#define CALL(kind, type, name, parameters, arguments)                       \
    type name parameters {                                                  \
        static type(*real) parameters;                                      \
        if (!real) real = (type(*) parameters)dlsym(RTLD_NEXT, #name);      \
        if (fails(file, kind)) {                                            \
            if (with_error >= 0) return -1;                                 \
            real arguments;                                                 \
            kill(getpid(), SIGKILL);                                        \
        }                                                                   \
        return real arguments;                                              \
    }

CALL(SYNC, int, fsync, (int file), (file))
CALL(SYNC, int, fdatasync, (int file), (file))
CALL(READ, ssize_t, read, (int file, void *to, size_t n), (file, to, n))
CALL(READ, ssize_t, pread, (int file, void *to, size_t n, off_t at), (file, to, n, at))
CALL(READ, ssize_t, pread64, (int file, void *to, size_t n, off64_t at), (file, to, n, at))
CALL(WRITE, ssize_t, write, (int file, const void *from, size_t n), (file, from, n))
CALL(WRITE, ssize_t, pwrite, (int file, const void *from, size_t n, off_t at), (file, from, n, at))
CALL(WRITE, ssize_t, pwrite64, (int file, const void *from, size_t n, off64_t at), (file, from, n, at))
