/* plugin.h - what the engine and a plugin say to each other besides the slots: descriptor, host table, verdict with
 * reasons, workspace, launch, and the part every op table starts with.
 * Not here: the slots themselves (slot_*.h), helpers for authors (sdk.h).
 * A plugin exports one function, bp_plugin_query_v1, links against nothing of the engine, keeps no file-scope state,
 * and never calls exit, abort, getenv, setlocale or printf. ABI 0.x: minors must match exactly until 1.0.
 * SPDX-License-Identifier: MIT */
#ifndef BP_PLUGIN_H
#define BP_PLUGIN_H

#include "backplane/types.h"

BP_EXTERN_C_BEGIN

enum { BP_ABI_MAJOR = 0, BP_ABI_MINOR = 1 };

/* ---- host services ----------------------------------------------------------------------------------------- */

/* Where an op computes. HOST is the process itself; other kinds come from a device slot. */
enum bp_device_kind { BP_DEV_HOST = 0, BP_DEV_CUDA = 1 };
struct bp_device {
    struct bp_hdr h;
    uint32_t kind;                 /* enum bp_device_kind */
    int32_t ordinal;               /* index among devices of its kind */
    int32_t cc_major, cc_minor;    /* compute capability, 0 for HOST */
    uint32_t n_sm, l2_bytes;       /* multiprocessors (HOST: usable cores), last-level cache */
    uint64_t total_bytes, smem_bytes; /* memory; shared memory a block may opt in to */
    uint32_t driver_version, reserved;
    void *ctx;                     /* CUcontext of the primary context; NULL for HOST */
    uint8_t uuid[16];
    char name[64];
};
BP_NOPAD(struct bp_device, name);

/* Services the engine offers. Valid from open() until close() of the plugin. Append only. All functions may be called
 * from any thread unless said otherwise. */
struct bp_host {
    struct bp_hdr h;
    uint32_t abi_minor, engine_version;
    void *ctx; /* first argument of every function below */

    /* log_on - would a line of this level be shown? level: 0 error, 1 warn, 2 info, 3 debug.
     * log - one finished line without newline; never from inside a step at info or above. */
    int32_t (*log_on)(void *ctx, uint32_t level);
    void (*log)(void *ctx, uint32_t level, const char *line);

    /* cfg_str - the text of one key of the plugin's own INI section, copied to out[cap] with a NUL.
     * BP_OK; BP_DECLINED when the key is not set (use the default you declared); BP_E_LIMIT when it does not fit. */
    int32_t (*cfg_str)(void *ctx, const char *key, char *out, uint64_t cap);
    int32_t (*cfg_i64)(void *ctx, const char *key, int64_t *out);
    int32_t (*cfg_f64)(void *ctx, const char *key, double *out);

    /* mem_alloc - zeroed host memory, aligned (power of two, at least 8), accounted under the plugin's name; NULL on
     * failure. Pages of large blocks take no memory until they are first touched. mem_free accepts NULL. */
    void *(*mem_alloc)(void *ctx, uint64_t n_bytes, uint64_t align);
    void (*mem_free)(void *ctx, void *p);

    /* parallel_for - fn(arg, begin, end) on disjoint ranges covering [0, n), at most `grain` items each (0: the host
     * chooses), on the engine's threads; returns when all are done. Never nested. Results must not depend on which
     * thread ran what. */
    void (*parallel_for)(void *ctx, uint64_t n, uint64_t grain, void (*fn)(void *arg, uint64_t begin, uint64_t end),
                         void *arg);
};
BP_NOPAD(struct bp_host, parallel_for);

/* ---- capability verdict ------------------------------------------------------------------------------------ */

/* Why a provider cannot serve a problem, or serves it badly. Vendor codes start at 1000. */
#define BP_REASON_MAP(X)                                                                           \
    X(NONE, 0) X(ABI, 1) X(LOAD, 2) X(DRIVER, 3) X(ARCH, 4) X(DTYPE, 5) X(QUANT, 6) X(LAYOUT, 7)   \
    X(SHAPE, 8) X(ALIGN, 9) X(FEATURE, 10) X(GRAPH, 11) X(DETERMINISM, 12) X(TOPOLOGY, 13)         \
    X(MEMORY, 14) X(LIBRARY, 15) X(CONFIG, 16) X(SELFTEST, 17) X(EXT, 18) X(DEVICE, 19)
enum bp_reason_code {
#define BP_REASON_ENUM(name, value) BP_R_##name = value,
    BP_REASON_MAP(BP_REASON_ENUM)
#undef BP_REASON_ENUM
    BP_R_VENDOR = 1000
};

struct bp_reason {
    uint32_t code;     /* enum bp_reason_code */
    uint32_t critical; /* 1: this alone refuses the problem; 0: makes it DEGRADED */
    int64_t got, want_lo, want_hi;
    char field[32];    /* name of the problem's field */
    char text[128];    /* for people */
};
BP_NOPAD(struct bp_reason, text);

enum bp_level { BP_V_NO = 0, BP_V_DEGRADED = 1, BP_V_YES = 2 };
/* What a captured graph may change between replays: nothing can be captured; one query token per sequence; the same
 * number for all; anything. */
enum bp_capture { BP_CAPTURE_NONE = 0, BP_CAPTURE_Q1 = 1, BP_CAPTURE_UNIFORM = 2, BP_CAPTURE_ANY = 3 };
/* NONE: bits may vary from run to run. RUN: same inputs and batch, same bits. BATCH: a row's bits do not depend on the
 * other rows either. */
enum bp_determinism { BP_DET_NONE = 0, BP_DET_RUN = 1, BP_DET_BATCH = 2 };

/* Answer to supports(). The caller owns all memory: it sets h, reasons, cap_reasons, reason_stride, layouts,
 * cap_layouts and zeroes the rest. List every reason, not the first; n_reasons may exceed cap_reasons. YES binds: a
 * later run() on that problem may not answer DECLINED. */
struct bp_verdict {
    struct bp_hdr h;
    uint32_t level;       /* enum bp_level */
    uint32_t capture;     /* enum bp_capture */
    uint32_t determinism; /* enum bp_determinism */
    uint32_t n_reasons, cap_reasons, reason_stride;
    struct bp_reason *reasons;
    uint64_t *layouts;    /* KV layout ids the provider accepts here (mla.* only) */
    uint32_t n_layouts, cap_layouts;
    double cost_us;       /* estimate for one call; negative = unknown */
};
BP_NOPAD(struct bp_verdict, cost_us);

/* ---- workspace and launch ---------------------------------------------------------------------------------- */

/* Upper bounds in bytes for every problem not larger in any field than the one asked about. The engine allocates once:
 * scratch is shared by all ops of a stream (its maximum, not the sum); plan lives from plan() until the epoch changes;
 * persistent belongs to one bound op. */
struct bp_workspace {
    struct bp_hdr h;
    uint64_t persistent_bytes, plan_bytes, scratch_bytes, pinned_bytes;
    uint32_t align;             /* power of two from 64 to 256, more is refused */
    uint32_t persistent_zeroed; /* 1: give it zeroed; the op leaves it as found */
};
BP_NOPAD(struct bp_workspace, persistent_zeroed);

/* Accompanies every call. No op allocates, synchronises the device or switches it; all work goes to `stream` (NULL on
 * HOST, where a call returns when its work is done). Pointers are stable across graph replays. */
struct bp_launch {
    struct bp_hdr h;
    const struct bp_device *dev;
    void *stream;               /* cudaStream_t on CUDA devices */
    void *aux[2];               /* further streams; join them to `stream` before returning */
    void *persistent, *plan, *scratch, *pinned;
    uint64_t scratch_bytes;     /* at least what workspace() asked for */
    uint64_t epoch;             /* changes whenever a length or shape of the step changes */
    uint64_t corr;              /* correlation id for traces: number of the step << 24 | number of the call in it,
                                 * both from 1 in each session; a plan() has that of its run(). 0: none */
    uint32_t capturing;         /* 1 while a graph is being captured */
    uint32_t sm_limit;          /* 0 = use all */
    int32_t layer;              /* model layer, -1 outside of layers: for messages and traces */
    uint32_t reserved;
};
BP_NOPAD(struct bp_launch, reserved);

/* ---- ops ----------------------------------------------------------------------------------------------------- */

/* First member of every op table. `size` in h covers the table as the provider knows it; a slot beyond it, or NULL,
 * is not served. */
struct bp_op_base {
    struct bp_hdr h;
    const char *iface; /* "bp.quant", "bp.mla.decode", ... */
    uint32_t iface_major, iface_minor;

    /* supports - can this provider serve *problem (the struct its slot header names)? Required.
     * Pre: verdict set up by the caller as its struct says. Writes: *v only. Errors: BP_OK always; the answer is in
     * v->level. Numeric: none. Threads: any, serialised per plugin; does no device work, takes below 50 us.
     * Since: 0.1. */
    int32_t (*supports)(void *self, const void *problem, struct bp_verdict *v);

    /* workspace - memory needs for every problem up to *problem_max. Required.
     * Pre: supports said YES or DEGRADED. Writes: *out. Errors: BP_E_LIMIT when a size overflows. Numeric: monotone in
     * every field. Threads: as supports. Since: 0.1. */
    int32_t (*workspace)(void *self, const void *problem_max, struct bp_workspace *out, struct bp_error *err);

    /* tensors - lists the tensors a call reads and writes: names, access, shapes. Required.
     * `slot` is the op's number in its slot header (BP_<SLOT>_OP_...), args its args struct. Pre: *n is the capacity
     * of t. Writes: t[0..min(*n, needed)), then *n = needed. Errors: BP_E_ARG for an unknown slot. Numeric: none.
     * Threads: any. Since: 0.1. */
    int32_t (*tensors)(void *self, uint32_t slot, const void *args, struct bp_tensor *t, uint32_t *n);
};
BP_NOPAD(struct bp_op_base, tensors);

/* One op instance: table and instance state. */
struct bp_op_ref {
    const struct bp_op_base *vt;
    void *self;
};

/* ---- descriptor and entry ----------------------------------------------------------------------------------- */

/* One INI key of [plugin.NAME]. type: "string", "int", "float", "bool", or "enum:a|b|c". */
struct bp_cfg_key {
    const char *name, *type, *dflt, *doc;
    double lo, hi; /* int and float, inclusive */
};

/* One op the plugin offers: interface and implementation name. */
struct bp_op_entry {
    const char *iface, *impl;
    uint32_t iface_major, iface_minor, flags, reserved;
};

enum bp_plugin_kind { BP_KIND_BACKEND = 0, BP_KIND_WRAPPER = 1 };

/* Static for the life of the process. */
struct bp_plugin_desc {
    struct bp_hdr h;
    uint32_t abi_major, abi_minor, min_host_minor, kind;
    const char *name, *version, *vendor, *license, *summary, *build_id;
    uint32_t cuda_built, cuda_min_driver; /* 13000 = 13.0; 0 = no CUDA */
    const uint32_t *sm;                   /* 900, 1200, ...; bit 31 set: PTX */
    const struct bp_cfg_key *cfg;
    const struct bp_op_entry *ops;
    uint32_t n_sm, n_cfg, n_ops, cfg_stride, ops_stride, reserved;

    /* open - one plugin instance; `host` outlives it. close - after a successful open only.
     * Threads: main thread. Errors: any status with a sentence in err; nothing is left behind on failure. */
    int32_t (*open)(const struct bp_host *host, void **plugin, struct bp_error *err);
    void (*close)(void *plugin);

    /* op_create - an instance of one offered op on one device (wrappers: around inner[0..n_inner)).
     * Threads: any, serialised per plugin. Errors: as open. */
    int32_t (*op_create)(void *plugin, const struct bp_op_entry *entry, const struct bp_device *dev,
                         const struct bp_op_ref *inner, uint32_t n_inner, struct bp_op_ref *out, struct bp_error *err);
    void (*op_destroy)(void *plugin, struct bp_op_ref *op);
};
BP_NOPAD(struct bp_plugin_desc, op_destroy);

/* The ELF note that stands for a plugin in its file, so that it is known without running any of its code: section
 * .note.backplane, owner "Backplane", type BP_NOTE_PLUGIN, little-endian. The descriptor must say the same. sdk.h has
 * the macro that emits it. Texts end with a NUL and are padded with NULs. Frozen: of every ABI, past and future. */
enum { BP_NOTE_PLUGIN = 1 };
#define BP_NOTE_SECTION ".note.backplane"
#define BP_NOTE_OWNER "Backplane"
struct bp_plugin_note {
    uint32_t abi_major, abi_minor;
    uint32_t kind, reserved; /* enum bp_plugin_kind; 0 */
    char name[32], version[32];
    char ifaces[256];        /* the interfaces it offers, one space between: "bp.quant bp.mla.decode" */
};
BP_NOPAD(struct bp_plugin_note, ifaces);

struct bp_query {
    struct bp_hdr h;
    uint32_t host_major, host_minor, host_min_plugin_minor, engine_version;
};
BP_NOPAD(struct bp_query, engine_version);

/* bp_plugin_query_v1 - the one exported function. Pure: no threads, files, environment, device. Returns NULL when the
 * plugin cannot work with this host. */
typedef const struct bp_plugin_desc *(*bp_plugin_query_fn)(const struct bp_query *q);
#define BP_PLUGIN_ENTRY "bp_plugin_query_v1"

BP_EXTERN_C_END
#endif
