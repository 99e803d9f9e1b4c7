/* test_carry.c - ref, which computes on the host, serves a rank whose device is another. The device is a fake whose memory
 * the host cannot touch (no access rights) but through its copies, so that a pointer which was not carried is a crash.
 * SPDX-License-Identifier: MIT */
#include "fake_plugins.h"
#include "backplane/slot_device.h"
#include <sys/mman.h>
#include <unistd.h>

/* ---- a device out of reach ---- */

enum { MAX_BLOCKS = 512 };
static struct block {
    unsigned char *p;
    size_t n_bytes;
} blocks[MAX_BLOCKS];
static int n_blocks, n_copies;

static size_t whole_pages(uint64_t n)
{
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    return (size_t)((n + page - 1) / page * page);
}

static int32_t dev_supports(void *self, const void *problem, struct bp_verdict *v)
{
    const struct bp_device_problem *p = problem;
    (void)self;
    v->level = BP_V_YES;
    if (p->kind != BP_DEV_CUDA) refuse(v, BP_R_DEVICE, "kind", p->kind, BP_DEV_CUDA);
    return BP_OK;
}
static int32_t dev_workspace(void *self, const void *p, struct bp_workspace *out,
                             struct bp_error *err)
{
    (void)self;
    (void)p;
    (void)err;
    out->align = 64;
    return BP_OK;
}
static int32_t dev_tensors(void *self, uint32_t slot, const void *args, struct bp_tensor *t,
                           uint32_t *n)
{
    (void)self;
    (void)slot;
    (void)args;
    (void)t;
    *n = 0;
    return BP_OK;
}
static int32_t dev_props(void *self, struct bp_device *out, struct bp_error *err)
{
    (void)self;
    (void)err;
    out->kind = BP_DEV_CUDA;
    snprintf(out->name, sizeof out->name, "out of reach");
    return BP_OK;
}
static int32_t dev_mem_info(void *self, uint64_t *free_bytes, uint64_t *total_bytes,
                            struct bp_error *err)
{
    (void)self;
    (void)err;
    *free_bytes = *total_bytes = UINT64_C(1) << 34;
    return BP_OK;
}
static int32_t dev_alloc(void *self, uint32_t mem, uint64_t n_bytes, void **out,
                         struct bp_error *err)
{
    (void)self;
    if (mem == BP_MEM_PINNED) {
        *out = aligned_alloc(256, (n_bytes + 255) / 256 * 256);
        if (*out == NULL) return bpi_fail_nomem(err, "fakedev", n_bytes);
        memset(*out, 0, n_bytes);
        return BP_OK;
    }
    ck_assert_int_lt(n_blocks, MAX_BLOCKS);
    struct block *b = &blocks[n_blocks++];
    b->n_bytes = whole_pages(n_bytes);
    b->p = mmap(NULL, b->n_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ck_assert(b->p != MAP_FAILED);
    *out = b->p;
    return BP_OK;
}
static void dev_free(void *self, uint32_t mem, void *p)
{
    (void)self;
    if (mem == BP_MEM_PINNED) {
        free(p);
        return;
    }
    for (int i = 0; i < n_blocks; ++i) {
        if (blocks[i].p != p) continue;
        munmap(blocks[i].p, blocks[i].n_bytes);
        blocks[i].p = NULL;
    }
}
/* Which block does the range lie in? */
static struct block *block_of(const void *p, uint64_t n)
{
    for (int i = 0; i < n_blocks; ++i) {
        struct block *b = &blocks[i];
        if (b->p == NULL || (const unsigned char *)p < b->p ||
            (const unsigned char *)p >= b->p + b->n_bytes)
            continue;
        ck_assert_uint_le((uint64_t)((const unsigned char *)p - b->p) + n, b->n_bytes);
        return b;
    }
    return NULL;
}
static void access_to(const struct block *b, int rights)
{
    if (b != NULL) ck_assert_int_eq(mprotect(b->p, b->n_bytes, rights), 0);
}
static int32_t dev_copy(void *self, void *dst, const void *src, uint64_t n, uint32_t dir,
                        void *stream, struct bp_error *err)
{
    const struct block *to = block_of(dst, n), *from = block_of(src, n);
    (void)self;
    (void)stream;
    (void)err;
    ck_assert((to != NULL) == (dir != BP_COPY_D2H));
    ck_assert((from != NULL) == (dir != BP_COPY_H2D));
    ++n_copies;
    access_to(to, PROT_READ | PROT_WRITE);
    access_to(from, PROT_READ | PROT_WRITE);
    memmove(dst, src, n);
    access_to(to, PROT_NONE);
    access_to(from, PROT_NONE);
    return BP_OK;
}
static int32_t dev_fill(void *self, void *dst, uint8_t value, uint64_t n, void *stream,
                        struct bp_error *err)
{
    const struct block *b = block_of(dst, n);
    (void)self;
    (void)stream;
    (void)err;
    access_to(b, PROT_READ | PROT_WRITE);
    memset(dst, value, n);
    access_to(b, PROT_NONE);
    return BP_OK;
}
static int32_t dev_sync(void *self, void *stream, struct bp_error *err)
{
    (void)self;
    (void)stream;
    (void)err;
    return BP_OK;
}

static struct bp_device_ops dev_ops;
static const struct bp_op_entry dev_entry = {"bp.device", "fake", BP_ABI_MAJOR, BP_ABI_MINOR, 0, 0};
static struct bp_plugin_desc dev_desc;

static int32_t dev_open(const struct bp_host *host, void **plugin, struct bp_error *err)
{
    (void)host;
    (void)err;
    *plugin = &dev_desc;
    return BP_OK;
}
static void dev_close(void *plugin)
{
    (void)plugin;
}
static int32_t dev_create(void *plugin, const struct bp_op_entry *e, const struct bp_device *dev,
                          const struct bp_op_ref *inner, uint32_t n, struct bp_op_ref *out,
                          struct bp_error *err)
{
    (void)e;
    (void)dev;
    (void)inner;
    (void)n;
    (void)err;
    *out = (struct bp_op_ref){.vt = &dev_ops.base, .self = plugin};
    return BP_OK;
}
static void dev_destroy(void *plugin, struct bp_op_ref *op)
{
    (void)plugin;
    (void)op;
}
static const struct bp_plugin_desc *dev_query(const struct bp_query *q)
{
    /* Slots that are never called come from ref. */
    const struct bp_plugin_desc *ref = bp_reference_query()(q);
    struct bp_op_ref own = {NULL, NULL};
    ck_assert_int_eq(ref->op_create(NULL, &dev_entry, NULL, NULL, 0, &own, NULL), BP_OK);
    dev_ops = *(const struct bp_device_ops *)(const void *)own.vt;
    dev_ops.base.supports = dev_supports;
    dev_ops.base.workspace = dev_workspace;
    dev_ops.base.tensors = dev_tensors;
    dev_ops.props = dev_props;
    dev_ops.mem_info = dev_mem_info;
    dev_ops.alloc = dev_alloc;
    dev_ops.free = dev_free;
    dev_ops.copy = dev_copy;
    dev_ops.fill = dev_fill;
    dev_ops.stream_sync = dev_sync;
    dev_desc = *ref;
    dev_desc.name = "fakedev";
    dev_desc.cfg = NULL;
    dev_desc.n_cfg = 0;
    dev_desc.ops = &dev_entry;
    dev_desc.n_ops = 1;
    dev_desc.ops_stride = sizeof dev_entry;
    dev_desc.open = dev_open;
    dev_desc.close = dev_close;
    dev_desc.op_create = dev_create;
    dev_desc.op_destroy = dev_destroy;
    return &dev_desc;
}

/* ---- the same numbers ---- */

static const char *const on_cpu[] = {"engine.ctx=96",    "engine.batch_tokens=32", "engine.slab=64",
                                     "engine.threads=1", "engine.max_seqs=2",      NULL};
static const char *const on_device[] = {"engine.ctx=96",
                                        "engine.batch_tokens=32",
                                        "engine.slab=64",
                                        "engine.threads=1",
                                        "engine.max_seqs=2",
                                        "engine.device=cuda:0",
                                        NULL};

static void count_tap(void *ctx, const struct bp_tap_event *e)
{
    const float *v = e->data->data; /* readable by the host, or this crashes */
    ck_assert(v[0] - v[0] == 0.0f);
    ++*(int *)ctx;
}

/* A prompt over a slab's edge in two chunks, single tokens, a shared beginning with a copied block, two sequences. */
static void run_all(struct bp_session *s, const struct bp_model *m, float *out)
{
    struct bp_error err = BP_ERROR_INIT;
    const uint32_t n_vocab = bp_model_n_vocab(m);
    int32_t *ids = random_ids(11, 80, n_vocab);
    int n_taps = 0;
    for (uint32_t at = 0; at < 70; at += 30) {
        struct bp_step_item it = item(0, ids + at, at + 30 > 70 ? 70 - at : 30, 1, 0);
        must(bp_session_step(s, &it, 1, &err), &err);
    }
    must(bp_session_tap(s, "blk.1.attn.resid,output_norm", count_tap, &n_taps, &err), &err);
    for (uint32_t i = 70; i < 74; ++i) {
        struct bp_step_item two[2] = {item(0, ids + i, 1, 1, BP_STEP_DECODE),
                                      item(1, ids + i - 70, 2, 1, 0)};
        must(bp_session_step(s, two, 2, &err), &err);
        memcpy(out, bp_session_logits(s, 0, 0), n_vocab * sizeof(float));
        memcpy(out + n_vocab, bp_session_logits(s, 1, 0), n_vocab * sizeof(float));
        out += 2 * (size_t)n_vocab;
    }
    ck_assert_int_eq(n_taps, 8);
    free(ids);
}

static void compare(const char *path, const char *const *device_settings)
{
    float *logits[2];
    for (int k = 0; k < 2; ++k) {
        struct bp_error err = BP_ERROR_INIT;
        struct bp_config *cfg = fake_config(k == 0 ? on_cpu : device_settings);
        struct bp_model *m;
        struct bp_session *s;
        must(bp_config_add_plugin(cfg, dev_query, &err), &err);
        must(bp_model_open(path, cfg, NULL, &m, &err), &err);
        must(bp_session_open(m, cfg, NULL, &s, &err), &err);
        logits[k] = calloc(8 * (size_t)bp_model_n_vocab(m), sizeof(float));
        run_all(s, m, logits[k]);
        struct bp_decision r = {.h = BP_HDR(struct bp_decision, weight_bytes)};
        const struct bp_decisions *d = bp_session_decisions(s);
        for (uint32_t i = 0; bp_decision(d, i, &r) == BP_OK; ++i)
            ck_assert_uint_eq(r.on_host, k == 1 && strcmp(r.slot, "device") != 0);
        struct bp_decisions_info info = {.h = BP_HDR(struct bp_decisions_info, scratch_bytes)};
        bp_decisions_info(d, &info);
        ck_assert_uint_eq(info.device_kind, k == 0 ? BP_DEV_HOST : BP_DEV_CUDA);
        if (k == 0) ck_assert_int_eq(n_copies, 0);
        const uint32_t n_vocab = bp_model_n_vocab(m);
        bp_session_close(s);
        bp_model_close(m);
        bp_config_destroy(cfg);
        if (k == 1) ck_assert(same_bits(logits[0], logits[1], 8 * n_vocab));
    }
    ck_assert_int_gt(n_copies, 100);
    for (int i = 0; i < n_blocks; ++i) ck_assert_ptr_null(blocks[i].p);
    free(logits[0]);
    free(logits[1]);
}

START_TEST(whole_model_carried)
{
    static const char *const zoo[] = {ZOO("zoo-v32"), ZOO("zoo-v3"), ZOO("zoo-v2lite"),
                                      ZOO("zoo-glm52-shared")};
    compare(zoo[_i], on_device);
}
END_TEST

/* ---- who is taken ---- */

/* Under auto, whoever computes on the device goes before those that would be carried; a name is taken at its word. */
START_TEST(device_goes_first)
{
    const char *const named[] = {"engine.ctx=64", "engine.device=cuda:0", "slots.mla.decode=ref",
                                 NULL};
    struct bp_error err = BP_ERROR_INIT;
    struct bp_config *cfg = fake_config(named);
    struct bp_model *m;
    struct bp_decisions *d;
    struct bp_decision r = {.h = BP_HDR(struct bp_decision, weight_bytes)};
    struct bp_decision_candidate c = {.h = BP_HDR(struct bp_decision_candidate, cost_us)};
    must(bp_config_add_plugin(cfg, dev_query, &err), &err);
    must(bp_model_open_headers(ZOO("zoo-v3"), cfg, NULL, &m, &err), &err);
    fakes[1].takes_device = true;
    must(bp_explain(m, cfg, NULL, &d, &err), &err);
    int n = 0;
    for (uint32_t i = 0; bp_decision(d, i, &r) == BP_OK; ++i) {
        ck_assert_int_eq(bp_decision_candidate(d, i, (uint32_t)r.chosen, &c), BP_OK);
        if (strcmp(r.slot, "mla.decode") == 0) {
            ck_assert_str_eq(c.name, "ref");
            ck_assert_uint_eq(r.on_host, 1);
            ++n;
        } else if (strcmp(r.slot, "mla.prefill") == 0) {
            ck_assert_str_eq(c.name, "fake1");
            ck_assert_uint_eq(r.on_host, 0);
            ck_assert_uint_eq(r.n_candidates, 3);
            ++n;
        }
    }
    ck_assert_int_eq(n, 2);
    bp_decisions_close(d);
    bp_model_close(m);
    bp_config_destroy(cfg);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("carry");
    TCase *tc = tcase_create("all");
    tcase_set_timeout(tc, 120);
    tcase_add_loop_test(tc, whole_model_carried, 0, 4);
    tcase_add_test(tc, device_goes_first);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
