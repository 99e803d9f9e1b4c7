/* gguf_types.c - sizes of tensor types and of whole tensors.
 * Not here: the table itself (gguf_types.h, shared with core/block). Pure. SPDX-License-Identifier: MIT */
#include "gguf/gguf_types.h"
#include "gguf/gguf_priv.h"

// clang-format off
static const struct { uint32_t elems, bytes; } type_sizes[BP_GGUF_COUNT] = {
#define ROW(name, elems, bytes) [BP_GGUF_##name] = {elems, bytes},
    BPI_GGUF_TYPE_MAP(ROW)
#undef ROW
};
/* Numbers whose formats were taken out, with the names they had. */
static const struct { uint32_t type; const char *name; } removed_types[] = {
    {4, "Q4_2"}, {5, "Q4_3"}, {31, "Q4_0_4_4"}, {32, "Q4_0_4_8"}, {33, "Q4_0_8_8"}, {36, "IQ4_NL_4_4"},
    {37, "IQ4_NL_4_8"}, {38, "IQ4_NL_8_8"},
};
// clang-format on

static const char *const type_names[BP_GGUF_COUNT] = {
#define ROW(name, elems, bytes) [BP_GGUF_##name] = #name,
    BPI_GGUF_TYPE_MAP(ROW)
#undef ROW
};

const char *bpi_gguf_type_name(uint32_t type)
{
    return type < BP_GGUF_COUNT ? type_names[type] : NULL;
}

const char *bpi_gguf_removed_type(uint32_t type)
{
    for (size_t i = 0; i < BPI_ARRAY_LEN(removed_types); ++i) {
        if (removed_types[i].type == type) return removed_types[i].name;
    }
    return NULL;
}

bool bpi_gguf_type_sizes(uint32_t type, uint32_t *out_elems, uint32_t *out_bytes)
{
    if (type >= BP_GGUF_COUNT || type_sizes[type].elems == 0) return false;
    *out_elems = type_sizes[type].elems;
    *out_bytes = type_sizes[type].bytes;
    return true;
}

const char *bpi_gguf_tensor_bytes(uint32_t type, uint32_t n_dim, const int64_t *ne, uint64_t *out)
{
    uint32_t block, block_bytes;
    uint64_t n = 1, all = 1;
    if (!bpi_gguf_type_sizes(type, &block, &block_bytes)) return "has an unknown type";
    for (uint32_t i = 0; i < n_dim; ++i) {
        if (ne[i] < 0) return "has a negative dimension";
        /* A zero must not hide that the other dimensions overflow. */
        if (!bpi_mul_u64(all, ne[i] > 0 ? (uint64_t)ne[i] : 1, &all) || all > INT64_MAX)
            return "has more elements than 64 bits can count";
        n *= (uint64_t)ne[i];
    }
    if (ne[0] % block != 0) return "has a row that is no whole number of blocks";
    if (!bpi_mul_u64(n / block, block_bytes, out) || *out > INT64_MAX)
        return "has more bytes than 64 bits can count";
    return NULL;
}
