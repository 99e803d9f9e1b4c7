/* pick.cu - argmax and topk: exact, the lowest index on ties, NaN never chosen.
 * Number and index make one 64-bit choice (reduce.cuh), so ties need no rule of their own. argmax cuts a row into parts, one
 * block each; the block that ends last compares the parts. topk takes a block per row: radix select, eight bits a pass, until
 * exactly k are at or above the prefix (four passes unless numbers tie at the edge), then a sort of those k.
 * Integer atomics only, and nothing depends on their order. Not here: which problems are served (dense.c).
 * SPDX-License-Identifier: MIT */
#include "kernels.h"

#include <backplane/cuda/host.h>
#include <backplane/cuda/reduce.cuh>

namespace
{

using namespace bp_cuda;

constexpr int THREADS = 1024, PART = 4096, BINS = 256;

__global__ void __launch_bounds__(THREADS) argmax_kernel(dc_pick p, int n_parts)
{
    __shared__ uint64_t room[THREADS / 32];
    __shared__ bool last;
    const int64_t row = blockIdx.x / n_parts;
    const int part = static_cast<int>(blockIdx.x % n_parts);
    const float *x = p.x + row * p.x_stride;
    uint64_t best = 0;
    const int64_t step = static_cast<int64_t>(n_parts) * THREADS;
    for (int64_t i = static_cast<int64_t>(part) * THREADS + threadIdx.x; i < p.width; i += step)
        best = larger(best, choice(x[i], static_cast<uint32_t>(i)));
    best = block_max<THREADS>(best, uint64_t(0), room);
    uint64_t *parts = p.best + row * DC_MAX_PARTS;
    if (threadIdx.x == 0) {
        parts[part] = best;
        __threadfence();
        last = atomicAdd(p.arrived + row, 1u) == static_cast<uint32_t>(n_parts - 1);
    }
    __syncthreads();
    if (!last || threadIdx.x >= 32) return;
    __threadfence();
    const int lane = static_cast<int>(threadIdx.x);
    best = warp_max(lane < n_parts ? static_cast<uint64_t>(__ldcg(parts + lane)) : uint64_t(0));
    if (lane != 0) return;
    const int32_t id = choice_index(best);
    p.ids[row * p.id_stride] = id;
    if (p.values != nullptr) p.values[row * p.value_stride] = id >= 0 ? x[id] : -INFINITY;
    p.arrived[row] = 0; /* as found, for the next call */
}

/* What the passes agree on; written by the first warp. */
struct state {
    uint64_t prefix;  /* of the choice at the edge */
    int64_t need;     /* choices with this prefix that are still wanted */
    uint32_t n_equal; /* choices with this prefix */
    uint32_t n_all;   /* numbers of the row that are not NaN */
    uint32_t n_out;
};

/* The bin in which the need-th largest lies. Called by the first warp; lane 0 has the highest eight bins. */
__device__ void find_bin(const uint32_t *bins, int shift, state &s)
{
    const int lane = static_cast<int>(threadIdx.x);
    uint32_t own = 0;
    for (int i = 0; i < 8; ++i) own += bins[BINS - 1 - 8 * lane - i];
    uint32_t upto = own;
    for (int step = 1; step < 32; step *= 2) {
        const uint32_t below = __shfl_up_sync(FULL_WARP, upto, step);
        if (lane >= step) upto += below;
    }
    const int64_t need = s.need;
    __syncwarp();
    if (lane == 31 && shift == 56) s.n_all = upto;
    int64_t above = static_cast<int64_t>(upto - own);
    if (above >= need || static_cast<int64_t>(upto) < need) return;
    for (int i = 0; i < 8; ++i) {
        const int bin = BINS - 1 - 8 * lane - i;
        if (above + bins[bin] < need) {
            above += bins[bin];
            continue;
        }
        s.prefix |= static_cast<uint64_t>(bin) << shift;
        s.need = need - above;
        s.n_equal = bins[bin];
        return;
    }
}

/* The least choice that is among the k largest, with the bits below the last pass 0; 1 when all numbers are. */
__device__ uint64_t find_edge(const float *x, int64_t width, int64_t k, uint32_t *bins, state &s)
{
    if (threadIdx.x == 0) s = {0, k, 0, 0, 0};
    for (int shift = 56; shift >= 0; shift -= 8) {
        __syncthreads();
        if (threadIdx.x < BINS) bins[threadIdx.x] = 0;
        __syncthreads();
        const uint64_t mask = shift == 56 ? 0 : ~uint64_t(0) << (shift + 8), prefix = s.prefix;
#pragma unroll 4
        for (int64_t i = threadIdx.x; i < width; i += THREADS) {
            const uint64_t c = choice(x[i], static_cast<uint32_t>(i));
            if (c != 0 && (c & mask) == prefix) atomicAdd(bins + (c >> shift & (BINS - 1)), 1u);
        }
        __syncthreads();
        if (threadIdx.x < 32) find_bin(bins, shift, s);
        __syncthreads();
        if (static_cast<int64_t>(s.n_all) <= k) return 1;
        if (static_cast<int64_t>(s.n_equal) == s.need) break;
    }
    return s.prefix;
}

__global__ void __launch_bounds__(THREADS) topk_kernel(dc_pick p, int n_sorted)
{
    extern __shared__ uint64_t chosen[];
    __shared__ uint32_t bins[BINS];
    __shared__ state s;
    static_assert(DC_MAX_K * sizeof(uint64_t) + sizeof(bins) + sizeof(s) <= BP_CUDA_SMEM_MAX,
                  "fits every chip");
    const int64_t row = blockIdx.x;
    const float *x = p.x + row * p.x_stride;
    const uint64_t edge = find_edge(x, p.width, p.k, bins, s);
    for (int i = static_cast<int>(threadIdx.x); i < n_sorted; i += THREADS) chosen[i] = 0;
    __syncthreads();
#pragma unroll 4
    for (int64_t i = threadIdx.x; i < p.width; i += THREADS) {
        const uint64_t c = choice(x[i], static_cast<uint32_t>(i));
        if (c >= edge) chosen[atomicAdd(&s.n_out, 1u)] = c;
    }
    for (int size = 2; size <= n_sorted; size *= 2) {
        for (int step = size / 2; step > 0; step /= 2) {
            __syncthreads();
            for (int i = static_cast<int>(threadIdx.x); i < n_sorted / 2; i += THREADS) {
                const int low = 2 * i - (i & (step - 1)), high = low + step;
                const bool down = (low & size) == 0;
                const uint64_t a = chosen[low], b = chosen[high];
                if ((a < b) != down) continue;
                chosen[low] = b;
                chosen[high] = a;
            }
        }
    }
    __syncthreads();
    for (int64_t i = threadIdx.x; i < p.k; i += THREADS) {
        const int32_t id = choice_index(chosen[i]);
        p.ids[row * p.id_stride + i] = id;
        if (p.values != nullptr) p.values[row * p.value_stride + i] = id >= 0 ? x[id] : -INFINITY;
    }
}

} // namespace

int32_t dc_start_argmax(const dc_pick *p, void *stream)
{
    const int64_t parts = (p->width + PART - 1) / PART;
    const int n_parts = static_cast<int>(parts < 1              ? 1
                                         : parts < DC_MAX_PARTS ? parts
                                                                : DC_MAX_PARTS);
    argmax_kernel<<<static_cast<unsigned>(p->n_rows * n_parts), THREADS, 0,
                    static_cast<cudaStream_t>(stream)>>>(*p, n_parts);
    return cudaGetLastError();
}

int32_t dc_start_topk(const dc_pick *p, void *stream)
{
    int n_sorted = 64;
    while (n_sorted < p->k) n_sorted *= 2;
    const int n_bytes = n_sorted * static_cast<int>(sizeof(uint64_t));
    if (n_bytes > 48 * 1024) {
        const cudaError_t e =
            cudaFuncSetAttribute(topk_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, n_bytes);
        if (e != cudaSuccess) return cudaGetLastError();
    }
    topk_kernel<<<static_cast<unsigned>(p->n_rows), THREADS, static_cast<size_t>(n_bytes),
                  static_cast<cudaStream_t>(stream)>>>(*p, n_sorted);
    return cudaGetLastError();
}
