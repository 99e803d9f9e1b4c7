/* kit_child.c - see kit_child.h. Whatever a plugin does - crash, hang, exit, close the pipe, fill it with noise - the
 * parent reads what makes sense, kills what is left, and tells how it ended. SPDX-License-Identifier: MIT */
#define _GNU_SOURCE /* memfd_create, pipe2, nftw */
#include "kit_child.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "kit_guard.h"

enum { STACK_BYTES = 1 << 16, CAUGHT = 86, SPILL_MAX = 1 << 26 };

/* What the handler of a fault needs; a child has one kit. */
static struct kit *faulting;

static const char *signal_name(int sig)
{
    switch (sig) {
    case SIGSEGV:
        return "SIGSEGV";
    case SIGBUS:
        return "SIGBUS";
    case SIGABRT:
        return "SIGABRT (abort, an assertion, or an exception that left the plugin)";
    case SIGFPE:
        return "SIGFPE";
    case SIGILL:
        return "SIGILL";
    case SIGKILL:
        return "SIGKILL";
    case SIGXCPU:
        return "SIGXCPU (more processor time than the limit)";
    default:
        return "a signal";
    }
}

/* Not async-signal-safe to the letter (snprintf), but the process is about to end, and the parent tells the signal's name
 * when this does not come through. */
static void on_fault(int sig, siginfo_t *info, void *context)
{
    struct kit *k = faulting;
    struct kit_guard_hit hit;
    struct kit_place *p = k->place;
    (void)context;
    if ((sig == SIGSEGV || sig == SIGBUS) && kit_guard_find(info->si_addr, &hit)) {
        const bool in_struct = strncmp(hit.name, "struct ", 7) == 0;
        const bool inside =
            hit.offset >= 0 && (uint64_t)hit.offset < hit.n_bytes; /* it was made unwritable */
        const char *rule = strcmp(hit.name, "the host table") == 0 ? (inside ? "3.3" : "3.1")
                           : strcmp(hit.name, "the reasons of a verdict") == 0 ? "3.6"
                           : in_struct ? (k->stage == 5 ? "5.2"
                                          : inside      ? "3.3"
                                                        : "3.2")
                           : inside    ? "6.2"
                                       : "6.10";
        k->mute = false;
        (void)kit_fail(k, rule, p->iface, p->op, NULL,
                       "%s: access to byte %lld of %s, which has %zu bytes (%s)", signal_name(sig),
                       (long long)hit.offset, hit.name, hit.n_bytes, p->text);
    } else {
        (void)kit_fail(k, k->stage == 3 && p->rule[0] == '3' ? p->rule : "4.10", p->iface, p->op,
                       NULL, "%s%s (%s)", signal_name(sig),
                       p->in_plugin != 0 ? " in the plugin" : " while its answer was read",
                       p->text);
    }
    _exit(CAUGHT);
}

static void catch_faults(struct kit *k)
{
    static const int caught[] = {SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL};
    static unsigned char stack[STACK_BYTES];
    const stack_t alt = {.ss_sp = stack, .ss_size = sizeof stack};
    struct sigaction sa = {.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESETHAND};
    sa.sa_sigaction = on_fault;
    (void)sigemptyset(&sa.sa_mask);
    faulting = k;
    (void)sigaltstack(&alt, NULL);
    for (size_t i = 0; i < KIT_LEN(caught); ++i) (void)sigaction(caught[i], &sa, NULL);
}

static void limit(int what, rlim_t n)
{
    struct rlimit r;
    if (getrlimit(what, &r) != 0) return;
    if (r.rlim_max != RLIM_INFINITY && r.rlim_max < n) n = r.rlim_max;
    r.rlim_cur = n;
    (void)setrlimit(what, &r);
}

static void child(const struct kit_options *o, struct kit_place *place, uint32_t stage,
                  const char *iface, const char *folder, int out, void (*fn)(struct kit *k))
{
    struct kit *k = calloc(1, sizeof *k);
    struct kit_record done = {.magic = KIT_MAGIC, .kind = KIT_DONE, .stage = stage};
    if (k == NULL) _exit(1);
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    (void)setpgid(0, 0);
    if (chdir(folder) != 0) _exit(1);
    limit(RLIMIT_CORE, 0);
    limit(RLIMIT_NOFILE, 512);
    limit(RLIMIT_FSIZE, SPILL_MAX);
#ifndef BP_SANITIZED /* a sanitizer reserves more than any limit */
    if (o->gpu < 0)
        limit(RLIMIT_AS, (rlim_t)32 << 30); /* drivers reserve addresses for all memory there is */
#endif
    k->o = o;
    k->place = place;
    k->stage = stage;
    k->iface = iface;
    k->out = fcntl(out, F_DUPFD_CLOEXEC,
                   200); /* out of the way of small numbers that code closes by habit */
    (void)close(out);
    k->spill = memfd_create("spill", MFD_CLOEXEC);
    if (k->out < 0 || k->spill < 0) _exit(1);
    (void)dup2(k->spill, STDOUT_FILENO);
    if (getenv("BP_CHECK_STDERR") == NULL) (void)dup2(k->spill, STDERR_FILENO);
    catch_faults(k);
    fn(k);
    kit_at(k, "4.10", "", "exit", "the end of the process");
    (void)write(k->out, &done, sizeof done);
    if (stage == 4) exit(0); /* handlers and destructors of the plugin are part of its life */
    _exit(0);
}

/* ---- the parent ---- */

struct watch {
    struct kit_place *place;
    pid_t pid;
    uint32_t stage;
    const char *iface;
    kit_sink sink;
    void *ctx;
    bool done, caught;
    uint32_t n_noise;
    unsigned char buffer[sizeof(struct kit_record)];
    size_t have;
};

static void end_texts(struct kit_record *r)
{
    r->rule[sizeof r->rule - 1] = r->iface[sizeof r->iface - 1] = r->op[sizeof r->op - 1] = '\0';
    r->expected[sizeof r->expected - 1] = r->seen[sizeof r->seen - 1] = '\0';
}

static void take(struct watch *w)
{
    struct kit_record r;
    memcpy(&r, w->buffer, sizeof r);
    w->have = 0;
    if (r.magic != KIT_MAGIC || r.kind < KIT_FINDING || r.kind > KIT_DONE) {
        w->n_noise++;
        return;
    }
    end_texts(&r);
    r.stage = w->stage;
    if (r.kind == KIT_DONE)
        w->done = true;
    else
        w->sink(w->ctx, &r);
    if (r.kind == KIT_FINDING) w->caught = true;
}

static int64_t now_ms(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static bool is_gone(pid_t pid)
{
    siginfo_t info = {0};
    return waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == pid;
}

/* Reads until the pipe closes, the child is gone, or it makes no progress. true: it hangs. */
static bool listen_to(struct watch *w, int in, uint32_t timeout_s)
{
    uint64_t steps = w->place->steps;
    int64_t since = now_ms();
    for (;;) {
        struct pollfd p = {.fd = in, .events = POLLIN};
        const bool gone =
            is_gone(w->pid); /* before the look into the pipe, which then holds all there will be */
        int n = poll(&p, 1, gone ? 0 : 200);
        if (n > 0) {
            ssize_t got = read(in, w->buffer + w->have, sizeof w->buffer - w->have);
            if (got == 0 || (got < 0 && errno != EINTR)) return false;
            if (got > 0) w->have += (size_t)got;
            if (w->have == sizeof w->buffer) take(w);
        } else if (gone) {
            return false;
        }
        if (w->place->steps != steps) {
            steps = w->place->steps;
            since = now_ms();
        }
        if (!gone && now_ms() - since > (int64_t)timeout_s * 1000) return true;
    }
}

static void tell_end(struct watch *w, int status, bool hangs, uint32_t timeout_s)
{
    struct kit_place p = *(struct kit_place *)(uintptr_t)w->place;
    struct kit_record r = {.kind = KIT_FINDING, .stage = w->stage};
    p.rule[sizeof p.rule - 1] = p.iface[sizeof p.iface - 1] = p.op[sizeof p.op - 1] = '\0';
    p.text[sizeof p.text - 1] = '\0';
    (void)snprintf(r.rule, sizeof r.rule, "%s", hangs ? "4.11" : "4.10");
    (void)snprintf(r.iface, sizeof r.iface, "%s", p.iface);
    (void)snprintf(r.op, sizeof r.op, "%s", p.op);
    (void)snprintf(r.expected, sizeof r.expected, "%s",
                   hangs ? "a call returns within its time"
                         : "no call ends the process: no exit, abort, signal, throw");
    if (hangs)
        (void)snprintf(r.seen, sizeof r.seen, "nothing happened for %u s (%s)", timeout_s, p.text);
    else if (WIFSIGNALED(status))
        (void)snprintf(r.seen, sizeof r.seen, "the process ended by %s, signal %d (%s)",
                       signal_name(WTERMSIG(status)), WTERMSIG(status), p.text);
    else
        (void)snprintf(r.seen, sizeof r.seen, "the process ended by exit(%d) (%s)",
                       WEXITSTATUS(status), p.text);
    w->sink(w->ctx, &r);
}

/* ---- the folder that a child works in ---- */

/* What a plugin writes by a relative name, a trace for example, must not land where the user happens to be. */
static bool make_folder(char *path, size_t cap)
{
    const char *tmp = getenv("TMPDIR");
    if (tmp == NULL || tmp[0] != '/') tmp = "/tmp";
    int n = snprintf(path, cap, "%s/backplane-check-XXXXXX", tmp);
    return n > 0 && (size_t)n < cap && mkdtemp(path) != NULL;
}

static int remove_one(const char *path, const struct stat *st, int what, struct FTW *at)
{
    (void)st;
    (void)what;
    (void)at;
    (void)remove(path);
    return 0;
}

static void remove_folder(const char *path)
{
    (void)nftw(path, remove_one, 8, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
}

bool kit_child_run(const struct kit_options *o, uint32_t stage, const char *iface,
                   void (*fn)(struct kit *k), kit_sink sink, void *ctx)
{
    char folder[PATH_MAX];
    int ends[2], status = 0;
    struct kit_place *place =
        mmap(NULL, sizeof *place, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (place == MAP_FAILED) return false;
    const bool has_folder = make_folder(folder, sizeof folder);
    if (!has_folder) (void)fprintf(stderr, "backplane-check: no folder can be made in TMPDIR\n");
    if (!has_folder || pipe2(ends, O_CLOEXEC) != 0) {
        if (has_folder) remove_folder(folder);
        (void)munmap(place, sizeof *place);
        return false;
    }
    (void)fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        (void)close(ends[0]);
        child(o, place, stage, iface, folder, ends[1], fn);
        _exit(0);
    }
    (void)close(ends[1]);
    if (pid > 0) {
        struct watch w = {
            .place = place, .pid = pid, .stage = stage, .iface = iface, .sink = sink, .ctx = ctx};
        bool hangs = listen_to(&w, ends[0], o->timeout_s);
        /* The group: whatever the plugin has started goes too. */
        if (hangs) (void)kill(pid, SIGKILL);
        pid_t got;
        int64_t until = now_ms() + (int64_t)o->timeout_s * 1000;
        while ((got = waitpid(pid, &status, WNOHANG)) == 0 || (got < 0 && errno == EINTR)) {
            if (now_ms() > until) (void)kill(pid, SIGKILL);
            (void)poll(NULL, 0, 5);
        }
        (void)kill(-pid, SIGKILL);
        bool peaceful = w.done && WIFEXITED(status) && WEXITSTATUS(status) == 0;
        bool told = WIFEXITED(status) && WEXITSTATUS(status) == CAUGHT && w.caught;
        if (hangs || (!peaceful && !told)) tell_end(&w, status, hangs, o->timeout_s);
    }
    (void)close(ends[0]);
    remove_folder(folder);
    (void)munmap(place, sizeof *place);
    return pid > 0;
}
