/* kit_turns.c - a call on a device, made once, or again in other circumstances, from the same start: behind inputs that come
 * late (stage 7), as a captured graph that is replayed (stage 8), fifty times (stage 9). What a later turn leaves is compared
 * with what the first left, bit for bit, where the op promises that. SPDX-License-Identifier: MIT */
#define _GNU_SOURCE /* RTLD_NOLOAD */
#include "kit_device_priv.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { REPEATS = 50, N_FILLS = 24, DELAY_MAX = 1 << 28, MIN_DELAY_US = 500, PROBES = 3 };

static int64_t now_ns(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* ---- what surrounds a call ---- */

int32_t kit_device_delay(struct kit_device *d, struct bp_error *err)
{
    if (d->delay == NULL) {
        d->delay_bytes = d->dev.total_bytes >> 8 < DELAY_MAX ? d->dev.total_bytes >> 8 : DELAY_MAX;
        BP_TRY(d->vt->alloc(d->op.self, BP_MEM_DEVICE, d->delay_bytes, (void **)&d->delay, err));
        BP_TRY(d->vt->event_create(d->op.self, &d->from, err));
        BP_TRY(d->vt->event_create(d->op.self, &d->to, err));
    }
    /* What goes to the default stream by mistake stands behind this. */
    for (int i = 0; i < 2 * N_FILLS; ++i)
        BP_TRY(d->vt->fill(d->op.self, d->delay, 0, d->delay_bytes, NULL, err));
    BP_TRY(d->vt->event_record(d->op.self, d->from, d->stream, err));
    for (int i = 0; i < N_FILLS; ++i)
        BP_TRY(d->vt->fill(d->op.self, d->delay, 1, d->delay_bytes, d->stream, err));
    return d->vt->event_record(d->op.self, d->to, d->stream, err);
}

/* The context that is current in this thread; NULL where there is no driver. */
static void *current_context(void)
{
    int (*get)(void **) = NULL;
    void *context = NULL, *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    if (lib == NULL) return NULL;
    void *at = dlsym(lib, "cuCtxGetCurrent");
    memcpy(&get, &at, sizeof get);
    if (get != NULL && get(&context) != 0) context = NULL;
    (void)dlclose(lib);
    return context;
}

static void look_before(struct kit_device *d)
{
    uint64_t total;
    d->context_before = current_context();
    if (d->vt->mem_info(d->op.self, &d->free_before, &total, NULL) != BP_OK) d->free_before = 0;
    d->began_ns = now_ns();
}

/* Counts, and does not judge: the first calls of a kernel load code, which takes time and memory. */
static void look_after(struct kit_device *d, int64_t called_ns)
{
    uint64_t now = 0, total;
    double delay_us = 0.0;
    void *context = current_context();
    d->n_late++;
    if (d->vt->mem_info(d->op.self, &now, &total, NULL) == BP_OK && now < d->free_before)
        d->n_shrinks++;
    if (d->context_before != NULL && context != d->context_before) d->n_contexts++;
    if (d->vt->event_elapsed_us(d->op.self, d->from, d->to, &delay_us, NULL) != BP_OK) return;
    if (delay_us > MIN_DELAY_US && (double)called_ns > 600.0 * delay_us) d->n_waits++;
}

/* ---- captured calls ---- */

/* Other lengths for the host's eyes: what is read from there at capture is not what holds at replay. */
static void other_array(struct kit_device *d, const int32_t **p, uint64_t n, bool positions)
{
    if (*p == NULL || d->n_host_arrays == KIT_LEN(d->host_arrays)) return;
    int32_t *copy = malloc((n + 1) * sizeof *copy);
    if (copy == NULL) return;
    for (uint64_t i = 0; i < n; ++i)
        copy[i] = (*p)[i] <= 0 ? (*p)[i] : positions ? (*p)[i] / 2 : 1 + (*p)[i] / 2;
    d->host_arrays[d->n_host_arrays++] = copy;
    *p = copy;
}

/* Everything in the first segment. */
static void other_segments(struct kit_device *d, const int32_t **p, uint64_t n)
{
    const int32_t *from = *p;
    other_array(d, p, n + 1, true);
    if (*p == from) return;
    for (uint64_t i = 0; i <= n; ++i)
        d->host_arrays[d->n_host_arrays - 1][i] = i == 0 ? 0 : from[n];
}

static void other_lengths(struct kit_device *d, struct kit_carried *c, uint32_t meta)
{
    other_array(d, &c->common.positions_host, c->common.n_tok, true);
    other_array(d, &c->common.kv_len_host, c->common.n_seqs, false);
    if (meta == KIT_META_DECODE)
        other_array(d, &c->decode.row_kv_len_host, c->decode.n_row_padded, false);
    if (meta != KIT_META_PREFILL) return;
    other_segments(d, &c->prefill.cu_q_host, c->prefill.n_seg);
    other_segments(d, &c->prefill.cu_k_host, c->prefill.n_seg);
}

static void end_capture(struct kit_device *d)
{
    d->vt->graph_destroy(d->op.self, d->graph);
    d->graph = NULL;
    while (d->n_host_arrays > 0) free(d->host_arrays[--d->n_host_arrays]);
}

/* What is wrong with a captured call; BP_OK when it was replayed. */
static int32_t replay(struct kit_device *d, int32_t rc, struct bp_error *err)
{
    const int32_t ended = d->vt->graph_end(d->op.self, d->stream, &d->graph, err);
    if (rc == BP_OK) rc = ended;
    if (rc == BP_OK) rc = kit_device_upload(d, false, err);
    if (rc == BP_OK) rc = d->vt->graph_launch(d->op.self, d->graph, d->stream, err);
    return rc;
}

/* ---- turns ---- */

static bool has_deterministic_claim(const struct kit_device *d)
{
    return d->kit->determinism >= BP_DET_RUN;
}

static uint32_t turns_of(struct kit_device *d, bool is_meta, uint32_t meta)
{
    const struct kit *k = d->kit;
    if (is_meta || k->stage < 7 || k->stage > 9) return 1;
    if (!has_deterministic_claim(d)) {
        d->n_declined++;
        return 1;
    }
    if (k->stage == 9) return REPEATS;
    if (k->stage == 7) return 2;
    /* Segments of prefill change their number of queries and keys: that is what only ANY allows. */
    if (k->capture == BP_CAPTURE_NONE ||
        (meta == KIT_META_PREFILL && k->capture < BP_CAPTURE_ANY)) {
        d->n_declined++;
        if (k->capture != BP_CAPTURE_NONE || d->n_probed >= PROBES) return 1;
        d->n_probed++;
    }
    return 2;
}

bool kit_turn_begin(struct kit_device *d, const struct bp_launch *l, const void *args,
                    uint32_t meta, bool is_meta, bool is_matmul, struct kit_carried *c, int32_t *rc,
                    struct bp_error *err)
{
    const uint32_t turn = c->turn, n_turns = c->n_turns;
    if (*rc != BP_OK || (n_turns != 0 && turn == n_turns)) return false;
    *rc = kit_device_carry(d, l, args, meta, is_meta, is_matmul, c, err);
    c->turn = turn;
    c->n_turns = n_turns != 0 ? n_turns : turns_of(d, is_meta, meta);
    if (*rc != BP_OK) return false;
    const bool late = d->kit->stage == 7 && turn > 0;
    c->is_captured = d->kit->stage == 8 && turn > 0;
    *rc = kit_device_upload(d, late, err);
    /* The first turn of stage 7 is what stage 6 would see if every stream waited. */
    if (*rc == BP_OK && d->kit->stage == 7 && !late)
        *rc = d->vt->stream_sync(d->op.self, d->stream, err);
    if (late) look_before(d);
    if (*rc == BP_OK && c->is_captured) {
        *rc = d->vt->stream_sync(d->op.self, d->stream, err);
        if (*rc == BP_OK) *rc = d->vt->graph_begin(d->op.self, d->stream, err);
        c->launch.capturing = 1;
        other_lengths(d, c, meta);
    }
    if (*rc != BP_OK) d->lost = true;
    return *rc == BP_OK;
}

/* Keeps what the first turn left. */
static void keep(struct kit_device *d)
{
    for (uint32_t i = 0; i < d->n_segments; ++i) {
        const struct segment *s = &d->segments[i];
        free(d->first[i]);
        d->first[i] = malloc(s->used + 1);
        if (d->first[i] != NULL) memcpy(d->first[i], s->image, s->used);
    }
}

/* The first turn's images stand for the call, whatever a later turn did. */
static void put_back(struct kit_device *d)
{
    for (uint32_t i = 0; i < d->n_segments; ++i) {
        if (d->first[i] != NULL) memcpy(d->segments[i].image, d->first[i], d->segments[i].used);
    }
}

static void compare(struct kit_device *d, uint32_t turn)
{
    static const char *const rules[] = {"7.1", "8.2", "9.1"};
    struct kit *k = d->kit;
    for (uint32_t i = 0; i < d->n_twins; ++i) {
        const struct twin *t = &d->twins[i];
        if (t->kind != TWIN_BLOCK || d->first[t->segment] == NULL ||
            strcmp(t->name, "plan memory") == 0 || strcmp(t->name, "persistent memory") == 0)
            continue;
        const unsigned char *a = d->first[t->segment] + t->at,
                            *b = d->segments[t->segment].image + t->at;
        for (uint64_t n = 0; n < t->n_bytes; ++n) {
            if (a[n] == b[n]) continue;
            (void)kit_fail(k, rules[k->stage - 7], k->place->iface, k->place->op, NULL,
                           "byte %llu of %s, which has %llu bytes, is %02x and was %02x (call %u)",
                           (unsigned long long)n, t->name, (unsigned long long)t->n_bytes, b[n],
                           a[n], turn + 1);
            return;
        }
    }
}

/* A later turn that went wrong: told here, and the call as a whole keeps what its first turn gave. */
static void tell_turn(struct kit_device *d, int32_t rc, const struct bp_error *err)
{
    struct kit *k = d->kit;
    const char *rule = k->stage == 7 ? "7.1" : k->stage == 8 ? "8.1" : "9.1";
    if (k->stage == 8 && k->capture == BP_CAPTURE_NONE) return; /* as it says */
    (void)kit_fail(k, rule, k->place->iface, k->place->op, NULL, "%s: %.200s", kit_status_name(rc),
                   err->msg);
}

void kit_turn_end(struct kit_device *d, struct kit_carried *c, int32_t *rc, struct bp_error *err)
{
    struct bp_error after = BP_ERROR_INIT;
    const uint32_t turn = c->turn, n_turns = c->n_turns;
    const int64_t called_ns = now_ns() - d->began_ns;
    int32_t own = *rc, done = BP_OK;
    if (c->is_captured) own = replay(d, own, &after);
    int32_t synced = d->vt->stream_sync(d->op.self, d->stream, &after);
    if (synced == BP_OK && own == BP_OK) synced = kit_device_download(d, &after);
    if (synced != BP_OK) d->lost = true;
    if (d->kit->stage == 7 && turn > 0 && !d->lost) look_after(d, called_ns);
    if (c->is_captured) end_capture(d);
    if (own == BP_OK) own = synced;
    after.msg[sizeof after.msg - 1] = '\0';
    if (turn == 0) {
        done = own;
        if (own == BP_OK && n_turns > 1) keep(d);
        if (synced != BP_OK && *rc == BP_OK) *err = after;
    } else if (own != BP_OK) {
        tell_turn(d, own, after.msg[0] != '\0' ? &after : err);
        done = d->lost ? own : BP_OK;
    } else {
        compare(d, turn);
        if (c->is_captured && d->kit->capture == BP_CAPTURE_NONE) d->n_could++;
    }
    d->n_checked += turn == 1;
    const bool last = turn + 1 >= n_turns || own != BP_OK;
    if (last && done == BP_OK) {
        if (turn > 0) put_back(d);
        kit_device_take_back(d);
    }
    *rc = done;
    memset(c, 0x6b, sizeof *c);
    c->n_turns = n_turns;
    c->turn = last ? n_turns : turn + 1;
}

/* ---- the stages ---- */

static void tell_late(struct kit *k, const struct kit_device *d)
{
    const uint32_t many = d->n_late - d->n_late / 4;
    if (d->n_late < 8) return;
    if (d->n_waits >= many)
        (void)kit_fail(k, "7.2", k->iface, "run", NULL,
                       "%u of %u calls came back only when the stream had done its work",
                       d->n_waits, d->n_late);
    if (d->n_shrinks >= many)
        (void)kit_fail(k, "7.3", k->iface, "run", NULL,
                       "less device memory was free behind %u of %u calls than before",
                       d->n_shrinks, d->n_late);
    if (d->n_contexts != 0)
        (void)kit_fail(k, "7.4", k->iface, "run", NULL,
                       "another context was current behind %u of %u calls", d->n_contexts,
                       d->n_late);
}

void kit_stage_turns(struct kit *k)
{
    char why[300];
    if (k->o->gpu < 0 || strcmp(k->iface, "bp.device") == 0) return;
    if (!kit_device_open(k, why, sizeof why)) {
        (void)kit_fail(k, "6.1", k->iface, "bp.device", NULL,
                       "the device cannot be opened again: %s", why);
        return;
    }
    /* The grid of stage 6, which has judged the numbers: they are not judged again. */
    k->mute = true;
    kit_iface_of(k->iface)->numbers(k);
    k->mute = false;
    const struct kit_device *d = k->device;
    kit_sums(k, k->iface, d->n_checked, d->n_declined);
    kit_note_cut(k, k->iface);
    if (k->stage == 7) tell_late(k, d);
    if (d->n_could != 0)
        kit_note(k, k->iface,
                 "%u calls that claim no capture were captured and replayed with the same bits: "
                 "the claim could be higher",
                 d->n_could);
}
