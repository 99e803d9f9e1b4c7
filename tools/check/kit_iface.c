/* kit_iface.c - the interfaces as data; asking an op; the ports of a call. SPDX-License-Identifier: MIT */
#include "kit.h"

#include <string.h>

#include "cases/cases.h"

const struct kit_iface kit_ifaces[KIT_N_IFACES] = {
    {"bp.device", sizeof(struct bp_device_ops), sizeof(struct bp_device_problem), bp_device_tensors,
     case_device},
    {"bp.dense", sizeof(struct bp_dense_ops), sizeof(struct bp_dense_problem), bp_dense_tensors,
     case_dense},
    {"bp.quant", sizeof(struct bp_quant_ops), sizeof(struct bp_quant_problem), bp_quant_tensors,
     case_quant},
    {"bp.mla.common", sizeof(struct bp_mla_common_ops), sizeof(struct bp_mla_problem),
     bp_mla_common_tensors, case_mla_common},
    {"bp.mla.prefill", sizeof(struct bp_mla_prefill_ops), sizeof(struct bp_mla_problem),
     bp_mla_prefill_tensors, case_mla_prefill},
    {"bp.mla.decode", sizeof(struct bp_mla_decode_ops), sizeof(struct bp_mla_problem),
     bp_mla_decode_tensors, case_mla_decode},
    {"bp.mla.index", sizeof(struct bp_mla_index_ops), sizeof(struct bp_mla_problem),
     bp_mla_index_tensors, case_mla_index},
    {"bp.moe", sizeof(struct bp_moe_ops), sizeof(struct bp_moe_problem), bp_moe_tensors, case_moe},
    {"bp.coll", sizeof(struct bp_coll_ops), sizeof(struct bp_coll_problem), bp_coll_tensors,
     case_coll},
};

const struct kit_iface *kit_iface_of(const char *name)
{
    for (uint32_t i = 0; i < KIT_N_IFACES; ++i) {
        if (strcmp(kit_ifaces[i].name, name) == 0) return &kit_ifaces[i];
    }
    return NULL;
}

void kit_ask(const struct bp_op_ref *op, const void *problem, struct kit_answer *a)
{
    memset(a, 0, sizeof *a);
    a->verdict.h = (struct bp_hdr)BP_HDR(struct bp_verdict, cost_us);
    a->verdict.reasons = a->reasons;
    a->verdict.cap_reasons = KIT_MAX_REASONS;
    a->verdict.reason_stride = sizeof a->reasons[0];
    a->verdict.layouts = a->layouts;
    a->verdict.cap_layouts = KIT_MAX_LAYOUTS;
    if (op->vt->supports(op->self, problem, &a->verdict) != BP_OK) a->verdict.level = BP_V_NO;
    if (a->verdict.n_layouts > KIT_MAX_LAYOUTS) a->verdict.n_layouts = KIT_MAX_LAYOUTS;
}

enum { MAX_PORTS = 16 };

static const struct bp_tensor *port_of(const struct bp_tensor *t, uint32_t n, const char *name)
{
    for (uint32_t i = 0; i < n; ++i) {
        if (t[i].name != NULL && strcmp(t[i].name, name) == 0) return &t[i];
    }
    return NULL;
}

void kit_check_ports(struct kit *k, const char *iface, const struct bp_op_ref *op, uint32_t slot,
                     const void *args)
{
    struct bp_tensor got[MAX_PORTS], want[MAX_PORTS];
    uint32_t n_got = MAX_PORTS, n_want = MAX_PORTS, n_short = 1;
    const struct kit_iface *f = kit_iface_of(iface);
    memset(got, 0, sizeof got);
    (void)f->tensors(NULL, slot, args, want, &n_want);
    kit_enter(k);
    int32_t rc = op->vt->tensors(op->self, slot, args, got, &n_got);
    kit_leave(k);
    const char *title = k->place->op;
    if (rc != BP_OK) {
        (void)kit_fail(k, "6.11", iface, title, NULL, "tensors() returned %s", kit_status_name(rc));
        return;
    }
    if (n_got != n_want || n_got > MAX_PORTS) {
        (void)kit_fail(k, "6.11", iface, title, NULL, "tensors() lists %u ports, the slot has %u",
                       n_got, n_want);
        return;
    }
    for (uint32_t i = 0; i < n_want; ++i) {
        const struct bp_tensor *t = port_of(got, n_got, want[i].name);
        if (t == NULL)
            (void)kit_fail(k, "6.11", iface, title, NULL, "tensors() does not list `%s`",
                           want[i].name);
        else if (t->access != want[i].access || t->data != want[i].data)
            (void)kit_fail(k, "6.11", iface, title, NULL,
                           "tensors() lists `%s` with access %u (want %u)%s", want[i].name,
                           t->access, want[i].access,
                           t->data != want[i].data ? " and other memory" : "");
    }
    got[1].reserved[0] = UINT64_MAX;
    (void)op->vt->tensors(op->self, slot, args, got, &n_short);
    if (n_short != n_want || got[1].reserved[0] != UINT64_MAX)
        (void)kit_fail(k, "6.11", iface, title, NULL,
                       "with room for one port tensors() answers %u and writes %s", n_short,
                       got[1].reserved[0] != UINT64_MAX ? "more than one" : "one");
}
