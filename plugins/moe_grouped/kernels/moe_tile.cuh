/* moe_tile.cuh - what the kernels over tiles share: which pairs a block has, and silu. SPDX-License-Identifier: MIT */
#ifndef MOE_TILE_CUH
#define MOE_TILE_CUH

#include <math.h>

#include "moe_kernels.h"

namespace moe
{

struct Tile {
    int expert, first, n; /* pairs list[first .. first + n) */
};

__device__ __forceinline__ int pair_of(const moe_call &c, int at)
{
    return c.list != nullptr ? c.list[at] : at;
}

/* false: the tile is empty. */
__device__ __forceinline__ bool find_tile(const moe_call &c, int at, Tile &t)
{
    if (c.tiles == nullptr) {
        const int n = c.n_tok * c.n_used;
        t.expert = 0;
        t.first = at * c.tile_tok;
        t.n = n - t.first < c.tile_tok ? n - t.first : c.tile_tok;
    } else {
        const int4 v = reinterpret_cast<const int4 *>(c.tiles)[at];
        t.expert = v.x;
        t.first = v.y;
        t.n = v.z;
    }
    return t.n > 0;
}

/* -inf gives 0 and not -inf / inf, which is NaN. */
__device__ __forceinline__ float silu(float v)
{
    return v == -INFINITY ? 0.0f : v / (1.0f + expf(-v));
}

} // namespace moe
#endif
