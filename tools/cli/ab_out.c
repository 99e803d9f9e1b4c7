/* ab_out.c - the result of `backplane ab` as JSON and as a table. SPDX-License-Identifier: MIT */
#include "ab_out.h"
#include "term.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- JSON ---- */

static void put_int(json_t *o, const char *key, uint64_t v)
{
    json_object_set_new(o, key, json_integer((json_int_t)v));
}

static void put_real(json_t *o, const char *key, double v)
{
    json_object_set_new(o, key, cli_json_real(v));
}

static void put_text(json_t *o, const char *key, const char *text)
{
    cli_json_put_text(o, key, text, strlen(text));
}

static json_t *time_json(const struct bp_ab_time *t)
{
    if (t->n == 0) return json_null();
    json_t *o = json_object();
    put_real(o, "median", t->median);
    put_real(o, "lo", t->lo);
    put_real(o, "hi", t->hi);
    return o;
}

static json_t *flips_json(const struct bp_ab_op *op)
{
    json_t *list = json_array();
    for (uint64_t i = 0; i < op->n_flips_kept; ++i) {
        const struct bp_ab_flip *f = &op->flips[i];
        json_t *o = json_object();
        put_int(o, "row", f->pos);
        json_object_set_new(o, "a", json_integer(f->a));
        json_object_set_new(o, "b", json_integer(f->b));
        put_real(o, "gap", f->gap);
        json_object_set_new(o, "wide", json_boolean(f->wide));
        json_array_append_new(list, o);
    }
    return list;
}

static const char *status_name(uint32_t status)
{
    return status == BP_AB_FAIL ? "fail" : status == BP_AB_FLIP ? "flip" : "ok";
}

static json_t *op_json(const struct bp_ab_op *op)
{
    json_t *o = json_object();
    put_text(o, "slot", op->slot);
    put_text(o, "op", op->op);
    json_object_set_new(o, "layer", op->layer >= 0 ? json_integer(op->layer) : json_null());
    put_text(o, "tap", op->tap);
    put_text(o, "provider_a", op->provider_a);
    put_text(o, "provider_b", op->provider_b);
    put_int(o, "calls", op->calls);
    put_int(o, "rows", op->n_rows);
    put_int(o, "skipped", op->n_skipped);
    put_real(o, "max_abs", op->max_abs);
    put_real(o, "max_rel", op->max_rel);
    put_real(o, "norm_rel", op->norm_rel);
    put_real(o, "baseline_max_abs", op->baseline_max_abs);
    put_real(o, "baseline_norm_rel", op->baseline_norm_rel);
    put_int(o, "worst_row", op->worst_pos);
    json_object_set_new(o, "flips", flips_json(op));
    put_int(o, "n_flips", op->n_flips);
    put_text(o, "status", status_name(op->status));
    json_object_set_new(o, "made_here", json_boolean(op->made_here));
    put_text(o, "text", op->text);
    json_object_set_new(o, "time_a_us", time_json(&op->time_a));
    json_object_set_new(o, "time_b_us", time_json(&op->time_b));
    put_real(o, "bytes", op->bytes);
    put_real(o, "flops", op->flops);
    return o;
}

static bool op_at(const struct bp_ab *ab, uint32_t i, struct bp_ab_op *op)
{
    *op = (struct bp_ab_op){.h = BP_HDR(struct bp_ab_op, flops)};
    return bp_ab_op(ab, i, op) == BP_OK;
}

static json_t *first_json(const struct bp_ab *ab, const struct bp_ab_summary *s)
{
    struct bp_ab_op op;
    if (s->first < 0 || !op_at(ab, (uint32_t)s->first, &op)) return json_null();
    json_t *o = json_object();
    put_text(o, "slot", op.slot);
    put_text(o, "op", op.op);
    json_object_set_new(o, "layer", op.layer >= 0 ? json_integer(op.layer) : json_null());
    put_text(o, "tap", op.tap);
    put_int(o, "row", op.n_flips > 0 ? op.flips[0].pos : op.worst_pos);
    put_text(o, "status", status_name(op.status));
    put_text(o, "text", s->first_text);
    json_object_set_new(o, "made_here", json_boolean(s->made_here));
    return o;
}

static json_t *logits_json(const struct bp_ab *ab, const struct bp_ab_summary *s)
{
    json_t *o = json_object(), *list = json_array();
    struct bp_ab_position p = {.h = BP_HDR(struct bp_ab_position, gap)};
    put_real(o, "max_abs", s->max_abs);
    put_real(o, "mean_abs", s->mean_abs);
    put_real(o, "kl", s->kl);
    put_real(o, "kl_ba", s->kl_ba);
    put_real(o, "max_kl", s->max_kl);
    put_real(o, "topk_overlap", s->topk_overlap);
    put_int(o, "top_k", s->top_k);
    json_object_set_new(o, "first_token",
                        s->first_token >= 0 ? json_integer(s->first_token) : json_null());
    for (uint32_t i = 0; bp_ab_position(ab, i, &p) == BP_OK; ++i) {
        json_t *at = json_object();
        put_int(at, "pos", p.pos);
        put_real(at, "kl", p.kl);
        put_real(at, "kl_ba", p.kl_ba);
        put_real(at, "max_abs", p.max_abs);
        json_object_set_new(at, "a_id", json_integer(p.a_id));
        json_object_set_new(at, "b_id", json_integer(p.b_id));
        json_array_append_new(list, at);
    }
    json_object_set_new(o, "by_position", list);
    return o;
}

static json_t *side_json(const struct bp_ab *ab, uint32_t side, const struct ab_side_text *text)
{
    json_t *o = json_object(), *backends = json_object(), *slots = json_array();
    struct bp_choice c = {.h = BP_HDR(struct bp_choice, layer_end)};
    for (uint32_t i = 0; bp_ab_choice(ab, side, i, &c) == BP_OK; ++i) {
        json_t *slot = json_object();
        put_text(slot, "slot", c.slot);
        json_object_set_new(slot, "layers", cli_json_layers(c.layer_begin, c.layer_end));
        put_text(slot, "provider", c.provider);
        json_array_append_new(slots, slot);
    }
    json_object_set_new(backends, "slots", slots);
    json_t *kv = json_object();
    put_text(kv, "dtype", bp_ab_kv_dtype(ab, side));
    put_text(kv, "layout", bp_ab_kv_layout(ab, side));
    json_object_set_new(backends, "kv", kv);
    json_t *act = json_object();
    put_text(act, "dtype", bp_ab_act_dtype(ab, side));
    json_object_set_new(backends, "act", act);
    json_object_set(o, "settings", text->settings);
    json_object_set_new(o, "backends", backends);
    put_text(o, "model", text->model);
    return o;
}

/* Sums over layers: one row for each op of a slot. */
static json_t *times_by_op(const struct bp_ab *ab)
{
    json_t *list = json_array();
    struct bp_ab_op op, other;
    for (uint32_t i = 0; op_at(ab, i, &op); ++i) {
        bool first = op.time_a.n > 0;
        for (uint32_t k = 0; k < i && first && op_at(ab, k, &other); ++k)
            first = strcmp(other.slot, op.slot) != 0 || strcmp(other.op, op.op) != 0;
        if (!first) continue;
        double a = 0, b = 0, bytes = 0, flops = 0;
        uint64_t calls = 0, least = UINT64_MAX;
        for (uint32_t k = i; op_at(ab, k, &other); ++k) {
            if (strcmp(other.slot, op.slot) != 0 || strcmp(other.op, op.op) != 0) continue;
            const double n = (double)other.calls;
            calls += other.calls;
            if (other.time_a.n < least) least = other.time_a.n;
            a += n * other.time_a.median;
            b += n * other.time_b.median;
            bytes += n * other.bytes;
            flops += n * other.flops;
        }
        json_t *o = json_object();
        put_text(o, "slot", op.slot);
        put_text(o, "op", op.op);
        put_int(o, "calls", calls);
        put_int(o, "samples", least);
        put_real(o, "a_us", a);
        put_real(o, "b_us", b);
        put_real(o, "b_over_a", a > 0 ? b / a : NAN);
        put_real(o, "bytes", bytes);
        put_real(o, "flops", flops);
        json_array_append_new(list, o);
    }
    return list;
}

static json_t *timing_json(const struct bp_ab *ab, const struct bp_ab_summary *s, double load_ms)
{
    json_t *o = json_object();
    put_real(o, "load_ms", load_ms);
    put_real(o, "a_s", s->seconds_a);
    put_real(o, "b_s", s->seconds_b);
    put_real(o, "total_s", s->seconds);
    put_int(o, "steps_a", s->n_steps_a);
    put_int(o, "steps_b", s->n_steps_b);
    json_object_set_new(o, "by_op", times_by_op(ab));
    return o;
}

static json_t *memory_of(const struct bp_session_memory *m)
{
    json_t *o = json_object();
    put_int(o, "cache", m->cache);
    put_int(o, "weights", m->weights);
    put_int(o, "buffers", m->buffers);
    put_int(o, "scratch", m->scratch);
    return o;
}

static json_t *verdict_json(const struct bp_ab_summary *s, double max_kl, double max_abs)
{
    json_t *o = json_object(), *limits = json_object();
    json_object_set_new(o, "pass", json_boolean(s->pass));
    put_text(o, "text", s->text);
    put_text(limits, "precision", s->precision);
    put_real(limits, "max_kl", max_kl);
    put_real(limits, "max_abs", max_abs);
    json_object_set_new(o, "thresholds", limits);
    put_int(o, "ops", s->n_ops);
    put_int(o, "ops_fail", s->n_fail);
    put_int(o, "ops_flip", s->n_flip);
    return o;
}

json_t *ab_json(const struct cli *c, const struct bp_ab *ab, const struct ab_side_text side[2],
                const char *text, double max_kl, double max_abs)
{
    struct bp_ab_summary s = {.h = BP_HDR(struct bp_ab_summary, compare_bytes)};
    struct bp_ab_op op;
    uint32_t n = 0;
    bp_ab_summary(ab, &s);
    const int32_t *ids = bp_ab_ids(ab, &n);
    json_t *o = json_object(), *prompt = json_object(), *ops = json_array(),
           *memory = json_object();
    json_object_set_new(o, "mode", json_string(s.mode == BP_AB_FREE ? "free" : "shadow"));
    json_object_set_new(o, "a", side_json(ab, 0, &side[0]));
    json_object_set_new(o, "b", side_json(ab, 1, &side[1]));
    put_text(prompt, "text", text);
    json_object_set_new(prompt, "ids", cli_json_ids(ids, n));
    json_object_set_new(o, "prompt", prompt);
    for (uint32_t i = 0; op_at(ab, i, &op); ++i) json_array_append_new(ops, op_json(&op));
    json_object_set_new(o, "ops", ops);
    json_object_set_new(o, "first_difference", first_json(ab, &s));
    json_object_set_new(o, "logits", logits_json(ab, &s));
    json_object_set_new(o, "timing", timing_json(ab, &s, c->load_ms));
    json_object_set_new(memory, "a", memory_of(&s.memory_a));
    json_object_set_new(memory, "b", memory_of(&s.memory_b));
    put_int(memory, "compare", s.compare_bytes);
    json_object_set_new(o, "memory", memory);
    json_object_set_new(o, "verdict", verdict_json(&s, max_kl, max_abs));
    return o;
}

/* ---- table ---- */

/* Fewer calls than this are mostly the first one, which finds cold caches. */
enum { ENOUGH_CALLS = 5 };

/* A number in its column, or a dash where there is none. */
static const char *cell(char out[24], int digits, bool there, double v)
{
    if (there)
        snprintf(out, 24, "%.*f", digits, v);
    else
        snprintf(out, 24, "-");
    return out;
}

static void print_ops(const struct bp_ab *ab, bool all)
{
    struct bp_ab_op op;
    uint32_t n_same = 0;
    printf("%-34s %-20s %6s %10s %10s %10s %6s  %10s %10s\n", "tap", "op", "status", "max abs",
           "norm rel", "baseline", "flips", "A us", "B us");
    for (uint32_t i = 0; op_at(ab, i, &op); ++i) {
        char name[64];
        if (!all && op.status == BP_AB_OK && op.max_abs <= 0.0) {
            ++n_same;
            continue;
        }
        char a[24], b[24];
        snprintf(name, sizeof name, "%s.%s", op.slot, op.op);
        printf("%-34s %-20s %6s %10.3g %10.3g %10.3g %6llu  %10s %10s%s\n", op.tap, name,
               status_name(op.status), op.max_abs, op.norm_rel, op.baseline_norm_rel,
               (unsigned long long)op.n_flips, cell(a, 1, op.time_a.n > 0, op.time_a.median),
               cell(b, 1, op.time_b.n > 0, op.time_b.median),
               op.status == BP_AB_FAIL && !op.made_here ? "  inherited" : "");
    }
    if (n_same > 0) printf("(%u more are equal bit for bit; -v shows them)\n", n_same);
}

static void print_times(const struct bp_ab *ab)
{
    json_t *list = times_by_op(ab), *o;
    bool few = false;
    size_t i;
    if (json_array_size(list) > 0)
        printf("\n%-24s %8s %12s %12s %8s %10s %10s\n", "op, all layers", "calls", "A ms", "B ms",
               "B/A", "A GB/s", "A GFLOP/s");
    json_array_foreach(list, i, o)
    {
        char name[64], ratio[24];
        const bool enough = json_integer_value(json_object_get(o, "samples")) >= ENOUGH_CALLS;
        few = few || !enough;
        const double a = json_number_value(json_object_get(o, "a_us"));
        const double b = json_number_value(json_object_get(o, "b_us"));
        snprintf(name, sizeof name, "%s.%s", json_string_value(json_object_get(o, "slot")),
                 json_string_value(json_object_get(o, "op")));
        printf("%-24s %8lld %12.3f %12.3f %8s %10.2f %10.2f\n", name,
               (long long)json_integer_value(json_object_get(o, "calls")), a / 1e3, b / 1e3,
               cell(ratio, 2, enough && a > 0, b / a),
               a > 0 ? json_number_value(json_object_get(o, "bytes")) / a / 1e3 : 0.0,
               a > 0 ? json_number_value(json_object_get(o, "flops")) / a / 1e3 : 0.0);
    }
    if (few)
        printf("(no ratio where a layer's op ran fewer than %d times; -n N adds calls)\n",
               ENOUGH_CALLS);
    json_decref(list);
}

void ab_print(const struct bp_ab *ab, bool all)
{
    struct bp_ab_summary s = {.h = BP_HDR(struct bp_ab_summary, compare_bytes)};
    bp_ab_summary(ab, &s);
    print_ops(ab, all);
    print_times(ab);
    printf("\nlogits at %u positions%s: max abs %.3g, mean abs %.3g, KL(A||B) %.3g, KL(B||A) %.3g, "
           "top-%u overlap %.3f\n",
           s.n_pos, s.mode == BP_AB_FREE ? "" : ", B's last op on A's inputs", s.max_abs,
           s.mean_abs, s.kl, s.kl_ba, s.top_k, s.topk_overlap);
    if (s.first_token >= 0)
        printf("the likeliest tokens first differ after position %d\n", s.first_token);
    if (s.first_text[0] != '\0') printf("first difference: %s\n", s.first_text);
    printf("%s: %s\n", s.pass ? "PASS" : "FAIL", s.text);
}
