/* moe_route.cu - the router: one warp per token, scores in shared memory, ties to the lowest expert.
 * Source: DeepSeek-V2 (2024) for softmax and groups by their maximum, DeepSeek-V3 (2024) for sigmoid, the bias that
 * acts on the choice only, and groups by the sum of their two best. Restated from slot_moe.h.
 * Numeric: f32; softmax corrects the rounding of logit - maximum, which exp would magnify. Without a bias experts are
 * chosen by their logits, which order them as the scores do and are told apart where scores are all near 0 or 1.
 * A row depends on itself only.
 * SPDX-License-Identifier: MIT */
#include "moe_kernels.h"

#include <cuda_runtime.h>
#include <math.h>

namespace
{

static_assert(MOE_MAX_EXPERT * 12 <= 48 * 1024, "scores must fit in what every kernel may have without asking");

__device__ float warp_sum(float v)
{
    for (int d = 16; d > 0; d >>= 1) v += __shfl_xor_sync(0xffffffffu, v, d);
    return v;
}

/* The larger value wins, of equal ones the lower index; index < 0 is no candidate. All lanes end with the winner, and
 * have read what they compared: one of them may overwrite it. */
__device__ void warp_best(float &v, int &index)
{
    for (int d = 16; d > 0; d >>= 1) {
        const float ov = __shfl_xor_sync(0xffffffffu, v, d);
        const int oi = __shfl_xor_sync(0xffffffffu, index, d);
        const bool take = oi >= 0 && (index < 0 || ov > v || (ov == v && oi < index));
        if (take) {
            v = ov;
            index = oi;
        }
    }
    __syncwarp();
}

/* exp(z - top) for z <= top, with the part of the difference that f32 drops. */
__device__ float exp_below(float z, float top)
{
    const float d = __fsub_rn(z, top);
    if (d == -INFINITY) return 0.0f;
    const float back = __fsub_rn(d, z), lost = __fsub_rn(__fsub_rn(z, __fsub_rn(d, back)), __fadd_rn(top, back));
    return expf(d) * (1.0f + lost);
}

/* Fills p and sel; false in all lanes when a logit is no finite number, or a score none. */
__device__ bool score(const moe_route_call &c, const float *z, float *p, float *sel, int lane, float &top, float &sum)
{
    bool bad = false;
    top = -INFINITY;
    sum = 0.0f;
    if (c.softmax) {
        for (int i = lane; i < c.n_expert; i += 32) top = fmaxf(top, z[i]);
        for (int d = 16; d > 0; d >>= 1) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, d));
        for (int i = lane; i < c.n_expert; i += 32) {
            p[i] = exp_below(z[i], top);
            sum += p[i];
        }
        sum = warp_sum(sum);
    }
    for (int i = lane; i < c.n_expert; i += 32) {
        p[i] = c.softmax ? p[i] / sum : 1.0f / (1.0f + expf(-z[i]));
        sel[i] = c.bias != nullptr ? p[i] + c.bias[i] : z[i];
        bad = bad || !isfinite(z[i]) || isnan(p[i]) || isnan(sel[i]);
    }
    return __any_sync(0xffffffffu, bad) == 0;
}

/* The sum of a group's two best scores, or what orders groups as it does: of softmax the logarithm. */
__device__ float sum_of_two(const moe_route_call &c, float best, float second)
{
    if (c.bias != nullptr) return best + second;
    if (c.softmax) return second == -INFINITY ? best : best + log1pf(expf(second - best));
    return 1.0f / (1.0f + expf(-best)) + 1.0f / (1.0f + expf(-second));
}

/* Lanes take groups in turn; a group's scores are few. */
__device__ void score_groups(const moe_route_call &c, const float *sel, float *group, int lane)
{
    const int size = c.n_expert / c.n_group;
    for (int g = lane; g < c.n_group; g += 32) {
        float best = sel[g * size], second = -INFINITY;
        for (int i = 1; i < size; ++i) {
            const float v = sel[g * size + i];
            if (v > best) {
                second = best;
                best = v;
            } else if (v > second) {
                second = v;
            }
        }
        group[g] = c.top2 && size > 1 ? sum_of_two(c, best, second) : best;
    }
}

/* Drops the experts of all groups but the best. What may not be chosen any more has NaN as its score. */
__device__ void drop_groups(const moe_route_call &c, float *sel, float *group, int lane)
{
    const int size = c.n_expert / c.n_group;
    score_groups(c, sel, group, lane);
    __syncwarp();
    for (int k = 0; k < c.n_group_used; ++k) {
        float v = 0.0f;
        int best = -1;
        for (int g = lane; g < c.n_group; g += 32) {
            if (!isnan(group[g]) && (best < 0 || group[g] > v)) {
                v = group[g];
                best = g;
            }
        }
        warp_best(v, best);
        if (lane == 0 && best >= 0) group[best] = NAN; /* taken */
        __syncwarp();
    }
    for (int i = lane; i < c.n_expert; i += 32) {
        if (!isnan(group[i / size])) sel[i] = NAN;
    }
    __syncwarp();
}

/* A bias can choose experts whose shares are below what f32 holds; normalising makes numbers of them again. Rare, so in
 * double. */
__device__ __noinline__ void weigh_small(const moe_route_call &c, const float *z, float top, float all, const int32_t *ids,
                                         float *weights)
{
    double sum = 1e-20;
    for (int k = 0; k < c.n_used; ++k)
        if (ids[k] >= 0) sum += exp(static_cast<double>(z[ids[k]]) - top) / all;
    for (int k = 0; k < c.n_used; ++k)
        if (ids[k] >= 0)
            weights[k] = static_cast<float>(exp(static_cast<double>(z[ids[k]]) - top) / all / sum * c.scale);
}

__global__ void __launch_bounds__(32) route_kernel(moe_route_call c)
{
    extern __shared__ float scores[];
    float *p = scores, *sel = p + c.n_expert, *group = sel + c.n_expert;
    const int lane = static_cast<int>(threadIdx.x);
    const int64_t t = blockIdx.x;
    int32_t *ids = c.ids + t * c.ids_stride;
    float *weights = c.weights + t * c.weights_stride;
    const float *z = c.logits + t * c.logits_stride;
    float top, all;
    if (!score(c, z, p, sel, lane, top, all)) {
        for (int k = lane; k < c.n_used; k += 32) {
            ids[k] = -1;
            weights[k] = NAN;
        }
        return;
    }
    __syncwarp();
    if (c.n_group > 1 && c.n_group_used < c.n_group) drop_groups(c, sel, group, lane);
    float sum = 0.0f;
    for (int k = 0; k < c.n_used; ++k) {
        float v = 0.0f;
        int best = -1;
        for (int i = lane; i < c.n_expert; i += 32) {
            if (!isnan(sel[i]) && (best < 0 || sel[i] > v)) {
                v = sel[i];
                best = i;
            }
        }
        warp_best(v, best);
        if (best >= 0) sum += p[best];
        if (lane == 0) {
            ids[k] = best;
            weights[k] = best >= 0 ? p[best] : 0.0f;
            if (best >= 0) sel[best] = NAN;
        }
        __syncwarp();
    }
    if (lane != 0) return;
    if (c.softmax && c.normalize && sum < 1e-12f) {
        weigh_small(c, z, top, all, ids, weights);
        return;
    }
    const float by = c.normalize ? sum + 1e-20f : 1.0f;
    for (int k = 0; k < c.n_used; ++k) weights[k] = weights[k] / by * c.scale;
}

} // namespace

int32_t moe_launch_route(const moe_route_call *c, void *stream)
{
    const size_t n_bytes = static_cast<size_t>(c->n_expert * 2 + c->n_group) * sizeof(float);
    route_kernel<<<static_cast<unsigned>(c->n_tok), 32, n_bytes, static_cast<cudaStream_t>(stream)>>>(*c);
    return static_cast<int32_t>(cudaGetLastError());
}
