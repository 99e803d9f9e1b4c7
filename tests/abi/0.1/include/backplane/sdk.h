/* sdk.h - helpers for plugin authors: note, descriptor and entry from one list, errors, log, config, memory, verdicts,
 * workspaces; with sdk_tensor.h (rows and floats) and sdk_ports.h (what tensors() answers for each interface).
 * Not here: the ABI itself (plugin.h, slot_*.h); everything below can be written out by hand instead.
 * Header only, so that a plugin links against nothing of the engine. No state, no locale, no stdio. C11 and C++17.
 * Threads: every function may be called from any thread. SPDX-License-Identifier: MIT */
#ifndef BP_SDK_H
#define BP_SDK_H

#include <string.h>

#include "backplane/plugin.h"
#include "backplane/sdk_tensor.h"
#include "backplane/sdk_ports.h"

BP_EXTERN_C_BEGIN

/* What the entry function of a plugin is declared with; everything else should be compiled with hidden visibility. */
#define BP_EXPORT __attribute__((visibility("default")))

/* Number of elements of an array. */
#define BP_LEN(array) ((uint32_t)(sizeof(array) / sizeof((array)[0])))

/* ---- note, descriptor, entry --------------------------------------------------------------------------------- */

/* Emits the plugin's note; once per plugin, at file scope. kind: enum bp_plugin_kind; name, version: literals of at most
 * 31 characters, the same as in the descriptor; ifaces: the offered interfaces in one literal, one space between.
 * BP_PLUGIN below emits it together with a descriptor that says the same. */
#define BP_PLUGIN_NOTE(kind_, name_, version_, ifaces_)                                                                \
    BP_STATIC_ASSERT(sizeof(name_) <= 32 && sizeof(version_) <= 32 && sizeof(ifaces_) <= 256,                          \
                     "name and version of a plugin take at most 31 bytes, its interfaces 255");                        \
    extern __attribute__((visibility("hidden"))) const struct bp_note_record bp_note_record_;                          \
    __attribute__((used, section(BP_NOTE_SECTION), aligned(4)))                                                        \
    const struct bp_note_record bp_note_record_ = {                                                                    \
        sizeof(BP_NOTE_OWNER), sizeof(struct bp_plugin_note), BP_NOTE_PLUGIN, BP_NOTE_OWNER,                           \
        {BP_ABI_MAJOR, BP_ABI_MINOR, (kind_), 0, name_, version_, ifaces_}}

/* An ELF note with its header, as it lies in the file. */
struct bp_note_record {
    uint32_t namesz, descsz, type;
    char owner[12]; /* BP_NOTE_OWNER, padded to a multiple of four */
    struct bp_plugin_note desc;
};
BP_NOPAD(struct bp_note_record, desc);

/* The whole frame of a plugin from one list; once per plugin, at file scope, closed by a semicolon:
 *
 *     BP_PLUGIN(BP_KIND_BACKEND, "acme", "1.2.0",
 *               BP_ABOUT("Acme Corp", "MIT", "attention for the A1 chip"),
 *               BP_NO_CUDA, BP_KEYS(keys), BP_HOOKS(acme_open, acme_close, acme_op_create, acme_op_destroy),
 *               ("bp.mla.decode", "split"), ("bp.quant", "q8_0"));
 *
 * kind      BP_KIND_BACKEND or BP_KIND_WRAPPER
 * name      what an INI calls it: a literal of at most 31 characters, lower case, digits, '_'
 * version   a literal of at most 31 characters
 * about     BP_ABOUT(vendor, license, summary)
 * cuda      BP_NO_CUDA, or BP_CUDA(toolkit, lowest driver, array of uint32_t compute capabilities)
 * keys      BP_NO_KEYS, or BP_KEYS(array of struct bp_cfg_key)
 * hooks     BP_HOOKS(open, close, op_create, op_destroy), see struct bp_plugin_desc
 * then      the offered ops as (interface, name of the implementation), 1 to 12 of them
 *
 * Emits the ELF note, the constant descriptor and bp_plugin_query_v1, all from these arguments, so that they cannot
 * differ. Ops get the interface version of the ABI, which is the version of every interface until 1.0. */
#define BP_PLUGIN(kind_, name_, version_, about_, cuda_, keys_, hooks_, ...)                                           \
    BP_PLUGIN_NOTE(kind_, name_, version_, BP_EACH_(BP_IFACE_TEXT_, BP_IFACE_TEXT_MORE_, __VA_ARGS__));                \
    static const struct bp_op_entry bp_plugin_ops_[] = {BP_EACH_(BP_OP_ENTRY_, BP_OP_ENTRY_MORE_, __VA_ARGS__)};       \
    static const struct bp_plugin_desc bp_plugin_desc_ = {                                                             \
        BP_HDR(struct bp_plugin_desc, op_destroy),                                                                     \
        BP_ABI_MAJOR, BP_ABI_MINOR, BP_ABI_MINOR, (kind_),                                                             \
        name_, version_, about_, BP_PLUGIN_BUILD_ID,                                                                   \
        BP_PICK_(BP_PICK_1_, cuda_), BP_PICK_(BP_PICK_2_, cuda_), BP_PICK_(BP_PICK_3_, cuda_),                         \
        BP_PICK_(BP_PICK_1_, keys_), bp_plugin_ops_,                                                                   \
        BP_PICK_(BP_PICK_4_, cuda_), BP_PICK_(BP_PICK_2_, keys_), BP_LEN(bp_plugin_ops_),                              \
        (uint32_t)sizeof(struct bp_cfg_key), (uint32_t)sizeof(struct bp_op_entry), 0,                                  \
        hooks_};                                                                                                       \
    BP_EXTERN_C_FN BP_EXPORT const struct bp_plugin_desc *BP_PLUGIN_QUERY_NAME(const struct bp_query *q);              \
    const struct bp_plugin_desc *BP_PLUGIN_QUERY_NAME(const struct bp_query *q)                                        \
    {                                                                                                                  \
        return bp_query_fits(q) ? &bp_plugin_desc_ : NULL;                                                             \
    }                                                                                                                  \
    BP_STATIC_ASSERT(sizeof(name_) > 1 && sizeof(version_) > 1, "a plugin has a name and a version")

#define BP_ABOUT(vendor, license, summary) vendor, license, summary
#define BP_HOOKS(open, close, op_create, op_destroy) open, close, op_create, op_destroy
#define BP_NO_CUDA (0, 0, NULL, 0)
#define BP_CUDA(toolkit, min_driver, sm_array) (toolkit, min_driver, sm_array, BP_LEN(sm_array))
#define BP_NO_KEYS (NULL, 0, 0, 0)
#define BP_KEYS(array) (array, BP_LEN(array), 0, 0)

/* What the build calls this binary; a build system may define it on the command line. */
#ifndef BP_PLUGIN_BUILD_ID
#define BP_PLUGIN_BUILD_ID ""
#endif
/* Defined as another name, the plugin can be linked into a program and registered by that name. */
#ifndef BP_PLUGIN_QUERY_NAME
#define BP_PLUGIN_QUERY_NAME bp_plugin_query_v1
#endif
#ifdef __cplusplus
#define BP_EXTERN_C_FN extern "C"
#else
#define BP_EXTERN_C_FN
#endif

/* The parts of BP_PLUGIN; not for use on their own. */
#define BP_IFACE_TEXT_(iface, impl) iface
#define BP_IFACE_TEXT_MORE_(iface, impl) " " iface
#define BP_OP_ENTRY_(iface, impl) {iface, impl, BP_ABI_MAJOR, BP_ABI_MINOR, 0, 0}
#define BP_OP_ENTRY_MORE_(iface, impl) , BP_OP_ENTRY_(iface, impl)
#define BP_PICK_(pick, list) pick list
#define BP_PICK_1_(a, b, c, d) a
#define BP_PICK_2_(a, b, c, d) b
#define BP_PICK_3_(a, b, c, d) c
#define BP_PICK_4_(a, b, c, d) d
#define BP_EACH_(first, more, ...) BP_EACH_N_(BP_COUNT_(__VA_ARGS__))(first, more, __VA_ARGS__)
#define BP_EACH_N_(n) BP_EACH_PASTE_(n)
#define BP_EACH_PASTE_(n) BP_EACH_##n##_
#define BP_COUNT_(...) BP_COUNT_AT_(__VA_ARGS__, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0)
#define BP_COUNT_AT_(a, b, c, d, e, f, g, h, i, j, k, l, n, ...) n
#define BP_EACH_1_(f, m, a) f a
#define BP_EACH_2_(f, m, a, b) f a m b
#define BP_EACH_3_(f, m, a, b, c) f a m b m c
#define BP_EACH_4_(f, m, a, b, c, d) f a m b m c m d
#define BP_EACH_5_(f, m, a, b, c, d, e) f a m b m c m d m e
#define BP_EACH_6_(f, m, a, b, c, d, e, g) f a m b m c m d m e m g
#define BP_EACH_7_(f, m, a, ...) BP_EACH_1_(f, m, a) BP_EACH_6_(m, m, __VA_ARGS__)
#define BP_EACH_8_(f, m, a, ...) BP_EACH_1_(f, m, a) BP_EACH_7_(m, m, __VA_ARGS__)
#define BP_EACH_9_(f, m, a, ...) BP_EACH_1_(f, m, a) BP_EACH_8_(m, m, __VA_ARGS__)
#define BP_EACH_10_(f, m, a, ...) BP_EACH_1_(f, m, a) BP_EACH_9_(m, m, __VA_ARGS__)
#define BP_EACH_11_(f, m, a, ...) BP_EACH_1_(f, m, a) BP_EACH_10_(m, m, __VA_ARGS__)
#define BP_EACH_12_(f, m, a, ...) BP_EACH_1_(f, m, a) BP_EACH_11_(m, m, __VA_ARGS__)

/* bp_query_fits - does the host speak the ABI that this plugin was compiled for? 0.x: major and minor are equal. */
static inline int bp_query_fits(const struct bp_query *q)
{
    return BP_HAS(q, struct bp_query, host_minor) && q->host_major == BP_ABI_MAJOR && q->host_minor == BP_ABI_MINOR;
}

/* First member of an op table, for a table of type T whose last slot that you fill is `last`. A wrapper puts NULL for
 * what it does not want to see:
 *
 *     static const struct bp_mla_decode_ops decode = {
 *         BP_OP_BASE(struct bp_mla_decode_ops, run, "bp.mla.decode", supports, workspace, bp_mla_decode_tensors),
 *         plan, run};
 */
#define BP_OP_BASE(T, last, iface_, supports_, workspace_, tensors_)                                                   \
    {                                                                                                                  \
        BP_HDR(T, last), iface_, BP_ABI_MAJOR, BP_ABI_MINOR, supports_, workspace_, tensors_                           \
    }

/* ---- texts and errors ---------------------------------------------------------------------------------------- */

/* A text that is built piece by piece in a buffer of fixed size; too long, it is cut, never overrun. No formats and no
 * locale: a number reads the same everywhere. */
struct bp_text {
    char *at;     /* ends with a NUL after every call */
    uint64_t cap; /* bytes of at, NUL included */
    uint64_t len;
};

/* bp_text_begin - starts a text in buffer[cap]. With cap 0 nothing is ever written. */
static inline void bp_text_begin(struct bp_text *t, char *buffer, uint64_t cap)
{
    t->at = buffer;
    t->cap = buffer != NULL ? cap : 0;
    t->len = 0;
    if (t->cap > 0) buffer[0] = '\0';
}

/* bp_text_add - appends s; NULL reads as "(none)". */
static inline void bp_text_add(struct bp_text *t, const char *s)
{
    if (s == NULL) s = "(none)";
    while (*s != '\0' && t->len + 1 < t->cap) t->at[t->len++] = *s++;
    if (t->cap > 0) t->at[t->len] = '\0';
}

/* bp_text_u64, bp_text_i64 - append a whole number in decimal. */
static inline void bp_text_u64(struct bp_text *t, uint64_t v)
{
    char digits[24];
    uint32_t at = (uint32_t)sizeof digits - 1;
    digits[at] = '\0';
    do {
        digits[--at] = (char)('0' + v % 10);
        v /= 10;
    } while (v != 0);
    bp_text_add(t, digits + at);
}
static inline void bp_text_i64(struct bp_text *t, int64_t v)
{
    if (v < 0) bp_text_add(t, "-");
    bp_text_u64(t, v < 0 ? UINT64_C(0) - (uint64_t)v : (uint64_t)v);
}

/* bp_error_begin - fills *err (NULL: nothing happens) and starts its sentence in *t, for bp_text_add and its like.
 * domain: the plugin's name; where: op, key, tensor. Returns code, to be returned in turn. */
static inline int32_t bp_error_begin(struct bp_error *err, struct bp_text *t, int32_t code, const char *domain,
                                     const char *where)
{
    bp_text_begin(t, NULL, 0);
    if (!BP_HAS(err, struct bp_error, msg)) return code;
    err->code = code;
    err->native = 0;
    bp_text_begin(t, err->domain, sizeof err->domain);
    bp_text_add(t, domain);
    bp_text_begin(t, err->where, sizeof err->where);
    bp_text_add(t, where);
    bp_text_begin(t, err->msg, sizeof err->msg);
    return code;
}

/* bp_error_set - the whole error in one call, for sentences without numbers. Returns code. */
static inline int32_t bp_error_set(struct bp_error *err, int32_t code, const char *domain, const char *where,
                                   const char *msg)
{
    struct bp_text t;
    (void)bp_error_begin(err, &t, code, domain, where);
    bp_text_add(&t, msg);
    return code;
}

/* bp_error_number - a sentence around one number: before, v, after. Returns code. */
static inline int32_t bp_error_number(struct bp_error *err, int32_t code, const char *domain, const char *where,
                                      const char *before, int64_t v, const char *after)
{
    struct bp_text t;
    (void)bp_error_begin(err, &t, code, domain, where);
    bp_text_add(&t, before);
    bp_text_i64(&t, v);
    bp_text_add(&t, after);
    return code;
}

/* ---- host services ------------------------------------------------------------------------------------------- */

/* Does this host offer function fn of struct bp_host? Always true for what 0.1 lists; ask before using later ones. */
#define BP_HOST_HAS(host, fn) (BP_HAS(host, struct bp_host, fn) && (host)->fn != NULL)

/* Levels of bp_log. */
enum { BP_LOG_ERROR = 0, BP_LOG_WARN = 1, BP_LOG_INFO = 2, BP_LOG_DEBUG = 3 };

/* bp_log_on - would a line of this level be shown? Ask before building an expensive one. */
static inline int bp_log_on(const struct bp_host *host, uint32_t level)
{
    return BP_HOST_HAS(host, log_on) && BP_HOST_HAS(host, log) && host->log_on(host->ctx, level) != 0;
}

/* bp_log - one line without newline; dropped when its level is not shown. Not at info or above inside a step. */
static inline void bp_log(const struct bp_host *host, uint32_t level, const char *line)
{
    if (bp_log_on(host, level)) host->log(host->ctx, level, line);
}

/* bp_cfg_str - the text of a key of the plugin's own section, or dflt when it is not set, in out[cap].
 * BP_E_LIMIT when it does not fit (out is then empty). */
static inline int32_t bp_cfg_str(const struct bp_host *host, const char *key, const char *dflt, char *out, uint64_t cap)
{
    struct bp_text t;
    int32_t rc = BP_HOST_HAS(host, cfg_str) ? host->cfg_str(host->ctx, key, out, cap) : (int32_t)BP_DECLINED;
    if (rc == BP_OK) return BP_OK;
    bp_text_begin(&t, out, cap);
    if (rc != BP_DECLINED) return rc;
    if (strlen(dflt) >= cap) return BP_E_LIMIT;
    bp_text_add(&t, dflt);
    return BP_OK;
}

/* bp_cfg_i64, bp_cfg_f64 - the number of a key, or dflt when it is not set. The engine has checked it against type and
 * range of the key as declared; anything else it says (BP_E_CONFIG) is passed on, *out is then dflt. */
static inline int32_t bp_cfg_i64(const struct bp_host *host, const char *key, int64_t dflt, int64_t *out)
{
    int64_t v = dflt;
    int32_t rc = BP_HOST_HAS(host, cfg_i64) ? host->cfg_i64(host->ctx, key, &v) : (int32_t)BP_DECLINED;
    *out = rc == BP_OK ? v : dflt;
    return rc == BP_DECLINED ? (int32_t)BP_OK : rc;
}
static inline int32_t bp_cfg_f64(const struct bp_host *host, const char *key, double dflt, double *out)
{
    double v = dflt;
    int32_t rc = BP_HOST_HAS(host, cfg_f64) ? host->cfg_f64(host->ctx, key, &v) : (int32_t)BP_DECLINED;
    *out = rc == BP_OK ? v : dflt;
    return rc == BP_DECLINED ? (int32_t)BP_OK : rc;
}

/* bp_cfg_choice - index of a key's text among words[n], or dflt when it is not set. For keys of type "enum:a|b|c".
 * BP_E_CONFIG when it is none of them. */
static inline int32_t bp_cfg_choice(const struct bp_host *host, const char *key, const char *const *words, uint32_t n,
                                    uint32_t dflt, uint32_t *out)
{
    char text[64];
    int32_t rc = BP_HOST_HAS(host, cfg_str) ? host->cfg_str(host->ctx, key, text, sizeof text) : (int32_t)BP_DECLINED;
    *out = dflt;
    if (rc == BP_DECLINED) return BP_OK;
    if (rc != BP_OK) return BP_E_CONFIG;
    for (uint32_t i = 0; i < n; ++i) {
        if (strcmp(text, words[i]) != 0) continue;
        *out = i;
        return BP_OK;
    }
    return BP_E_CONFIG;
}

/* bp_cfg_bool - 1 or 0 of a key of type "bool", or dflt when it is not set. */
static inline int32_t bp_cfg_bool(const struct bp_host *host, const char *key, int32_t dflt, int32_t *out)
{
    static const char *const words[] = {"false", "true", "no", "yes", "off", "on", "0", "1"};
    uint32_t at = dflt != 0 ? 1u : 0u;
    int32_t rc = bp_cfg_choice(host, key, words, BP_LEN(words), at, &at);
    *out = (int32_t)(at % 2);
    return rc;
}

/* bp_mem_alloc - zeroed host memory for n elements of elem_bytes, 64-byte aligned; NULL on failure and on overflow.
 * Not in a step. bp_mem_free accepts NULL. */
static inline void *bp_mem_alloc(const struct bp_host *host, uint64_t n, uint64_t elem_bytes)
{
    if (elem_bytes != 0 && n > UINT64_MAX / elem_bytes) return NULL;
    return host->mem_alloc(host->ctx, n * elem_bytes, 64);
}
static inline void bp_mem_free(const struct bp_host *host, void *p)
{
    host->mem_free(host->ctx, p);
}

/* bp_parallel_for - fn(arg, begin, end) over [0, n) on the engine's threads; returns when all is done. Never nested. */
static inline void bp_parallel_for(const struct bp_host *host, uint64_t n, uint64_t grain,
                                   void (*fn)(void *arg, uint64_t begin, uint64_t end), void *arg)
{
    if (n != 0) host->parallel_for(host->ctx, n, grain, fn, arg);
}

/* ---- verdicts ------------------------------------------------------------------------------------------------ */

/* A supports() is written as: begin, wants, offers, done. No want stops early, so that all reasons are listed:
 *
 *     const struct bp_mla_problem *p = (const struct bp_mla_problem *)problem;
 *     if (!bp_verdict_begin(v, &p->h, BP_END(struct bp_mla_problem, type_v))) return BP_OK;
 *     bp_want_eq(v, BP_R_SHAPE, "kv_rank", p->kv_rank, 512);
 *     bp_want_mul(v, BP_R_ALIGN, "block_tok", p->block_tok, 16);
 *     return bp_verdict_done(v, BP_CAPTURE_NONE, BP_DET_BATCH, -1.0);
 */

/* bp_reason_add - lists a reason. critical 1: the problem is refused; 0: it is served, but badly (DEGRADED). Reasons
 * beyond the caller's capacity count and are not stored. */
static inline void bp_reason_add(struct bp_verdict *v, uint32_t code, uint32_t critical, const char *field, int64_t got,
                                 int64_t want_lo, int64_t want_hi, const char *text)
{
    const uint32_t at = v->n_reasons++;
    struct bp_reason r;
    struct bp_text t;
    if (critical != 0) v->level = BP_V_NO;
    else if (v->level > BP_V_DEGRADED) v->level = BP_V_DEGRADED;
    if (v->reasons == NULL || at >= v->cap_reasons) return;
    memset(&r, 0, sizeof r);
    r.code = code;
    r.critical = critical;
    r.got = got;
    r.want_lo = want_lo;
    r.want_hi = want_hi;
    bp_text_begin(&t, r.field, sizeof r.field);
    bp_text_add(&t, field);
    bp_text_begin(&t, r.text, sizeof r.text);
    bp_text_add(&t, text);
    /* The caller's struct may be longer or shorter than ours; it says how far apart its elements are. */
    const uint64_t stride = v->reason_stride != 0 ? v->reason_stride : sizeof r;
    memcpy((unsigned char *)v->reasons + at * stride, &r, stride < sizeof r ? (size_t)stride : sizeof r);
}

/* bp_verdict_begin - starts a verdict on a problem whose struct must reach n_bytes (BP_END of its last field that you
 * read). Refuses shorter structs and unknown critical extensions. 0: the problem cannot be read; return BP_OK at once. */
static inline int bp_verdict_begin(struct bp_verdict *v, const struct bp_hdr *problem, uint32_t n_bytes)
{
    v->level = BP_V_YES;
    v->n_reasons = 0;
    v->n_layouts = 0;
    v->capture = BP_CAPTURE_NONE;
    v->determinism = BP_DET_NONE;
    v->cost_us = -1.0;
    for (const struct bp_ext *e = problem->next; e != NULL; e = e->next) {
        if ((e->flags & BP_EXT_CRITICAL) == 0) continue;
        bp_reason_add(v, BP_R_EXT, 1, "h.next", (int64_t)e->id, 0, 0, "a critical extension that this plugin does not know");
    }
    if (problem->size >= n_bytes) return 1;
    bp_reason_add(v, BP_R_ABI, 1, "h.size", problem->size, n_bytes, UINT32_MAX,
                  "the problem struct ends before a field that this plugin reads");
    return 0;
}

/* bp_want_range - field must lie in [lo, hi]. bp_want_eq, bp_want_le, bp_want_ge: its special cases.
 * code: enum bp_reason_code; field: name of the problem's field. */
static inline void bp_want_range(struct bp_verdict *v, uint32_t code, const char *field, int64_t got, int64_t lo,
                                 int64_t hi)
{
    if (got < lo || got > hi) bp_reason_add(v, code, 1, field, got, lo, hi, "outside of what this plugin serves");
}
static inline void bp_want_eq(struct bp_verdict *v, uint32_t code, const char *field, int64_t got, int64_t want)
{
    if (got != want) bp_reason_add(v, code, 1, field, got, want, want, "this plugin serves one value only");
}
static inline void bp_want_le(struct bp_verdict *v, uint32_t code, const char *field, int64_t got, int64_t hi)
{
    bp_want_range(v, code, field, got, INT64_MIN, hi);
}
static inline void bp_want_ge(struct bp_verdict *v, uint32_t code, const char *field, int64_t got, int64_t lo)
{
    bp_want_range(v, code, field, got, lo, INT64_MAX);
}

/* bp_want_mul - field must be a multiple of unit, which is positive. The reason names the unit as the lowest wanted. */
static inline void bp_want_mul(struct bp_verdict *v, uint32_t code, const char *field, int64_t got, int64_t unit)
{
    char text[64];
    struct bp_text t;
    if (got % unit == 0) return;
    bp_text_begin(&t, text, sizeof text);
    bp_text_add(&t, "must be a multiple of ");
    bp_text_i64(&t, unit);
    bp_reason_add(v, code, 1, field, got, unit, INT64_MAX, text);
}

/* bp_want_of - field must be one of values[n]; the reason names the range they span, its text lists them. */
static inline void bp_want_of(struct bp_verdict *v, uint32_t code, const char *field, int64_t got, const uint32_t *values,
                              uint32_t n)
{
    char text[128];
    struct bp_text t;
    int64_t lo = INT64_MAX, hi = INT64_MIN;
    bp_text_begin(&t, text, sizeof text);
    bp_text_add(&t, "must be one of");
    for (uint32_t i = 0; i < n; ++i) {
        if (got == (int64_t)values[i]) return;
        if ((int64_t)values[i] < lo) lo = values[i];
        if ((int64_t)values[i] > hi) hi = values[i];
        bp_text_add(&t, i == 0 ? " " : ", ");
        bp_text_i64(&t, values[i]);
    }
    bp_reason_add(v, code, 1, field, got, lo, hi, text);
}

/* bp_want_dtype - field must be one of the dtypes in the set, written as BP_SET(BP_DT_F32) | BP_SET(BP_DT_BF16). */
#define BP_SET(dtype) (UINT32_C(1) << (dtype))
static inline void bp_want_dtype(struct bp_verdict *v, const char *field, uint32_t got, uint32_t set)
{
    char text[128];
    struct bp_text t;
    int64_t lo = -1, hi = -1;
    if (got < 32 && (set & BP_SET(got)) != 0) return;
    bp_text_begin(&t, text, sizeof text);
    bp_text_add(&t, "has dtype ");
    bp_text_add(&t, bp_dtype_name(got));
    bp_text_add(&t, ", and this plugin takes");
    for (uint32_t d = 0; d < 32; ++d) {
        if ((set & BP_SET(d)) == 0) continue;
        bp_text_add(&t, lo < 0 ? " " : ", ");
        bp_text_add(&t, bp_dtype_name(d));
        if (lo < 0) lo = d;
        hi = d;
    }
    bp_reason_add(v, BP_R_DTYPE, 1, field, got, lo, hi, text);
}

/* bp_want_host, bp_want_cc - the device an op was created on: the CPU; a CUDA device whose compute capability
 * (major * 10 + minor) lies in [lo, hi]. dev may be NULL, which is the CPU. */
static inline void bp_want_host(struct bp_verdict *v, const struct bp_device *dev)
{
    if (dev != NULL && dev->kind != BP_DEV_HOST)
        bp_reason_add(v, BP_R_DEVICE, 1, "device", dev->kind, BP_DEV_HOST, BP_DEV_HOST, "this op computes on the CPU");
}
static inline void bp_want_cc(struct bp_verdict *v, const struct bp_device *dev, int64_t lo, int64_t hi)
{
    if (dev == NULL || dev->kind != BP_DEV_CUDA) {
        bp_reason_add(v, BP_R_DEVICE, 1, "device", dev != NULL ? dev->kind : 0, BP_DEV_CUDA, BP_DEV_CUDA,
                      "this op computes on a CUDA device");
        return;
    }
    bp_want_range(v, BP_R_ARCH, "cc", (int64_t)dev->cc_major * 10 + dev->cc_minor, lo, hi);
}

/* bp_note_slow - a reason that does not refuse: the problem is served, but badly, and `text` says why. */
static inline void bp_note_slow(struct bp_verdict *v, uint32_t code, const char *field, int64_t got, int64_t want_lo,
                                int64_t want_hi, const char *text)
{
    bp_reason_add(v, code, 0, field, got, want_lo, want_hi, text);
}

/* bp_offer_layout - names a KV layout that this op accepts for the problem ("mla.bf16.576"), the preferred first.
 * Returns its id. Layouts beyond the caller's capacity are dropped, so offer the best ones first. */
static inline uint64_t bp_offer_layout(struct bp_verdict *v, const char *name)
{
    const uint64_t id = bp_id(name);
    if (v->layouts != NULL && v->n_layouts < v->cap_layouts) v->layouts[v->n_layouts++] = id;
    return id;
}

/* bp_want_layout - the problem's layout, once negotiated (0 before that), must be one of those offered so far. */
static inline void bp_want_layout(struct bp_verdict *v, const char *field, uint64_t got)
{
    if (got == 0) return;
    for (uint32_t i = 0; i < v->n_layouts; ++i) {
        if (v->layouts[i] == got) return;
    }
    bp_reason_add(v, BP_R_LAYOUT, 1, field, (int64_t)got, 0, 0, "a KV layout that this plugin does not offer");
}

/* bp_layout_name - "mla." or "mla.index." + dtype + "." + width in out[32]: the plain layouts, rows of numbers one per
 * token. Returns the id, 0 when the dtype has no plain layout. */
static inline uint64_t bp_layout_name(char out[32], const char *family, uint32_t dtype, uint64_t width)
{
    struct bp_text t;
    if (dtype != BP_DT_F32 && dtype != BP_DT_F16 && dtype != BP_DT_BF16) return 0;
    bp_text_begin(&t, out, 32);
    bp_text_add(&t, family);
    bp_text_add(&t, ".");
    bp_text_add(&t, bp_dtype_name(dtype));
    bp_text_add(&t, ".");
    bp_text_u64(&t, width);
    return bp_id(out);
}

/* bp_verdict_done - ends a supports(): the promises that hold if the problem was not refused, and the cost of one call in
 * microseconds (negative: unknown). capture: enum bp_capture; determinism: enum bp_determinism. Returns BP_OK. */
static inline int32_t bp_verdict_done(struct bp_verdict *v, uint32_t capture, uint32_t determinism, double cost_us)
{
    v->capture = v->level != BP_V_NO ? capture : (uint32_t)BP_CAPTURE_NONE;
    v->determinism = v->level != BP_V_NO ? determinism : (uint32_t)BP_DET_NONE;
    v->cost_us = cost_us;
    return BP_OK;
}

/* ---- workspaces ---------------------------------------------------------------------------------------------- */

/* bp_workspace_set - the whole answer of a workspace(): bytes of the four kinds, alignment 64. Returns BP_OK. */
static inline int32_t bp_workspace_set(struct bp_workspace *ws, uint64_t persistent, uint64_t plan, uint64_t scratch,
                                       uint64_t pinned)
{
    ws->persistent_bytes = persistent;
    ws->plan_bytes = plan;
    ws->scratch_bytes = scratch;
    ws->pinned_bytes = pinned;
    ws->align = 64;
    ws->persistent_zeroed = 0;
    return BP_OK;
}

/* Memory that is cut into parts of 64-byte aligned size. One function that takes its parts from an area serves twice: in
 * workspace() over bp_area_count, where it only counts, and in run() over bp_area_of, where it lays out. */
struct bp_area {
    unsigned char *base; /* NULL: only count */
    uint64_t cap;        /* bytes of base */
    uint64_t used;       /* bytes taken so far, which is what workspace() answers */
    uint32_t bad;        /* 1: a size overflowed, or the memory is too small; every part from there on is NULL */
    uint32_t reserved;
};
static inline void bp_area_count(struct bp_area *a)
{
    memset(a, 0, sizeof *a);
    a->cap = UINT64_MAX;
}
static inline void bp_area_of(struct bp_area *a, void *base, uint64_t n_bytes)
{
    memset(a, 0, sizeof *a);
    a->base = (unsigned char *)base;
    a->cap = base != NULL ? n_bytes : 0;
}

/* bp_area_take - the next part: n elements of elem_bytes. NULL while counting and when a->bad. */
static inline void *bp_area_take(struct bp_area *a, uint64_t n, uint64_t elem_bytes)
{
    const uint64_t most = UINT64_MAX - 63;
    if (a->bad != 0 || (elem_bytes != 0 && n > most / elem_bytes)) {
        a->bad = 1;
        return NULL;
    }
    const uint64_t n_bytes = (n * elem_bytes + 63) & ~UINT64_C(63), at = a->used;
    if (at > a->cap || n_bytes > a->cap - at) {
        a->bad = 1;
        return NULL;
    }
    a->used = at + n_bytes;
    return a->base != NULL ? (void *)(a->base + at) : NULL;
}

BP_EXTERN_C_END
#endif
