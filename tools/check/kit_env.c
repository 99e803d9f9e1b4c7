/* kit_env.c - see kit_env.h. SPDX-License-Identifier: MIT */
#define _GNU_SOURCE /* mallinfo2, sched_getaffinity */
#include "kit_env.h"

#include <dirent.h>
#include <fenv.h>
#include <locale.h>
#include <malloc.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

extern char **environ;

static int entries_of(const char *folder)
{
    int n = 0;
    DIR *d = opendir(folder);
    if (d == NULL) return 0;
    while (readdir(d) != NULL) ++n;
    (void)closedir(d);
    return n;
}

struct kit_counts kit_counts_now(void)
{
    struct kit_counts c = {entries_of("/proc/self/fd"), entries_of("/proc/self/task"), 0, 0};
    FILE *f = fopen("/proc/self/maps", "re");
    for (int ch = 0; f != NULL && (ch = fgetc(f)) != EOF;) c.mappings += ch == '\n';
    if (f != NULL) (void)fclose(f);
#ifndef BP_SANITIZED
    c.heap = mallinfo2().uordblks;
#endif
    return c;
}

enum { N_SIGNALS = 32 };

struct kit_settings {
    char locale[512], folder[1024];
    int rounding;
    unsigned control; /* of the floating-point unit: masks, flush to zero */
    struct sigaction actions[N_SIGNALS];
    sigset_t blocked;
    cpu_set_t cpus;
    char **env;
    uint64_t env_hash;
    mode_t mask;
};

static unsigned control_word(void)
{
#if defined(__x86_64__)
    return __builtin_ia32_stmxcsr() & 0xffc0u; /* without the flags that arithmetic raises */
#else
    return 0;
#endif
}

static uint64_t hash_environment(void)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (char **e = environ; e != NULL && *e != NULL; ++e) {
        for (const char *c = *e;; ++c) {
            hash = (hash ^ (unsigned char)*c) * UINT64_C(0x100000001b3);
            if (*c == '\0') break;
        }
    }
    return hash;
}

static void fill(struct kit_settings *s)
{
    const char *locale = setlocale(LC_ALL, NULL);
    memset(s, 0, sizeof *s);
    (void)snprintf(s->locale, sizeof s->locale, "%s", locale != NULL ? locale : "");
    if (getcwd(s->folder, sizeof s->folder) == NULL) s->folder[0] = '\0';
    s->rounding = fegetround();
    s->control = control_word();
    for (int i = 1; i < N_SIGNALS; ++i) (void)sigaction(i, NULL, &s->actions[i]);
    (void)sigprocmask(SIG_BLOCK, NULL, &s->blocked);
    (void)sched_getaffinity(0, sizeof s->cpus, &s->cpus);
    s->env = environ;
    s->env_hash = hash_environment();
    s->mask = umask(0);
    (void)umask(s->mask);
}

struct kit_settings *kit_settings_take(void)
{
    struct kit_settings *s = malloc(sizeof *s);
    if (s != NULL) fill(s);
    return s;
}

void kit_settings_check(struct kit *k, struct kit_settings *s, const char *op)
{
    struct kit_settings *now = kit_settings_take();
    if (s != NULL && now != NULL) {
        if (strcmp(s->locale, now->locale) != 0)
            (void)kit_fail(k, "4.8", k->iface, op, NULL, "the locale was `%.60s` and is `%.60s`",
                           s->locale, now->locale);
        if (s->rounding != now->rounding || s->control != now->control)
            (void)kit_fail(k, "4.8", k->iface, op, NULL,
                           "the floating-point mode changed: rounding %d to %d, control %#x to %#x",
                           s->rounding, now->rounding, s->control, now->control);
        for (int i = 1; i < N_SIGNALS; ++i) {
            if (s->actions[i].sa_handler != now->actions[i].sa_handler)
                (void)kit_fail(k, "4.8", k->iface, op, NULL, "the handler of signal %d changed", i);
            if (sigismember(&s->blocked, i) != sigismember(&now->blocked, i))
                (void)kit_fail(k, "4.8", k->iface, op, NULL, "signal %d was %s", i,
                               sigismember(&now->blocked, i) == 1 ? "blocked" : "unblocked");
        }
        if (strcmp(s->folder, now->folder) != 0)
            (void)kit_fail(k, "4.8", k->iface, op, NULL, "the working folder is now %.100s",
                           now->folder);
        if (s->env != now->env || s->env_hash != now->env_hash)
            (void)kit_fail(k, "4.8", k->iface, op, NULL, "the environment changed");
        if (s->mask != now->mask) (void)kit_fail(k, "4.8", k->iface, op, NULL, "the umask changed");
        if (memcmp(&s->cpus, &now->cpus, sizeof s->cpus) != 0)
            (void)kit_fail(k, "4.8", k->iface, op, NULL, "the set of processors changed");
    }
    free(s);
    free(now);
}

void kit_check_spill(struct kit *k)
{
    struct stat st;
    char text[64] = "";
    (void)fflush(stdout);
    if (fstat(k->spill, &st) != 0 || st.st_size == 0) return;
    ssize_t n = pread(k->spill, text, sizeof text - 1, 0);
    text[n > 0 ? n : 0] = '\0';
    text[strcspn(text, "\r\n")] = '\0';
    (void)kit_fail(k, "4.9", k->iface, "stdout, stderr", NULL, "%lld bytes, beginning with `%s`",
                   (long long)st.st_size, text);
}
