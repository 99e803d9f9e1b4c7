/* cache.cu - rows into the pools and out of them: norm, rotation and store in one launch for a latent row and for an index
 * key; the dense copy of cached rows; rotated parts spread over heads; the merge of two partial softmax results.
 * Numeric: f32, one rounding at the store; a row's bits depend on its own inputs only. Copies without a change of dtype
 * are exact. SPDX-License-Identifier: MIT */
#include "attn.cuh"

namespace
{

constexpr int THREADS = 128;

/* Pair i of a rotated part that begins at x[first]: positions of its two numbers. */
__device__ __forceinline__ void pair_of(uint32_t i, uint32_t n_rope, bool half_style, uint32_t *even, uint32_t *odd)
{
    *even = half_style ? i : 2 * i;
    *odd = half_style ? i + n_rope / 2 : 2 * i + 1;
}

/* One block a token. */
__global__ void __launch_bounds__(THREADS) cache_write_kernel(const attn_cache_write a)
{
    __shared__ float room[THREADS / 32];
    const int64_t token = blockIdx.x, slot = a.slot_map[token];
    if (slot < 0) return;
    const unsigned char *x = row_at(a.kv, token, 0);
    unsigned char *y = pool_row(a.pool, slot);
    float sum = 0.0f;
    for (uint32_t i = threadIdx.x; i < a.n_latent; i += THREADS) {
        const float v = load_any(x, a.kv.dtype, i);
        sum += v * v;
    }
    sum = bp_cuda::block_sum<THREADS>(sum, room);
    const float inv = 1.0f / sqrtf(sum / static_cast<float>(a.n_latent) + a.eps);
    for (uint32_t i = threadIdx.x; i < a.n_latent; i += THREADS) {
        store_any(y, a.pool.dtype, i, a.norm_w[i] * (load_any(x, a.kv.dtype, i) * inv));
    }
    const int64_t at = a.positions[token];
    const bool known = at >= 0 && at < a.n_position; /* what no table has is nothing to read, and not to be overlooked */
    for (uint32_t i = threadIdx.x; i < a.n_rope / 2; i += THREADS) {
        const float u = load_any(x, a.kv.dtype, a.n_latent + 2 * i), v = load_any(x, a.kv.dtype, a.n_latent + 2 * i + 1);
        const float c = known ? a.cos[at * a.cos_row + i] : NAN, s = known ? a.sin[at * a.sin_row + i] : NAN;
        store_any(y, a.pool.dtype, a.n_latent + 2 * i, u * c - v * s);
        store_any(y, a.pool.dtype, a.n_latent + 2 * i + 1, u * s + v * c);
    }
}

/* One block a token; the deviations are summed in a second pass, so that a large mean costs no digits. */
__global__ void __launch_bounds__(THREADS) key_write_kernel(const attn_key_write a)
{
    __shared__ float room[THREADS / 32];
    const int64_t token = blockIdx.x, slot = a.slot_map[token];
    if (slot < 0) return;
    const uint32_t n = a.pool.width;
    const unsigned char *x = row_at(a.k, token, 0);
    unsigned char *y = pool_row(a.pool, slot);
    float sum = 0.0f;
    for (uint32_t i = threadIdx.x; i < n; i += THREADS) sum += load_any(x, a.k.dtype, i);
    const float mean = bp_cuda::block_sum<THREADS>(sum, room) / static_cast<float>(n);
    sum = 0.0f;
    for (uint32_t i = threadIdx.x; i < n; i += THREADS) {
        const float d = load_any(x, a.k.dtype, i) - mean;
        sum += d * d;
    }
    sum = bp_cuda::block_sum<THREADS>(sum, room);
    const float inv = 1.0f / sqrtf(sum / static_cast<float>(n) + a.eps);
    for (uint32_t i = a.n_rope + threadIdx.x; i < n; i += THREADS) {
        store_any(y, a.pool.dtype, i, (load_any(x, a.k.dtype, i) - mean) * inv * a.norm_w[i] + a.norm_b[i]);
    }
    const int64_t at = a.positions[token];
    const bool known = at >= 0 && at < a.n_position; /* what no table has is nothing to read, and not to be overlooked */
    for (uint32_t i = threadIdx.x; i < a.n_rope / 2; i += THREADS) {
        uint32_t even, odd;
        pair_of(i, a.n_rope, a.half_style != 0, &even, &odd);
        const float u = (load_any(x, a.k.dtype, even) - mean) * inv * a.norm_w[even] + a.norm_b[even];
        const float v = (load_any(x, a.k.dtype, odd) - mean) * inv * a.norm_w[odd] + a.norm_b[odd];
        const float c = known ? a.cos[at * a.cos_row + i] : NAN, s = known ? a.sin[at * a.sin_row + i] : NAN;
        store_any(y, a.pool.dtype, even, u * c - v * s);
        store_any(y, a.pool.dtype, odd, u * s + v * c);
    }
}

/* n numbers by the lanes of a warp. */
__device__ __forceinline__ void copy_row(unsigned char *dst, uint32_t dst_dtype, const unsigned char *src,
                                         uint32_t src_dtype, uint32_t n, uint32_t lane)
{
    if (dst_dtype != src_dtype) {
        for (uint32_t i = lane; i < n; i += 32) store_any(dst, dst_dtype, i, load_any(src, src_dtype, i));
        return;
    }
    const uint32_t n_bytes = n * (src_dtype == BP_DT_F32 ? 4u : 2u);
    const uintptr_t both = reinterpret_cast<uintptr_t>(dst) | reinterpret_cast<uintptr_t>(src) | n_bytes;
    if (both % 16 == 0) {
        for (uint32_t i = lane; i < n_bytes / 16; i += 32)
            reinterpret_cast<uint4 *>(dst)[i] = reinterpret_cast<const uint4 *>(src)[i];
    } else {
        for (uint32_t i = lane; i < n_bytes / 2; i += 32)
            reinterpret_cast<uint16_t *>(dst)[i] = reinterpret_cast<const uint16_t *>(src)[i];
    }
}

/* One warp a row of the slab. */
__global__ void __launch_bounds__(THREADS) gather_kernel(const attn_gather a)
{
    const int32_t row = static_cast<int32_t>(blockIdx.x * (THREADS / 32) + threadIdx.x / 32);
    const uint32_t lane = threadIdx.x % 32;
    if (row >= static_cast<int32_t>(a.n_k) || row < a.cu_k[0] || row >= a.cu_k[a.n_seg]) return;
    uint32_t lo = 0, hi = a.n_seg - 1; /* the last segment that begins at or before row; empty ones before it are skipped */
    while (lo < hi) {
        const uint32_t mid = (lo + hi + 1) / 2;
        if (a.cu_k[mid] <= row) lo = mid;
        else hi = mid - 1;
    }
    const int64_t at = a.kv_begin[lo] + (row - a.cu_k[lo]);
    const int64_t block = a.block_table[a.seq[lo] * a.table_stride + at / a.pool.block_tok];
    const unsigned char *src = pool_row(a.pool, block * a.pool.block_tok + at % a.pool.block_tok);
    copy_row(row_at(a.c, row, 0), a.c.dtype, src, a.pool.dtype, a.n_latent, lane);
    src += a.n_latent * (a.pool.dtype == BP_DT_F32 ? 4u : 2u);
    copy_row(row_at(a.k_pe, row, 0), a.k_pe.dtype, src, a.pool.dtype, a.n_rope, lane);
}

/* One warp a row; it writes all heads. */
__global__ void __launch_bounds__(THREADS) spread_kernel(const attn_spread a)
{
    const uint32_t row = blockIdx.x * (THREADS / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (row >= a.n_row) return;
    const unsigned char *x = row_at(a.k_pe, row, 0);
    for (uint32_t h = 0; h < a.n_head; ++h) {
        unsigned char *y = row_at(a.k, row, h) + a.first * (a.k.dtype == BP_DT_F32 ? 4u : 2u);
        copy_row(y, a.k.dtype, x, a.k_pe.dtype, a.n_rope, lane);
    }
}

/* One warp a row and head. */
__global__ void __launch_bounds__(THREADS) merge_kernel(const attn_merge a)
{
    const int64_t item = static_cast<int64_t>(blockIdx.x) * (THREADS / 32) + threadIdx.x / 32;
    const uint32_t lane = threadIdx.x % 32;
    if (item >= static_cast<int64_t>(a.n_row) * a.n_head) return;
    const int64_t row = item / a.n_head, head = item % a.n_head;
    float *lse = reinterpret_cast<float *>(row_at(a.lse, row, head));
    const float mine = *lse, other = *reinterpret_cast<const float *>(row_at(a.other_lse, row, head));
    unsigned char *out = row_at(a.out, row, head);
    const unsigned char *x = row_at(a.other, row, head);
    const bool empty = mine == -INFINITY, other_empty = other == -INFINITY;
    __syncwarp(); /* every lane has read the LSE that lane 0 is about to change */
    if (empty && other_empty) {
        for (uint32_t i = lane; i < a.width; i += 32) store_any(out, a.out.dtype, i, 0.0f);
    } else if (empty) {
        copy_row(out, a.out.dtype, x, a.other.dtype, a.width, lane);
        if (lane == 0) *lse = other;
    } else if (!other_empty) {
        const float max = fmaxf(mine, other), wa = expf(mine - max), wb = expf(other - max), sum = wa + wb;
        for (uint32_t i = lane; i < a.width; i += 32) {
            const float u = load_any(out, a.out.dtype, i), v = load_any(x, a.other.dtype, i);
            store_any(out, a.out.dtype, i, (wa * u + wb * v) / sum);
        }
        if (lane == 0) *lse = max + logf(sum);
    }
}

uint32_t blocks(int64_t n_warp)
{
    return static_cast<uint32_t>((n_warp + THREADS / 32 - 1) / (THREADS / 32));
}

} // namespace

int32_t attn_start_cache_write(const attn_cache_write *a, void *stream)
{
    return start(cache_write_kernel, dim3(a->n_tok), THREADS, 0, stream, *a);
}

int32_t attn_start_key_write(const attn_key_write *a, void *stream)
{
    return start(key_write_kernel, dim3(a->n_tok), THREADS, 0, stream, *a);
}

int32_t attn_start_gather(const attn_gather *a, void *stream)
{
    return start(gather_kernel, dim3(a->n_seg == 0 ? 0 : blocks(a->n_k)), THREADS, 0, stream, *a);
}

int32_t attn_start_spread(const attn_spread *a, void *stream)
{
    return start(spread_kernel, dim3(a->n_head == 0 ? 0 : blocks(a->n_row)), THREADS, 0, stream, *a);
}

int32_t attn_start_merge(const attn_merge *a, void *stream)
{
    return start(merge_kernel, dim3(blocks(static_cast<int64_t>(a->n_row) * a->n_head)), THREADS, 0, stream, *a);
}
