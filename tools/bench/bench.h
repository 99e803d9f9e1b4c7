/* bench.h - `backplane bench`: one device, memory on it, and the time of a call there, beside the device's own ceilings.
 * What is counted: bytes and operations that the op cannot do without (bench_ops.c, bench_mla.c say how for each), so that a
 * rate is never above what the device really moved. Not here: output (tools/cli/cmd_bench.c).
 * Threads: one. SPDX-License-Identifier: MIT */
#ifndef BENCH_H
#define BENCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <backplane/backplane.h>
#include <backplane/slot_dense.h>
#include <backplane/slot_device.h>
#include <backplane/slot_mla.h>
#include <backplane/slot_moe.h>
#include <backplane/slot_quant.h>
#include <backplane/tools.h>

#define BENCH_LEN(array) (sizeof(array) / sizeof((array)[0]))

/* One line of the result. */
struct bench_row {
    char op[24], what[96];    /* "quant.matmul", "Q4_K 4096x14336, 1 column" */
    const char *provider;     /* "" for ceilings that no provider is asked for */
    double us, us_min, us_max; /* of one call: median, least, most */
    double bytes, flops;      /* of one call */
    double gb_s, tflop_s, roof_pct; /* roof_pct: the time that the ceilings allow, in percent of the median; NaN: unknown */
    const char *roof;         /* "memory" or "compute": which ceiling is nearer; "" unknown */
    uint32_t samples, calls;  /* calls in each sample */
    bool graph;               /* replayed as one graph */
    bool cached;              /* what it reads fits the device's cache twice, so that gb_s may be above the ceiling */
    char note[160];           /* why there is no time (us is NaN), or "" */
};
typedef int32_t bench_row_fn(void *ctx, const struct bench_row *row);

struct bench_options {
    const char *op;   /* "quant.matmul", "mla" (all of them), NULL: every op */
    const char *only; /* part of `what`; NULL: all */
    bool small;       /* sizes for a CPU */
    uint32_t samples; /* at least so many, unless seconds are over */
    double seconds;   /* for one row */
    bool (*stopped)(void);
    bench_row_fn *row;
    void *ctx;
};

struct bench_block {
    void *p;
    uint32_t mem; /* enum bp_mem_kind; BENCH_HEAP: malloc; BENCH_MAP: munmap */
    uint64_t n;
};
enum { BENCH_HEAP = 100, BENCH_MAP = 101 };

struct bench {
    const struct bench_options *o;
    struct bp_ops *ops;
    const struct bp_device *dev;
    const struct bp_device_ops *d;
    void *dself, *stream, *from, *to; /* events; NULL on HOST */
    struct bench_block *blocks;
    size_t n_blocks, cap_blocks;
    uint64_t seed;
    uint32_t act, kv;  /* enum bp_dtype of activations and of the cache */
    double copy_gb_s;  /* ceilings; NaN while unknown */
    double mm_tflop_s;
    bool on_host;
};

/* Opens the device of the configuration. close: NULL is not accepted, a zeroed struct is. */
int32_t bench_open(struct bench *b, const struct bench_options *o, const struct bp_config *cfg, const struct bp_callbacks *cb,
                   struct bp_error *err);
void bench_close(struct bench *b);

/* ---- memory: all that was taken after a mark goes with bench_free_to ---- */

int32_t bench_alloc(struct bench *b, uint32_t mem, uint64_t n, void **out, struct bp_error *err);
int32_t bench_heap(struct bench *b, uint64_t n, void **out, struct bp_error *err);
void bench_free_to(struct bench *b, size_t mark);
int32_t bench_upload(struct bench *b, void *dst, const void *src, uint64_t n, struct bp_error *err);

/* ---- random data (bench_data.c) ---- */

double bench_uniform(struct bench *b); /* [0, 1) */
uint32_t bench_below(struct bench *b, uint32_t n);
uint64_t bench_dtype_bytes(uint32_t dtype);
/* A tensor of normal numbers of this size on the device: rows outermost, packed. With size 0 zeros. */
int32_t bench_tensor(struct bench *b, uint32_t dtype, uint32_t ndim, const int64_t *dim, double size, struct bp_tensor *out,
                     struct bp_error *err);
/* Device memory filled with normal numbers of a dtype: the latents of a cache. */
int32_t bench_numbers(struct bench *b, uint32_t dtype, uint64_t n_bytes, double size, void **out, struct bp_error *err);
/* n int32 on the device. */
int32_t bench_ints(struct bench *b, const int32_t *v, uint64_t n, void **out, struct bp_error *err);
uint64_t bench_weight_bytes(uint32_t type, int64_t ne0, int64_t ne1, int64_t ne2);
/* Random valid blocks of `type` in host memory; of a device's weights the same few MiB again and again, for the host they
 * are its own bytes. */
int32_t bench_raw(struct bench *b, uint32_t type, int64_t ne0, int64_t ne1, int64_t ne2, struct bp_raw *out, struct bp_error *err);

/* ---- measuring (bench_time.c) ---- */

/* One call of what is measured; i counts calls, so that weights can take turns. */
typedef int32_t bench_call(void *arg, const struct bp_launch *l, uint32_t i, struct bp_error *err);
struct bench_work {
    struct bp_op_choice choice;
    const void *problem; /* NULL: no workspace is asked for */
    bench_call *plan;    /* before each sample, never captured; NULL: none */
    bench_call *call;
    void *arg;
    uint32_t n_turns;    /* calls until everything had its turn */
    uint64_t footprint;  /* bytes that one turn of everything reads */
    bool host_lengths;   /* 1 row for each sequence: capture level Q1 is enough */
};
/* Fills times, rates and marks of *row, whose op, what, bytes and flops are set. */
int32_t bench_measure(struct bench *b, const struct bench_work *w, struct bench_row *row, struct bp_error *err);
/* Times of `call` alone. */
int32_t bench_sample(struct bench *b, const struct bench_work *w, struct bp_launch *l, struct bench_row *row,
                     struct bp_error *err);
void bench_rates(const struct bench *b, struct bench_row *row);
/* Is this row asked for? Sets op and what. */
bool bench_begin(struct bench *b, struct bench_row *row, const char *op, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* Is any row of this op asked for? */
bool bench_wants(const struct bench *b, const char *op);
/* Hands the row on. rc: of measuring; an op that nobody serves on this device becomes the row's note. */
int32_t bench_end(struct bench *b, struct bench_row *row, int32_t rc, struct bp_error *err);
/* bp_ops_choose, and BP_DECLINED with a note when it is served on the host only. */
int32_t bench_choose(struct bench *b, const char *slot, const void *problem, struct bp_op_choice *out, struct bench_row *row,
                     struct bp_error *err);

/* ---- what is measured ---- */

int32_t bench_ceilings(struct bench *b, struct bp_error *err);
int32_t bench_quant(struct bench *b, struct bp_error *err);
int32_t bench_dense(struct bench *b, struct bp_error *err);
int32_t bench_moe(struct bench *b, struct bp_error *err);
int32_t bench_dequantize(struct bench *b, struct bp_error *err);
int32_t bench_embed(struct bench *b, struct bp_error *err);
int32_t bench_route(struct bench *b, struct bp_error *err);
int32_t bench_mla_common(struct bench *b, struct bp_error *err);
int32_t bench_mla_decode(struct bench *b, struct bp_error *err);
int32_t bench_mla_prefill(struct bench *b, struct bp_error *err);
int32_t bench_mla_index(struct bench *b, struct bp_error *err);
/* Every op that o->op asks for. Errors: BP_E_ARG for a name that is none. */
int32_t bench_all(struct bench *b, struct bp_error *err);

/* ---- whole models ---- */

/* Weights by how a step reads them. */
struct bench_cost {
    double bytes, elems, expert_bytes, expert_elems, head_bytes, head_elems;
    uint32_t used, experts;
};
void bench_cost_add(struct bench_cost *c, const char *name, uint64_t n_bytes, uint64_t n_elems);
/* Of a step of n_tok tokens, n_head of them with logits. */
void bench_cost_of(const struct bench_cost *c, double n_tok, double n_head, double *bytes, double *flops);
int32_t bench_cost_file(const char *path, uint32_t n_layer, struct bench_cost *c, struct bp_error *err);

struct bench_run {
    uint32_t prefill, decode, seqs; /* tokens of the prompt, decode steps, sequences in one step */
    double seconds;
    bool (*stopped)(void);
    uint32_t n_ids;
};
struct bench_times { /* medians */
    double prefill_us;             /* the whole prompt of one sequence */
    double decode_us, layers_us;   /* a step of all sequences with and without logits */
    uint32_t prefill_samples, decode_samples, layers_samples;
};
int32_t bench_run_session(struct bp_session *s, uint32_t n_vocab, struct bench_run *r, struct bench_times *out,
                          struct bp_error *err);

/* A GGUF of random weights in memory. */
struct bench_image {
    const void *bytes;
    uint64_t n;
    void *priv;
    struct bench_cost cost;
};
struct bench_shape {
    const char *name; /* "glm-5", "deepseek-v3", "tiny" */
    uint32_t n_layer, n_dense; /* of the whole model: layers, leading dense ones */
};
const struct bench_shape *bench_shape_find(const char *name);
const char *bench_shape_names(void);
/* n_dense dense layers and n_moe others. type: of the large matrices ("Q4_K"). Errors: BP_E_ARG. */
int32_t bench_image_make(const struct bench_shape *s, uint32_t n_dense, uint32_t n_moe, const char *type, uint32_t n_ctx,
                         struct bench_image *out, struct bp_error *err);
void bench_image_free(struct bench_image *im);

#endif
