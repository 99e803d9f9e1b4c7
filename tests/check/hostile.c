/* hostile.c - a plugin that serves nothing, and in open() does to its process what `mode` says: the kit has to name it and
 * go on. SPDX-License-Identifier: MIT */
#include <backplane/sdk.h>

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static const struct bp_host *host_of_this;

/* Every file but the standard ones. */
static void close_all(void)
{
    for (int fd = 3; fd < 4096; ++fd) (void)close(fd);
}

/* Bytes that are no record, into whatever is open. */
static void noise(void)
{
    char bytes[5000];
    memset(bytes, 0x5a, sizeof bytes);
    for (int fd = 3; fd < 512; ++fd) {
        if ((fcntl(fd, F_GETFL) & O_ACCMODE) == O_WRONLY) (void)!write(fd, bytes, sizeof bytes);
    }
}

static int deeper(volatile int depth)
{
    volatile char frame[4096];
    frame[0] = (char)depth;
    return depth < 0 ? frame[0] : deeper(depth + 1) + frame[0];
}

/* A process that holds every file of ours open for a while. */
static void left_behind(void)
{
    if (fork() != 0) return;
    (void)sleep(60);
    _exit(0);
}

static void spin_at_exit(void)
{
    for (;;) (void)usleep(1000);
}

/* Fills the stacks and pages of others as far as it gets. */
static void scribble(void)
{
    volatile unsigned char *p = (volatile unsigned char *)&p;
    for (size_t i = 0; i < (size_t)1 << 30; ++i) p[i] = 0x41;
}

static void act(const char *mode)
{
    if (strcmp(mode, "close_all") == 0) close_all();
    if (strcmp(mode, "noise") == 0) noise();
    if (strcmp(mode, "noise_abort") == 0) noise(), abort();
    if (strcmp(mode, "stack") == 0) (void)deeper(0);
    if (strcmp(mode, "fork") == 0) left_behind();
    if (strcmp(mode, "kill") == 0) (void)raise(SIGKILL);
    if (strcmp(mode, "stop") == 0) (void)raise(SIGSTOP);
    if (strcmp(mode, "exit") == 0) exit(0);
    if (strcmp(mode, "quick_exit") == 0) _exit(0);
    if (strcmp(mode, "atexit") == 0) (void)atexit(spin_at_exit);
    if (strcmp(mode, "scribble") == 0) scribble();
    if (strcmp(mode, "no_handlers") == 0) {
        (void)signal(SIGSEGV, SIG_DFL);
        *(volatile int *)(uintptr_t)mode[0] = 1;
    }
    if (strcmp(mode, "no_memory") == 0) {
        const struct rlimit none = {0, 0};
        (void)setrlimit(RLIMIT_AS, &none);
    }
    if (strcmp(mode, "write") == 0) {
        (void)mkdir("a", 0700);
        (void)close(open("a/b.json", O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
        (void)close(open("c.json", O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
    }
    if (strcmp(mode, "unmap") == 0) (void)munmap((void *)(uintptr_t)host_of_this, 1);
}

static int32_t hostile_open(const struct bp_host *host, void **plugin, struct bp_error *err)
{
    char mode[32];
    (void)err;
    host_of_this = host;
    *plugin = NULL;
    if (bp_cfg_str(host, "mode", "none", mode, sizeof mode) != BP_OK)
        return bp_error_set(err, BP_E_CONFIG, "hostile", "mode", "the mode is too long");
    act(mode);
    return BP_OK;
}

static void hostile_close(void *plugin)
{
    (void)plugin;
}

static int32_t hostile_create(void *plugin, const struct bp_op_entry *entry,
                              const struct bp_device *dev, const struct bp_op_ref *inner,
                              uint32_t n_inner, struct bp_op_ref *out, struct bp_error *err)
{
    (void)plugin, (void)dev, (void)inner, (void)n_inner, (void)out;
    return bp_error_set(err, BP_DECLINED, "hostile", entry->iface, "it serves nothing");
}

static void hostile_destroy(void *plugin, struct bp_op_ref *op)
{
    (void)plugin, (void)op;
}

static const struct bp_cfg_key keys[] = {{"mode", "string", "none", "what open() does", 0, 0}};

BP_PLUGIN(BP_KIND_BACKEND, "hostile", "1.0.0",
          BP_ABOUT("Backplane", "MIT", "does to its process what it is told"), BP_NO_CUDA,
          BP_KEYS(keys), BP_HOOKS(hostile_open, hostile_close, hostile_create, hostile_destroy),
          ("bp.dense", "none"));
