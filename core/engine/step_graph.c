/* step_graph.c - a step of decode rows as one captured graph: captured once per shape and replayed.
 * What a graph holds fixed is its key: how many rows and sequences, whose logits are wanted, whether keys are selected, and
 * a bound of the contexts' lengths. Everything else - ids, positions, slots, block tables, lengths - lies in the staging
 * block, whose layout depends on the key alone and which is copied to the device before the launch. plan() of the attention
 * runs before each launch and outside of it, into the same memory.
 * Not here: what a step does (step.c). Threads: the session's. SPDX-License-Identifier: MIT */
#include "engine/session_priv.h"
#include <stdio.h>
#include <string.h>

enum { MAX_GRAPHS = 16, MAX_ROWS = 256 };

/* Compared as bytes, so it has no padding. */
struct key {
    uint32_t n_tok, n_items, n_logits, max_kv, select;
    uint32_t logit_row[MAX_ROWS];
};
_Static_assert(sizeof(struct key) == (5 + MAX_ROWS) * sizeof(uint32_t), "no padding");

struct entry {
    struct key key;
    void *graph;   /* NULL: not captured yet */
    bool warm;     /* the shape was run once, uncaptured */
    uint64_t used; /* for finding the one that was not used for longest; 0: free */
};

struct bpi_graphs {
    bool demanded; /* engine.graph = on */
    bool given_up; /* a capture failed */
    uint64_t clock;
    struct entry entries[MAX_GRAPHS];
};

/* ---- may it be captured ---- */

/* The first op of a decode step that cannot go into a graph; NULL: all can. many: more than one token per sequence. */
static const struct bpi_bound *uncapturable(struct bpi_bound *const *ops, size_t n, bool many)
{
    for (size_t i = 0; i < n; ++i) {
        if (ops[i] == NULL) continue;
        if (ops[i]->on_host || ops[i]->capture < (many ? BP_CAPTURE_UNIFORM : BP_CAPTURE_Q1))
            return ops[i];
    }
    return NULL;
}

static const struct bpi_bound *site_uncapturable(const struct bpi_site *site, bool many)
{
    return uncapturable(site->op, site->n_w, many);
}

/* Ops of plain form only count where the products are composed of them. */
static const struct bpi_bound *layer_uncapturable(const struct bpi_layer *l, bool many)
{
    const struct bpi_site *const sites[] = {&l->in,      &l->q_b,     &l->out,  &l->index_q,
                                            &l->index_w, &l->gate_up, &l->down, &l->router};
    struct bpi_bound *const ops[] = {l->common,
                                     l->decode,
                                     l->index,
                                     l->moe,
                                     l->dense[BP_DENSE_OP_ROPE],
                                     l->index_w.one_call ? NULL : l->rms_f32};
    const struct bpi_bound *bad = uncapturable(ops, BPI_ARRAY_LEN(ops), many);
    bool composed = l->moe != NULL; /* its norm is an op of its own */
    for (size_t i = 0; i < BPI_ARRAY_LEN(sites) && bad == NULL; ++i) {
        bad = site_uncapturable(sites[i], many);
        composed = composed || (sites[i]->n_w > 0 && !sites[i]->one_call);
    }
    return bad != NULL || !composed ? bad : uncapturable(l->dense, BPI_N_DENSE, many);
}

/* *layer: where it is. */
static const struct bpi_bound *first_uncapturable(const struct bp_session *s, bool many,
                                                  int32_t *layer)
{
    *layer = -1;
    struct bpi_bound *const ends[] = {s->dense[BP_DENSE_OP_EMBED],
                                      s->head.one_call ? NULL : s->rms_f32};
    const struct bpi_bound *bad = uncapturable(ends, BPI_ARRAY_LEN(ends), many);
    if (bad == NULL) bad = site_uncapturable(&s->head, many);
    for (uint32_t il = 0; il < s->n_layer && bad == NULL; ++il) {
        *layer = (int32_t)il;
        bad = layer_uncapturable(&s->layers[il], many);
    }
    return bad;
}

/* ", layer 3"; nothing for what belongs to no layer. */
static const char *place(int32_t layer, char (*at)[32])
{
    (*at)[0] = '\0';
    if (layer >= 0) (void)snprintf(*at, sizeof(*at), ", layer %d", layer);
    return *at;
}

static int32_t cannot(const struct bpi_bound *op, int32_t layer, struct bp_error *err)
{
    char at[32];
    return bpi_fail(err, BP_E_CONFIG, "engine", "engine.graph",
                    "engine.graph = on, but %s of %s%s %s; set engine.graph = auto or choose "
                    "another provider",
                    op->vt->iface, op->provider, place(layer, &at),
                    op->on_host ? "computes on the host" : "cannot be captured");
}

int32_t bpi_graphs_create(struct bp_session *s, struct bp_error *err)
{
    const char *asked = bpi_config_str(s->config, "engine", "graph");
    const bool on = strcmp(asked, "on") == 0;
    int32_t layer;
    if (strcmp(asked, "off") == 0 || (!on && s->device.kind == BP_DEV_HOST)) return BP_OK;
    const struct bp_device_ops *ops = (const struct bp_device_ops *)(const void *)s->device_op->vt;
    const bool has = s->device.kind != BP_DEV_HOST &&
                     BP_HAS(&ops->base, struct bp_device_ops, graph_destroy) &&
                     ops->graph_begin != NULL && ops->graph_end != NULL &&
                     ops->graph_launch != NULL && ops->graph_destroy != NULL;
    if (!has && !on) return BP_OK;
    if (!has)
        return bpi_fail(err, BP_E_CONFIG, "engine", "engine.graph",
                        "engine.graph = on, but the device slot of %s has no graphs",
                        s->device_op->provider);
    const struct bpi_bound *bad = first_uncapturable(s, false, &layer);
    if (bad != NULL && on) return cannot(bad, layer, err);
    if (bad != NULL) {
        char at[32];
        bpi_logf(&s->log, BPI_LOG_INFO, "engine", "steps are not captured as graphs: %s of %s%s %s",
                 bad->vt->iface, bad->provider, place(layer, &at),
                 bad->on_host ? "computes on the host" : "cannot be captured");
        return BP_OK;
    }
    s->graphs = bpi_arena_alloc(&s->arena, 1, sizeof(*s->graphs), 16);
    if (s->graphs == NULL) return bpi_fail_nomem(err, "engine", sizeof(*s->graphs));
    s->graphs->demanded = on;
    return BP_OK;
}

void bpi_graphs_destroy(struct bp_session *s)
{
    for (uint32_t i = 0; s->graphs != NULL && i < MAX_GRAPHS; ++i) {
        BPI_CALL(s->device_op, bp_device_ops, graph_destroy, s->graphs->entries[i].graph);
        s->graphs->entries[i] = (struct entry){.graph = NULL};
    }
}

/* On a device always, captured or not, so that both give the same bits. */
uint32_t bpi_graph_max_kv(const struct bp_session *s, uint32_t max_kv)
{
    uint32_t bound = s->block_tok;
    if (s->device.kind == BP_DEV_HOST || max_kv == 0) return max_kv;
    while (bound < max_kv && bound < s->ctx) bound *= 2;
    return bound < s->ctx ? bound : s->ctx;
}

/* ---- keys ---- */

/* Rows that attend one by one - decoding sequences, and prompts whose keys are selected -, the same number of each, and
 * nobody looks. */
static bool is_candidate(const struct bp_session *s)
{
    const struct bpi_step *st = &s->step;
    int32_t layer;
    if (s->graphs == NULL || s->graphs->given_up || s->taps.fn != NULL || s->watcher != NULL ||
        st->n_group != 0 || st->n_tok == 0 || st->n_tok > MAX_ROWS || st->n_tok % st->n_items != 0)
        return false;
    const uint32_t each = st->n_tok / st->n_items;
    for (uint32_t r = 0; r < st->n_tok; ++r) {
        if (st->row_item[r] != r / each) return false;
    }
    return each == 1 || first_uncapturable(s, true, &layer) == NULL;
}

static struct key key_of(const struct bp_session *s)
{
    const struct bpi_step *st = &s->step;
    struct key k;
    memset(&k, 0, sizeof(k)); /* rows without logits, too */
    k.n_tok = st->n_tok;
    k.n_items = st->n_items;
    k.n_logits = st->n_logits;
    k.max_kv = st->decode.max_kv;
    k.select = st->select;
    memcpy(k.logit_row, st->logit_row, st->n_logits * sizeof(k.logit_row[0]));
    return k;
}

/* The entry of this key; a new one in place of that which was not used for longest. */
static struct entry *find(struct bp_session *s, const struct key *k)
{
    struct bpi_graphs *g = s->graphs;
    struct entry *oldest = &g->entries[0];
    ++g->clock;
    for (uint32_t i = 0; i < MAX_GRAPHS; ++i) {
        struct entry *e = &g->entries[i];
        if (e->used != 0 && memcmp(&e->key, k, sizeof(*k)) == 0) {
            e->used = g->clock;
            return e;
        }
        if (e->used < oldest->used) oldest = e;
    }
    BPI_CALL(s->device_op, bp_device_ops, graph_destroy, oldest->graph);
    *oldest = (struct entry){.used = g->clock};
    memcpy(&oldest->key, k, sizeof(*k));
    return oldest;
}

/* ---- capture and replay ---- */

static int32_t plan_all(struct bp_session *s, struct bp_error *err)
{
    for (uint32_t il = 0; il < s->n_layer; ++il) {
        struct bpi_bound *op = s->layers[il].decode;
        struct bp_launch launch = bpi_step_launch(s, op, (int32_t)il);
        BP_TRY(bpi_step_plan_decode(s, op, &launch, err));
    }
    return BP_OK;
}

/* Leaves capture in any case. */
static int32_t capture(struct bp_session *s, void **graph, struct bp_error *err)
{
    struct bp_error ending = BP_ERROR_INIT;
    *graph = NULL;
    BP_TRY(BPI_RUN(s->device_op, -1, bp_device_ops, graph_begin, s->stream));
    s->capturing = true;
    int32_t rc = bpi_step_compute(s, err);
    s->capturing = false;
    int32_t end = BPI_CALL(s->device_op, bp_device_ops, graph_end, s->stream, graph, &ending);
    if (rc == BP_OK && end != BP_OK)
        rc = bpi_fail(err, end, "engine", "graph_end", "%s",
                      ending.msg[0] != '\0' ? ending.msg : "the capture could not be ended");
    if (rc == BP_OK && *graph == NULL)
        rc = bpi_fail(err, BP_E_ABI, "engine", "graph_end", "the device slot gave no graph");
    if (rc == BP_OK) return BP_OK;
    BPI_CALL(s->device_op, bp_device_ops, graph_destroy, *graph);
    *graph = NULL;
    return rc;
}

/* A capture that failed: the step is run without one, and so are all others. A device slot without graphs declines, which is
 * no fault. */
static int32_t give_up(struct bp_session *s, int32_t rc, const struct bp_error *why,
                       struct bp_error *err)
{
    if (rc == BP_E_DEVICE_LOST || s->graphs->demanded)
        return bpi_fail(err, rc == BP_DECLINED ? BP_E_UNSUPPORTED : rc, "engine", why->where,
                        "a step could not be captured as a graph: %s", why->msg);
    s->graphs->given_up = true;
    bpi_logf(&s->log, rc == BP_DECLINED ? BPI_LOG_INFO : BPI_LOG_WARN, "engine",
             "a step could not be captured as a graph, so none will be: %s", why->msg);
    return bpi_step_forward(s, err);
}

int32_t bpi_step_run(struct bp_session *s, struct bp_error *err)
{
    if (!is_candidate(s)) return bpi_step_forward(s, err);
    const struct key k = key_of(s);
    struct entry *e = find(s, &k);
    if (!e->warm) { /* kernels are loaded and chosen where that is allowed */
        e->warm = true;
        return bpi_step_forward(s, err);
    }
    BP_TRY(plan_all(s, err));
    if (e->graph == NULL) {
        struct bp_error why = BP_ERROR_INIT;
        int32_t rc = capture(s, &e->graph, &why);
        if (rc != BP_OK) return give_up(s, rc, &why, err);
    }
    BP_TRY(bpi_step_interrupted(s, 0, err));
    BP_TRY(BPI_RUN(s->device_op, -1, bp_device_ops, graph_launch, e->graph, s->stream));
    return bpi_step_finish(s, err);
}
