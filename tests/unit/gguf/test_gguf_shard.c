/* test_gguf_shard.c - models in several files: right sets, and every way to hand over a wrong one.
 * Each case writes a set of three shards with one thing changed and says which file is opened and what must come of
 * it. SPDX-License-Identifier: MIT */
#include <sys/stat.h>
#include <unistd.h>
#include "unit/gguf/gguf_image.h"
#include "unit/gguf/gguf_walk.h"

enum { N_SHARDS = 3, KEEP = -1, LEAVE_OUT = -2 };

/* What a shard says of itself; KEEP stands for the right number, LEAVE_OUT for no such key. */
struct shard {
    int no, count, total;
    int n_tensors;          /* KEEP: 2 */
    const char *first_name; /* of its first tensor, if not the right one */
    bool missing, text, cut;
};

static const struct shard right = {KEEP, KEEP, KEEP, KEEP, NULL, false, false, false};

static void file_name(char path[64], unsigned shard)
{
    snprintf(path, 64, "set-%05u-of-%05d.gguf", shard + 1, N_SHARDS);
}

static void put_split(struct image *m, const char *key, uint32_t kind, int value, int right_value)
{
    if (value == LEAVE_OUT) return;
    uint32_t v = (uint32_t)(value == KEEP ? right_value : value);
    img_key(m, key, kind);
    img_bytes(m, &v, kind == BPI_GGUF_U16 ? 2 : 4);
}

/* Every shard has its own alignment, so that each offset must be read by its own file's rule. */
static void write_shard(unsigned i, const struct shard *s, int right_total, const char *path)
{
    struct image m = {0};
    const unsigned n = s->n_tensors == KEEP ? 2 : (unsigned)s->n_tensors;
    const uint64_t align = UINT64_C(32) << i;
    const uint64_t n_kv =
        2 + (uint64_t)((s->no != LEAVE_OUT) + (s->count != LEAVE_OUT) + (s->total != LEAVE_OUT));
    img_header(&m, 3, n, n_kv);
    img_kv_str(&m, "general.architecture", i == 0 ? "first" : "other");
    img_kv_u32(&m, "general.alignment", (uint32_t)align);
    put_split(&m, "split.no", BPI_GGUF_U16, s->no, (int)i);
    put_split(&m, "split.count", BPI_GGUF_U16, s->count, N_SHARDS);
    put_split(&m, "split.tensors.count", BPI_GGUF_I32, s->total, right_total);
    for (unsigned k = 0; k < n; ++k) {
        char name[32];
        snprintf(name, sizeof name, "t.%u.%u", i, k);
        img_tensor2(&m, k == 0 && s->first_name != NULL ? s->first_name : name, 8, 1, BP_GGUF_I8,
                    k * align);
    }
    img_pad(&m, align);
    for (unsigned k = 0; k < n; ++k) {
        img_pad(&m, align);
        img_fill(&m, 16 * i + k, 8);
    }
    if (s->cut) --m.n;
    if (s->text) m.n = 0, img_text(&m, "Not found");
    img_save(&m, path);
    img_free(&m);
}

static void write_set(const struct shard shards[N_SHARDS])
{
    int total = 0;
    for (int i = 0; i < N_SHARDS; ++i)
        total += shards[i].n_tensors == KEEP ? 2 : shards[i].n_tensors;
    for (unsigned i = 0; i < N_SHARDS; ++i) {
        char path[64];
        file_name(path, i);
        (void)unlink(path);
        if (!shards[i].missing) write_shard(i, &shards[i], total, path);
    }
}

static void enter_folder(void)
{
    static const char folder[] = "gguf_shard_files";
    ck_assert(mkdir(folder, 0777) == 0 || access(folder, W_OK) == 0);
    ck_assert_int_eq(chdir(folder), 0);
}

static void expect_whole(const char *path, unsigned n_in_first)
{
    struct bpi_gguf *g = NULL;
    struct bp_error err = BP_ERROR_INIT;
    struct bpi_span arch;
    ck_assert_msg(bpi_gguf_open(path, &g, &err) == BP_OK, "%s", err.msg);
    ck_assert_uint_eq(bpi_gguf_shards(g), N_SHARDS);
    ck_assert_uint_eq(bpi_gguf_n_tensors(g), n_in_first + 4);
    ck_assert_int_eq(bpi_gguf_get_str(g, "general.architecture", &arch, NULL, &err), BP_OK);
    ck_assert(arch.n == 5 && memcmp(arch.data, "first", 5) == 0);
    for (unsigned i = 0, at = 0; i < N_SHARDS; ++i) {
        ck_assert_uint_eq(bpi_gguf_alignment(g, i), UINT64_C(32) << i);
        for (unsigned k = 0; k < (i == 0 ? n_in_first : 2); ++k, ++at) {
            char name[32];
            snprintf(name, sizeof name, "t.%u.%u", i, k);
            const struct bpi_gguf_tensor *t = bpi_gguf_tensor(g, name);
            ck_assert_ptr_nonnull(t);
            ck_assert_ptr_eq(t, bpi_gguf_tensor_at(g, at));
            ck_assert_uint_eq(t->shard, i);
            ck_assert_uint_eq(t->data[7], 16 * i + k);
        }
    }
    (void)walk_gguf(g);
    bpi_gguf_close(g);
}

START_TEST(whole_sets)
{
    struct shard shards[N_SHARDS] = {right, right, right};
    char here[512], path[600];
    enter_folder();
    write_set(shards);
    expect_whole("set-00001-of-00003.gguf", 2);
    ck_assert_ptr_nonnull(getcwd(here, sizeof here));
    snprintf(path, sizeof path, "%s/set-00001-of-00003.gguf", here);
    expect_whole(path, 2);
    /* The first file may hold metadata alone, and later ones need not repeat the sum. */
    shards[0].n_tensors = 0;
    shards[1].total = LEAVE_OUT;
    write_set(shards);
    expect_whole("set-00001-of-00003.gguf", 0);
}
END_TEST

/* A set of one, and what merging leaves behind: no other file is looked for. */
START_TEST(single_files_with_split_keys)
{
    struct bpi_gguf *g = NULL;
    struct bp_error err = BP_ERROR_INIT;
    struct shard one = right;
    enter_folder();
    for (one.count = 0; one.count <= 1; ++one.count) {
        write_shard(0, &one, 7, "one.gguf");
        ck_assert_msg(bpi_gguf_open("one.gguf", &g, &err) == BP_OK, "%s", err.msg);
        ck_assert_uint_eq(bpi_gguf_shards(g), 1);
        ck_assert_uint_eq(bpi_gguf_n_tensors(g), 2);
        bpi_gguf_close(g);
    }
}
END_TEST

// clang-format off
static const struct {
    const char *name;
    struct shard shards[N_SHARDS];
    const char *open;
    int32_t status;
    const char *text, *where;
} wrong[] = {
#define FIRST "set-00001-of-00003.gguf"
#define SECOND "set-00002-of-00003.gguf"
#define THIRD "set-00003-of-00003.gguf"
#define K KEEP, KEEP, KEEP, KEEP, NULL
    {"opened at the second", {{K, 0, 0, 0}, {K, 0, 0, 0}, {K, 0, 0, 0}}, SECOND, BP_E_ARG,
     "this is shard 2 of 3 of a split model; open its first one instead: " FIRST, SECOND},
    {"opened at the third", {{K, 0, 0, 0}, {K, 0, 0, 0}, {K, 0, 0, 0}}, THIRD, BP_E_ARG, "first one instead: " FIRST, THIRD},
    {"second missing", {{K, 0, 0, 0}, {K, true, 0, 0}, {K, 0, 0, 0}}, FIRST, BP_E_IO,
     "shard 2 of 3 is missing or unreadable: " SECOND, FIRST},
    {"third missing", {{K, 0, 0, 0}, {K, 0, 0, 0}, {K, true, 0, 0}}, FIRST, BP_E_IO, "shard 3 of 3 is missing or unreadable: " THIRD,
     FIRST},
    {"second is no model", {{K, 0, 0, 0}, {K, 0, true, 0}, {K, 0, 0, 0}}, FIRST, BP_E_FORMAT, "starts with \"Not found\"", SECOND},
    {"third is cut", {{K, 0, 0, 0}, {K, 0, 0, 0}, {K, 0, 0, true}}, FIRST, BP_E_FORMAT, "1 are missing; tensor 't.2.1'", THIRD},
    {"second says third", {{K, 0, 0, 0}, {2, KEEP, KEEP, KEEP, NULL, 0, 0, 0}, {1, KEEP, KEEP, KEEP, NULL, 0, 0, 0}}, FIRST, BP_E_FORMAT,
     "the name says shard 2, but the file says shard 3", SECOND},
    {"second is no shard", {{K, 0, 0, 0}, {LEAVE_OUT, LEAVE_OUT, LEAVE_OUT, KEEP, NULL, 0, 0, 0}, {K, 0, 0, 0}}, FIRST, BP_E_FORMAT,
     "it has no split.no", SECOND},
    {"second has no count", {{K, 0, 0, 0}, {KEEP, LEAVE_OUT, KEEP, KEEP, NULL, 0, 0, 0}, {K, 0, 0, 0}}, FIRST, BP_E_FORMAT,
     "it has no split.count", SECOND},
    {"third of another set", {{K, 0, 0, 0}, {K, 0, 0, 0}, {KEEP, 4, KEEP, KEEP, NULL, 0, 0, 0}}, FIRST, BP_E_FORMAT,
     "belongs to a set of 4, the first one to a set of 3", THIRD},
    {"third with another sum", {{K, 0, 0, 0}, {K, 0, 0, 0}, {KEEP, KEEP, 9, KEEP, NULL, 0, 0, 0}}, FIRST, BP_E_FORMAT,
     "set has 9 tensors, the first one's 6", THIRD},
    {"sum does not fit", {{KEEP, KEEP, 7, KEEP, NULL, 0, 0, 0}, {KEEP, KEEP, 7, KEEP, NULL, 0, 0, 0}, {KEEP, KEEP, 7, KEEP, NULL, 0, 0, 0}},
     FIRST, BP_E_FORMAT, "hold 6 tensors together, but split.tensors.count says 7", FIRST},
    {"a name in two shards", {{K, 0, 0, 0}, {K, 0, 0, 0}, {KEEP, KEEP, KEEP, KEEP, "t.0.1", 0, 0, 0}}, FIRST, BP_E_FORMAT,
     "tensor 't.0.1' is in shard 1 and again in shard 3", THIRD},
    {"first without number", {{LEAVE_OUT, KEEP, KEEP, KEEP, NULL, 0, 0, 0}, {K, 0, 0, 0}, {K, 0, 0, 0}}, FIRST, BP_E_FORMAT,
     "split.count is 3, but split.no is missing", FIRST},
    {"first without sum", {{KEEP, KEEP, LEAVE_OUT, KEEP, NULL, 0, 0, 0}, {K, 0, 0, 0}, {K, 0, 0, 0}}, FIRST, BP_E_FORMAT,
     "split.tensors.count is missing", FIRST},
    {"number beyond count", {{3, KEEP, KEEP, KEEP, NULL, 0, 0, 0}, {K, 0, 0, 0}, {K, 0, 0, 0}}, FIRST, BP_E_FORMAT,
     "split.no is 3 and split.count is 3", FIRST},
    {"first counts four", {{KEEP, 4, KEEP, KEEP, NULL, 0, 0, 0}, {K, 0, 0, 0}, {K, 0, 0, 0}}, FIRST, BP_E_FORMAT,
     "the name says shard 1 of 3, but the file says shard 1 of 4", FIRST},
    {"too many shards", {{KEEP, 5000, KEEP, KEEP, NULL, 0, 0, 0}, {K, 0, 0, 0}, {K, 0, 0, 0}}, FIRST, BP_E_LIMIT, "the limit is 4096", FIRST},
#undef K
};
// clang-format on

START_TEST(wrong_sets)
{
    struct bpi_gguf *g = NULL;
    struct bp_error err = BP_ERROR_INIT;
    enter_folder();
    write_set(wrong[_i].shards);
    int32_t rc = bpi_gguf_open(wrong[_i].open, &g, &err);
    ck_assert_msg(rc == wrong[_i].status, "%s: %s: %s", wrong[_i].name, bpi_status_name(rc),
                  err.msg);
    ck_assert_msg(strstr(err.msg, wrong[_i].text) != NULL, "%s: '%s' lacks '%s'", wrong[_i].name,
                  err.msg, wrong[_i].text);
    ck_assert_str_eq(err.where, wrong[_i].where);
    ck_assert_ptr_null(g);
}
END_TEST

/* The others can only be found by the first one's name. */
START_TEST(renamed)
{
    static const char *const names[] = {"renamed.gguf", "set-0001-of-0003.gguf",
                                        "set-00001-of-00003.GGUF", "-00001-of-0000x.gguf"};
    struct shard shards[N_SHARDS] = {right, right, right};
    struct bpi_gguf *g = NULL;
    enter_folder();
    write_set(shards);
    for (size_t i = 0; i < BPI_ARRAY_LEN(names); ++i) {
        struct bp_error err = BP_ERROR_INIT;
        ck_assert_int_eq(rename("set-00001-of-00003.gguf", names[i]), 0);
        ck_assert_int_eq(bpi_gguf_open(names[i], &g, &err), BP_E_FORMAT);
        ck_assert_msg(strstr(err.msg, "its name must end in -00001-of-00003.gguf") != NULL, "%s",
                      err.msg);
        ck_assert_int_eq(rename(names[i], "set-00001-of-00003.gguf"), 0);
    }
    struct bp_error err = BP_ERROR_INIT;
    ck_assert_int_eq(rename("set-00002-of-00003.gguf", "b.gguf"), 0);
    ck_assert_int_eq(bpi_gguf_open("b.gguf", &g, &err), BP_E_ARG);
    ck_assert_msg(strstr(err.msg, "the file whose split.no is 0") != NULL, "%s", err.msg);
    ck_assert_int_eq(unlink("b.gguf"), 0);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("gguf_shard");
    TCase *c = tcase_create("all");
    tcase_add_test(c, whole_sets);
    tcase_add_test(c, single_files_with_split_keys);
    tcase_add_loop_test(c, wrong_sets, 0, (int)BPI_ARRAY_LEN(wrong));
    tcase_add_test(c, renamed);
    suite_add_tcase(s, c);
    return img_main(s);
}
