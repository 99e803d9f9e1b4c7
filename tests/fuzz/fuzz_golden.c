/* fuzz_golden.c - any bytes as a golden file: the command line's reader refuses them with a sentence, or everything
 * that it hands out can be read to its end. The reader comes in as source, with a model of three small numbers in
 * place of a real one, so that files of a few hundred bytes reach every branch.
 * Not here: the container's own faults (fuzz_gguf.c finds those faster). SPDX-License-Identifier: MIT */
#define _GNU_SOURCE /* memfd_create */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <backplane/backplane.h>
#include <backplane/tools.h>

enum { N_VOCAB = 8, N_EMBD = 4, N_LAYER = 2 };
static uint32_t fake_n_vocab(const struct bp_model *m)
{
    (void)m;
    return N_VOCAB;
}
static uint32_t fake_n_embd(const struct bp_model *m)
{
    (void)m;
    return N_EMBD;
}
static uint32_t fake_n_layer(const struct bp_model *m)
{
    (void)m;
    return N_LAYER;
}
#define bp_model_n_vocab fake_n_vocab
#define bp_model_n_embd fake_n_embd
#define bp_model_n_layer fake_n_layer
#include "../tools/cli/golden.c"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The command line's own is in options.c, with all commands behind it. */
int32_t cli_fail(struct bp_error *err, int32_t code, const char *where, const char *fmt, ...)
{
    va_list args;
    if (err == NULL || err->code != BP_OK) return code;
    err->code = code;
    (void)snprintf(err->where, sizeof err->where, "%s", where != NULL ? where : "");
    va_start(args, fmt);
    (void)vsnprintf(err->msg, sizeof err->msg, fmt, args);
    va_end(args);
    return code;
}

static void require(bool ok)
{
    if (!ok) abort();
}

/* Reads all that the header file promises. */
static void walk(const struct golden *g)
{
    volatile double sum = 0;
    require(g->n_prompts >= 1 && g->n_prompts <= GOLDEN_MAX_PROMPTS);
    for (uint32_t n = 0; n < g->n_prompts; ++n) {
        const struct golden_prompt *p = &g->prompts[n];
        require(p->n_ids >= 1 && p->n_rows >= 1 && p->n_rows <= p->n_ids);
        require(p->n_hidden == 0 || p->n_hidden == N_LAYER + 1);
        for (size_t i = 0; i < p->n_text; ++i) sum = sum + p->text[i];
        for (uint32_t i = 0; i < p->n_ids; ++i) require(p->ids[i] >= 0 && p->ids[i] < N_VOCAB);
        for (uint32_t i = 0; i < p->n_greedy; ++i)
            require(p->greedy[i] >= 0 && p->greedy[i] < N_VOCAB);
        for (size_t i = 0; i < (size_t)p->n_rows * N_VOCAB; ++i) sum = sum + (double)p->logits[i];
        for (uint32_t l = 0; l < p->n_hidden; ++l) {
            for (size_t i = 0; i < (size_t)p->n_ids * N_EMBD; ++i)
                sum = sum + (double)p->hidden[l][i];
        }
    }
}

/* The reader opens paths, so the bytes go through a file that lies in memory. */
static int scratch(void)
{
    static int fd = -1;
    if (fd < 0) fd = memfd_create("golden", MFD_CLOEXEC);
    require(fd >= 0);
    return fd;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[64];
    int fd = scratch();
    require(ftruncate(fd, 0) == 0 && pwrite(fd, data, size, 0) == (ssize_t)size);
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    struct golden g;
    struct bp_error err = BP_ERROR_INIT;
    int32_t rc = golden_open(&g, path, NULL, &err);
    require(rc == err.code && (rc == BP_OK) == (err.msg[0] == '\0'));
    require((rc == BP_OK) == (g.file != NULL) && (rc == BP_OK || g.prompts == NULL));
    if (rc == BP_OK) walk(&g);
    golden_close(&g);
    return 0;
}
