/* repack.cu - from blocks as the file has them to the planes of planes.cuh, and back to plain numbers; and plain numbers
 * from the blocks of types that are not repacked. Rows past the end of a weight and columns past its blocks are codes and
 * scales of zero. SPDX-License-Identifier: MIT */
#include "gemv_types.h"
#include "launch.h"
#include "planes.cuh"

#include "backplane/cuda/convert.cuh"

namespace
{

using planes::fmt;
using planes::LANES;
using planes::step;
using planes::STRIP;

constexpr int THREADS = 256;

/* ---- to planes ---- */

struct rows_in {
    const unsigned char *raw;
    unsigned char *out; /* of the first strip */
    int64_t raw_pitch, n_rows, cover, n_steps, pitch;
};

/* A block of threads writes one step of one strip. */
template <uint32_t TYPE> __global__ void __launch_bounds__(THREADS) repack_kernel(const rows_in in)
{
    using S = step<TYPE>;
    using B = bp::block<TYPE>;
    const int64_t strip = blockIdx.x / in.n_steps, at = blockIdx.x % in.n_steps;
    unsigned char *out = in.out + strip * in.pitch + at * S::BYTES;
    const int64_t first_row = strip * STRIP, first_col = at * S::K;
    for (int i = static_cast<int>(threadIdx.x); i < S::NQ * LANES * 4; i += THREADS) {
        const int w = i & 3, lane = i >> 2 & 31, v = i >> 7;
        const auto code = [&](int r, int G, int e) -> uint32_t {
            const int64_t row = first_row + (lane >> 2) + 8 * r;
            const int64_t col = first_col + planes::column_of<S::H::SUB16>(G, lane & 3, S::index_of(e));
            if (row >= in.n_rows || col >= in.cover) return 0;
            return fmt<TYPE>::code(in.raw + row * in.raw_pitch + col / B::n * B::bytes,
                                   static_cast<int>(col % B::n));
        };
        reinterpret_cast<uint32_t *>(out)[i] = S::C::pack(v, w, code);
    }
    if constexpr (!S::H::NONE) {
        const int r = static_cast<int>(threadIdx.x);
        if (r >= STRIP) return;
        const int64_t row = first_row + r;
        const auto block = [&](int n) -> const unsigned char * {
            const int64_t col = first_col + n * B::n;
            return row < in.n_rows && col < in.cover
                       ? in.raw + row * in.raw_pitch + col / B::n * B::bytes
                       : nullptr;
        };
        unsigned char *first = out + S::CODE_BYTES;
        S::H::store(block, first + r * S::H::HB, first + STRIP * S::H::HB + r * S::H::HB2);
    }
}

template <uint32_t TYPE> int32_t repack(const qg_repack &r, cudaStream_t stream)
{
    const int64_t strips = (r.n_rows + STRIP - 1) / STRIP, blocks = strips * r.w->n_steps;
    const rows_in in = {r.raw,       r.w->data + r.row / STRIP * r.w->pitch,
                        r.raw_pitch, r.n_rows,
                        r.w->cover,  r.w->n_steps,
                        r.w->pitch};
    if (blocks == 0) return static_cast<int32_t>(cudaSuccess);
    repack_kernel<TYPE><<<static_cast<unsigned>(blocks), THREADS, 0, stream>>>(in);
    return static_cast<int32_t>(cudaGetLastError());
}

/* ---- to numbers ---- */

struct rows_out {
    const unsigned char *data;
    void *y;
    int64_t pitch, n_steps, row, n_rows, y_stride, skip, cols;
    uint32_t y_dtype,
        aligned; /* aligned 1: runs of eight columns begin at multiples of 16 bytes, and are whole */
    float scale;
};

/* Element e, in the order of columns, of row g + 8 r of a group whose fragments are a. */
template <class S>
__device__ __forceinline__ float value_of(const S &s, const uint32_t (&a)[S::PARTS][2][4], int G,
                                          int r, int e)
{
    float v = 0.0f;
#pragma unroll
    for (int p = 0; p < S::PARTS; ++p) {
        const uint32_t w = a[p][e >> 2][r + 2 * (e >> 1 & 1)];
        const float part = __uint_as_float((e & 1) == 0 ? w << 16 : w & 0xffff0000u);
        v = S::PARTS == 1 ? part : v + part;
    }
    if constexpr (!S::H::NONE) v = __fmul_rn(s.h[r].scale(G, e >> 2), v);
    if constexpr (S::H::MIN) v = __fsub_rn(v, s.h[r].min(G, e >> 2));
    return v;
}

template <uint32_t TYPE, int G = 0>
__device__ __forceinline__ void put_groups(const step<TYPE> &s, const rows_out &o,
                                           int64_t first_row, int64_t first_col, int lane)
{
    if constexpr (G < step<TYPE>::GROUPS) {
        using S = step<TYPE>;
        constexpr int RUN = S::H::SUB16 ? 4 : 8; /* values that lie side by side */
        uint32_t a[S::PARTS][2][4];
#pragma unroll
        for (int p = 0; p < S::PARTS; ++p) {
            s.template fragment<G, 0>(a[p][0], p);
            s.template fragment<G, 1>(a[p][1], p);
        }
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const int64_t row = first_row + (lane >> 2) + 8 * r - o.row;
            if (row < 0 || row >= o.n_rows) continue;
#pragma unroll
            for (int e = 0; e < 8; e += RUN) {
                const int64_t col =
                    first_col + planes::column_of<S::H::SUB16>(G, lane & 3, e) - o.skip;
                float v[RUN];
#pragma unroll
                for (int i = 0; i < RUN; ++i) v[i] = value_of(s, a, G, r, e + i) * o.scale;
                if (o.aligned != 0) {
                    if (col < o.cols)
                        bp_cuda::store_any_vec(o.y, o.y_dtype, row * o.y_stride + col, v);
                    continue;
                }
#pragma unroll
                for (int i = 0; i < RUN; ++i) {
                    if (col + i >= 0 && col + i < o.cols)
                        bp_cuda::store_any(o.y, o.y_dtype, row * o.y_stride + col + i, v[i]);
                }
            }
        }
        put_groups<TYPE, G + 1>(s, o, first_row, first_col, lane);
    }
}

/* A warp writes one step of one strip. */
template <uint32_t TYPE>
__global__ void __launch_bounds__(THREADS) planes_kernel(const rows_out o, int64_t n_item)
{
    using S = step<TYPE>;
    const int64_t item = static_cast<int64_t>(blockIdx.x) * (THREADS / 32) + threadIdx.x / 32;
    const int lane = static_cast<int>(threadIdx.x) & 31;
    if (item >= n_item) return;
    const int64_t strip = o.row / STRIP + item / o.n_steps, at = item % o.n_steps;
    S s;
    s.begin(o.pitch);
    s.load(o.data + strip * o.pitch + at * S::BYTES, lane);
    s.open();
    put_groups<TYPE>(s, o, strip * STRIP, at * S::K, lane);
}

template <uint32_t TYPE> int32_t from_planes(const rows_out &o, cudaStream_t stream)
{
    const int64_t strips = (o.row + o.n_rows + STRIP - 1) / STRIP - o.row / STRIP,
                  n = strips * o.n_steps;
    if (n == 0) return static_cast<int32_t>(cudaSuccess);
    planes_kernel<TYPE>
        <<<static_cast<unsigned>((n + THREADS / 32 - 1) / (THREADS / 32)), THREADS, 0, stream>>>(o,
                                                                                                 n);
    return static_cast<int32_t>(cudaGetLastError());
}

/* One block of threads for a row and 4096 of its columns. */
constexpr int ROW_PART = 4096;
template <uint32_t TYPE>
__global__ void __launch_bounds__(THREADS) blocks_kernel(const rows_out o, int64_t parts)
{
    const int64_t row = blockIdx.x / parts, begin = blockIdx.x % parts * ROW_PART;
    const int64_t end = begin + ROW_PART < o.cols ? begin + ROW_PART : o.cols;
    const unsigned char *p = o.data + (o.row + row) * o.pitch;
    for (int64_t c = begin + threadIdx.x; c < end; c += THREADS)
        bp_cuda::store_any(o.y, o.y_dtype, row * o.y_stride + c,
                           bp::block<TYPE>::row_at(p, o.skip + c) * o.scale);
}
template <uint32_t TYPE> int32_t from_blocks(const rows_out &o, cudaStream_t stream)
{
    const int64_t parts = (o.cols + ROW_PART - 1) / ROW_PART, n = parts * o.n_rows;
    if (n == 0) return static_cast<int32_t>(cudaSuccess);
    blocks_kernel<TYPE><<<static_cast<unsigned>(n), THREADS, 0, stream>>>(o, parts);
    return static_cast<int32_t>(cudaGetLastError());
}

} // namespace

#define QG_CASE(NAME)                                                                              \
    case BP_GGUF_##NAME:                                                                           \
        return QG_RUN(BP_GGUF_##NAME);

extern "C" int32_t qg_repack_launch(const qg_repack *r, void *stream)
{
    const cudaStream_t s = static_cast<cudaStream_t>(stream);
#define QG_RUN(TYPE) repack<TYPE>(*r, s)
    switch (r->w->type) {
        QG_PLANES_MAP(QG_CASE)
    default:
        return static_cast<int32_t>(cudaErrorInvalidValue);
    }
#undef QG_RUN
}

extern "C" int32_t qg_dequant_launch(const qg_dequant *d, void *stream)
{
    const cudaStream_t s = static_cast<cudaStream_t>(stream);
    const qg_weight &w = *d->w;
    const bool aligned = w.skip == 0 && w.cols % 8 == 0 && d->y_stride % 8 == 0 &&
                         reinterpret_cast<uintptr_t>(d->y) % 16 == 0;
    const rows_out o = {w.data, d->y,       w.pitch,           w.n_steps,
                        d->row, d->n_rows,  d->y_stride,       w.skip,
                        w.cols, d->y_dtype, aligned ? 1u : 0u, w.scale};
    if (w.layout == QG_PLANES) {
#define QG_RUN(TYPE) from_planes<TYPE>(o, s)
        switch (w.type) {
            QG_PLANES_MAP(QG_CASE)
        default:
            return static_cast<int32_t>(cudaErrorInvalidValue);
        }
#undef QG_RUN
    }
#define QG_RUN(TYPE) from_blocks<TYPE>(o, s)
    switch (w.type) {
        QG_BLOCKS_MAP(QG_CASE)
        QG_ROWS_MAP(QG_CASE)
    default:
        return static_cast<int32_t>(cudaErrorInvalidValue);
    }
#undef QG_RUN
}

#define QG_BYTES(NAME)                                                                             \
    case BP_GGUF_##NAME:                                                                           \
        return step<BP_GGUF_##NAME>::BYTES;
#define QG_COLS(NAME)                                                                              \
    case BP_GGUF_##NAME:                                                                           \
        return step<BP_GGUF_##NAME>::K;
extern "C" int64_t qg_step_bytes(uint32_t type)
{
    switch (type) {
        QG_PLANES_MAP(QG_BYTES)
    default:
        return 0;
    }
}
extern "C" int64_t qg_step_cols(uint32_t type)
{
    switch (type) {
        QG_PLANES_MAP(QG_COLS)
        QG_ROWS_MAP(QG_COLS)
    default:
        return 0;
    }
}
extern "C" int64_t qg_block_elems(uint32_t type)
{
    return bp_block_elems(type);
}
extern "C" int64_t qg_block_bytes(uint32_t type)
{
    return bp_block_size(type);
}
