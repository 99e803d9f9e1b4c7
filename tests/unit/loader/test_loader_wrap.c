/* test_loader_wrap.c - chains of wrappers: which layer gets a call, with whose self, who is made and unmade when.
 * SPDX-License-Identifier: MIT */
#include "loader/loader_priv.h"
#include "loader_fixture.h"
#include "backplane/slot_coll.h"
#include "backplane/slot_dense.h"
#include "backplane/slot_device.h"
#include "backplane/slot_mla.h"
#include "backplane/slot_moe.h"

/* Two wrappers whose tables a test may cut or empty. */
struct wrapper {
    struct bp_plugin_desc desc;
    struct bp_op_entry op;
    struct bp_quant_ops table;
    int32_t create_rc;
    const char *create_msg;
    bool no_table;
    int n_create, n_destroy;
};
static struct wrapper wrappers[2];

/* One made instance: each has a self of its own. */
struct layer {
    struct wrapper *w;
    struct bp_op_ref inner;
};
static struct layer layers[8];
static int n_layers;

#define INNER(self) ((const struct bp_quant_ops *)((struct layer *)(self))->inner.vt)

static int32_t wrap_matmul(void *self, const struct bp_launch *l,
                           const struct bp_quant_matmul_args *a, struct bp_error *err)
{
    struct layer *at = self;
    note("matmul", at->w->desc.name);
    return INNER(self)->matmul(at->inner.self, l, a, err);
}

static int32_t wrap_prepare(void *self, const struct bp_raw *raw, void **out,
                            struct bp_weight_info *info, struct bp_error *err)
{
    struct layer *at = self;
    note("prepare", at->w->desc.name);
    return INNER(self)->prepare(at->inner.self, raw, out, info, err);
}

static int32_t wrap_supports(void *self, const void *problem, struct bp_verdict *v)
{
    struct layer *at = self;
    note("supports", at->w->desc.name);
    int32_t rc = at->inner.vt->supports(at->inner.self, problem, v);
    v->level = BP_V_NO;
    v->reasons[0] = (struct bp_reason){.code = BP_R_SHAPE, .field = "wrapped", .text = "not so"};
    v->n_reasons = 1;
    return rc;
}

static int32_t wrap_open(const struct bp_host *host, void **plugin, struct bp_error *err)
{
    (void)host;
    (void)err;
    *plugin = &wrappers[0];
    return BP_OK;
}

static int32_t wrap_open_two(const struct bp_host *host, void **plugin, struct bp_error *err)
{
    (void)host;
    (void)err;
    *plugin = &wrappers[1];
    return BP_OK;
}

static void wrap_close(void *plugin)
{
    struct wrapper *w = plugin;
    note("close", w->desc.name);
}

static int32_t wrap_create(void *plugin, const struct bp_op_entry *entry,
                           const struct bp_device *dev, const struct bp_op_ref *inner,
                           uint32_t n_inner, struct bp_op_ref *out, struct bp_error *err)
{
    struct wrapper *w = plugin;
    (void)dev;
    (void)entry;
    ck_assert_int_eq(n_inner, 1);
    ck_assert_ptr_nonnull(inner[0].vt);
    if (w->create_rc != BP_OK) {
        return w->create_msg != NULL
                   ? bpi_fail(err, w->create_rc, w->desc.name, NULL, "%s", w->create_msg)
                   : w->create_rc;
    }
    ck_assert_int_lt(n_layers, 8);
    struct layer *at = &layers[n_layers++];
    *at = (struct layer){.w = w, .inner = inner[0]};
    w->n_create++;
    *out = (struct bp_op_ref){.vt = w->no_table ? NULL : &w->table.base, .self = at};
    return BP_OK;
}

static void wrap_destroy(void *plugin, struct bp_op_ref *op)
{
    struct wrapper *w = plugin;
    ck_assert_ptr_eq(((struct layer *)op->self)->w, w);
    w->n_destroy++;
    note("destroy", w->desc.name);
}

static const struct bp_plugin_desc *query_one(const struct bp_query *q)
{
    (void)q;
    return &wrappers[0].desc;
}

static const struct bp_plugin_desc *query_two(const struct bp_query *q)
{
    (void)q;
    return &wrappers[1].desc;
}

static int32_t alpha_matmul(void *self, const struct bp_launch *l,
                            const struct bp_quant_matmul_args *a, struct bp_error *err)
{
    (void)l;
    (void)a;
    (void)err;
    ck_assert_ptr_eq(self, &fakes[0]);
    note("matmul", "alpha");
    return BP_E_DEVICE; /* must come back through every layer */
}

/* The wrappers `one` (matmul) and `two` (matmul, prepare) around alpha, with beta beside it. */
static void wrap_open_stand(struct stand *s, const char *ini)
{
    struct bp_error err = BP_ERROR_INIT;
    stand_open(s, ini);
    fakes[0].table.matmul = alpha_matmul;
    memset(wrappers, 0, sizeof wrappers);
    n_layers = 0;
    for (int i = 0; i < 2; ++i) {
        struct wrapper *w = &wrappers[i];
        w->op = (struct bp_op_entry){.iface = "bp.quant", .impl = "w", .iface_minor = 1};
        w->table = (struct bp_quant_ops){.base = {.h = BP_HDR(struct bp_quant_ops, dequantize),
                                                  .iface = "bp.quant",
                                                  .iface_minor = 1},
                                         .matmul = wrap_matmul};
        w->desc = fakes[1].desc;
        w->desc.kind = BP_KIND_WRAPPER;
        w->desc.name = i == 0 ? "one" : "two";
        w->desc.ops = &w->op;
        w->desc.n_cfg = 0;
        w->desc.open = i == 0 ? wrap_open : wrap_open_two;
        w->desc.close = wrap_close;
        w->desc.op_create = wrap_create;
        w->desc.op_destroy = wrap_destroy;
    }
    wrappers[1].table.prepare = wrap_prepare;
    register_both(s);
    ck_assert_msg(bpi_loader_register(s->loader, query_one, &err) == BP_OK, "%s", err.msg);
    ck_assert_msg(bpi_loader_register(s->loader, query_two, &err) == BP_OK, "%s", err.msg);
    history[0] = '\0';
}

static const struct bp_quant_problem matmul_problem = {
    .h = BP_HDR(struct bp_quant_problem, epilogue), .op = BP_QUANT_OP_MATMUL};

static int32_t choose(struct stand *s, int32_t layer, struct bp_op_ref *op, struct bp_error *err)
{
    struct bpi_candidate *c = calloc(4, sizeof *c);
    size_t n = 0, chosen = 0;
    *err = (struct bp_error)BP_ERROR_INIT;
    int32_t rc = bpi_loader_choose(s->loader, "quant", "bp.quant", layer, NULL, &matmul_problem, c,
                                   4, &n, &chosen, op, err);
    free(c);
    return rc;
}

static const struct bpi_flat_op *take(struct stand *s, int32_t layer, struct bp_op_ref *op)
{
    struct bp_error err;
    ck_assert_msg(choose(s, layer, op, &err) == BP_OK, "%s", err.msg);
    const struct bpi_flat_op *flat = bpi_loader_flat(s->loader, op);
    ck_assert_ptr_nonnull(flat);
    return flat;
}

#define QUANT(flat) ((const struct bp_quant_ops *)(flat)->vt)
#define SELF(flat, fn) ((flat)->self[BPI_SLOT_INDEX(bp_quant_ops, fn)])

START_TEST(without_wrappers_nothing_is_copied)
{
    struct stand s;
    struct bp_op_ref op;
    wrap_open_stand(&s, "[slots]\nquant = alpha\n");
    const struct bpi_flat_op *flat = take(&s, -1, &op);
    ck_assert_ptr_eq(flat->vt, &fakes[0].table.base);
    ck_assert_ptr_eq(op.vt, &fakes[0].table.base);
    ck_assert_ptr_eq(op.self, &fakes[0]);
    for (size_t i = 0; i < BPI_MAX_SLOTS; ++i) ck_assert_ptr_eq(flat->self[i], &fakes[0]);
    ck_assert_ptr_null(bpi_loader_flat(s.loader, &(struct bp_op_ref){op.vt, &s}));
    stand_close(&s);
}
END_TEST

START_TEST(outermost_first_and_untouched_slots_are_the_providers)
{
    struct stand s;
    struct bp_op_ref op;
    wrap_open_stand(&s, "[slots]\nquant = alpha\n[wrap]\nquant = one, two\n");
    const struct bpi_flat_op *flat = take(&s, -1, &op);
    ck_assert_int_eq(QUANT(flat)->matmul(SELF(flat, matmul), NULL, NULL, NULL), BP_E_DEVICE);
    ck_assert_str_eq(history, "matmul:one matmul:two matmul:alpha");
    history[0] = '\0';
    ck_assert_int_eq(QUANT(flat)->prepare(SELF(flat, prepare), NULL, NULL, NULL, NULL),
                     BP_DECLINED);
    ck_assert_str_eq(history, "prepare:two");
    ck_assert(QUANT(flat)->format == fake_format && SELF(flat, format) == &fakes[0]);
    ck_assert(QUANT(flat)->base.supports == fake_supports &&
              SELF(flat, base.supports) == &fakes[0]);
    ck_assert(QUANT(flat)->dequantize == NULL); /* alpha has none, and it is not made up */
    ck_assert_uint_eq(flat->vt->h.size, sizeof(struct bp_quant_ops));
    /* The same op behind one self, as questions and wrappers see it. */
    const struct bp_quant_ops *one = (const struct bp_quant_ops *)op.vt;
    history[0] = '\0';
    ck_assert_int_eq(one->matmul(op.self, NULL, NULL, NULL), BP_E_DEVICE);
    ck_assert_str_eq(history, "matmul:one matmul:two matmul:alpha");
    ck_assert(one->dequantize == NULL);
    stand_close(&s);
}
END_TEST

START_TEST(a_table_that_ends_early_passes_the_rest)
{
    struct stand s;
    struct bp_op_ref op;
    wrap_open_stand(&s, "[slots]\nquant = alpha\n[wrap]\nquant = one, two\n");
    /* one ends inside of matmul's pointer, two right behind it. */
    wrappers[0].table.base.h.size = (uint32_t)offsetof(struct bp_quant_ops, matmul) + 4;
    wrappers[1].table.base.h.size = BP_END(struct bp_quant_ops, matmul);
    const struct bpi_flat_op *flat = take(&s, -1, &op);
    ck_assert_int_eq(QUANT(flat)->matmul(SELF(flat, matmul), NULL, NULL, NULL), BP_E_DEVICE);
    ck_assert_str_eq(history, "matmul:two matmul:alpha");
    stand_close(&s);
    wrap_open_stand(&s, "[slots]\nquant = alpha\n[wrap]\nquant = one\n");
    wrappers[0].table.base.h.size = BP_END(struct bp_op_base, iface_minor); /* no slot at all */
    flat = take(&s, -1, &op);
    ck_assert(QUANT(flat)->matmul == alpha_matmul && SELF(flat, matmul) == &fakes[0]);
    stand_close(&s);
}
END_TEST

/* A wrapper cannot hide that the op below lacks what the problem needs. */
START_TEST(a_missing_function_is_still_missed)
{
    struct stand s;
    struct bp_op_ref op;
    struct bp_error err;
    wrap_open_stand(&s, "[slots]\nquant = alpha\n[wrap]\nquant = one\n");
    fakes[0].table.matmul = NULL;
    ck_assert_int_eq(choose(&s, -1, &op, &err), BP_E_ABI);
    says(&err, "no matmul()");
    stand_close(&s);
}
END_TEST

START_TEST(same_chain_same_instance)
{
    struct stand s;
    struct bp_op_ref op[5];
    wrap_open_stand(&s, "[slots]\nquant = alpha\nquant@layers=4-4 = beta\n"
                        "[wrap]\nquant = one, two\nquant@layers=2-2 = two\n"
                        "quant@layers=3-3 = two, one\n");
    for (int32_t i = 0; i < 5; ++i) (void)take(&s, i, &op[i]);
    ck_assert(op[0].vt == op[1].vt && op[0].self == op[1].self);
    ck_assert(op[2].self != op[0].self && op[3].self != op[0].self && op[4].self != op[0].self);
    /* alpha: two (shared by the chains "one, two" and "two"), one around it; one, two around that. beta: two and one. */
    ck_assert_int_eq(n_layers, 6);
    ck_assert_ptr_eq(layers[1].inner.self, op[2].self);
    ck_assert_int_eq(fakes[0].n_create, 1);
    ck_assert_int_eq(fakes[1].n_create, 1);
    stand_close(&s);
    ck_assert_int_eq(wrappers[0].n_destroy + wrappers[1].n_destroy, 6);
}
END_TEST

START_TEST(wrappers_die_before_what_they_wrap)
{
    struct stand s;
    struct bp_op_ref op;
    wrap_open_stand(&s, "[slots]\nquant = alpha\n[wrap]\nquant = one, two\n");
    (void)take(&s, -1, &op);
    history[0] = '\0';
    stand_close(&s);
    ck_assert_str_eq(history, "destroy:one destroy:two destroy:alpha close:two close:one "
                              "close:beta close:alpha");
}
END_TEST

/* The inner wrapper was made, the outer one cannot be: the choice fails, and all is unmade in the end. */
START_TEST(the_second_wrapper_fails)
{
    static const struct {
        int32_t rc, want;
        const char *msg, *says;
    } cases[] = {
        {BP_DECLINED, BP_E_CONFIG, "only on Sundays", "wrapper one declines bp.quant: only on"},
        {BP_DECLINED, BP_E_CONFIG, NULL, "gave no reason"},
        {BP_E_NOMEM, BP_E_NOMEM, "no room", "no room"},
        {BP_E_IO, BP_E_IO, "disk on fire", "disk on fire"}};
    for (size_t i = 0; i < BPI_ARRAY_LEN(cases); ++i) {
        struct stand s;
        struct bp_op_ref op;
        struct bp_error err;
        wrap_open_stand(&s, "[slots]\nquant = alpha, beta\n[wrap]\nquant = one, two\n");
        wrappers[0].create_rc = cases[i].rc;
        wrappers[0].create_msg = cases[i].msg;
        ck_assert_int_eq(choose(&s, -1, &op, &err), cases[i].want);
        says(&err, cases[i].says);
        says(&err, "[wrap] quant");
        ck_assert_int_eq(wrappers[1].n_create, 1);
        ck_assert_int_eq(fakes[1].n_create, 0); /* no fallback: the provider is not at fault */
        stand_close(&s);
        ck_assert_int_eq(wrappers[1].n_destroy, 1);
        ck_assert_int_eq(wrappers[0].n_destroy, 0);
        ck_assert_int_eq(fakes[0].n_destroy, 1);
    }
}
END_TEST

START_TEST(bad_tables)
{
    static const char *const want[] = {"0 bytes", "24 bytes", "bp.dense", "0.2", "nothing"};
    for (size_t i = 0; i < BPI_ARRAY_LEN(want); ++i) {
        struct stand s;
        struct bp_op_ref op;
        struct bp_error err;
        wrap_open_stand(&s, "[slots]\nquant = alpha\n[wrap]\nquant = one\n");
        struct bp_op_base *base = &wrappers[0].table.base;
        wrappers[0].no_table = i == 0;
        if (i == 1) base->h.size = 24;
        if (i == 2) base->iface = "bp.dense";
        if (i == 3) base->iface_minor = 2;
        if (i == 4) base->iface = NULL;
        ck_assert_int_eq(choose(&s, -1, &op, &err), BP_E_ABI);
        says(&err, want[i]);
        says(&err, "wrapper one");
        stand_close(&s);
        ck_assert_int_eq(wrappers[0].n_destroy, 1); /* what was made is unmade at once */
    }
}
END_TEST

START_TEST(names_in_wrap)
{
    static const struct {
        const char *list, *says;
    } cases[] = {{"onne", "one"}, {"beta", "wraps nothing"}, {"one, alpha", "wraps nothing"}};
    struct stand s;
    struct bp_op_ref op;
    struct bp_error err;
    char ini[128];
    for (size_t i = 0; i < BPI_ARRAY_LEN(cases); ++i) {
        snprintf(ini, sizeof ini, "[slots]\nquant = alpha\n[wrap]\nquant = %s\n", cases[i].list);
        wrap_open_stand(&s, ini);
        ck_assert_int_eq(choose(&s, -1, &op, &err), BP_E_CONFIG);
        says(&err, cases[i].says);
        stand_close(&s);
    }
    wrap_open_stand(&s, "[slots]\nquant = alpha\n[wrap]\nquant = one\n");
    wrappers[0].op.iface = "bp.moe";
    ck_assert_int_eq(choose(&s, -1, &op, &err), BP_E_CONFIG);
    says(&err, "one does not wrap bp.quant");
    stand_close(&s);
    /* Seventeen around one slot: a limit, not a stack of any height. */
    wrap_open_stand(&s,
                    "[slots]\nquant = alpha\n[wrap]\nquant = one,one,one,one,one,one,one,one,one,"
                    "one,one,one,one,one,one,one,one\n");
    ck_assert_int_eq(choose(&s, -1, &op, &err), BP_E_LIMIT);
    says(&err, "17");
    stand_close(&s);
}
END_TEST

START_TEST(an_interface_nobody_knows_cannot_be_wrapped)
{
    struct stand s;
    struct bp_op_ref op;
    struct bp_error err = BP_ERROR_INIT;
    wrap_open_stand(&s, "[wrap]\nquant = one\n");
    fakes[0].ops[0].iface = wrappers[0].op.iface = "x.acme";
    fakes[0].table.base.iface = wrappers[0].table.base.iface = "x.acme";
    ck_assert_int_eq(bpi_loader_op(s.loader, "alpha", "x.acme", NULL, &op, &err), BP_OK);
    const struct bp_op_ref plain = op;
    ck_assert_int_eq(bpi_loader_wrap(s.loader, "quant", "x.acme", -1, NULL, &op, &err),
                     BP_E_CONFIG);
    says(&err, "does not know");
    ck_assert(op.vt == plain.vt && op.self == plain.self);
    ck_assert_int_eq(wrappers[0].n_destroy, 1);
    ck_assert_ptr_null(bpi_relay_table("x.acme"));
    stand_close(&s);
}
END_TEST

START_TEST(supports_goes_through_the_chain)
{
    struct stand s;
    struct bp_op_ref op;
    struct bp_error err;
    wrap_open_stand(&s, "[slots]\nquant = alpha\n[wrap]\nquant = one, two\n");
    wrappers[0].table.base.supports = wrap_supports;
    ck_assert_int_eq(choose(&s, -1, &op, &err), BP_E_CONFIG);
    says(&err, "wrapped");
    ck_assert_str_eq(history, "supports:one");
    ck_assert_int_eq(fakes[0].n_asked, 1);
    stand_close(&s);
}
END_TEST

/* ---- relays: every slot of every interface goes to its own function with its own self ---- */

static unsigned char marks[BPI_MAX_SLOTS];
static int hits[BPI_MAX_SLOTS], wrong;

/* Called with the arguments of any slot and looks at the first alone, which works wherever arguments go in registers. */
#define PROBE(n)                                                                                   \
    static int32_t probe_##n(void *self)                                                           \
    {                                                                                              \
        if (self == &marks[n]) {                                                                   \
            hits[n]++;                                                                             \
        } else {                                                                                   \
            wrong++;                                                                               \
        }                                                                                          \
        return BP_E_ABORTED;                                                                       \
    }
#define PROBES(X)                                                                                  \
    X(0)                                                                                           \
    X(1)                                                                                           \
    X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14) X(15) X(16) X(17) X(18)  \
        X(19) X(20) X(21) X(22) X(23) X(24) X(25) X(26) X(27) X(28) X(29) X(30) X(31)
PROBES(PROBE)
typedef int32_t probe_fn(void *self);
typedef int32_t slot_fn(void *self, void *a, void *b, void *c, void *d, void *e, void *f);

START_TEST(relays_go_to_their_own_slot)
{
#define PROBE_NAME(n) probe_##n,
    static probe_fn *const probes[BPI_MAX_SLOTS] = {PROBES(PROBE_NAME)};
    static const struct {
        const char *iface;
        size_t size;
    } tables[] = {{"bp.device", sizeof(struct bp_device_ops)},
                  {"bp.dense", sizeof(struct bp_dense_ops)},
                  {"bp.quant", sizeof(struct bp_quant_ops)},
                  {"bp.moe", sizeof(struct bp_moe_ops)},
                  {"bp.coll", sizeof(struct bp_coll_ops)},
                  {"bp.mla.common", sizeof(struct bp_mla_common_ops)},
                  {"bp.mla.prefill", sizeof(struct bp_mla_prefill_ops)},
                  {"bp.mla.decode", sizeof(struct bp_mla_decode_ops)},
                  {"bp.mla.index", sizeof(struct bp_mla_index_ops)}};
    probe_fn *vt[BPI_MAX_SLOTS];
    struct bpi_flat_op flat = {.vt = (const struct bp_op_base *)(const void *)vt};
    memcpy(vt, probes, sizeof vt);
    for (size_t i = 0; i < BPI_MAX_SLOTS; ++i) flat.self[i] = &marks[i];
    for (size_t t = 0; t < BPI_ARRAY_LEN(tables); ++t) {
        const struct bp_op_base *relay = bpi_relay_table(tables[t].iface);
        ck_assert_ptr_nonnull(relay);
        ck_assert_str_eq(relay->iface, tables[t].iface);
        ck_assert_uint_eq(relay->h.size, tables[t].size);
        memset(hits, 0, sizeof hits);
        for (size_t i = BPI_SLOT_INDEX(bp_op_base, supports); i < tables[t].size / 8; ++i) {
            slot_fn *fn;
            memcpy(&fn, (const unsigned char *)relay + i * 8, sizeof fn);
            ck_assert_msg(fn != NULL, "%s has no relay %zu", tables[t].iface, i);
            (void)fn(&flat, NULL, NULL, NULL, NULL, NULL, NULL);
            ck_assert_msg(hits[i] == 1 && wrong == 0, "%s: relay %zu goes elsewhere",
                          tables[t].iface, i);
        }
    }
}
END_TEST

int main(void)
{
    static const TTest *tests[12];
    size_t n = 0;
    tests[n++] = without_wrappers_nothing_is_copied;
    tests[n++] = outermost_first_and_untouched_slots_are_the_providers;
    tests[n++] = a_table_that_ends_early_passes_the_rest;
    tests[n++] = a_missing_function_is_still_missed;
    tests[n++] = same_chain_same_instance;
    tests[n++] = wrappers_die_before_what_they_wrap;
    tests[n++] = the_second_wrapper_fails;
    tests[n++] = bad_tables;
    tests[n++] = names_in_wrap;
    tests[n++] = an_interface_nobody_knows_cannot_be_wrapped;
    tests[n++] = supports_goes_through_the_chain;
    tests[n++] = relays_go_to_their_own_slot;
    return run_suite("loader_wrap", tests, n);
}
