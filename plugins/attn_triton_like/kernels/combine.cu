/* combine.cu - joins the parts of decode rows that were cut: out = sum of weight * part / sum of weights, with weights
 * from the parts' LSE. Rows that were not cut are finished already and are left alone.
 * Numeric: f32, in an order that depends on the number of parts only. SPDX-License-Identifier: MIT */
#include "decode.cuh"

namespace
{

constexpr int WARPS = 8, THREADS = WARPS * 32;
constexpr int WIDTH = 128; /* latents of a block, four to a lane */
static_assert(ATTN_MAX_SPLITS <= THREADS, "one thread weighs one part");

/* A block takes WIDTH latents of one row and head; every eighth part goes to one warp, and the warps are added in order. */
__global__ void __launch_bounds__(THREADS) combine_kernel(const attn_decode a)
{
    __shared__ float weights[THREADS];
    __shared__ float room[WARPS];
    __shared__ float4 sums[WARPS][32];
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
    const int32_t row = static_cast<int32_t>(blockIdx.x / a.n_head), head = static_cast<int32_t>(blockIdx.x % a.n_head);
    const int32_t first = load_now(a.first_part + row), n_split = load_now(a.n_split + row), n = keys_of(a, row).n;
    if (first < 0) return;
    const int32_t each = part_keys(n, n_split);
    const int32_t n_part = n > 0 ? (n + each - 1) / each : 1; /* later parts were empty */
    float lse = -INFINITY;
    if (static_cast<int32_t>(threadIdx.x) < n_part)
        lse = a.part_lse[(static_cast<int64_t>(first) + threadIdx.x) * a.n_head + head];
    const float max = bp_cuda::block_max<THREADS>(lse, -INFINITY, room);
    const float weight = lse == -INFINITY ? 0.0f : expf(lse - (max == -INFINITY ? 0.0f : max));
    weights[threadIdx.x] = weight;
    const float sum = bp_cuda::block_sum<THREADS>(weight, room);
    if (threadIdx.x == 0 && blockIdx.y == 0 && a.lse.data != nullptr)
        *reinterpret_cast<float *>(row_at(a.lse, row, head)) = lse_of(max, sum);
    __syncthreads();
    const int at = static_cast<int>(blockIdx.y) * WIDTH + lane * 4, n_latent = static_cast<int>(a.n_latent);
    float4 acc = {0.0f, 0.0f, 0.0f, 0.0f};
    if (at < n_latent) {
#pragma unroll 4
        for (int s = warp; s < n_part; s += WARPS) {
            const float w = weights[s];
            const float4 v = *reinterpret_cast<const float4 *>(part_row(a, static_cast<int64_t>(first) + s, head) + at);
            acc.x += w * v.x, acc.y += w * v.y, acc.z += w * v.z, acc.w += w * v.w;
        }
    }
    sums[warp][lane] = acc;
    __syncthreads();
    if (warp != 0) return;
#pragma unroll
    for (int w = 1; w < WARPS; ++w) {
        const float4 v = sums[w][lane];
        acc.x += v.x, acc.y += v.y, acc.z += v.z, acc.w += v.w;
    }
    const float inv = sum == 0.0f ? 0.0f : 1.0f / sum, out[4] = {acc.x * inv, acc.y * inv, acc.z * inv, acc.w * inv};
    unsigned char *to = row_at(a.out, row, head);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        if (at + i < n_latent) store_any(to, a.out.dtype, at + i, out[i]);
    }
}

} // namespace

int32_t attn_start_combine(const attn_decode *a, void *stream)
{
    const dim3 grid(a->n_row * a->n_head, (a->n_latent + WIDTH - 1) / WIDTH);
    return start(combine_kernel, grid, THREADS, 0, stream, *a);
}
