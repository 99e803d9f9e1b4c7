/* common.c - steps that commands share: configuration, model, session, input text, feeding tokens.
 * Not here: output. SPDX-License-Identifier: MIT */
#include "cli.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define BUNDLED_MODEL "bp-tiny-glm-dsa-Q4_K_M.gguf"

/* ---- configuration ---- */

/* An option that stands for a key: the configuration's own checks, under the option's name. */
static int32_t set_from_option(struct cli *c, const struct cli_option *o, const char *value)
{
    char assignment[300];
    struct bp_error e = BP_ERROR_INIT;
    if (strlen(value) > 200)
        return cli_fail(&c->err, BP_E_ARG, o->name, "the value of --%s is too long", o->name);
    snprintf(assignment, sizeof assignment, "%s=%s", o->config, value);
    int32_t rc = bp_config_set(c->config, assignment, &e);
    if (rc == BP_OK) return BP_OK;
    char name[64];
    snprintf(name, sizeof name, "--%s", o->name);
    return cli_fail(&c->err, rc == BP_E_CONFIG ? BP_E_ARG : rc, name, "%.400s", e.msg);
}

int32_t cli_open_config(struct cli *c)
{
    if (c->config != NULL) return BP_OK;
    BP_TRY(bp_config_create(&c->config, &c->err));
    const char *file = cli_text(&c->line, "config");
    if (file != NULL) BP_TRY(bp_config_load(c->config, file, &c->err));
    for (size_t i = 0; i < c->line.n_sets; ++i)
        BP_TRY(bp_config_set(c->config, c->line.sets[i], &c->err));
    const struct cli_option *o;
    for (size_t i = 0; (o = cli_option_at(c->line.cmd, i)) != NULL; ++i) {
        if (o->config != NULL && c->line.value[i] != NULL)
            BP_TRY(set_from_option(c, o, c->line.value[i]));
    }
    return BP_OK;
}

int32_t cli_config_suggest(struct cli *c, const char *section, const char *key, uint64_t value)
{
    struct bp_config_entry e = {.h = BP_HDR(struct bp_config_entry, doc)};
    char assignment[128];
    for (uint32_t i = 0; bp_config_entry(c->config, i, &e) == BP_OK; ++i) {
        if (strcmp(e.section, section) != 0 || strcmp(e.key, key) != 0) continue;
        if (strcmp(e.origin, "default") != 0) return BP_OK;
        snprintf(assignment, sizeof assignment, "%s.%s=%llu", section, key,
                 (unsigned long long)value);
        return bp_config_set(c->config, assignment, &c->err);
    }
    return cli_fail(&c->err, BP_E_INTERNAL, key, "the configuration has no key %s.%s", section,
                    key);
}

/* ---- model and session ---- */

/* The bundled model of an installation, or of the source tree that a build folder inside it belongs to. */
static const char *find_bundled(char *path, size_t cap)
{
    static const char *const below[] = {"/../share/backplane/models/", "/../../../models/",
                                        "/../../../../models/"};
    char exe[2048];
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    if (n <= 0) return NULL;
    exe[n] = '\0';
    char *slash = strrchr(exe, '/');
    if (slash == NULL) return NULL;
    *slash = '\0';
    for (size_t i = 0; i < sizeof below / sizeof below[0]; ++i) {
        int len = snprintf(path, cap, "%s%s%s", exe, below[i], BUNDLED_MODEL);
        if (len > 0 && (size_t)len < cap && access(path, R_OK) == 0) return path;
    }
    return NULL;
}

const char *cli_model_path(struct cli *c)
{
    static char bundled[4096];
    const char *given = cli_text(&c->line, "model");
    if (given != NULL) return given;
    const char *found = find_bundled(bundled, sizeof bundled);
    if (found == NULL)
        cli_fail(&c->err, BP_E_ARG, "-m, --model",
                 "no model was given; name a GGUF file with -m FILE");
    else if (c->verbose)
        term_say("model: %s", found);
    return found;
}

int32_t cli_open_model(struct cli *c)
{
    if (c->model != NULL) return BP_OK;
    BP_TRY(cli_open_config(c));
    const char *path = cli_model_path(c);
    if (path == NULL) return c->err.code;
    struct term_progress bar;
    struct bp_callbacks cb = {.h = BP_HDR(struct bp_callbacks, progress),
                              .ctx = &bar,
                              .log = term_log,
                              .progress = term_progress_fn};
    term_progress_begin(&bar, "opening the model");
    double start = term_seconds();
    int32_t rc = bp_model_open(path, c->config, &cb, &c->model, &c->err);
    c->load_ms += (term_seconds() - start) * 1e3;
    term_progress_end(&bar);
    return rc;
}

int32_t cli_open_session(struct cli *c)
{
    BP_TRY(cli_open_model(c));
    /* The session keeps the callbacks, so they must outlive this function; the bar is only for loading. */
    static struct term_progress bar;
    struct bp_callbacks cb = {.h = BP_HDR(struct bp_callbacks, progress),
                              .ctx = &bar,
                              .log = term_log,
                              .progress = term_progress_fn};
    term_progress_begin(&bar, "loading");
    double start = term_seconds();
    int32_t rc = bp_session_open(c->model, c->config, &cb, &c->session, &c->err);
    c->load_ms += (term_seconds() - start) * 1e3;
    term_progress_end(&bar);
    if (rc == BP_OK) term_watch(c->session);
    if (rc == BP_OK && c->verbose) cli_say_session(c);
    return rc;
}

void cli_say_session(const struct cli *c)
{
    struct bp_choice choice = {.h = BP_HDR(struct bp_choice, layer_end)};
    struct bp_session_memory mem = {.h = BP_HDR(struct bp_session_memory, scratch)};
    for (uint32_t i = 0; bp_session_choice(c->session, i, &choice) == BP_OK; ++i) {
        if (choice.layer_begin < 0)
            term_say("backend: %s = %s", choice.slot, choice.provider);
        else
            term_say("backend: %s = %s (layers %d-%d)", choice.slot, choice.provider,
                     choice.layer_begin, choice.layer_end - 1);
    }
    bp_session_memory(c->session, &mem);
    term_say("activations: %s; cache: %s, %s; context %u tokens",
             bp_session_act_dtype(c->session), bp_session_kv_dtype(c->session),
             bp_session_kv_layout(c->session), bp_session_ctx(c->session));
    term_say("memory: cache %.1f MiB, weights %.1f MiB, buffers %.1f MiB, scratch %.1f MiB",
             (double)mem.cache / 0x1p20, (double)mem.weights / 0x1p20, (double)mem.buffers / 0x1p20,
             (double)mem.scratch / 0x1p20);
}

/* ---- input text ---- */

enum { MAX_TEXT_BYTES = 1 << 28 };

static int32_t read_stream(struct cli *c, FILE *f, const char *name, char **out, size_t *out_n)
{
    size_t cap = 1 << 16, n = 0;
    char *text = malloc(cap + 1);
    while (text != NULL) {
        n += fread(text + n, 1, cap - n, f);
        if (n < cap || cap >= MAX_TEXT_BYTES) break;
        char *more = realloc(text, 2 * cap + 1);
        if (more == NULL) free(text);
        text = more;
        cap *= 2;
    }
    if (text == NULL)
        return cli_fail(&c->err, BP_E_NOMEM, name, "out of memory while reading text");
    if (ferror(f) != 0) {
        int code = errno;
        free(text);
        if (term_stopped())
            return cli_fail(&c->err, BP_E_ABORTED, name, "stopped while reading text");
        return cli_fail(&c->err, BP_E_IO, name, "the text cannot be read: %s", strerror(code));
    }
    if (n >= MAX_TEXT_BYTES) {
        free(text);
        return cli_fail(&c->err, BP_E_LIMIT, name,
                        "the text has %d bytes or more, which is too long", MAX_TEXT_BYTES);
    }
    text[n] = '\0';
    *out = text;
    *out_n = n;
    return BP_OK;
}

static int32_t read_file(struct cli *c, const char *path, char **out, size_t *out_n)
{
    struct stat st;
    FILE *f = fopen(path, "rb");
    if (f == NULL)
        return cli_fail(&c->err, BP_E_IO, path, "the text file cannot be opened: %s",
                        strerror(errno));
    int32_t rc = BP_E_IO;
    if (fstat(fileno(f), &st) == 0 && S_ISDIR(st.st_mode))
        cli_fail(&c->err, BP_E_IO, path, "this is a directory; name a text file inside it");
    else
        rc = read_stream(c, f, path, out, out_n);
    fclose(f);
    return rc;
}

int32_t cli_check_utf8(struct cli *c, const char *what, const char *text, size_t n)
{
    size_t at = 0;
    if (cli_utf8_valid(text, n, &at)) return BP_OK;
    return cli_fail(
        &c->err, BP_E_ARG, what,
        "byte %zu of the text (0x%02x) is not valid UTF-8; convert the text to UTF-8 first", at,
        (unsigned)(unsigned char)text[at]);
}

int32_t cli_read_text(struct cli *c, bool drop_newline, char **out, size_t *out_n)
{
    const char *prompt = cli_text(&c->line, "prompt"), *file = cli_text(&c->line, "file");
    const char *what = prompt != NULL ? "-p, --prompt" : file != NULL ? file : "standard input";
    int32_t rc;
    *out = NULL;
    *out_n = 0;
    if (prompt != NULL && file != NULL)
        return cli_fail(&c->err, BP_E_ARG, "-p, --prompt",
                        "-p and -f were both given; the text can come from one place only");
    if (prompt != NULL) {
        *out_n = strlen(prompt);
        *out = malloc(*out_n + 1);
        if (*out == NULL) return cli_fail(&c->err, BP_E_NOMEM, what, "out of memory");
        memcpy(*out, prompt, *out_n + 1);
        rc = BP_OK;
    } else if (file != NULL) {
        rc = read_file(c, file, out, out_n);
    } else if (isatty(STDIN_FILENO)) {
        return cli_fail(&c->err, BP_E_ARG, what,
                        "no text was given; use -p TEXT, -f FILE, or a pipe into standard input");
    } else {
        rc = read_stream(c, stdin, what, out, out_n);
    }
    if (rc != BP_OK) return rc;
    if (prompt == NULL && drop_newline && *out_n > 0 && (*out)[*out_n - 1] == '\n')
        (*out)[--*out_n] = '\0';
    rc = cli_check_utf8(c, what, *out, *out_n);
    if (rc != BP_OK) {
        free(*out);
        *out = NULL;
    }
    return rc;
}

/* ---- feeding ---- */

int32_t cli_feed(struct cli *c, const int32_t *ids, size_t n, size_t step, uint32_t flags,
                 size_t first_logits, cli_logits_fn fn, void *ctx)
{
    size_t most = bp_session_batch_tokens(c->session), rows = bp_session_max_logits(c->session);
    if (step > 0 && step < most) most = step;
    for (size_t at = 0; at < n;) {
        if (term_stopped()) return cli_fail(&c->err, BP_E_ABORTED, "Ctrl-C", "stopped on request");
        size_t take = n - at < most ? n - at : most;
        /* A step returns at most `rows` rows: from the first wanted one on, steps get that short. */
        if (at + take > first_logits) {
            size_t begin = at > first_logits ? at : first_logits;
            if (at + take - begin > rows) take = begin - at + rows;
        }
        size_t want =
            at + take > first_logits ? at + take - (at > first_logits ? at : first_logits) : 0;
        struct bp_step_item item = {
            .h = BP_HDR(struct bp_step_item, n_logits),
            .flags = flags,
            .ids = ids + at,
            .n_ids = (uint32_t)take,
            .n_logits = (uint32_t)want,
        };
        BP_TRY(bp_session_step(c->session, &item, 1, &c->err));
        c->n_steps++;
        for (size_t i = 0; i < want; ++i) {
            const float *logits = bp_session_logits(c->session, 0, (uint32_t)i);
            if (logits == NULL)
                return cli_fail(&c->err, BP_E_INTERNAL, "logits", "a step left no logits");
            BP_TRY(fn(ctx, at + take - want + i, logits));
        }
        at += take;
    }
    return BP_OK;
}
