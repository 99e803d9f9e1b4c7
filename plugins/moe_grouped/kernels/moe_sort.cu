/* moe_sort.cu - pairs grouped by expert, and the tiles of each expert, without a word to the host.
 * One block per expert: it counts all ids, so that it knows where its part of the list begins, then writes its own pairs
 * in their order. Nothing passes between blocks, and the list does not depend on their order.
 * Also the sum of the parts of a token in the order of its choices (slot_moe.h).
 * SPDX-License-Identifier: MIT */
#include "moe_kernels.h"

#include <cuda_runtime.h>

namespace
{

constexpr int THREADS = 256, WARPS = THREADS / 32;
static_assert(MOE_MAX_EXPERT * 4 + 1024 <= 48 * 1024, "counters must fit in static shared memory");

/* Expert of pair i, counted from the first one here; -1: none of ours. */
__device__ int expert_of(const moe_sort_call &c, int i)
{
    const int id = c.ids[static_cast<int64_t>(i / c.n_used) * c.ids_stride + i % c.n_used] - c.begin;
    return id >= 0 && id < c.n ? id : -1;
}

/* Sum over the block, in all threads. */
__device__ int block_sum(int v, int *tmp)
{
    for (int d = 16; d > 0; d >>= 1) v += __shfl_xor_sync(0xffffffffu, v, d);
    __syncthreads();
    if ((threadIdx.x & 31) == 0) tmp[threadIdx.x / 32] = v;
    __syncthreads();
    int sum = 0;
    for (int i = 0; i < WARPS; ++i) sum += tmp[i];
    return sum;
}

/* Writes pairs of expert e to list[first..] in their order. */
__device__ void write_list(const moe_sort_call &c, int e, int first, int *tmp)
{
    const int lane = threadIdx.x & 31, warp = threadIdx.x / 32, n_pair = c.n_tok * c.n_used;
    for (int base = 0; base < n_pair; base += THREADS) {
        const int i = base + static_cast<int>(threadIdx.x);
        const bool mine = i < n_pair && expert_of(c, i) == e;
        const unsigned votes = __ballot_sync(0xffffffffu, mine);
        if (lane == 0) tmp[warp] = __popc(votes);
        __syncthreads();
        int before = 0, all = 0;
        for (int w = 0; w < WARPS; ++w) {
            before += w < warp ? tmp[w] : 0;
            all += tmp[w];
        }
        if (mine) c.list[first + before + __popc(votes & ((1u << lane) - 1u))] = i;
        first += all;
        __syncthreads();
    }
}

__device__ void write_tile(const moe_sort_call &c, int at, int e, int first, int n)
{
    int4 *tiles = reinterpret_cast<int4 *>(c.tiles);
    if (at < c.n_tile) tiles[at] = make_int4(e, first, n, 0);
}

__global__ void __launch_bounds__(THREADS) sort_kernel(moe_sort_call c)
{
    __shared__ int count[MOE_MAX_EXPERT], tmp[WARPS];
    const int e = static_cast<int>(blockIdx.x), n_pair = c.n_tok * c.n_used;
    for (int i = threadIdx.x; i < c.n; i += THREADS) count[i] = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < n_pair; i += THREADS) {
        const int other = expert_of(c, i);
        if (other >= 0) atomicAdd(&count[other], 1);
    }
    __syncthreads();
    int pairs = 0, tiles = 0, all = 0;
    for (int i = threadIdx.x; i < c.n; i += THREADS) {
        const int t = (count[i] + c.tile_tok - 1) / c.tile_tok;
        pairs += i < e ? count[i] : 0;
        tiles += i < e ? t : 0;
        all += t;
    }
    pairs = block_sum(pairs, tmp);
    tiles = block_sum(tiles, tmp);
    all = block_sum(all, tmp);
    const int n = count[e];
    for (int i = threadIdx.x; i * c.tile_tok < n; i += THREADS) {
        const int left = n - i * c.tile_tok;
        write_tile(c, tiles + i, e, pairs + i * c.tile_tok, left < c.tile_tok ? left : c.tile_tok);
    }
    /* What the bound leaves over is marked empty, each block a part of it. */
    for (int i = all + e * THREADS + static_cast<int>(threadIdx.x); i < c.n_tile; i += c.n * THREADS)
        write_tile(c, i, 0, 0, 0);
    __syncthreads();
    if (n > 0) write_list(c, e, pairs, tmp);
}

__global__ void __launch_bounds__(THREADS) sum_kernel(moe_sum_call c)
{
    const int64_t t = blockIdx.y;
    const int at = static_cast<int>(blockIdx.x) * THREADS + static_cast<int>(threadIdx.x);
    if (at >= c.n_col) return;
    float v = 0.0f;
    for (int k = 0; k < c.n_used; ++k) {
        const int id = c.ids[t * c.ids_stride + k] - c.begin;
        if (id < 0 || id >= c.n) continue;
        v += c.gates[t * c.gates_stride + k] * c.part[(t * c.n_used + k) * c.n_col + at];
    }
    if (c.part_shared != nullptr) v += c.part_shared[t * c.n_col + at];
    float *y = c.y + t * c.y_stride + c.col + at;
    *y = c.accumulate ? *y + v : v;
}

} // namespace

int32_t moe_launch_sort(const moe_sort_call *c, void *stream)
{
    sort_kernel<<<static_cast<unsigned>(c->n), THREADS, 0, static_cast<cudaStream_t>(stream)>>>(*c);
    return static_cast<int32_t>(cudaGetLastError());
}

int32_t moe_launch_sum(const moe_sum_call *c, void *stream)
{
    const dim3 grid(static_cast<unsigned>((c->n_col + THREADS - 1) / THREADS), static_cast<unsigned>(c->n_tok));
    sum_kernel<<<grid, THREADS, 0, static_cast<cudaStream_t>(stream)>>>(*c);
    return static_cast<int32_t>(cudaGetLastError());
}
