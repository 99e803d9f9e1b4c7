/* write.c - the spans as a Chrome trace (JSON object with traceEvents), readable by chrome://tracing and Perfetto.
 * Numbers are written without the C library's formats, so no locale gets in.
 * Threads: only at op_create and close, which the engine calls one at a time. SPDX-License-Identifier: MIT */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#include "trace.h"

enum { BUFFER_BYTES = 1 << 16, LINE_BYTES = 4096, MAX_THREADS = 256 };

/* How every trace begins: by this a file is known for one that may be replaced. */
static const char head[] = "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[";

/* May the file of this name give way to a trace? Where there is none, where it is empty, and where it is a trace. A link
 * is judged by what it leads to, and one that leads nowhere is kept. NULL, or why not. */
static const char *must_stay(const char *path)
{
    char begin[sizeof head - 1];
    struct stat st;
    /* Not to wait for the other end of a pipe. */
    const int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0 && lstat(path, &st) != 0)
        return NULL; /* mkstemp says what is wrong with the folder */
    if (fd < 0) return "it exists and cannot be read, so it is not replaced";
    const int is_file = fstat(fd, &st) == 0 && S_ISREG(st.st_mode);
    const int is_trace = is_file && read(fd, begin, sizeof begin) == (ssize_t)sizeof begin &&
                         memcmp(begin, head, sizeof begin) == 0;
    (void)close(fd);
    if (is_trace || (is_file && st.st_size == 0)) return NULL;
    return "it exists and is no earlier trace, so it is not replaced";
}

int32_t trace_file_open(struct trace_plugin *p, struct bp_error *err)
{
    struct bp_text t;
    if (p->out[0] == '\0' || p->fd >= 0) return BP_OK;
    const char *why = must_stay(p->out);
    int native = 0;
    if (why == NULL) {
        bp_text_begin(&t, p->part, sizeof p->part);
        bp_text_add(&t, p->out);
        bp_text_add(&t, ".XXXXXX");
        p->fd = mkstemp(p->part);
        if (p->fd >= 0) return BP_OK;
        native = errno;
        why = native == ENOENT    ? "its folder does not exist"
              : native == EACCES  ? "its folder may not be written to"
              : native == ENOTDIR ? "a part of the path is no folder"
                                  : "no file can be made there";
    }
    (void)bp_error_begin(err, &t, BP_E_IO, TRACE_NAME, "[plugin.trace] out");
    if (err != NULL) err->native = native;
    bp_text_add(&t, "the trace cannot be written to \"");
    bp_text_add(&t, p->out);
    bp_text_add(&t, "\": ");
    bp_text_add(&t, why);
    bp_text_add(&t, "; choose another file, or leave out empty for counters alone");
    return BP_E_IO;
}

/* ---- a buffered writer ---- */

struct sink {
    int fd;
    uint32_t used;
    int32_t failed;
    char buffer[BUFFER_BYTES];
};

static void flush(struct sink *s)
{
    uint32_t at = 0;
    while (at < s->used && !s->failed) {
        ssize_t n = write(s->fd, s->buffer + at, s->used - at);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) {
            s->failed = 1;
        } else {
            at += (uint32_t)n;
        }
    }
    s->used = 0;
}

static void put(struct sink *s, const struct bp_text *t)
{
    if (s->used + t->len > BUFFER_BYTES) flush(s);
    memcpy(s->buffer + s->used, t->at, t->len);
    s->used += (uint32_t)t->len;
}

/* Nanoseconds as microseconds with three decimals. */
static void add_us(struct bp_text *t, uint64_t ns)
{
    char decimals[5] = {'.', (char)('0' + ns / 100 % 10), (char)('0' + ns / 10 % 10),
                        (char)('0' + ns % 10), '\0'};
    bp_text_u64(t, ns / 1000);
    bp_text_add(t, decimals);
}

/* Port names come from another plugin: nothing in them may break the file. */
static void add_quoted(struct bp_text *t, const char *s)
{
    char one[2] = {0, 0};
    bp_text_add(t, "\"");
    for (uint32_t i = 0; s != NULL && s[i] != '\0' && i < 64; ++i) {
        one[0] = s[i] >= ' ' && s[i] <= '~' && s[i] != '"' && s[i] != '\\' ? s[i] : '?';
        bp_text_add(t, one);
    }
    bp_text_add(t, "\"");
}

static void add_shapes(struct bp_text *t, const struct trace_shapes *s)
{
    bp_text_add(t, ",\"tensors\":[");
    for (uint32_t i = 0; i < s->n; ++i) {
        bp_text_add(t, i != 0 ? ",{\"name\":" : "{\"name\":");
        add_quoted(t, s->t[i].name);
        bp_text_add(t, ",\"dtype\":\"");
        bp_text_add(t, bp_dtype_name(s->t[i].dtype));
        bp_text_add(t, s->t[i].access == BP_IN    ? "\",\"access\":\"in\",\"shape\":["
                       : s->t[i].access == BP_OUT ? "\",\"access\":\"out\",\"shape\":["
                                                  : "\",\"access\":\"inout\",\"shape\":[");
        for (uint32_t d = 0; d < s->t[i].ndim && d < 4; ++d) {
            if (d != 0) bp_text_add(t, ",");
            bp_text_i64(t, s->t[i].dim[d]);
        }
        bp_text_add(t, "]}");
    }
    bp_text_add(t, "]");
}

/* Threads get small numbers in the order in which they appear. */
struct threads {
    uint64_t seen[MAX_THREADS];
    uint32_t n;
};

static uint32_t thread_number(struct threads *all, uint64_t thread)
{
    uint32_t i = 0;
    while (i < all->n && all->seen[i] != thread) ++i;
    if (i == all->n && all->n < MAX_THREADS) all->seen[all->n++] = thread;
    return i + 1;
}

static void put_span(struct sink *s, const struct trace_op *o, uint64_t at, struct threads *all,
                     uint32_t *n_written)
{
    char line[LINE_BYTES];
    struct bp_text t;
    const struct trace_span *span = &o->spans[at];
    bp_text_begin(&t, line, sizeof line);
    bp_text_add(&t, (*n_written)++ != 0 ? ",\n{\"name\":\"" : "\n{\"name\":\"");
    bp_text_add(&t, o->iface);
    bp_text_add(&t, ".");
    bp_text_add(&t, o->slot_names[span->slot]);
    bp_text_add(&t, "\",\"cat\":\"");
    bp_text_add(&t, o->iface);
    bp_text_add(&t, "\",\"ph\":\"X\",\"ts\":");
    add_us(&t, span->begin_ns);
    bp_text_add(&t, ",\"dur\":");
    add_us(&t, span->dur_ns);
    bp_text_add(&t, ",\"pid\":");
    bp_text_u64(&t, (uint64_t)getpid());
    bp_text_add(&t, ",\"tid\":");
    bp_text_u64(&t, thread_number(all, span->thread));
    bp_text_add(&t, ",\"args\":{\"op\":");
    bp_text_u64(&t, o->id);
    bp_text_add(&t, ",\"layer\":");
    bp_text_i64(&t, span->layer);
    bp_text_add(&t, ",\"corr\":");
    bp_text_u64(&t, span->corr);
    bp_text_add(&t, ",\"status\":");
    bp_text_i64(&t, span->rc);
    if (o->shapes != NULL) add_shapes(&t, &o->shapes[at]);
    bp_text_add(&t, "}}");
    put(s, &t);
}

static void put_end(struct sink *s, uint64_t n_dropped, int32_t enqueue_only)
{
    char line[512];
    struct bp_text t;
    bp_text_begin(&t, line, sizeof line);
    bp_text_add(&t, "\n],\"otherData\":{\"dropped\":");
    bp_text_u64(&t, n_dropped);
    bp_text_add(&t, ",\"measures\":\"");
    bp_text_add(&t, enqueue_only ? "calls on the host; for devices, the time to enqueue" : "calls");
    bp_text_add(&t, "\"}}\n");
    put(s, &t);
}

static void say(const struct trace_plugin *p, uint32_t level, const char *before, uint64_t n,
                const char *after, uint64_t n_dropped)
{
    char line[768];
    struct bp_text t;
    bp_text_begin(&t, line, sizeof line);
    bp_text_add(&t, before);
    bp_text_u64(&t, n);
    bp_text_add(&t, after);
    bp_text_add(&t, p->out);
    if (n_dropped != 0) {
        bp_text_add(&t, "; ");
        bp_text_u64(&t, n_dropped);
        bp_text_add(&t, " older ones did not fit, raise [plugin.trace] events");
    }
    bp_log(p->host, level, line);
}

void trace_file_finish(struct trace_plugin *p)
{
    if (p->fd < 0) return;
    struct sink *s = bp_mem_alloc(p->host, 1, sizeof *s);
    struct threads *all = bp_mem_alloc(p->host, 1, sizeof *all);
    uint32_t n_written = 0;
    uint64_t n_dropped = 0;
    int32_t enqueue_only = 0, bad = s == NULL || all == NULL;
    if (!bad) {
        s->fd = p->fd;
        memcpy(s->buffer, head, sizeof head - 1);
        s->used = sizeof head - 1;
        for (const struct trace_op *o = p->newest; o != NULL; o = o->older) {
            const uint64_t n = atomic_load(&o->n_spans), kept = n < o->cap ? n : o->cap;
            n_dropped += n - kept;
            if (o->device_kind != BP_DEV_HOST) enqueue_only = 1;
            for (uint64_t i = n - kept; i < n; ++i) put_span(s, o, i % o->cap, all, &n_written);
        }
        put_end(s, n_dropped, enqueue_only);
        flush(s);
        bad = s->failed;
    }
    if (fchmod(p->fd, 0644) != 0) bad = 1; /* mkstemp lets nobody else read it */
    if (close(p->fd) != 0) bad = 1;
    p->fd = -1;
    if (bad || must_stay(p->out) != NULL || rename(p->part, p->out) != 0) { /* it may be new */
        (void)unlink(p->part);
        say(p, BP_LOG_ERROR, "the trace of ", n_written, " spans could not be written to ", 0);
    } else {
        say(p, BP_LOG_INFO, "", n_written, " spans written to ", n_dropped);
    }
    bp_mem_free(p->host, s);
    bp_mem_free(p->host, all);
}
