/* test_sdk_cxx.cpp - a plugin's frame in C++17: the macros give the same note and descriptor as in C.
 * SPDX-License-Identifier: MIT */
#define BP_PLUGIN_QUERY_NAME sdk_cxx_query
#include <backplane/sdk.h>

#include <cstdio>
#include <cstring>

static int32_t frame_open(const struct bp_host *, void **, struct bp_error *)
{
    return BP_DECLINED;
}

static void frame_close(void *)
{
}

static int32_t frame_op_create(void *, const struct bp_op_entry *, const struct bp_device *,
                               const struct bp_op_ref *, uint32_t, struct bp_op_ref *,
                               struct bp_error *)
{
    return BP_DECLINED;
}

static void frame_op_destroy(void *, struct bp_op_ref *)
{
}

BP_PLUGIN(BP_KIND_BACKEND, "cxx", "2.0", BP_ABOUT("vendor", "MIT", "a frame in C++"), BP_NO_CUDA,
          BP_NO_KEYS, BP_HOOKS(frame_open, frame_close, frame_op_create, frame_op_destroy),
          ("bp.quant", "q"), ("bp.moe", "m"));

static int n_bad;

static void check(bool good, const char *what)
{
    if (good) return;
    std::printf("not so: %s\n", what);
    ++n_bad;
}

int main()
{
    struct bp_query q = {BP_HDR(struct bp_query, engine_version), BP_ABI_MAJOR, BP_ABI_MINOR, 0, 0};
    const struct bp_plugin_desc *d = sdk_cxx_query(&q);
    check(d != nullptr, "the query answers");
    if (d == nullptr) return 1;
    check(std::strcmp(bp_note_record_.desc.name, d->name) == 0, "one name");
    check(std::strcmp(bp_note_record_.desc.version, d->version) == 0, "one version");
    check(std::strcmp(bp_note_record_.desc.ifaces, "bp.quant bp.moe") == 0,
          "the interfaces of the note");
    check(d->n_ops == 2 && std::strcmp(d->ops[1].iface, "bp.moe") == 0,
          "the ops of the descriptor");
    check(d->n_cfg == 0 && d->cfg == nullptr && d->n_sm == 0 && d->cuda_built == 0,
          "nothing that was not given");
    check(d->open == frame_open && d->op_destroy == frame_op_destroy, "the hooks");
    struct bp_verdict v = {};
    struct bp_reason reasons[1];
    v.reasons = reasons;
    v.cap_reasons = 1;
    struct bp_hdr problem = {16, 0, nullptr};
    check(bp_verdict_begin(&v, &problem, 16) == 1, "a problem that is long enough");
    bp_want_eq(&v, BP_R_SHAPE, "a", 1, 2);
    check(bp_verdict_done(&v, BP_CAPTURE_ANY, BP_DET_RUN, 1.0) == BP_OK && v.level == BP_V_NO,
          "a refusal");
    check(bp_f16_f32(0x3c00) == 1.0f && bp_f32_bf16(1.0f) == 0x3f80, "floats");
    return n_bad == 0 ? 0 : 1;
}
