/* test_gguf_manifest.c - hashes against known values, the text form both ways, every malformed manifest, comparing.
 * SPDX-License-Identifier: MIT */
#include "unit/gguf/manifest_fixture.h"

#include <xxhash.h>

#define HASH_A "00112233445566778899aabbccddeeff"
#define HASH_B "ffeeddccbbaa99887766554433221100"

/* The specification's value for no bytes at all. */
#define HASH_EMPTY "99aa06d3014798d86001c324468d497f"

static void hash_text(const void *p, size_t n, char out[33])
{
    XXH128_hash_t h = XXH3_128bits(p, n);
    snprintf(out, 33, "%016llx%016llx", (unsigned long long)h.high64, (unsigned long long)h.low64);
}

START_TEST(hashes_are_those_of_the_bytes)
{
    struct image m = {0};
    img_small(&m);
    struct bpi_gguf *g = image_file(&m);
    struct bpi_pool *pool = NULL;
    struct bp_error err = BP_ERROR_INIT;
    ck_assert_int_eq(bpi_pool_create(3, &pool, &err), BP_OK);
    struct bpi_manifest *a = hashed(g, NULL), *b = hashed(g, pool);
    char *at = text_of(a), *bt = text_of(b), want[33];
    ck_assert_str_eq(at, bt);
    ck_assert_uint_eq(bpi_manifest_shards(a), 1);
    ck_assert_uint_eq(bpi_manifest_tensors(a), 3);
    ck_assert_uint_eq(bpi_manifest_bytes(a), m.n);
    ck_assert_str_eq(bpi_manifest_file(a), "image");
    struct bpi_manifest_line line;
    ck_assert(bpi_manifest_line(a, 0, &line));
    hash_text(m.p, m.n - (128 + 24), want);
    ck_assert_str_eq(line.hash, want);
    ck_assert_str_eq(line.type, "header");
    for (uint64_t i = 0; i < 3; ++i) {
        const struct bpi_gguf_tensor *t = bpi_gguf_tensor_at(g, i);
        ck_assert(bpi_manifest_line(a, i + 1, &line));
        hash_text(t->data, t->n_bytes, want);
        ck_assert_str_eq(line.hash, want);
        ck_assert_str_eq(line.name, t->name);
        ck_assert_uint_eq(line.n_bytes, t->n_bytes);
    }
    ck_assert_str_eq(line.type, "F16");
    ck_assert(!bpi_manifest_line(a, 4, &line));
    ck_assert_uint_eq(bpi_manifest_compare(a, b, NULL, NULL), 0);
    free(at);
    free(bt);
    bpi_manifest_destroy(a);
    bpi_manifest_destroy(b);
    bpi_pool_destroy(pool);
    bpi_gguf_close(g);
    img_free(&m);
}
END_TEST

/* Several pieces for one tensor, none for another. */
START_TEST(large_and_empty_tensors)
{
    enum { N = (3 << 20) + 17 };
    struct image m = {0};
    char want[33];
    img_header(&m, 3, 2, 0);
    img_tensor(&m, "none", 1, (const uint64_t[]){0}, BP_GGUF_F32, 0);
    img_tensor(&m, "large", 1, (const uint64_t[]){N}, BP_GGUF_I8, 0);
    img_pad(&m, 32);
    for (uint32_t i = 0; i < N; ++i) img_u8(&m, (i * 2654435761u) >> 24);
    struct bpi_gguf *g = image_file(&m);
    img_save(&m, "large_and_empty.gguf");
    struct bpi_gguf *f = NULL;
    struct bp_error err = BP_ERROR_INIT;
    ck_assert_msg(bpi_gguf_open("large_and_empty.gguf", &f, &err) == BP_OK, "%s", err.msg);
    struct bpi_manifest *a = hashed(g, NULL), *b = hashed(f, NULL);
    struct bpi_manifest_line line;
    ck_assert(bpi_manifest_line(b, 1, &line));
    ck_assert_str_eq(line.hash, HASH_EMPTY);
    ck_assert(bpi_manifest_line(b, 2, &line));
    hash_text(m.p + m.n - N, N, want);
    ck_assert_str_eq(line.hash, want);
    ck_assert_uint_eq(bpi_manifest_compare(a, b, NULL, NULL), 0);
    bpi_manifest_destroy(a);
    bpi_manifest_destroy(b);
    bpi_gguf_close(f);
    bpi_gguf_close(g);
    img_free(&m);
    ck_assert_int_eq(remove("large_and_empty.gguf"), 0);
}
END_TEST

/* ---- the text ---- */

#define HEAD(shards, tensors, bytes)                                                               \
    "backplane-manifest 1 xxh3-128 m.gguf shards " shards " tensors " tensors " bytes " bytes "\n"
#define SHARD(name) HASH_A " header 10 " name " -\n"
#define TENSOR(name) HASH_B " Q4_K 20 m.gguf " name "\n"

static int32_t parse(const char *text, size_t n, struct bpi_manifest **out, struct bp_error *err)
{
    *err = (struct bp_error)BP_ERROR_INIT;
    char *copy = malloc(n > 0 ? n : 1); /* exactly as long, for the sanitizer */
    if (n > 0) memcpy(copy, text, n);
    int32_t rc = bpi_manifest_parse(copy, n, "m.hash", out, err);
    free(copy);
    ck_assert_int_eq(rc, err->code);
    ck_assert((rc == BP_OK) == (*out != NULL));
    return rc;
}

START_TEST(text_goes_both_ways)
{
    static const char text[] =
        "backplane-manifest 1 xxh3-128 a%20b%25.gguf shards 2 tensors 3 bytes 1000\n" HASH_A
        " header 10 a%20b%25.gguf -\n" HASH_B " header 11 second.gguf -\n" HASH_A
        " Q4_K 144 second.gguf blk.0.attn%0A_q\n" HASH_B " F32 0 a%20b%25.gguf -\n" HASH_B
        " IQ2_XXS 66 second.gguf h\xc3\xa9\xff%7F\n";
    struct bpi_manifest *m;
    struct bp_error err;
    struct bpi_manifest_line line;
    ck_assert_msg(parse(text, strlen(text), &m, &err) == BP_OK, "%s", err.msg);
    ck_assert_str_eq(bpi_manifest_file(m), "a b%.gguf");
    ck_assert(bpi_manifest_line(m, 2, &line));
    ck_assert_str_eq(line.name, "blk.0.attn\n_q");
    ck_assert_str_eq(line.shard, "second.gguf");
    ck_assert(bpi_manifest_line(m, 4, &line));
    ck_assert_str_eq(line.name, "h\xc3\xa9\xff\x7f");
    char *again = text_of(m);
    ck_assert_str_eq(again, text);
    free(again);
    bpi_manifest_destroy(m);
}
END_TEST

static const struct {
    const char *text, *says;
} malformed[] = {
    {"", "line 1"},
    {"\n", "line 1: a field is empty"},
    {"hello world again\n", "backplane-manifest"},
    {"backplane-manifest\n", "backplane-manifest"},
    {"backplane-manifest one xxh3-128 m.gguf shards 1 tensors 0 bytes 10\n" SHARD("m.gguf"),
     "version"},
    {"backplane-manifest 1 xxh3-128 m.gguf shards 1 tensors 0\n" SHARD("m.gguf"), "must go on"},
    {"backplane-manifest 1 xxh3-128 m.gguf shards 1 tensors 0 bytes 10 x\n" SHARD("m.gguf"),
     "too many fields"},
    {HEAD("0", "1", "100") SHARD("m.gguf") TENSOR("a"), "counts"},
    {HEAD("4097", "1", "100") SHARD("m.gguf") TENSOR("a"), "counts"},
    {HEAD("1", "1048577", "100") SHARD("m.gguf") TENSOR("a"), "counts"},
    {HEAD("1", "1000000", "100") SHARD("m.gguf") TENSOR("a"), "more lines than"},
    {HEAD("1", "18446744073709551616", "100") SHARD("m.gguf"), "must go on"},
    {HEAD("1", "-1", "100") SHARD("m.gguf"), "must go on"},
    {HEAD("01", "1", "100") SHARD("m.gguf") TENSOR("a"), "must go on"},
    {HEAD("1", "2", "100") SHARD("m.gguf") TENSOR("a"), "line 4: the text ends"},
    {HEAD("1", "1", "100") SHARD("m.gguf") TENSOR("a") TENSOR("b"), "line 4: more lines follow"},
    {HEAD("1", "1", "100") SHARD("m.gguf") TENSOR("a") "\n", "line 4: more lines follow"},
    {HEAD("1", "1", "100") SHARD("m.gguf") HASH_B " Q4_K 20 m.gguf a", "no end"},
    {HEAD("1", "2", "100") SHARD("m.gguf") TENSOR("a") TENSOR("a"),
     "line 4: the name stands in an earlier line"},
    {HEAD("1", "2", "100") SHARD("m.gguf") TENSOR("a") TENSOR("%61"),
     "line 4: the name stands in an earlier line"},
    {HEAD("2", "0", "100") SHARD("m.gguf") SHARD("m.gguf"),
     "line 3: the name stands in an earlier line"},
    {HEAD("2", "1", "100") SHARD("m.gguf") TENSOR("a"), "line 3: a shard's line"},
    {HEAD("1", "1", "100") SHARD("m.gguf") SHARD("n.gguf"), "more headers"},
    {HEAD("1", "1", "100") SHARD("n.gguf") TENSOR("a"), "has no header line"},
    {HEAD("1", "1", "29") SHARD("m.gguf") TENSOR("a"), "line 3: with it there are more bytes"},
    {HEAD("1", "1", "100") SHARD("m.gguf") "0011 Q4_K 20 m.gguf a" HASH_A "\n", "32 digits"},
    {HEAD("1", "1", "100") SHARD("m.gguf") "00112233445566778899AABBCCDDEEFF Q4_K 20 m.gguf a\n",
     "lower case"},
    {HEAD("1", "1", "100") SHARD("m.gguf") "0011223344556677g899aabbccddeeff Q4_K 20 m.gguf a\n",
     "hexadecimal"},
    {HEAD("1", "1", "100") SHARD("m.gguf") HASH_B " Q4-K 20 m.gguf a\n", "not a word"},
    {HEAD("1", "1", "100") SHARD("m.gguf") HASH_B " Q4_KKKKKKKKKKKKKKKKKK 20 m.gguf a\n",
     "too long"},
    {HEAD("1", "1", "100") SHARD("m.gguf") HASH_B " Q4_K 2x m.gguf a\n", "no number"},
    {HEAD("1", "1", "100") SHARD("m.gguf") HASH_B " Q4_K 20 m.gguf\n", "five fields"},
    {HEAD("1", "1", "100") SHARD("m.gguf") HASH_B "  Q4_K 20 m.gguf a\n", "empty"},
    {HEAD("1", "1", "100") SHARD("m.gguf") TENSOR("%"), "%XX"},
    {HEAD("1", "1", "100") SHARD("m.gguf") TENSOR("a%2"), "%XX"},
    {HEAD("1", "1", "100") SHARD("m.gguf") TENSOR("%zz"), "%XX"},
    {HEAD("1", "1", "100") SHARD("m.gguf") TENSOR("a%00"), "%XX"},
    {HEAD("1", "1", "100") SHARD("m.gguf") TENSOR("a\tb"), "control"},
    {HEAD("1", "1", "100") SHARD("m.gguf") TENSOR("a\r"), "control"},
    {HEAD("1", "1", "100") SHARD("m.gguf")
         TENSOR("1234567890123456789012345678901234567890123456789012345678901234"),
     "too long"},
};

START_TEST(malformed_texts_are_refused)
{
    struct bpi_manifest *m;
    struct bp_error err;
    int32_t rc = parse(malformed[_i].text, strlen(malformed[_i].text), &m, &err);
    ck_assert_msg(rc == BP_E_FORMAT, "case %d: status %d", _i, rc);
    ck_assert_msg(strstr(err.msg, malformed[_i].says) != NULL, "case %d: %s", _i, err.msg);
    ck_assert_str_eq(err.where, "m.hash");
}
END_TEST

START_TEST(other_versions_zeros_and_long_lines)
{
    struct bpi_manifest *m;
    struct bp_error err;
    const char *next = "backplane-manifest 2 xxh3-128 m.gguf whatever\n";
    ck_assert_int_eq(parse(next, strlen(next), &m, &err), BP_E_UNSUPPORTED);
    next = "backplane-manifest 1 sha256 m.gguf shards 1 tensors 0 bytes 10\n" SHARD("m.gguf");
    ck_assert_int_eq(parse(next, strlen(next), &m, &err), BP_E_UNSUPPORTED);
    static const char zero[] =
        HEAD("1", "1", "100") SHARD("m.gguf") HASH_B " Q4_K 20 m.gguf a\0b\n";
    ck_assert_int_eq(parse(zero, sizeof zero - 1, &m, &err), BP_E_FORMAT);
    ck_assert(strstr(err.msg, "line 3: it has a zero byte") != NULL);
    char *line = malloc(1 << 20);
    memset(line, 'a', 1 << 20);
    ck_assert_int_eq(parse(line, 1 << 20, &m, &err), BP_E_FORMAT);
    ck_assert(strstr(err.msg, "line 1: the line is longer") != NULL);
    free(line);
}
END_TEST

/* Every beginning of a right text is refused, and every changed byte is refused or means something else. */
START_TEST(cut_or_changed_anywhere)
{
    struct image img = {0};
    img_small(&img);
    struct bpi_gguf *g = image_file(&img);
    struct bpi_manifest *right = hashed(g, NULL), *m;
    struct bp_error err;
    char *text = text_of(right);
    size_t n = strlen(text);
    for (size_t i = 0; i < n; ++i)
        if (parse(text, i, &m, &err) == BP_OK) ck_abort_msg("%zu of %zu bytes were accepted", i, n);
    for (size_t i = 0; i < n; ++i) {
        text[i] ^= 1;
        if (parse(text, n, &m, &err) == BP_OK) {
            char *again = text_of(m);
            if (strcmp(again, text) != 0) ck_abort_msg("byte %zu was read as something else", i);
            free(again);
            bpi_manifest_destroy(m);
        }
        text[i] ^= 1;
    }
    free(text);
    bpi_manifest_destroy(right);
    bpi_gguf_close(g);
    img_free(&img);
}
END_TEST

/* ---- comparing ---- */

struct seen {
    char text[4096];
    unsigned n;
};

static void see(void *ctx, uint32_t kind, const char *name, const char *shard, const char *text)
{
    static const char *const kinds[] = {"header", "damaged", "missing", "additional"};
    struct seen *s = ctx;
    size_t at = strlen(s->text);
    ck_assert_uint_lt(kind, 4);
    ck_assert_uint_gt(strlen(text), 10);
    snprintf(s->text + at, sizeof s->text - at, "%s %s %s;", kinds[kind], name, shard);
    s->n++;
}

static void compare(const char *want, const char *have, const char *expect)
{
    struct bpi_manifest *a, *b;
    struct bp_error err;
    struct seen s = {0};
    ck_assert_msg(parse(want, strlen(want), &a, &err) == BP_OK, "%s", err.msg);
    ck_assert_msg(parse(have, strlen(have), &b, &err) == BP_OK, "%s", err.msg);
    ck_assert_uint_eq(bpi_manifest_compare(a, b, see, &s), s.n);
    ck_assert_str_eq(s.text, expect);
    bpi_manifest_destroy(a);
    bpi_manifest_destroy(b);
}

START_TEST(differences_are_named)
{
    const char *base = HEAD("1", "2", "100") SHARD("m.gguf") TENSOR("a") TENSOR("b");
    compare(base, base, "");
    compare(base, HEAD("1", "2", "100") SHARD("m.gguf") TENSOR("b") TENSOR("a"), "");
    compare(base, HEAD("1", "2", "100") SHARD("m.gguf") TENSOR("a") HASH_A " Q4_K 20 m.gguf b\n",
            "damaged b m.gguf;");
    compare(base, HEAD("1", "2", "100") SHARD("m.gguf") TENSOR("a") HASH_B " Q5_K 20 m.gguf b\n",
            "damaged b m.gguf;");
    compare(base, HEAD("1", "2", "100") SHARD("m.gguf") HASH_B " Q4_K 21 m.gguf a\n" TENSOR("b"),
            "damaged a m.gguf;");
    compare(base, HEAD("1", "2", "100") HASH_B " header 10 m.gguf -\n" TENSOR("a") TENSOR("c"),
            "header - m.gguf;missing b m.gguf;additional c m.gguf;");
    /* Renamed files are no difference, another number of them is. */
    compare(base,
            HEAD("1", "2", "100") SHARD("x.gguf") HASH_B " Q4_K 20 x.gguf a\n" HASH_B
                                                         " Q4_K 20 x.gguf b\n",
            "");
    compare(base, HEAD("2", "2", "100") SHARD("m.gguf") SHARD("n.gguf") TENSOR("a") TENSOR("b"),
            "header - n.gguf;");
    compare(HEAD("2", "2", "100") SHARD("m.gguf") SHARD("n.gguf") TENSOR("a") TENSOR("b"), base,
            "header - n.gguf;");
}
END_TEST

int main(void)
{
    Suite *s = suite_create("gguf_manifest");
    TCase *t = tcase_create("manifest");
    tcase_set_timeout(t, 60);
    tcase_add_test(t, hashes_are_those_of_the_bytes);
    tcase_add_test(t, large_and_empty_tensors);
    tcase_add_test(t, text_goes_both_ways);
    tcase_add_loop_test(t, malformed_texts_are_refused, 0, (int)BPI_ARRAY_LEN(malformed));
    tcase_add_test(t, other_versions_zeros_and_long_lines);
    tcase_add_test(t, cut_or_changed_anywhere);
    tcase_add_test(t, differences_are_named);
    suite_add_tcase(s, t);
    return img_main(s);
}
