/* decode_fma.cu - the decode kernel for every pair of dtypes and every width, in plain f32 arithmetic.
 * A block takes HEADS heads of an item. Its keys come to shared memory as f32, TILE at a time. Scores: lane = key, every
 * warp sums an eighth of the width, the eight sums are added in order. Values: thread = latent, all heads.
 * Numeric: f32, softmax in base e (base 2 costs a rounding of every score) with the running maximum; an order of sums that
 * depends on the row's keys and its number of parts only. Keys past the end and skipped entries are zero rows of weight
 * zero: nothing of what lies there is read. SPDX-License-Identifier: MIT */
#include "decode.cuh"

namespace
{

constexpr int WARPS = 8, THREADS = WARPS * 32;
constexpr int HEADS = 8, TILE = 32; /* the most keys of a tile; wide rows take fewer */

/* Shared memory: q (width, HEADS), keys (tile, pitch), partial scores (WARPS, HEADS, TILE), weights (TILE, HEADS). */
struct places {
    float *q, *keys, *parts, *weights, *scale, *max, *sum;
    int pitch;
};
constexpr int FIXED = (WARPS * HEADS * TILE + TILE * HEADS + 3 * HEADS) * 4;

__host__ __device__ constexpr int pitch_of(int width)
{
    return width | 1; /* odd: lanes that read one column of 32 keys meet 32 banks */
}
int smem_bytes(int width, int tile)
{
    return FIXED + (width * HEADS + tile * pitch_of(width)) * 4;
}
static_assert(FIXED + (ATTN_MAX_WIDTH * HEADS + pitch_of(ATTN_MAX_WIDTH)) * 4 <= BP_CUDA_SMEM_MAX,
              "one key of the widest row fits");

__device__ places places_of(int width, int tile)
{
    places p;
    p.q = reinterpret_cast<float *>(shared_memory());
    p.weights = p.q + width * HEADS;
    p.parts = p.weights + TILE * HEADS;
    p.scale = p.parts + WARPS * HEADS * TILE;
    p.max = p.scale + HEADS;
    p.sum = p.max + HEADS;
    p.keys = p.sum + HEADS;
    p.pitch = pitch_of(width);
    return p;
}

/* Keys [at, at + tile) of the row; those past the end and skipped entries are zero. A warp takes rows side by side. */
__device__ void load_tile(const places &p, const attn_decode &a, const row_keys &keys, int32_t at, int32_t end, int tile,
                          int lane, int warp)
{
    constexpr int N = TILE / WARPS;
    const unsigned char *src[N];
    const int first = warp * N, n = tile - first;
    if (n <= 0) return;
#pragma unroll
    for (int r = 0; r < N; ++r) src[r] = at + first + r < end ? key_row(a.pool, keys, at + first + r) : nullptr;
    float *to = p.keys + first * p.pitch;
    if (n >= N) {
        load_rows(to, p.pitch, src, a.pool.dtype, static_cast<int>(a.pool.width), lane);
        return;
    }
    for (int r = 0; r < n; ++r) { /* tiles of wide rows are shorter than four rows */
        const unsigned char *const one[1] = {r == 0 ? src[0] : src[1]};
        load_rows(to + r * p.pitch, p.pitch, one, a.pool.dtype, static_cast<int>(a.pool.width), lane);
    }
}

/* Partial scores of this warp's slice of the width: parts[warp][head][lane]. In blocks, as a sum over all of it would lose
 * digits. */
__device__ void partial_scores(const places &p, int width, int lane, int warp)
{
    constexpr int BLOCK = 24;
    const int each = (width + WARPS - 1) / WARPS, begin = warp * each;
    const int end = begin + each < width ? begin + each : width;
    const float *key = p.keys + lane * p.pitch;
    float acc[HEADS] = {};
    for (int i0 = begin; i0 < end; i0 += BLOCK) {
        const int last = i0 + BLOCK < end ? i0 + BLOCK : end;
        float part[HEADS] = {};
        for (int i = i0; i < last; ++i) {
            const float k = key[i];
            const float4 lo = *reinterpret_cast<const float4 *>(p.q + i * HEADS);
            const float4 hi = *reinterpret_cast<const float4 *>(p.q + i * HEADS + 4);
            part[0] += lo.x * k, part[1] += lo.y * k, part[2] += lo.z * k, part[3] += lo.w * k;
            part[4] += hi.x * k, part[5] += hi.y * k, part[6] += hi.z * k, part[7] += hi.w * k;
        }
#pragma unroll
        for (int h = 0; h < HEADS; ++h) acc[h] += part[h];
    }
#pragma unroll
    for (int h = 0; h < HEADS; ++h) p.parts[(warp * HEADS + h) * TILE + lane] = acc[h];
}

/* Warp = head, lane = key: weights of this tile, and how much what came before shrinks. valid: does the lane hold a key? */
__device__ void softmax_step(const places &p, float scale, bool valid, int lane, int head)
{
    float s = 0.0f;
#pragma unroll
    for (int w = 0; w < WARPS; ++w) s += p.parts[(w * HEADS + head) * TILE + lane];
    s = valid ? s * scale : -INFINITY;
    const float before = p.max[head], max = fmaxf(before, bp_cuda::warp_max(s));
    /* Without any key so far everything stays zero. A NaN score is a key: its weight is NaN, and so is the row. */
    const float weight = !valid ? 0.0f : expf(s - (max == -INFINITY ? 0.0f : max));
    const float sum = bp_cuda::warp_sum(weight);
    p.weights[lane * HEADS + head] = weight;
    __syncwarp();
    if (lane == 0) {
        const float shrink = max == -INFINITY ? 1.0f : expf(before - max);
        p.scale[head] = shrink;
        p.sum[head] = p.sum[head] * shrink + sum;
        p.max[head] = max;
    }
}

/* DIMS: latents of a thread. */
template <int DIMS>
__global__ void __launch_bounds__(THREADS, 1) decode_fma_kernel(const attn_decode a, const int tile)
{
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
    /* Blocks of one item's heads stand side by side, so that its keys are read from memory once. */
    const uint32_t n_block = (a.n_head + HEADS - 1) / HEADS, number = blockIdx.x / n_block;
    const attn_item item = item_at(a, number);
    if (number >= a.plan->n_item) return;
    const int head0 = static_cast<int>(blockIdx.x % n_block) * HEADS;
    const row_keys keys = keys_of(a, item.row);
    const int32_t each = part_keys(keys.n, item.n_split), begin = item.split * each;
    const int32_t end = begin + each < keys.n ? begin + each : keys.n;
    if (item.split > 0 && begin >= end) return; /* the combining kernel counts the parts that are not empty */
    const int width = static_cast<int>(a.pool.width), n_latent = static_cast<int>(a.n_latent);
    const places p = places_of(width, tile);
    for (int h = warp; h < HEADS; h += WARPS) {
        const bool real = head0 + h < static_cast<int>(a.n_head) && begin < end;
        const unsigned char *q = real ? row_at(a.q, item.row, head0 + h) : nullptr;
        for (int i = lane; i < width; i += 32) p.q[i * HEADS + h] = real ? load_any(q, a.q.dtype, i) : 0.0f;
    }
    if (threadIdx.x < HEADS) {
        p.max[threadIdx.x] = -INFINITY;
        p.sum[threadIdx.x] = 0.0f;
    }
    float acc[DIMS][HEADS] = {};
    for (int32_t at = begin; at < end; at += tile) {
        __syncthreads(); /* nobody reads the tile before any more */
        load_tile(p, a, keys, at, end, tile, lane, warp);
        __syncthreads();
        if (lane < tile) partial_scores(p, width, lane, warp);
        __syncthreads();
        const bool valid = lane < tile && at + lane < end && (keys.list == nullptr || keys.list[at + lane] >= 0);
        softmax_step(p, a.scale, valid, lane, warp);
        __syncthreads();
        float part[DIMS][HEADS] = {}; /* of this tile: one sum over all keys would lose digits */
        const int n_key = end - at < tile ? end - at : tile;
        for (int k = 0; k < n_key; ++k) {
            const float4 lo = *reinterpret_cast<const float4 *>(p.weights + k * HEADS);
            const float4 hi = *reinterpret_cast<const float4 *>(p.weights + k * HEADS + 4);
#pragma unroll
            for (int d = 0; d < DIMS; ++d) {
                const int i = static_cast<int>(threadIdx.x) + d * THREADS;
                const float v = i < n_latent ? p.keys[k * p.pitch + i] : 0.0f;
                part[d][0] += lo.x * v, part[d][1] += lo.y * v, part[d][2] += lo.z * v, part[d][3] += lo.w * v;
                part[d][4] += hi.x * v, part[d][5] += hi.y * v, part[d][6] += hi.z * v, part[d][7] += hi.w * v;
            }
        }
#pragma unroll
        for (int h = 0; h < HEADS; ++h) {
            const float shrink = p.scale[h];
#pragma unroll
            for (int d = 0; d < DIMS; ++d) acc[d][h] = acc[d][h] * shrink + part[d][h];
        }
    }
    __syncthreads();
    const bool whole = item.n_split == 1;
    const int64_t number_of_part = whole ? 0 : item.part;
#pragma unroll
    for (int h = 0; h < HEADS; ++h) {
        if (head0 + h >= static_cast<int>(a.n_head)) continue;
        const float sum = p.sum[h], lse = lse_of(p.max[h], sum), inv = sum == 0.0f ? 0.0f : 1.0f / sum;
        if (threadIdx.x == 0) {
            if (!whole) a.part_lse[number_of_part * a.n_head + head0 + h] = lse;
            else if (a.lse.data != nullptr)
                *reinterpret_cast<float *>(row_at(a.lse, item.row, head0 + h)) = lse;
        }
        unsigned char *out = row_at(a.out, item.row, head0 + h);
        float *out_part = part_row(a, number_of_part, head0 + h);
#pragma unroll
        for (int d = 0; d < DIMS; ++d) {
            const int i = static_cast<int>(threadIdx.x) + d * THREADS;
            if (i >= n_latent) continue;
            if (whole) store_any(out, a.out.dtype, i, acc[d][h] * inv);
            else out_part[i] = acc[d][h] * inv;
        }
    }
}

} // namespace

int32_t attn_start_decode_fma(const attn_decode *a, void *stream)
{
    const int width = static_cast<int>(a->pool.width);
    int tile = TILE;
    while (tile > 1 && smem_bytes(width, tile) > BP_CUDA_SMEM_MAX) tile /= 2;
    const dim3 grid((a->n_head + HEADS - 1) / HEADS * a->n_item);
    const size_t smem = static_cast<size_t>(smem_bytes(width, tile));
    if (a->n_latent <= THREADS) return start(decode_fma_kernel<1>, grid, THREADS, smem, stream, *a, tile);
    if (a->n_latent <= 2 * THREADS) return start(decode_fma_kernel<2>, grid, THREADS, smem, stream, *a, tile);
    return start(decode_fma_kernel<ATTN_MAX_WIDTH / THREADS>, grid, THREADS, smem, stream, *a, tile);
}
