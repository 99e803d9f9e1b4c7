/* pick.cu - argmax and topk: exact, the lowest index on ties, NaN never chosen.
 * Number and index make one 64-bit choice (reduce.cuh), so ties need no rule of their own. argmax cuts a row into
 * parts, one block each; the block that ends last compares the parts. topk takes a block per row and finds a bound
 * that lets few choices pass: for k up to THREADS the k-th of the threads' own maxima, else, or when too many
 * pass, the bin of the leading twelve bits in which the k-th lies. What passes is gathered in shared memory, radix
 * passes of eight bits find the edge there, and the k are sorted. Where more than DC_MAX_K numbers share the
 * leading bits, the passes read the row instead.
 * Integer atomics only, and nothing depends on their order. Not here: which problems are served (dense.c).
 * SPDX-License-Identifier: MIT */
#include "kernels.h"

#include <backplane/cuda/host.h>
#include <backplane/cuda/reduce.cuh>

namespace
{

using namespace bp_cuda;

constexpr int THREADS = 1024, PART = 4096, BINS = 256, COARSE = 4096, ENOUGH = 264;

/* f(number, index) for all numbers of a row, in no order; four loads of four numbers are under way before the
 * first is used, whatever the row's alignment. */
template <class F> __device__ void each_number(const float *x, int64_t width, F f)
{
    constexpr int DEEP = 4;
    const int64_t to_16 =
        static_cast<int64_t>((16 - (reinterpret_cast<uintptr_t>(x) & 15)) & 15) / 4;
    const int64_t head = to_16 < width ? to_16 : width, n = (width - head) / 4, tid = threadIdx.x;
    const float4 *v = reinterpret_cast<const float4 *>(x + head);
    if (tid < head) f(x[tid], static_cast<uint32_t>(tid));
    for (int64_t i = tid; i < n; i += DEEP * THREADS) {
        float4 q[DEEP];
#pragma unroll
        for (int j = 0; j < DEEP; ++j) {
            if (i + j * THREADS < n) q[j] = v[i + j * THREADS];
        }
#pragma unroll
        for (int j = 0; j < DEEP; ++j) {
            if (i + j * THREADS >= n) break;
            const uint32_t at = static_cast<uint32_t>(head + 4 * (i + j * THREADS));
            f(q[j].x, at);
            f(q[j].y, at + 1);
            f(q[j].z, at + 2);
            f(q[j].w, at + 3);
        }
    }
    const int64_t at = head + 4 * n + tid;
    if (at < width) f(x[at], static_cast<uint32_t>(at));
}

/* `each` numbers, a multiple of four, are a part's share. */
__global__ void __launch_bounds__(THREADS) argmax_kernel(dc_pick p, int n_parts, int64_t each)
{
    __shared__ uint64_t room[THREADS / 32];
    __shared__ bool last;
    const int64_t row = blockIdx.x / n_parts;
    const int part = static_cast<int>(blockIdx.x % n_parts);
    const float *x = p.x + row * p.x_stride;
    const int64_t begin = part * each, rest = p.width - begin;
    uint64_t best = 0;
    each_number(x + begin, rest < each ? rest : each, [&](float v, uint32_t i) {
        best = larger(best, choice(v, static_cast<uint32_t>(begin) + i));
    });
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

/* A place of its own for each thread that is here, one atomic for those of a warp that are here together. */
__device__ uint32_t next_place(uint32_t *n)
{
    const unsigned here = __activemask(), lane = threadIdx.x % 32;
    const int first = __ffs(static_cast<int>(here)) - 1;
    uint32_t at = 0;
    if (static_cast<int>(lane) == first) at = atomicAdd(n, static_cast<uint32_t>(__popc(here)));
    return __shfl_sync(here, at, first) + static_cast<uint32_t>(__popc(here & ((1u << lane) - 1)));
}

/* What the passes agree on. */
struct state {
    uint64_t prefix;  /* of the choice at the edge */
    int64_t need;     /* choices with this prefix that are still wanted */
    uint32_t n_equal; /* choices with this prefix */
    uint32_t n_out;   /* choices stored so far */
    uint32_t n_all;   /* numbers of the row that are not NaN */
};

/* The first pass looks at twelve bits: sign, exponent and three of the fraction. Finds the bin in which the k-th
 * largest lies; n_equal is what it holds, need what is wanted of it. */
__device__ void find_coarse(const uint32_t *bins, int64_t k, uint32_t (&room)[THREADS / 32],
                            state &s)
{
    static_assert(COARSE == 4 * THREADS, "four bins a thread");
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
    const int top =
        COARSE - 1 - 4 * static_cast<int>(threadIdx.x); /* thread 0 has the highest four */
    const uint32_t own = bins[top] + bins[top - 1] + bins[top - 2] + bins[top - 3];
    uint32_t upto = own;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const uint32_t before = __shfl_up_sync(FULL_WARP, upto, step);
        if (lane >= step) upto += before;
    }
    if (lane == 31) room[warp] = upto;
    __syncthreads();
    uint32_t warps_before = 0, all = 0;
#pragma unroll
    for (int i = 0; i < THREADS / 32; ++i) {
        if (i == warp) warps_before = all;
        all += room[i];
    }
    int64_t above = static_cast<int64_t>(warps_before) + upto - own;
    if (threadIdx.x == 0) s.n_all = all;
    if (above >= k || above + own < k) return;
    for (int bin = top;; --bin) {
        if (above + bins[bin] >= k) {
            s.prefix = static_cast<uint64_t>(bin) << 52;
            s.need = k - above;
            s.n_equal = bins[bin];
            return;
        }
        above += bins[bin];
    }
}

/* The bin, of eight bits, in which the need-th largest lies. Called by the first warp; lane 0 has the highest
 * eight bins. */
__device__ void find_bin(const uint32_t *bins, int shift, state &s)
{
    const int lane = static_cast<int>(threadIdx.x);
    uint32_t own = 0;
    for (int i = 0; i < 8; ++i) own += bins[BINS - 1 - 8 * lane - i];
    uint32_t upto = own;
    for (int step = 1; step < 32; step *= 2) {
        const uint32_t before = __shfl_up_sync(FULL_WARP, upto, step);
        if (lane >= step) upto += before;
    }
    const int64_t need = s.need;
    __syncwarp();
    int64_t above = static_cast<int64_t>(upto - own);
    if (above >= need || static_cast<int64_t>(upto) < need) return;
    for (int bin = BINS - 1 - 8 * lane;; --bin) {
        if (above + bins[bin] >= need) {
            s.prefix |= static_cast<uint64_t>(bin) << shift;
            s.need = need - above;
            s.n_equal = bins[bin];
            return;
        }
        above += bins[bin];
    }
}

/* The least choice that is among the wanted, bits below the last pass 0. s.prefix holds the bits from `known`
 * upwards, s.need how many of those with this prefix are wanted: fewer than there are. each(f) calls f with every
 * choice. */
template <class EACH> __device__ uint64_t find_edge(int known, uint32_t *bins, state &s, EACH each)
{
    while (known > 0) {
        const int shift = known > 8 ? known - 8 : 0;
        __syncthreads();
        if (threadIdx.x < BINS) bins[threadIdx.x] = 0;
        __syncthreads();
        const uint64_t mask = known < 64 ? ~uint64_t(0) << known : 0, prefix = s.prefix;
        each([&](uint64_t c) {
            if ((c & mask) == prefix) atomicAdd(bins + (c >> shift & (BINS - 1)), 1u);
        });
        __syncthreads();
        if (threadIdx.x < 32) find_bin(bins, shift, s);
        __syncthreads();
        known = shift;
        if (static_cast<int64_t>(s.n_equal) == s.need) break;
    }
    return s.prefix;
}

/* Leaves in chosen[] what is at or above the edge, which is at most k; each thread carries its part of what lies
 * there. */
__device__ void keep_above(uint64_t *chosen, int n, uint64_t edge, state &s)
{
    uint64_t mine[DC_MAX_K / THREADS];
#pragma unroll
    for (int i = 0; i < DC_MAX_K / THREADS; ++i) {
        const int at = static_cast<int>(threadIdx.x) + i * THREADS;
        mine[i] = at < n ? chosen[at] : 0;
    }
    __syncthreads();
    if (threadIdx.x == 0) s.n_out = 0;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < DC_MAX_K / THREADS; ++i) {
        if (mine[i] != 0 && mine[i] >= edge) chosen[next_place(&s.n_out)] = mine[i];
    }
}

__device__ void sort_down(uint64_t *chosen, int n)
{
    for (int size = 2; size <= n; size *= 2) {
        for (int step = size / 2; step > 0; step /= 2) {
            __syncthreads();
            for (int i = static_cast<int>(threadIdx.x); i < n / 2; i += THREADS) {
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
}

/* Where k is at most THREADS: the k-th largest of what each thread's part of the row has as its largest. At least
 * k choices are that large, and seldom many more. 1 when there are not so many. */
__device__ uint64_t find_bound(const dc_pick &p, const float *x, uint64_t *chosen)
{
    uint64_t best = 0;
    each_number(x, p.width, [&](float v, uint32_t i) { best = larger(best, choice(v, i)); });
    chosen[threadIdx.x] = best;
    sort_down(chosen, THREADS);
    const uint64_t bound = chosen[p.k - 1];
    __syncthreads();
    return bound != 0 ? bound : 1;
}

/* Any k: the bin of the leading twelve bits in which the k-th largest lies. Sets s.prefix, s.need, s.n_equal,
 * s.n_all. */
__device__ void find_bins(const dc_pick &p, const float *x, uint32_t *bins,
                          uint32_t (&room)[THREADS / 32], state &s)
{
    for (int i = static_cast<int>(threadIdx.x); i < COARSE; i += THREADS) bins[i] = 0;
    if (threadIdx.x == 0) s = {0, 0, 0, 0, 0};
    __syncthreads();
    each_number(x, p.width, [&](float v, uint32_t) {
        const uint32_t key = order_key(v);
        if (key != 0) atomicAdd(bins + (key >> 20), 1u);
    });
    __syncthreads();
    find_coarse(bins, p.k, room, s);
    __syncthreads();
}

/* Puts all choices from the edge on into chosen[], as many as there is room for; returns how many there are. */
__device__ uint32_t gather(const dc_pick &p, const float *x, uint64_t edge, uint64_t *chosen,
                           state &s)
{
    if (threadIdx.x == 0) s.n_out = 0;
    __syncthreads();
    each_number(x, p.width, [&](float v, uint32_t i) {
        const uint64_t c = choice(v, i);
        if (c == 0 || c < edge) return;
        const uint32_t at = next_place(&s.n_out);
        if (at < DC_MAX_K) chosen[at] = c;
    });
    __syncthreads();
    return s.n_out;
}

__global__ void __launch_bounds__(THREADS) topk_kernel(dc_pick p)
{
    extern __shared__ uint64_t chosen[]; /* DC_MAX_K of them */
    __shared__ uint32_t bins[COARSE], room[THREADS / 32];
    __shared__ state s;
    static_assert(DC_MAX_K * sizeof(uint64_t) + sizeof(bins) + sizeof(room) + sizeof(s) <=
                      BP_CUDA_SMEM_MAX,
                  "fits every chip");
    const int64_t row = blockIdx.x;
    const float *x = p.x + row * p.x_stride;
    uint32_t n = DC_MAX_K + 1;
    if (p.k <= THREADS) n = gather(p, x, find_bound(p, x, chosen), chosen, s);
    const bool bounded = n <= DC_MAX_K;
    if (!bounded) {
        find_bins(p, x, bins, room, s);
        const bool all = static_cast<int64_t>(s.n_all) <= p.k;
        const int64_t n_bin =
            all ? s.n_all : p.k - s.need + s.n_equal; /* in the bin of the edge, or above it */
        uint64_t edge = all ? 1 : s.prefix;
        if (n_bin > DC_MAX_K) {
            edge = find_edge(52, bins, s, [&](auto f) {
                each_number(x, p.width, [&](float v, uint32_t i) {
                    const uint64_t c = choice(v, i);
                    if (c != 0) f(c);
                });
            });
        }
        n = gather(p, x, edge, chosen, s);
    }
    int n_sorted = 64;
    while (n_sorted < p.k) n_sorted *= 2;
    if (n > static_cast<uint32_t>(n_sorted)) { /* sorting is for few */
        if (bounded) {
            __syncthreads();
            if (threadIdx.x == 0) s = {0, p.k, 0, n, n};
        }
        const uint64_t edge = find_edge(bounded ? 64 : 52, bins, s, [&](auto f) {
            for (uint32_t i = threadIdx.x; i < n; i += THREADS) f(chosen[i]);
        });
        keep_above(chosen, static_cast<int>(n), edge, s);
        __syncthreads();
        n = s.n_out;
    }
    for (int i = static_cast<int>(n + threadIdx.x); i < n_sorted; i += THREADS) chosen[i] = 0;
    sort_down(chosen, n_sorted);
    for (int64_t i = threadIdx.x; i < p.k; i += THREADS) {
        const int32_t id = choice_index(chosen[i]);
        p.ids[row * p.id_stride + i] = id;
        if (p.values != nullptr) p.values[row * p.value_stride + i] = id >= 0 ? x[id] : -INFINITY;
    }
}

} // namespace

/* Parts enough to fill the device with few rows; with many, one each is best. */
int32_t dc_start_argmax(const dc_pick *p, void *stream)
{
    const int64_t by_width = (p->width + PART - 1) / PART,
                  by_rows = (ENOUGH + p->n_rows - 1) / p->n_rows;
    const int64_t wanted = by_width < by_rows ? by_width : by_rows,
                  most = wanted < DC_MAX_PARTS ? wanted : DC_MAX_PARTS;
    const int64_t each = ((p->width + most - 1) / most + 3) / 4 * 4;
    const int n_parts = static_cast<int>((p->width + each - 1) / each);
    argmax_kernel<<<static_cast<unsigned>(p->n_rows * n_parts), THREADS, 0,
                    static_cast<cudaStream_t>(stream)>>>(*p, n_parts, each);
    return cudaGetLastError();
}

int32_t dc_start_topk(const dc_pick *p, void *stream)
{
    constexpr int N_BYTES = DC_MAX_K * static_cast<int>(sizeof(uint64_t));
    const cudaError_t e =
        cudaFuncSetAttribute(topk_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, N_BYTES);
    if (e != cudaSuccess) return cudaGetLastError();
    topk_kernel<<<static_cast<unsigned>(p->n_rows), THREADS, N_BYTES,
                  static_cast<cudaStream_t>(stream)>>>(*p);
    return cudaGetLastError();
}
