/* line.cuh - how a product is shared out, whatever multiplies. The steps of all strips lie in one line. Where strips can be
 * dealt to blocks so that no multiprocessor gets a tenth more than its part, a block has whole units of them; else the line
 * is cut into equal parts, and where a unit lies in several blocks the last one to finish adds their sums, in order (a
 * counter per strip, zero before and after), which takes about 4 us longer. In a block, warps have equal parts of its steps.
 * Not here: which cut (plan.c), products (gemv.cuh, one.cuh). SPDX-License-Identifier: MIT */
#ifndef QUANT_GGUF_LINE_CUH
#define QUANT_GGUF_LINE_CUH

#include "launch.h"

#include "backplane/cuda/convert.cuh"

namespace line
{

struct job {
    const unsigned char *w;
    void *y;
    uint32_t *counters;
    int64_t pitch, y_stride;
    int32_t rows, first_strip;
    float scale;
};
/* With silu the strips of two weights take turns, and two of them make a unit, which is finished at once; else a strip
 * is one. */
struct args {
    int32_t n_steps, n_strip; /* of a strip; in all */
    int32_t grain;            /* steps that stay together: those of a unit, or 1 */
    int32_t each, more;       /* grains of a block: `each`, and one more for the first `more` blocks */
    int32_t n_tok;
    uint32_t n_job, silu, y_dtype, residual_dtype;
    job jobs[QG_MAX_W];
    const void *residual;
    int64_t residual_stride;
    /* (blocks, 2, strips of a unit, n_tok, 16): sums of a block's first and last unit, if others share them */
    float *partial;
};

/* Which weight strip v belongs to, and where in it. */
__device__ __forceinline__ int weight_of(const args &g, int v, int &strip)
{
    if (g.silu != 0) {
        strip = v >> 1;
        return v & 1;
    }
    int which = 0;
    while (which + 1 < static_cast<int>(g.n_job) && v >= g.jobs[which + 1].first_strip) ++which;
    strip = v - g.jobs[which].first_strip;
    return which;
}
__device__ __forceinline__ const unsigned char *data_of(const args &g, int v)
{
    int strip;
    const int which = weight_of(g, v, strip);
    return g.jobs[which].w + strip * g.jobs[which].pitch;
}

__device__ __forceinline__ int first_step(const args &g, int block)
{
    return (block * g.each + min(block, g.more)) * g.grain;
}
/* Where grain is 1. */
__device__ __forceinline__ int block_of(const args &g, int at)
{
    const int long_ones = g.more * (g.each + 1);
    return at < long_ones ? at / (g.each + 1) : g.more + (at - long_ones) / g.each;
}

__device__ __forceinline__ float silu(float v)
{
    return v == -INFINITY ? 0.0f : v / (1.0f + expf(-v));
}

/* sum(i, tok, row): of the i-th strip of the unit, not yet scaled. */
template <class F>
__device__ __forceinline__ void finish(const args &g, int unit, int tok, int row, F sum)
{
    int strip;
    const int which = weight_of(g, g.silu != 0 ? 2 * unit : unit, strip);
    const job &j = g.jobs[which];
    const int64_t at = static_cast<int64_t>(strip) * QG_STRIP + row;
    if (at >= j.rows) return;
    float v = sum(0) * j.scale;
    if (g.silu != 0) v = silu(v) * (sum(1) * g.jobs[1].scale);
    if (g.residual != nullptr && which == 0)
        v += bp_cuda::load_any(g.residual, g.residual_dtype, tok * g.residual_stride + at);
    bp_cuda::store_any(j.y, g.y_dtype, tok * j.y_stride + at, v);
}

/* Is this block the last one to add to unit `unit`? What the block's threads wrote before the barrier in front of this is
 * seen by whoever comes last. */
__device__ __forceinline__ bool comes_last(const args &g, int unit, int unit_steps, int n_of)
{
    int strip;
    const int which = weight_of(g, unit * n_of, strip);
    const int others = block_of(g, (unit + 1) * unit_steps - 1) - block_of(g, unit * unit_steps);
    uint32_t *const counter = g.jobs[which].counters + strip;
    uint32_t before;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");
    if (before != static_cast<uint32_t>(others)) return false;
    *counter = 0;
    return true;
}

/* Where a block has whole units: little code, because every launch fetches it anew. */
template <class F> __device__ __forceinline__ void end_whole(const args &g, F sum)
{
    const int block = static_cast<int>(blockIdx.x), n_of = g.silu != 0 ? 2 : 1, n = g.n_tok * QG_STRIP;
    const int first = block * g.each + min(block, g.more), n_unit = g.each + (block < g.more ? 1 : 0);
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < n_unit * n; i += static_cast<int>(blockDim.x)) {
        const int row = i % QG_STRIP, at = i / QG_STRIP; /* one token: no division */
        const int of = g.n_tok == 1 ? at : at / g.n_tok, tok = at - of * g.n_tok, unit = first + of;
        finish(g, unit, tok, row, [&](int k) { return sum(unit * n_of + k, tok, row); });
    }
}

/* The end of a block that had steps [begin, end). sum(v, tok, row): its sum of a row of strip v; the caller's barrier lies
 * before it. mine: two words of shared memory. */
template <class F>
__device__ __forceinline__ void end_block(const args &g, uint32_t (&mine)[2], int begin, int end, F sum)
{
    if (g.grain != 1) {
        end_whole(g, sum);
        return;
    }
    const int n_of = g.silu != 0 ? 2 : 1, unit_steps = n_of * g.n_steps,
              block = static_cast<int>(blockIdx.x);
    const int first = begin / unit_steps, last = (end - 1) / unit_steps, n = g.n_tok * QG_STRIP;
    float *const out = g.partial + static_cast<int64_t>(block) * 2 * n_of * n;
    const auto is_shared = [&](int unit) {
        return unit * unit_steps < begin || (unit + 1) * unit_steps > end;
    };
    for (int i = static_cast<int>(threadIdx.x); i < (last - first + 1) * n; i += static_cast<int>(blockDim.x)) {
        const int row = i % QG_STRIP, at = i / QG_STRIP; /* one token: no division */
        const int of = g.n_tok == 1 ? at : at / g.n_tok, tok = at - of * g.n_tok, unit = first + of;
        if (!is_shared(unit)) {
            finish(g, unit, tok, row, [&](int k) { return sum(unit * n_of + k, tok, row); });
            continue;
        }
        float *const to = out + (unit == first ? 0 : n_of * n) + tok * QG_STRIP + row;
        for (int k = 0; k < n_of; ++k) to[k * n] = sum(unit * n_of + k, tok, row);
    }
    if (!is_shared(first) && !is_shared(last)) return;
    __syncthreads();
    if (threadIdx.x < 2) {
        const int unit = threadIdx.x == 0 ? first : last;
        const bool counts = is_shared(unit) && (threadIdx.x == 0 || last != first);
        mine[threadIdx.x] = counts && comes_last(g, unit, unit_steps, n_of) ? 1u : 0u;
    }
    __syncthreads();
    for (int slot = 0; slot < 2; ++slot) {
        if (mine[slot] == 0) continue;
        const int unit = slot == 0 ? first : last, from = block_of(g, unit * unit_steps);
        const int to = block_of(g, (unit + 1) * unit_steps - 1);
        for (int i = static_cast<int>(threadIdx.x); i < n; i += static_cast<int>(blockDim.x)) {
            finish(g, unit, i / QG_STRIP, i % QG_STRIP, [&](int k) {
                float all = 0.0f;
                for (int b = from; b <= to; ++b) {
                    const int at = first_step(g, b) / unit_steps == unit ? 0 : n_of * n;
                    all += __ldcg(g.partial + static_cast<int64_t>(b) * 2 * n_of * n + at + k * n + i);
                }
                return all;
            });
        }
    }
}

/* ---- host ---- */

/* What a call says, but for x; false: there is nothing to do. */
inline bool make_args(args &g, const qg_gemv &q)
{
    for (uint32_t i = 0; i < q.n_w; ++i) {
        const qg_weight &w = *q.w[i];
        job &j = g.jobs[i];
        j.w = w.data;
        j.counters = w.counters;
        j.pitch = w.layout == QG_ROWS ? w.pitch * QG_STRIP : w.pitch;
        j.rows = static_cast<int32_t>(w.rows);
        j.first_strip = g.n_strip;
        j.scale = w.scale;
        g.n_strip += static_cast<int32_t>((w.rows + QG_STRIP - 1) / QG_STRIP);
        if (q.silu != 0 && i == 1) continue;
        j.y = q.y[i].data;
        j.y_stride = q.y[i].stride[0];
    }
    g.partial = q.partial;
    g.residual = q.residual.data;
    g.residual_stride = q.residual.stride[0];
    g.residual_dtype = q.residual.dtype;
    g.n_steps = static_cast<int32_t>(q.w[0]->n_steps);
    g.n_tok = static_cast<int32_t>(q.n_tok);
    g.n_job = q.n_w;
    g.silu = q.silu;
    g.y_dtype = q.y[0].dtype;
    const int32_t unit = q.silu != 0 ? 2 * g.n_steps : g.n_steps;
    g.grain = q.whole != 0 ? unit : 1;
    const int64_t grains = static_cast<int64_t>(g.n_strip) * g.n_steps / g.grain;
    g.each = static_cast<int32_t>(grains / q.blocks);
    g.more = static_cast<int32_t>(grains % q.blocks);
    return g.n_strip != 0;
}

} // namespace line
#endif
