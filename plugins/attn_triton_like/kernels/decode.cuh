/* decode.cuh - what both decode kernels share: which keys an item covers, where they lie, where its result goes.
 * Header only, CUDA C++17. SPDX-License-Identifier: MIT */
#ifndef ATTN_DECODE_CUH
#define ATTN_DECODE_CUH

#include "attn.cuh"

/* Keys [begin, end) of a row, positions or entries of its list. Lengths are read here, on the device: under a captured
 * graph they differ from replay to replay. */
struct row_keys {
    const int32_t *list; /* token slots; NULL: all positions */
    const int32_t *table; /* the sequence's blocks */
    int32_t n;           /* keys of the row */
};
__device__ __forceinline__ row_keys keys_of(const attn_decode &a, int32_t row)
{
    row_keys k;
    const int32_t seq = load_now(a.row_seq + row);
    const int32_t n_list = a.idx.data != nullptr ? load_now(a.idx_len + row * a.idx_len_stride) : -1;
    k.n = load_now(a.row_kv_len + row);
    k.list = nullptr;
    k.table = nullptr;
    if (k.n <= 0) { /* padding, whatever its sequence and list say */
        k.n = 0;
        return k;
    }
    k.table = a.block_table + seq * a.table_stride;
    if (n_list < 0) return k;
    k.n = n_list;
    k.list = static_cast<const int32_t *>(a.idx.data) + row * a.idx.row;
    return k;
}

/* An item of the list, which may be past its end: plan memory has room for it, and asked for together with the number of
 * items it comes sooner. */
__device__ __forceinline__ attn_item item_at(const attn_decode &a, uint32_t number)
{
    attn_item i;
    asm volatile("ld.global.v4.s32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(i.row), "=r"(i.split), "=r"(i.n_split), "=r"(i.part)
                 : "l"(__cvta_generic_to_global(a.items + number)));
    return i;
}

/* Keys of one part when a row of n keys is cut into n_split. */
__device__ __forceinline__ int32_t part_keys(int32_t n, int32_t n_split)
{
    const int32_t each = (n + n_split - 1) / n_split;
    return (each + ATTN_KEY_STEP - 1) / ATTN_KEY_STEP * ATTN_KEY_STEP;
}

/* The cached row of key `at`, NULL for an entry that is to be skipped. */
__device__ __forceinline__ const unsigned char *key_row(const attn_pool &pool, const row_keys &k, int32_t at)
{
    if (k.list != nullptr) {
        const int32_t slot = k.list[at];
        return slot < 0 ? nullptr : pool_row(pool, slot);
    }
    const uint32_t block = static_cast<uint32_t>(at) / pool.block_tok;
    return pool.data + k.table[block] * pool.block_bytes + (at - block * pool.block_tok) * pool.row_bytes;
}

/* The LSE of an online softmax that ended with this maximum and sum; no keys give -inf. */
__device__ __forceinline__ float lse_of(float max, float sum)
{
    return sum == 0.0f ? -INFINITY : max + logf(sum);
}

/* Where a part's latents of one head lie: f32, normalised by the part's own sum, rows of whole 16 bytes. */
__device__ __forceinline__ float *part_row(const attn_decode &a, int64_t part, int head)
{
    return a.part_out + (part * a.n_head + head) * ((a.n_latent + 3u) & ~3u);
}

#endif
