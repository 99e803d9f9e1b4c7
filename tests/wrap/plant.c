/* plant.c - a wrapper for tests: after the inner call it does one forbidden thing to the tensors of one layer, so that a
 * wrapper around it must notice. It wraps mla.decode and quant. Threads: as the wrapped slot.
 * SPDX-License-Identifier: MIT */
#include <backplane/sdk.h>
#include <backplane/slot_mla.h>
#include <backplane/slot_quant.h>

#define NAME "plant"

enum fault {
    FAULT_NONE,
    FAULT_NAN,
    FAULT_INF,
    FAULT_BEHIND,
    FAULT_BEFORE,
    FAULT_INPUT,
    FAULT_UNWRITTEN,
    FAULT_LAST /* the last byte of guards that are 128 bytes long */
};
static const char *const fault_names[] = {"none",   "nan",   "inf",       "behind",
                                          "before", "input", "unwritten", "last"};

struct plugin {
    const struct bp_host *host;
    uint32_t fault;
    int64_t layer, row;
};

struct op {
    struct plugin *plugin;
    struct bp_op_ref inner;
};

static void store(const struct bp_tensor *t, unsigned char *p, float v)
{
    const uint16_t half = t->dtype == BP_DT_F16 ? bp_f32_f16(v) : bp_f32_bf16(v);
    if (t->dtype == BP_DT_F32) {
        memcpy(p, &v, sizeof v);
    } else {
        memcpy(p, &half, sizeof half);
    }
}

static void plant(const struct plugin *p, const struct bp_launch *l, const struct bp_tensor *in,
                  const struct bp_tensor *out)
{
    const int64_t bytes = bp_dtype_bytes(out->dtype);
    if (l->layer != p->layer || out->dim[0] <= p->row) return;
    unsigned char *row = (unsigned char *)out->data + p->row * out->stride[0] * bytes;
    unsigned char *end =
        (unsigned char *)out->data + ((out->dim[0] - 1) * out->stride[0] + out->stride[0]) * bytes;
    switch (p->fault) {
    case FAULT_NAN:
        store(out, row + 3 * bytes, bp_bits_f32(0x7fc00000u));
        break;
    case FAULT_INF:
        store(out, row + 3 * bytes, bp_bits_f32(0xff800000u));
        break;
    case FAULT_BEHIND:
        memset(end, 0, 4);
        break;
    case FAULT_LAST:
        end[100] ^= 1;
        break;
    case FAULT_BEFORE:
        memset((unsigned char *)out->data - 4, 0, 4);
        break;
    case FAULT_INPUT:
        *(unsigned char *)in->data ^= 1;
        break;
    default:
        break;
    }
}

static int32_t decode_run(void *self, const struct bp_launch *l, const struct bp_mla_decode_args *a,
                          struct bp_error *err)
{
    struct op *o = self;
    /* Claims success and writes nothing: the caller finds there what was there before. */
    if (o->plugin->fault == FAULT_UNWRITTEN && l->layer == o->plugin->layer) return BP_OK;
    BP_TRY(((const struct bp_mla_decode_ops *)o->inner.vt)->run(o->inner.self, l, a, err));
    plant(o->plugin, l, &a->q, &a->out);
    return BP_OK;
}

static int32_t quant_matmul(void *self, const struct bp_launch *l,
                            const struct bp_quant_matmul_args *a, struct bp_error *err)
{
    struct op *o = self;
    BP_TRY(((const struct bp_quant_ops *)o->inner.vt)->matmul(o->inner.self, l, a, err));
    plant(o->plugin, l, &a->x, &a->outs[0].y);
    return BP_OK;
}

static const struct bp_mla_decode_ops decode_ops = {
    .base = BP_OP_BASE(struct bp_mla_decode_ops, run, "bp.mla.decode", NULL, NULL, NULL),
    .run = decode_run};
static const struct bp_quant_ops quant_ops = {
    .base = BP_OP_BASE(struct bp_quant_ops, matmul, "bp.quant", NULL, NULL, NULL),
    .matmul = quant_matmul};

static const struct bp_cfg_key keys[] = {
    {"fault", "enum:none|nan|inf|behind|before|input|unwritten|last", "none", "What to do.", 0, 0},
    {"layer", "int", "0", "In which layer.", -1, 1000},
    {"row", "int", "0", "In which row.", 0, 100000}};

static int32_t plugin_open(const struct bp_host *host, void **plugin, struct bp_error *err)
{
    struct plugin *p = bp_mem_alloc(host, 1, sizeof *p);
    if (p == NULL) return bp_error_set(err, BP_E_NOMEM, NAME, "open", "no memory");
    p->host = host;
    int32_t rc = bp_cfg_choice(host, "fault", fault_names, BP_LEN(fault_names), 0, &p->fault);
    if (rc == BP_OK) rc = bp_cfg_i64(host, "layer", 0, &p->layer);
    if (rc == BP_OK) rc = bp_cfg_i64(host, "row", 0, &p->row);
    if (rc != BP_OK) {
        bp_mem_free(host, p);
        return bp_error_set(err, rc, NAME, "open", "bad keys");
    }
    *plugin = p;
    return BP_OK;
}

static void plugin_close(void *plugin)
{
    struct plugin *p = plugin;
    bp_mem_free(p->host, p);
}

static int32_t plugin_op_create(void *plugin, const struct bp_op_entry *entry,
                                const struct bp_device *dev, const struct bp_op_ref *inner,
                                uint32_t n_inner, struct bp_op_ref *out, struct bp_error *err)
{
    struct plugin *p = plugin;
    const int quant = strcmp(entry->iface, "bp.quant") == 0;
    (void)dev;
    if (n_inner != 1) return bp_error_set(err, BP_E_ARG, NAME, entry->iface, "one inner op");
    struct op *o = bp_mem_alloc(p->host, 1, sizeof *o);
    if (o == NULL) return bp_error_set(err, BP_E_NOMEM, NAME, entry->iface, "no memory");
    o->plugin = p;
    o->inner = inner[0];
    out->vt = quant ? &quant_ops.base : &decode_ops.base;
    out->self = o;
    return BP_OK;
}

static void plugin_op_destroy(void *plugin, struct bp_op_ref *op)
{
    struct plugin *p = plugin;
    bp_mem_free(p->host, op->self);
    op->self = NULL;
}

BP_PLUGIN(BP_KIND_WRAPPER, NAME, "1", BP_ABOUT("test", "MIT", "plants faults"), BP_NO_CUDA,
          BP_KEYS(keys), BP_HOOKS(plugin_open, plugin_close, plugin_op_create, plugin_op_destroy),
          ("bp.mla.decode", "plant"), ("bp.quant", "plant"));
