/* term.c - standard error and Ctrl-C.
 * File-scope state: what a signal handler needs, and whether a bar stands on the terminal. A tool may have it, the
 * library not. SPDX-License-Identifier: MIT */
#include "term.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/select.h>
#include <time.h>
#include <unistd.h>

static volatile sig_atomic_t stop_count;
static struct bp_session *volatile watched;
static bool bar_stands, acknowledged;

/* Only what POSIX allows in a handler; bp_session_interrupt is made for it. */
static void on_interrupt(int sig)
{
    int saved = errno;
    if (stop_count == 0) {
        stop_count = 1;
        struct bp_session *s = watched;
        if (s != NULL) bp_session_interrupt(s);
    } else {
        signal(sig, SIG_DFL);
        raise(sig);
    }
    errno = saved;
}

void term_init(void)
{
    struct sigaction sa;
    memset(&sa, 0, sizeof sa);
    sa.sa_handler = on_interrupt;
    sigemptyset(&sa.sa_mask);
    sigaction(SIGINT, &sa, NULL); /* no SA_RESTART: waiting for a line of input ends too */
}

void term_catch_more(void)
{
    static const int stops[] = {SIGTERM, SIGHUP};
    for (size_t i = 0; i < sizeof stops / sizeof stops[0]; ++i) {
        struct sigaction sa;
        if (sigaction(stops[i], NULL, &sa) != 0 || sa.sa_handler == SIG_IGN) continue;
        memset(&sa, 0, sizeof sa);
        sa.sa_handler = on_interrupt;
        sigemptyset(&sa.sa_mask);
        sigaction(stops[i], &sa, NULL);
    }
    signal(SIGXFSZ, SIG_IGN);
}

bool term_stopped(void)
{
    return stop_count != 0;
}

void term_rearm(void)
{
    stop_count = 0;
    acknowledged = false;
}

void term_watch(struct bp_session *s)
{
    watched = s;
}

double term_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* ---- messages ---- */

static void erase_bar(void)
{
    if (!bar_stands) return;
    fputs("\r\033[K", stderr);
    bar_stands = false;
}

/* C0, DEL and C1 controls; the latter are U+0080..U+009F, in UTF-8 0xC2 0x80..0x9F. Returns bytes to drop, or 0. */
static size_t control_at(const char *text, size_t n, bool lines)
{
    unsigned char c = (unsigned char)text[0];
    if (c == '\n' || c == '\t') return lines ? 0 : 1;
    if (c < 0x20 || c == 0x7f) return 1;
    if (c == 0xc2 && n > 1 && (unsigned char)text[1] >= 0x80 && (unsigned char)text[1] <= 0x9f)
        return 2;
    return 0;
}

static void put_plain(FILE *f, const char *text, size_t n, bool lines)
{
    size_t from = 0, i = 0;
    while (i < n) {
        size_t drop = control_at(text + i, n - i, lines);
        if (drop == 0) {
            ++i;
            continue;
        }
        fwrite(text + from, 1, i - from, f);
        fputc('?', f);
        from = i += drop;
    }
    fwrite(text + from, 1, n - from, f);
}

void term_say(const char *fmt, ...)
{
    char line[2048];
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(line, sizeof line, fmt, args);
    va_end(args);
    if (n < 0) return;
    erase_bar();
    put_plain(stderr, line, strlen(line), false);
    fputc('\n', stderr);
}

void term_log(void *ctx, int32_t level, const char *room, const char *line)
{
    static const char *const names[] = {"error", "warning", "info", "debug"};
    (void)ctx;
    term_say("%s: %s: %s", names[level < 0 ? 0 : level > 3 ? 3 : level], room, line);
}

void term_out(const char *text, size_t n)
{
    erase_bar();
    if (isatty(STDOUT_FILENO))
        put_plain(stdout, text, n, true);
    else
        fwrite(text, 1, n, stdout);
    fflush(stdout);
}

void term_name(const char *name)
{
    erase_bar();
    put_plain(stdout, name, strlen(name), false);
}

/* ---- input ---- */

static struct {
    char *data;
    size_t n, cap, taken; /* bytes held; bytes of the line handed out last */
    bool end;
} input;

/* Waits until there is something to read. Ctrl-C is blocked outside of pselect, so that none can come between looking
 * at the flag and waiting. */
static int32_t wait_input(const sigset_t *unblocked)
{
    for (;;) {
        fd_set set;
        if (stop_count != 0 && !acknowledged) {
            acknowledged = true;
            return BP_E_ABORTED;
        }
        FD_ZERO(&set);
        FD_SET(STDIN_FILENO, &set);
        if (pselect(STDIN_FILENO + 1, &set, NULL, NULL, NULL, unblocked) >= 0) return BP_OK;
        if (errno != EINTR) return BP_E_IO;
    }
}

static int32_t read_more(const sigset_t *unblocked)
{
    enum { PIECE = 4096, MAX_LINE = 1 << 20 };
    if (input.n >= MAX_LINE) return BP_E_LIMIT;
    if (input.cap - input.n < PIECE) {
        char *data = realloc(input.data, input.cap + 4 * PIECE);
        if (data == NULL) return BP_E_NOMEM;
        input.data = data;
        input.cap += 4 * PIECE;
    }
    BP_TRY(wait_input(unblocked));
    ssize_t got = read(STDIN_FILENO, input.data + input.n, PIECE - 1); /* room for a NUL */
    if (got < 0) return errno == EINTR || errno == EAGAIN ? BP_OK : BP_E_IO;
    input.end = got == 0;
    input.n += (size_t)got;
    return BP_OK;
}

int32_t term_read_line(char **out, size_t *out_n)
{
    sigset_t block, before;
    int32_t rc = BP_OK;
    char *newline = NULL;
    if (input.taken > 0) {
        input.n -= input.taken;
        memmove(input.data, input.data + input.taken, input.n);
        input.taken = 0;
    }
    sigemptyset(&block);
    sigaddset(&block, SIGINT);
    sigprocmask(SIG_BLOCK, &block, &before);
    while (rc == BP_OK) {
        if (input.n > 0) newline = memchr(input.data, '\n', input.n);
        if (newline != NULL || input.end) break;
        rc = read_more(&before);
    }
    sigprocmask(SIG_SETMASK, &before, NULL);
    if (rc != BP_OK) return rc;
    *out = input.data;
    *out_n = input.taken = newline != NULL ? (size_t)(newline - input.data) + 1 : input.n;
    if (*out_n > 0) return BP_OK;
    input.end = false; /* a terminal can go on behind Ctrl-D */
    return BP_DECLINED;
}

/* ---- progress ---- */

enum { BAR_CELLS = 30 };
static const double FIRST_AFTER_S = 0.5, EVERY_S = 0.1;

void term_progress_begin(struct term_progress *p, const char *title)
{
    *p = (struct term_progress){.title = title, .start_s = term_seconds()};
}

void term_progress_update(struct term_progress *p, double fraction, const char *note)
{
    double now = term_seconds();
    if (now - p->start_s < FIRST_AFTER_S || !(fraction >= 0.0 && fraction <= 1.0)) return;
    if (!isatty(STDERR_FILENO)) {
        if (!p->told) fprintf(stderr, "%s ...\n", p->title);
        p->told = true;
        return;
    }
    if (p->drawn && now - p->last_s < EVERY_S && fraction < 1.0) return;
    int cells = (int)(fraction * BAR_CELLS + 0.5);
    fprintf(stderr, "\r%s [", p->title);
    for (int i = 0; i < BAR_CELLS; ++i) fputc(i < cells ? '#' : '.', stderr);
    fprintf(stderr, "] %3d%% ", (int)(fraction * 100.0));
    put_plain(stderr, note, strnlen(note, 40), false);
    fputs("\033[K", stderr);
    fflush(stderr);
    p->drawn = bar_stands = true;
    p->last_s = now;
}

void term_progress_end(struct term_progress *p)
{
    if (p->drawn) erase_bar();
    p->drawn = false;
}

int32_t term_progress_fn(void *ctx, double fraction, const char *what)
{
    term_progress_update(ctx, fraction, what != NULL ? what : "");
    return term_stopped() ? 1 : 0;
}
