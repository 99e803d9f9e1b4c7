/* ab_verdict.c - from rows to a sentence: which ops fail, which came first, does the whole pass?
 * Not here: measuring. Threads: one. SPDX-License-Identifier: MIT */
#include "compare/compare_priv.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

static void finish_entry(struct bpi_ab_run *r, struct bpi_ab_entry *e)
{
    struct bp_ab_op *o = &e->op;
    o->norm_rel = e->d2 > 0 ? sqrt(e->d2 / (e->a2 > 0 ? e->a2 : e->d2)) : e->d2; /* NaN stays */
    if (e->base_d2 > 0)
        o->baseline_norm_rel = sqrt(e->base_d2 / (e->base_a2 > 0 ? e->base_a2 : e->base_d2));
    o->time_a = bpi_ab_time(&e->time_a, &r->rng);
    o->time_b = bpi_ab_time(&e->time_b, &r->rng);
    if (o->calls > 0) {
        o->bytes /= (double)o->calls;
        o->flops /= (double)o->calls;
    }
    if (o->n_wide > 0) o->status = BP_AB_FAIL;
    if (o->status == BP_AB_OK && o->n_flips > 0) o->status = BP_AB_FLIP;
}

/* In free mode a tap may be behind more ops than the one that writes it, of which none writes a tap of its own. */
static const char *also_text(const struct bpi_ab_run *r, const struct bp_ab_op *o)
{
    static const struct {
        const char *end, *op, *text;
    } taps[] = {
        {".attn.heads", "run",
         "; mla.common's cache_write, cache_gather, expand and merge come before this tap as well: "
         "--mode shadow tells which it is"},
        {".attn.o_lat", "run",
         "; mla.common.cache_write comes before this tap as well: --mode shadow tells which it is"},
        {".index.ids", "select",
         "; mla.index.key_write comes before this tap as well: --mode shadow tells which it is"},
    };
    for (size_t i = 0; r->p->mode == BP_AB_FREE && o->made_here && i < BPI_ARRAY_LEN(taps); ++i) {
        const size_t n = strlen(o->tap), m = strlen(taps[i].end);
        if (n >= m && strcmp(o->tap + n - m, taps[i].end) == 0 && strcmp(o->op, taps[i].op) == 0)
            return taps[i].text;
    }
    return "";
}

static const char *flip_text(struct bpi_ab_run *r, const struct bpi_ab_entry *e)
{
    const struct bp_ab_op *o = &e->op;
    const struct bp_ab_flip *f = &e->flips[0];
    for (uint64_t i = 0; i < o->n_flips_kept; ++i) {
        if (e->flips[i].wide) f = &e->flips[i];
    }
    char gap[64] = "by an unknown gap";
    if (!isnan(f->gap)) (void)snprintf(gap, sizeof(gap), "with a gap of %.3g", f->gap);
    return bpi_ab_text(r->ab,
                       "%s chose otherwise at %llu places; at position %u A took %d and B %d, %s, "
                       "which is %s the precision in use (%s)%s",
                       o->tap, (unsigned long long)o->n_flips, f->pos, f->a, f->b, gap,
                       f->wide ? "wider than" : "below", r->ab->sum.precision,
                       f->wide ? also_text(r, o) : "");
}

/* What the reader compares the error with. */
static const char *baseline_text(struct bpi_ab_run *r, const struct bpi_ab_entry *e)
{
    const char *p = r->ab->sum.precision;
    if (e->op.baseline_max_abs > 0)
        return bpi_ab_text(r->ab, "the baseline at %s differs by %.3g (%.3g of the norm)", p,
                           e->op.baseline_max_abs, e->op.baseline_norm_rel);
    if (r->unit > 0x1p-24)
        return bpi_ab_text(r->ab, "ref rounded to %s gives the exact numbers there", p);
    return "which is more than sums in f32 explain";
}

static const char *error_text(struct bpi_ab_run *r, const struct bpi_ab_entry *e)
{
    const struct bp_ab_op *o = &e->op;
    const char *who = e->blamed == 1 ? " of A" : e->blamed == 2 ? " of B" : "";
    const char *name = e->blamed == 1 ? o->provider_a : o->provider_b;
    if (isnan(o->max_abs))
        return bpi_ab_text(r->ab,
                           "%s.%s%s%s%s%s wrote NaN or infinity into %s at position %u where the "
                           "other did not",
                           o->slot, o->op, who, name[0] != '\0' ? " (" : "", name,
                           name[0] != '\0' ? ")" : "", o->tap, o->worst_pos);
    return bpi_ab_text(
        r->ab, "%s.%s%s%s%s%s differs in %s by %.3g at position %u (%.3g of the norm); %s%s",
        o->slot, o->op, who, name[0] != '\0' ? " (" : "", name, name[0] != '\0' ? ")" : "", o->tap,
        o->max_abs, o->worst_pos, o->norm_rel, baseline_text(r, e), also_text(r, o));
}

static void tell_entry(struct bpi_ab_run *r, struct bpi_ab_entry *e)
{
    if (e->op.status == BP_AB_OK) return;
    const bool flips = e->op.status == BP_AB_FLIP || e->op.n_wide > 0;
    e->op.text = flips ? flip_text(r, e) : error_text(r, e);
}

static void sum_positions(struct bp_ab *ab)
{
    struct bp_ab_summary *s = &ab->sum;
    const double n = ab->n_positions;
    const uint32_t k = ab->n_vocab < BPI_AB_TOP ? ab->n_vocab : BPI_AB_TOP;
    uint64_t shared = 0;
    s->n_pos = ab->n_positions;
    s->top_k = k;
    for (uint32_t i = 0; i < ab->n_positions; ++i) {
        const struct bp_ab_position *p = &ab->positions[i];
        if (!isnan(s->max_abs) && !(p->max_abs <= s->max_abs)) s->max_abs = p->max_abs;
        if (!isnan(s->max_kl) && !(p->kl <= s->max_kl)) s->max_kl = p->kl;
        s->mean_abs += p->mean_abs / n;
        s->kl += p->kl / n;
        s->kl_ba += p->kl_ba / n;
        shared += p->overlap;
        if (s->first_token < 0 && p->a_id != p->b_id) s->first_token = (int32_t)p->pos;
    }
    if (n > 0) s->topk_overlap = (double)shared / (n * k);
}

/* The first that fails; without one, the first that differs at all. */
static void find_first(struct bp_ab *ab)
{
    struct bp_ab_summary *s = &ab->sum;
    bool failed = false;
    for (uint32_t i = 0; i < ab->n_entries; ++i) {
        struct bp_ab_op *o = &ab->entries[i]->op;
        const bool differs = !(o->max_abs <= 0.0) || o->n_flips > 0;
        if (o->status == BP_AB_FAIL) {
            s->n_fail++;
            if (!failed) s->first = (int32_t)i;
            failed = true;
        }
        if (o->status == BP_AB_FLIP) s->n_flip++;
        if (s->first < 0 && differs) s->first = (int32_t)i;
    }
    s->n_ops = ab->n_entries;
    if (s->first < 0) return;
    const struct bp_ab_op *o = &ab->entries[s->first]->op;
    s->made_here = o->made_here;
    s->first_text =
        o->status != BP_AB_OK
            ? o->text
            : bpi_ab_text(ab,
                          "%s.%s differs in %s by %.3g at position %u, within the precision "
                          "in use (%s)",
                          o->slot, o->op, o->tap, o->max_abs, o->worst_pos, s->precision);
}

static bool was_called(const struct bp_ab *ab, const char *slot)
{
    for (uint32_t i = 0; i < ab->n_entries; ++i) {
        if (strcmp(ab->entries[i]->op.slot, slot) == 0) return true;
    }
    return false;
}

/* A slot that the sides differ in but that these tokens never reach was not compared, and must not pass as if it were:
 * a sentence about the first one, or NULL. Attention and experts only, whose forms depend on the tokens; in free mode only
 * mla.decode, because the taps of the others do not say who was called. */
static const char *not_compared(struct bp_ab *ab, bool free_mode)
{
    for (uint32_t i = 0; i < ab->n_choices[0]; ++i) {
        const struct bp_choice *a = &ab->choices[0][i];
        if (strncmp(a->slot, "mla.", 4) != 0 && strcmp(a->slot, "moe") != 0) continue;
        if (free_mode && strcmp(a->slot, "mla.decode") != 0) continue;
        if (was_called(ab, a->slot)) continue;
        for (uint32_t j = 0; j < ab->n_choices[1]; ++j) {
            const struct bp_choice *b = &ab->choices[1][j];
            if (strcmp(a->slot, b->slot) != 0 || strcmp(a->provider, b->provider) == 0 ||
                a->layer_end <= b->layer_begin || b->layer_end <= a->layer_begin)
                continue;
            return bpi_ab_text(ab,
                               "%s, for which A has %s and B has %s, was never called and is not "
                               "compared; %s",
                               a->slot, a->provider, b->provider,
                               strcmp(a->slot, "mla.decode") == 0
                                   ? "-n N adds N tokens in the decode form"
                                   : "give a longer text");
        }
    }
    return NULL;
}

static void judge(struct bpi_ab_run *r)
{
    struct bp_ab_summary *s = &r->ab->sum;
    const struct bp_ab_params *p = r->p;
    const bool has_abs = !isnan(p->max_abs), has_kl = !isnan(p->max_kl);
    const bool finite = isfinite(s->max_abs) || s->n_pos == 0;
    const bool limits = (!has_abs || s->max_abs <= p->max_abs) && (!has_kl || s->kl <= p->max_kl);
    /* In free mode the caller's limits are the question; what each tap did is then only told. */
    const bool asked = p->mode == BP_AB_FREE && (has_abs || has_kl);
    const char *missed = not_compared(r->ab, p->mode == BP_AB_FREE);
    s->pass = finite && r->stopped == NULL && limits && (asked || s->n_fail == 0);
    if (r->stopped != NULL)
        s->text = r->stopped;
    else if (!finite)
        s->text = "logits are not finite on one side only, or on both";
    else if (!limits)
        s->text =
            bpi_ab_text(r->ab, "logits differ by more than is allowed: at most %.3g, mean KL %.3g",
                        s->max_abs, s->kl);
    else if (!s->pass)
        s->text = bpi_ab_text(r->ab, "the sides differ: %s", s->first_text);
    else if (missed != NULL)
        s->text = missed;
    else if (s->first < 0)
        s->text = "the sides are equal, bit for bit where they were compared";
    else if (s->n_fail > 0)
        s->text =
            bpi_ab_text(r->ab, "logits are within the given limits, though %s", s->first_text);
    else
        s->text =
            bpi_ab_text(r->ab, "the sides agree to the precision in use (%s)%s", s->precision,
                        s->n_flip > 0 ? "; where they chose otherwise the gap is below it" : "");
    if (missed != NULL) s->pass = false;
}

/* Where in a layer a tap is written; calls of one kind keep the order in which they were first seen. */
static uint32_t rank_of(const struct bp_ab_op *o)
{
    static const char *const order[] = {
        "attn.norm",   "attn.kv",    "index.k",     "attn.q_lora", "attn.q_a_norm", "attn.q",
        "attn.q_nope", "attn.cache", "index.cache", "attn.q_pe",   "index.q",       "index.weights",
        "index.ids",   "attn.q_lat", "attn.o_lat",  "attn.cached", "attn.k",        "attn.heads",
        "attn.resid",  "ffn.norm",   "ffn.up",      "ffn.act",     "moe.router",    "moe.ids",
        "moe.weights", "out",
    };
    const char *name = strncmp(o->tap, "blk.", 4) == 0 ? strchr(o->tap + 4, '.') : NULL;
    for (uint32_t i = 0; name != NULL && i < BPI_ARRAY_LEN(order); ++i) {
        if (strcmp(name + 1, order[i]) == 0) return i;
    }
    return BPI_ARRAY_LEN(order);
}

static bool is_before(const struct bp_ab_op *a, const struct bp_ab_op *b)
{
    const int32_t la = a->layer >= 0 ? a->layer : strcmp(a->tap, "embd") == 0 ? -1 : INT32_MAX;
    const int32_t lb = b->layer >= 0 ? b->layer : strcmp(b->tap, "embd") == 0 ? -1 : INT32_MAX;
    return la != lb ? la < lb : rank_of(a) < rank_of(b);
}

/* Into the order of execution: tokens beyond the prompt use ops that were not seen before. */
static void sort_entries(struct bp_ab *ab)
{
    for (uint32_t i = 1; i < ab->n_entries; ++i) {
        struct bpi_ab_entry *e = ab->entries[i];
        uint32_t at = i;
        for (; at > 0 && is_before(&e->op, &ab->entries[at - 1]->op); --at)
            ab->entries[at] = ab->entries[at - 1];
        ab->entries[at] = e;
    }
}

void bpi_ab_verdict(struct bpi_ab_run *r)
{
    struct bp_ab *ab = r->ab;
    bool failed = false;
    sort_entries(ab);
    for (uint32_t i = 0; i < ab->n_entries; ++i) {
        struct bp_ab_op *o = &ab->entries[i]->op;
        finish_entry(r, ab->entries[i]);
        if (failed && o->status == BP_AB_FAIL && ab->sum.mode == BP_AB_FREE) o->made_here = 0;
        failed = failed || o->status == BP_AB_FAIL;
        tell_entry(r, ab->entries[i]);
    }
    sum_positions(ab);
    find_first(ab);
    judge(r);
}
