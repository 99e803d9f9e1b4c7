/* base.h - the floor every room stands on: errors, memory, checked arithmetic, text, log, time.
 * Not here: file formats, threads (base/pool.h), numbers (base/half.h, base/rng.h).
 * State: none at file scope; a log is an object that its user passes on.
 * SPDX-License-Identifier: MIT */
#ifndef BPI_BASE_H
#define BPI_BASE_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "backplane/types.h"

#if defined(__GNUC__)
#define BPI_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#else
#define BPI_PRINTF(fmt, args)
#endif
#define BPI_ARRAY_LEN(a) (sizeof(a) / sizeof((a)[0]))

/* ---- errors (base_error.c) ---- */

/* "E_FORMAT" and "malformed input" for a code; "E_?" and "unknown status" for a number not in the table. */
const char *bpi_status_name(int32_t code);
const char *bpi_status_text(int32_t code);

/* Fills *err (may be NULL) and returns `code`, so that failing is one line: return bpi_fail(err, ...).
 * `where` (may be NULL) is a file, key, tensor or op; too long a one loses its beginning, too long a message its end.
 * Keeps a first error: when err->code is already set, the new text is dropped. */
int32_t bpi_fail(struct bp_error *err, int32_t code, const char *domain, const char *where, const char *fmt, ...)
    BPI_PRINTF(5, 6);
/* Same for allocation failure of n bytes; needs no memory itself. */
int32_t bpi_fail_nomem(struct bp_error *err, const char *domain, size_t n_bytes);
void bpi_error_clear(struct bp_error *err);

/* ---- memory (base_memory.c): the only callers of malloc and free outside tests ---- */

/* All return NULL on failure or when n * size overflows; a zero-byte request returns a unique pointer. */
void *bpi_alloc(size_t n_bytes);
void *bpi_calloc(size_t n, size_t elem_bytes);
void *bpi_realloc(void *p, size_t n, size_t elem_bytes);
/* align: power of two, at least sizeof(void *). Freed with bpi_free. */
void *bpi_alloc_aligned(size_t n_bytes, size_t align);
char *bpi_strdup(const char *s);
char *bpi_strndup(const char *s, size_t n); /* copies n bytes, NULs included, and ends them with a NUL */
void bpi_free(void *p);

/* Arena: many small objects of one life. alloc never fails silently (NULL), memory is zeroed. */
struct bpi_arena {
    struct bpi_arena_chunk *head;
    size_t chunk_bytes; /* 0 = 64 KiB */
    size_t used_bytes;  /* sum of what was handed out */
};
void *bpi_arena_alloc(struct bpi_arena *a, size_t n, size_t elem_bytes, size_t align);
char *bpi_arena_strndup(struct bpi_arena *a, const char *s, size_t n);
void bpi_arena_free(struct bpi_arena *a);

/* ---- checked arithmetic: false on overflow, *out then untouched ---- */
static inline bool bpi_mul_u64(uint64_t a, uint64_t b, uint64_t *out)
{
    uint64_t r;
    if (__builtin_mul_overflow(a, b, &r)) return false;
    *out = r;
    return true;
}
static inline bool bpi_add_u64(uint64_t a, uint64_t b, uint64_t *out)
{
    uint64_t r;
    if (__builtin_add_overflow(a, b, &r)) return false;
    *out = r;
    return true;
}
/* Rounds up to a multiple of align (a power of two). */
static inline bool bpi_align_up_u64(uint64_t v, uint64_t align, uint64_t *out)
{
    uint64_t r;
    if (__builtin_add_overflow(v, align - 1, &r)) return false;
    *out = r & ~(align - 1);
    return true;
}

/* ---- text (base_text.c) ---- */

/* Copies s into out[0..cap); what does not fit is cut at its beginning and shown by "...", because the end of a path
 * or a tensor name says more. Never leaves half a UTF-8 character. Empty when cap is below 5. */
void bpi_copy_end(char *out, size_t cap, const char *s);

/* Growing byte buffer, always NUL-terminated once non-empty. After a failed append `failed` stays set and later
 * appends do nothing: build the whole text, then check once. Zero-initialise; free with bpi_buf_free. */
struct bpi_buf {
    char *data;
    size_t len, cap;
    bool failed;
};
void bpi_buf_append(struct bpi_buf *b, const void *bytes, size_t n);
void bpi_buf_puts(struct bpi_buf *b, const char *s);
void bpi_buf_printf(struct bpi_buf *b, const char *fmt, ...) BPI_PRINTF(2, 3);
void bpi_buf_free(struct bpi_buf *b);

/* Does text match the pattern? '*' matches any run of characters; the pattern ends at a comma or NUL, so that one of a
 * list can be tried in place. Linear in text for each star. */
bool bpi_glob(const char *pattern, const char *text);

/* The candidate nearest to `word` (Damerau-Levenshtein, case-insensitive), or NULL when none is near enough
 * (distance above 1 + length/3). */
const char *bpi_nearest(const char *word, const char *const *candidates, size_t n);

/* UTF-8. decode: reads one code point from p[0..n), n >= 1; returns bytes consumed (1..4). Overlong forms,
 * surrogates, values above U+10FFFF and cut sequences give *cp = U+FFFD and 1 byte consumed, *ok = false. */
size_t bpi_utf8_decode(const unsigned char *p, size_t n, uint32_t *cp, bool *ok);
/* Writes 1..4 bytes for a valid code point, returns how many (0 for surrogates and above U+10FFFF). */
size_t bpi_utf8_encode(uint32_t cp, unsigned char out[4]);
bool bpi_utf8_valid(const char *s, size_t n);
/* How many trailing bytes of p[0..n) begin a sequence that is valid so far but not complete (0..3). */
size_t bpi_utf8_incomplete_tail(const unsigned char *p, size_t n);

/* Whole-string parses: false on empty, trailing bytes or overflow. u64 takes decimal only. */
bool bpi_parse_i64(const char *s, int64_t *out);
bool bpi_parse_u64(const char *s, uint64_t *out);
bool bpi_parse_f64(const char *s, double *out); /* finite, C locale whatever the process's locale is */

/* ---- files (base_file.c) ---- */

/* Reads a whole regular file of at most max_bytes into *out (bpi_free it), NUL-terminated beyond *out_len.
 * Errors: BP_E_IO (missing, directory, short read), BP_E_LIMIT (larger than max_bytes), BP_E_NOMEM. */
int32_t bpi_file_read(const char *path, size_t max_bytes, char **out, size_t *out_len, struct bp_error *err);
/* Writes to PATH.tmp.PID and renames; nothing half-written is left under either name on failure. */
int32_t bpi_file_write(const char *path, const void *data, size_t n, struct bp_error *err);

/* The same in pieces. begin makes the temporary file and reserves the n_bytes that will come, where the file system can;
 * finish brings it to disk and gives it its name. A failed begin and every finish and drop leave nothing to clean up and a
 * zeroed path; after a failed write only drop is legal. Zero-initialise. Errors: BP_E_IO, BP_E_NOMEM. */
struct bpi_output {
    char *path, *tmp; /* NULL: nothing is being written */
    int fd;
};
int32_t bpi_output_begin(struct bpi_output *o, const char *path, uint64_t n_bytes, struct bp_error *err);
int32_t bpi_output_write(const struct bpi_output *o, const void *data, uint64_t n, struct bp_error *err);
int32_t bpi_output_finish(struct bpi_output *o, struct bp_error *err);
void bpi_output_drop(struct bpi_output *o); /* accepts a zeroed one */

/* Read-only mapping of a regular file. Errors as bpi_file_read; an empty file is BP_E_FORMAT. */
struct bpi_map {
    const unsigned char *data;
    uint64_t n_bytes;
    uint64_t device, inode; /* which file it is, whatever its path names later */
};
int32_t bpi_map_open(const char *path, struct bpi_map *out, struct bp_error *err);
void bpi_map_close(struct bpi_map *m); /* accepts a zeroed map */
/* Hints about coming reads; they change speed, never results. Scattered: a page at a time, nothing around it. */
enum bpi_map_use { BPI_MAP_WHOLE, BPI_MAP_SCATTERED };
void bpi_map_expect(const struct bpi_map *m, uint32_t use);
/* Begins to bring bytes [at, at + n), cut to the file, into memory. */
void bpi_map_want(const struct bpi_map *m, uint64_t at, uint64_t n);
/* The pages that lie wholly in bytes [at, at + n) need not stay in memory; when they are read again they come from the file. */
void bpi_map_drop(const struct bpi_map *m, uint64_t at, uint64_t n);
/* A mapping of a file that another program shortens raises SIGBUS beyond the new end (docs/decisions/0006). BP_E_IO when the
 * file at `path` is still the mapped one and has become shorter; a path that is gone or names another file is fine,
 * because the mapping keeps the old one. */
int32_t bpi_map_check(const struct bpi_map *m, const char *path, struct bp_error *err);

/* The bytes of a mapped file by read calls: a shortened file gives an error and no signal. `path` outlives it. */
struct bpi_input {
    const char *path;
    int fd;
};
/* Errors: BP_E_IO, also when the path names another file or another length than when `m` was mapped. */
int32_t bpi_input_open(const struct bpi_map *m, const char *path, struct bpi_input *out, struct bp_error *err);
/* Exactly the bytes [at, at + n). BP_E_IO when the file ends before, or its disk fails. */
int32_t bpi_input_read(const struct bpi_input *in, uint64_t at, void *out, size_t n, struct bp_error *err);
void bpi_input_close(struct bpi_input *in);

/* ---- log ---- */
enum bpi_log_level { BPI_LOG_ERROR = 0, BPI_LOG_WARN = 1, BPI_LOG_INFO = 2, BPI_LOG_DEBUG = 3 };
struct bpi_log {
    void (*sink)(void *ctx, int32_t level, const char *room, const char *line); /* NULL = drop */
    void *ctx;
    int32_t level; /* the most detailed level that is passed on */
};
/* log may be NULL. The line has no newline at its end. */
void bpi_logf(const struct bpi_log *log, int32_t level, const char *room, const char *fmt, ...) BPI_PRINTF(4, 5);

/* Monotonic clock. */
uint64_t bpi_now_ns(void);

#endif
