/* test_ref_host.c - the descriptor of the reference backend, the host as a device, collectives of one rank.
 * SPDX-License-Identifier: MIT */
#include "ref_fixture.h"

#include "backplane/slot_coll.h"
#include "backplane/slot_device.h"

START_TEST(descriptor_is_whole)
{
    struct bp_query q = {.h = BP_HDR(struct bp_query, engine_version),
                         .host_major = BP_ABI_MAJOR,
                         .host_minor = BP_ABI_MINOR};
    static const char *const ifaces[] = {"bp.device",      "bp.dense",      "bp.quant",
                                         "bp.moe",         "bp.coll",       "bp.mla.common",
                                         "bp.mla.prefill", "bp.mla.decode", "bp.mla.index"};
    struct rig g;
    rig_open(&g, NULL);
    ck_assert_str_eq(g.desc->name, "ref");
    ck_assert_uint_eq(g.desc->kind, BP_KIND_BACKEND);
    ck_assert_uint_eq(g.desc->n_ops, BPI_ARRAY_LEN(ifaces));
    for (size_t i = 0; i < BPI_ARRAY_LEN(ifaces); ++i) {
        struct bp_op_ref op = rig_op(&g, ifaces[i]);
        ck_assert_str_eq(op.vt->iface, ifaces[i]);
        ck_assert(op.vt->supports != NULL && op.vt->workspace != NULL && op.vt->tensors != NULL);
        g.desc->op_destroy(g.ref, &op);
    }
    q.host_minor = BP_ABI_MINOR + 1;
    ck_assert_ptr_null(bpi_ref_query(&q));
    q.host_minor = BP_ABI_MINOR;
    q.host_major = BP_ABI_MAJOR + 1;
    ck_assert_ptr_null(bpi_ref_query(&q));
    rig_close(&g);
}
END_TEST

static void check_open(const char *round, int32_t want, const char *where)
{
    struct rig g;
    struct bp_error err = BP_ERROR_INIT;
    int32_t rc = rig_try_open(&g, round, &err);
    ck_assert_int_eq(rc, want);
    if (rc == BP_OK) {
        rig_close(&g);
        return;
    }
    ck_assert_str_eq(err.where, where);
    ck_assert(err.msg[0] != '\0');
    ck_assert_int_eq(g.live, 0); /* nothing half-open */
    bpi_pool_destroy(g.pool);
}

START_TEST(config_is_checked)
{
    check_open(NULL, BP_OK, "");
    check_open("none", BP_OK, "");
    check_open("bf16", BP_OK, "");
    check_open("f16", BP_OK, "");
    check_open("f8", BP_E_CONFIG, "plugin.ref.round");
    check_open("", BP_E_CONFIG, "plugin.ref.round");
    check_open("a text that is far too long", BP_E_CONFIG, "plugin.ref.round");
}
END_TEST

START_TEST(config_takes_effect)
{
    struct rig g;
    rig_open(&g, "f16");
    ck_assert_uint_eq(g.ref->round, BPI_REF_ROUND_F16);
    rig_close(&g);
    rig_open(&g, NULL);
    ck_assert_uint_eq(g.ref->round, BPI_REF_ROUND_NONE);
    rig_close(&g);
}
END_TEST

START_TEST(ops_are_for_the_host)
{
    struct rig g;
    const struct bp_device cuda = {.h = BP_HDR(struct bp_device, name), .kind = BP_DEV_CUDA};
    struct bp_op_ref op = {NULL, NULL}, inner = {NULL, NULL};
    struct bp_error err = BP_ERROR_INIT;
    struct bp_op_entry entry = {.iface = "bp.dense", .impl = "ref"};
    rig_open(&g, NULL);
    ck_assert_int_eq(g.desc->op_create(g.ref, &entry, &cuda, NULL, 0, &op, &err), BP_DECLINED);
    ck_assert(err.msg[0] != '\0');
    ck_assert_int_eq(g.desc->op_create(g.ref, &entry, NULL, &inner, 1, &op, NULL), BP_E_ARG);
    entry.iface = "bp.telepathy";
    ck_assert_int_eq(g.desc->op_create(g.ref, &entry, NULL, NULL, 0, &op, NULL), BP_DECLINED);
    rig_close(&g);
}
END_TEST

/* ---- device ---- */

START_TEST(device_memory)
{
    struct rig g;
    rig_open(&g, NULL);
    struct bp_op_ref op = rig_op(&g, "bp.device");
    const struct bp_device_ops *d = (const struct bp_device_ops *)(const void *)op.vt;
    struct bp_error err = BP_ERROR_INIT;
    struct bp_device props = {.h = BP_HDR(struct bp_device, name)};
    uint64_t free_bytes = 0, total_bytes = 0;
    ck_assert_int_eq(d->props(op.self, &props, NULL), BP_OK);
    ck_assert(props.kind == BP_DEV_HOST && props.n_sm >= 1 && props.name[0] != '\0' &&
              props.ctx == NULL);
    ck_assert_uint_eq(props.h.size, BP_END(struct bp_device, name));
    struct bp_device shorter = {.h = BP_HDR(struct bp_device, ordinal), .l2_bytes = 77};
    ck_assert_int_eq(d->props(op.self, &shorter, NULL), BP_OK);
    ck_assert(shorter.kind == BP_DEV_HOST &&
              shorter.l2_bytes == 77); /* a struct that ends earlier stays as it is */
    ck_assert_int_eq(d->mem_info(op.self, &free_bytes, &total_bytes, NULL), BP_OK);
    ck_assert(free_bytes > 0 && free_bytes <= total_bytes && total_bytes == props.total_bytes);
    for (uint32_t mem = BP_MEM_DEVICE; mem <= BP_MEM_PINNED; ++mem) {
        unsigned char *p = NULL, *q = NULL;
        ck_assert_int_eq(d->alloc(op.self, mem, 1000, (void **)&p, NULL), BP_OK);
        ck_assert_int_eq(d->alloc(op.self, mem, 0, (void **)&q, NULL), BP_OK);
        ck_assert((uintptr_t)p % 256 == 0 && (uintptr_t)q % 256 == 0);
        for (int i = 0; i < 1000; ++i) ck_assert_uint_eq(p[i], 0);
        d->free(op.self, mem, q);
        ck_assert_int_eq(d->fill(op.self, p, 0x5a, 7, NULL, NULL), BP_OK);
        ck_assert(p[6] == 0x5a && p[7] == 0);
        ck_assert_int_eq(d->copy(op.self, p + 500, p, 8, BP_COPY_D2D, NULL, NULL), BP_OK);
        ck_assert(p[506] == 0x5a && p[507] == 0 && p[508] == 0);
        ck_assert_int_eq(d->copy(op.self, NULL, NULL, 0, BP_COPY_H2D, NULL, NULL), BP_OK);
        d->free(op.self, mem, p);
        d->free(op.self, mem, NULL);
        ck_assert_int_eq(d->alloc(op.self, mem, UINT64_MAX / 2, (void **)&p, &err), BP_E_NOMEM);
        ck_assert_ptr_nonnull(
            strstr(err.msg, "9223372036854775807")); /* says how much was wanted */
        bpi_error_clear(&err);
    }
    rig_close(&g);
}
END_TEST

START_TEST(device_streams_and_graphs)
{
    struct rig g;
    rig_open(&g, NULL);
    struct bp_op_ref op = rig_op(&g, "bp.device");
    const struct bp_device_ops *d = (const struct bp_device_ops *)(const void *)op.vt;
    void *stream = &g, *from = NULL, *to = NULL, *graph = NULL;
    double us = -1.0;
    ck_assert_int_eq(d->stream_create(op.self, &stream, NULL), BP_OK);
    ck_assert_ptr_null(stream);
    ck_assert_int_eq(d->stream_sync(op.self, stream, NULL), BP_OK);
    ck_assert_int_eq(d->event_create(op.self, &from, NULL), BP_OK);
    ck_assert_int_eq(d->event_create(op.self, &to, NULL), BP_OK);
    ck_assert_int_eq(d->event_elapsed_us(op.self, from, to, &us, NULL),
                     BP_E_ARG); /* never recorded */
    ck_assert_int_eq(d->event_record(op.self, from, stream, NULL), BP_OK);
    ck_assert_int_eq(d->event_wait(op.self, from, stream, NULL), BP_OK);
    for (uint64_t end = bpi_now_ns() + 2000000; bpi_now_ns() < end;) continue;
    ck_assert_int_eq(d->event_record(op.self, to, stream, NULL), BP_OK);
    ck_assert_int_eq(d->event_elapsed_us(op.self, from, to, &us, NULL), BP_OK);
    ck_assert(us >= 2000.0 && us < 6e7);
    d->event_destroy(op.self, from);
    d->event_destroy(op.self, to);
    d->event_destroy(op.self, NULL);
    struct bp_error err = BP_ERROR_INIT;
    ck_assert_int_eq(d->graph_begin(op.self, stream, &err), BP_DECLINED);
    ck_assert(err.msg[0] != '\0');
    ck_assert_int_eq(d->graph_end(op.self, stream, &graph, NULL), BP_DECLINED);
    ck_assert_int_eq(d->graph_launch(op.self, NULL, stream, NULL), BP_DECLINED);
    d->graph_destroy(op.self, NULL);
    d->stream_destroy(op.self, NULL);
    struct bp_device_problem p = {.h = BP_HDR(struct bp_device_problem, ordinal)};
    struct rig_answer a;
    rig_ask(&op, &p, &a);
    ck_assert_uint_eq(a.v.level, BP_V_YES);
    ck_assert_uint_eq(a.v.capture, BP_CAPTURE_NONE);
    p.ordinal = 1;
    ck_assert(rig_refuses(&op, &p, BP_R_DEVICE, "ordinal"));
    p.kind = BP_DEV_CUDA;
    ck_assert(rig_refuses(&op, &p, BP_R_DEVICE, "kind"));
    rig_close(&g);
}
END_TEST

/* ---- collectives ---- */

START_TEST(a_world_of_one)
{
    struct rig g;
    rig_open(&g, NULL);
    struct bp_op_ref op = rig_op(&g, "bp.coll");
    const struct bp_coll_ops *c = (const struct bp_coll_ops *)(const void *)op.vt;
    struct bp_coll_setup setup = {.h = BP_HDR(struct bp_coll_setup, key), .world = 1, .key = "k"};
    struct bp_error err = BP_ERROR_INIT;
    void *comm = NULL;
    float x[6] = {1, 2, 3, 4, 5, 6}, y[6] = {0};
    ck_assert_int_eq(c->comm_create(op.self, &setup, &comm, NULL), BP_OK);
    ck_assert_ptr_nonnull(comm);
    struct bp_coll_args a = {.h = BP_HDR(struct bp_coll_args, reserved), .comm = comm};
    a.x = (struct bp_tensor){
        .data = x, .dtype = BP_DT_F32, .ndim = 2, .dim = {2, 3}, .stride = {3, 1}};
    a.y = (struct bp_tensor){
        .data = y, .dtype = BP_DT_F32, .ndim = 3, .dim = {1, 2, 3}, .stride = {6, 3, 1}};
    ck_assert_int_eq(c->all_reduce(op.self, &g.launch, &a, NULL), BP_OK);
    ck_assert_int_eq(c->broadcast(op.self, &g.launch, &a, NULL), BP_OK);
    for (int i = 0; i < 6; ++i) ck_assert(x[i] == (float)(i + 1) && y[i] == 0.0f);
    ck_assert_int_eq(c->all_gather(op.self, &g.launch, &a, NULL), BP_OK);
    ck_assert(memcmp(x, y, sizeof x) == 0);
    a.root = 1;
    ck_assert_int_eq(c->broadcast(op.self, &g.launch, &a, &err), BP_E_ARG);
    a.y.dtype = BP_DT_F16;
    ck_assert_int_eq(c->all_gather(op.self, &g.launch, &a, NULL), BP_E_ARG);
    ck_assert_int_eq(c->barrier(op.self, &g.launch, comm, NULL), BP_OK);
    ck_assert_int_eq(c->async_error(op.self, comm, NULL), BP_OK);
    c->abort(op.self, comm);
    c->comm_destroy(op.self, comm);
    c->comm_destroy(op.self, NULL);
    setup.world = 2;
    bpi_error_clear(&err);
    ck_assert_int_eq(c->comm_create(op.self, &setup, &comm, &err), BP_DECLINED);
    ck_assert(err.msg[0] != '\0');
    struct bp_coll_problem p = {
        .h = BP_HDR(struct bp_coll_problem, max_elems), .world = 1, .dtype = BP_DT_F32};
    struct rig_answer answer;
    rig_ask(&op, &p, &answer);
    ck_assert_uint_eq(answer.v.level, BP_V_YES);
    p.world = 2;
    ck_assert(rig_refuses(&op, &p, BP_R_TOPOLOGY, "world"));
    rig_ask(&op, &p, &answer);
    ck_assert_ptr_nonnull(strstr(answer.reasons[0].text, "NCCL")); /* names what would serve */
    p.world = 1;
    p.dtype = 99;
    ck_assert(rig_refuses(&op, &p, BP_R_DTYPE, "dtype"));
    struct bp_tensor t[2];
    uint32_t n = 2;
    ck_assert_int_eq(op.vt->tensors(op.self, BP_COLL_OP_ALL_REDUCE, &a, t, &n), BP_OK);
    ck_assert(n == 1 && t[0].access == BP_INOUT);
    n = 2;
    ck_assert_int_eq(op.vt->tensors(op.self, BP_COLL_OP_ALL_GATHER, &a, t, &n), BP_OK);
    ck_assert(n == 2 && t[0].access == BP_IN && t[1].access == BP_OUT);
    ck_assert_int_eq(op.vt->tensors(op.self, 9, &a, t, &n), BP_E_ARG);
    rig_close(&g);
}
END_TEST

RIG_MAIN("ref_host", descriptor_is_whole, config_is_checked, config_takes_effect,
         ops_are_for_the_host, device_memory, device_streams_and_graphs, a_world_of_one)
