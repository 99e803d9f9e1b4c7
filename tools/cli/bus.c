/* bus.c - what happens when a mapped file is shortened, or its disk fails, between two looks at it.
 * The library cannot own a signal, a program can. The handler does only what POSIX allows in one: open, read, write,
 * _exit. Which file it was stands in /proc/self/maps. Decision: docs/decisions/0006. File-scope state: what the handler
 * needs. SPDX-License-Identifier: MIT */
#include "bus.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

enum { EXIT_FAILED = 3, STACK_BYTES = 64 << 10, MAX_PATH = 1024 };

static const char why[] = "the file became shorter while it was being read, or its disk failed; "
                          "nothing after that can be trusted, so check the file and start again";
static const char *command_name = "";
static bool json_wanted, on_terminal;
static char stack[STACK_BYTES];
static atomic_flag entered = ATOMIC_FLAG_INIT;

static void put(int fd, const char *text)
{
    size_t n = strlen(text);
    while (n > 0) {
        ssize_t k = write(fd, text, n);
        if (k < 0 && errno == EINTR) continue;
        if (k <= 0) return;
        text += k;
        n -= (size_t)k;
    }
}

/* Reading /proc/self/maps byte by byte: "from-to flags offset device inode   /path". */
struct maps {
    int fd;
    ssize_t at, n;
    char buf[4096];
};

static int next_byte(struct maps *m)
{
    if (m->at == m->n) {
        m->at = 0;
        do m->n = read(m->fd, m->buf, sizeof m->buf);
        while (m->n < 0 && errno == EINTR);
        if (m->n <= 0) {
            m->n = 0;
            return -1;
        }
    }
    return (unsigned char)m->buf[m->at++];
}

/* A number in hexadecimal digits; *end is the byte behind it. */
static uintptr_t next_address(struct maps *m, int *end)
{
    uintptr_t v = 0;
    int c;
    while ((c = next_byte(m)) >= 0) {
        if (c >= '0' && c <= '9')
            v = v << 4 | (uintptr_t)(c - '0');
        else if (c >= 'a' && c <= 'f')
            v = v << 4 | (uintptr_t)(c - 'a' + 10);
        else
            break;
    }
    *end = c;
    return v;
}

/* The path of the mapping that holds `address`, plain enough for a terminal and a JSON string; "" when not found. */
static void find_path(uintptr_t address, char path[MAX_PATH])
{
    struct maps m = {.fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC)};
    path[0] = '\0';
    if (m.fd < 0) return;
    for (int c = '\n'; c >= 0 && path[0] == '\0';) {
        uintptr_t from = next_address(&m, &c), to = next_address(&m, &c);
        bool here = address >= from && address < to;
        size_t n = 0;
        while (c >= 0 && c != '\n' && c != '/') c = next_byte(&m);
        for (; c >= 0 && c != '\n'; c = next_byte(&m)) {
            bool plain = c >= 0x20 && c < 0x7f && c != '"' && c != '\\';
            if (here && n + 1 < MAX_PATH) path[n++] = plain ? (char)c : '?';
        }
        path[n] = '\0';
        if (here) break;
    }
    close(m.fd);
}

/* Only a page of a mapping that the file does not back: anything else keeps its meaning. */
static void on_bus(int sig, siginfo_t *info, void *context)
{
    char path[MAX_PATH];
    (void)context;
    if (info->si_code != BUS_ADRERR) {
        signal(sig, SIG_DFL);
        raise(sig);
        return;
    }
    while (atomic_flag_test_and_set(&entered)) pause(); /* another thread is saying it already */
    find_path((uintptr_t)info->si_addr, path);
    if (on_terminal) put(STDERR_FILENO, "\r\033[K"); /* a progress bar */
    put(STDERR_FILENO, "backplane ");
    put(STDERR_FILENO, command_name);
    put(STDERR_FILENO, ": ");
    put(STDERR_FILENO, path);
    put(STDERR_FILENO, path[0] != '\0' ? ": " : "");
    put(STDERR_FILENO, why);
    put(STDERR_FILENO, "\n");
    if (json_wanted) {
        put(STDOUT_FILENO, "{\"error\":{\"code\":\"E_IO\",\"where\":\"");
        put(STDOUT_FILENO, path);
        put(STDOUT_FILENO, "\",\"message\":\"");
        put(STDOUT_FILENO, why);
        put(STDOUT_FILENO, "\"}}\n");
    }
    _exit(EXIT_FAILED);
}

void bus_init(const char *command, bool json)
{
    struct sigaction sa;
    stack_t alternate = {.ss_sp = stack, .ss_size = sizeof stack};
    command_name = command;
    json_wanted = json;
    on_terminal = isatty(STDERR_FILENO) == 1;
    memset(&sa, 0, sizeof sa);
    sa.sa_sigaction = on_bus;
    sa.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigemptyset(&sa.sa_mask);
    if (sigaltstack(&alternate, NULL) != 0) sa.sa_flags = SA_SIGINFO;
    sigaction(SIGBUS, &sa, NULL);
}
