/* fuzz_token.c - hostile vocabularies and texts. The first byte says what the input is: an even one a whole GGUF file,
 * an odd one a recipe for a small vocabulary (splitter, entries, merges, template) and the text to tokenize with it.
 * Checked besides memory: text comes back from its ids byte by byte, contents of a conversation never become control
 * ids, and a stream loses nothing.
 * Not here: making inputs. Threads: one. SPDX-License-Identifier: MIT */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "harness/token_image.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(int holds)
{
    if (!holds) abort();
}

struct input {
    const uint8_t *p;
    size_t n;
};

static uint8_t take(struct input *in)
{
    if (in->n == 0) return 0;
    --in->n;
    return *in->p++;
}

/* ---- a tokenizer that opened ---- */

static bool is_text(const struct bpi_buf *b, size_t from, const char *text, size_t n)
{
    return b->len == from + n && (n == 0 || memcmp(b->data + from, text, n) == 0);
}

static void check_text(const struct bpi_token *t, const char *text, size_t n, uint32_t flags)
{
    struct bpi_ids ids = {0};
    struct bpi_buf whole = {0}, streamed = {0};
    struct bpi_token_stream s = {0};
    must(bpi_tokenize(t, text, n, flags, &ids, NULL) == BP_OK);
    size_t begin = 0; /* bytes of the begin token that was put before the text */
    bool begins = (flags & BPI_TOKENIZE_BOS) != 0 && bpi_token_add_bos(t);
    must(!begins || (ids.n > 0 && ids.ids[0] == bpi_token_bos(t)));
    for (size_t i = 0; i < ids.n; ++i) {
        uint32_t type = bpi_token_type(t, ids.ids[i]);
        bool trusted = (flags & BPI_TOKENIZE_SPECIAL) != 0;
        must(trusted || (type != BPI_TOK_CONTROL && type != BPI_TOK_UNKNOWN));
        must(bpi_token_bytes(t, ids.ids[i], true, &whole) == BP_OK);
        must(bpi_token_stream_push(&s, t, ids.ids[i], true, &streamed) == BP_OK);
        must(s.n_held <= 3);
        if (i == 0 && begins) begin = whole.len;
    }
    bpi_token_stream_flush(&s, &streamed);
    /* A begin token that stands in the text already is not doubled. */
    must(is_text(&whole, begin, text, n) || (begins && is_text(&whole, 0, text, n)));
    must(is_text(&streamed, 0, whole.data, whole.len));
    bpi_buf_free(&whole);
    bpi_buf_free(&streamed);
    bpi_ids_free(&ids);
}

static size_t count_control(const struct bpi_token *t, const struct bpi_ids *ids)
{
    size_t n = 0;
    for (size_t i = 0; i < ids->n; ++i) n += bpi_token_type(t, ids->ids[i]) == BPI_TOK_CONTROL;
    return n;
}

static void check_chat(const struct bpi_token *t, const char *text, size_t n)
{
    const struct bpi_chat_msg msg[] = {
        {"system", text, n / 2}, {"user", text + n / 2, n - n / 2}, {"assistant", text, n}};
    const struct bpi_chat_msg empty[] = {{"system", "", 0}, {"user", "", 0}, {"assistant", "", 0}};
    struct bpi_ids ids = {0}, bare = {0};
    struct bp_error err = BP_ERROR_INIT;
    int32_t rc = bpi_chat_format(t, msg, 3, true, &ids, &err);
    must((rc == BP_OK) == (err.code == BP_OK));
    must(bpi_chat_format(t, empty, 3, true, &bare, NULL) == rc);
    must(rc == BP_OK || (bpi_chat_family(t) == NULL ? rc == BP_E_UNSUPPORTED : rc == BP_E_FORMAT));
    if (rc == BP_OK) must(count_control(t, &ids) == count_control(t, &bare));
    bpi_ids_free(&ids);
    bpi_ids_free(&bare);
}

static void use(const struct bpi_token *t, const char *text, size_t n)
{
    check_text(t, text, n, 0);
    check_text(t, text, n, BPI_TOKENIZE_SPECIAL);
    check_text(t, text, n, BPI_TOKENIZE_SPECIAL | BPI_TOKENIZE_BOS);
    check_chat(t, text, n);
    struct bpi_buf b = {0};
    uint32_t count = bpi_token_count(t), step = count / 512 + 1;
    for (uint32_t id = 0; id < count; id += step) {
        must(bpi_token_bytes(t, (int32_t)id, true, &b) == BP_OK);
        struct bpi_span entry = bpi_token_text(t, (int32_t)id);
        must(bpi_token_find(t, entry.data, entry.n) ==
             (entry.n > 0 ? (int32_t)id : BPI_TOKEN_NONE));
        (void)bpi_token_is_eog(t, (int32_t)id);
    }
    bpi_buf_free(&b);
}

/* ---- the two kinds of input ---- */

static void file_input(struct input in)
{
    static const char text[] = "Hello, <|user|> w\xc3\xb6rld\xff 123\n\n  I'll <s> \xe4\xb8\xad";
    struct bpi_gguf *g = NULL;
    struct bpi_token *t = NULL;
    struct bp_error err = BP_ERROR_INIT;
    if (bpi_gguf_open_memory(in.p, in.n, "fuzz", &g, &err) != BP_OK) return;
    int32_t rc = bpi_token_open(g, &t, &err);
    bpi_gguf_close(g);
    must((rc == BP_OK) == (t != NULL) && (rc == BP_OK) == (err.code == BP_OK));
    if (t != NULL) use(t, text, sizeof text - 1);
    bpi_token_close(t);
}

/* Short texts from few letters, so that merges and overlaps are met; some bytes go through the byte alphabet. */
static size_t take_text(struct input *in, char *out, size_t max, bool mapped)
{
    static const char letters[] = "ab <|>s\n";
    size_t want = take(in) % 8, n = 0;
    while (want-- > 0 && n + 4 < max) {
        uint8_t byte = take(in);
        char c = (byte & 0x80) != 0 ? (char)byte : letters[byte % (sizeof letters - 1)];
        if (mapped) {
            n += image_byte_text((unsigned char)c, (unsigned char *)out + n);
        } else {
            out[n++] = c;
        }
    }
    out[n] = '\0';
    return n;
}

static void add_recipe(struct image *m, struct input *in)
{
    static const char *const templates[] = {NULL,
                                            "[gMASK]<sop><|user|>\n{{ x }}<|assistant|>",
                                            "[gMASK]<sop><|user|>{{ x }}<|assistant|>",
                                            "bos_token User: \n\nAssistant: eos_token",
                                            "<\xef\xbd\x9cUser\xef\xbd\x9c><\xef\xbd\x9c"
                                            "Assistant\xef\xbd\x9c>",
                                            "<|im_system|>system<|im_middle|>x<|im_end|><|im_user|>"
                                            "<|im_assistant|>"};
    static const char *const marks[] = {"[gMASK]",
                                        "<sop>",
                                        "<|system|>",
                                        "<|user|>",
                                        "<|assistant|>",
                                        "<\xef\xbd\x9cUser\xef\xbd\x9c>",
                                        "<\xef\xbd\x9c"
                                        "Assistant\xef\xbd\x9c>",
                                        "<\xef\xbd\x9c"
                                        "end\xe2\x96\x81of\xe2\x96\x81sentence\xef\xbd\x9c>",
                                        "<|im_system|>",
                                        "<|im_user|>",
                                        "<|im_assistant|>",
                                        "<|im_middle|>",
                                        "<|im_end|>"};
    const char *text = templates[take(in) % BPI_ARRAY_LEN(templates)];
    if (text != NULL) {
        image_str(m, "tokenizer.chat_template", text);
        int32_t type = take(in) % 2 == 0 ? BPI_TOK_CONTROL : BPI_TOK_USER;
        for (size_t i = 0; i < BPI_ARRAY_LEN(marks); ++i) (void)image_token(m, marks[i], type);
    }
    uint8_t ids = take(in);
    if ((ids & 1) != 0) image_u32(m, "tokenizer.ggml.bos_token_id", 256 + (ids >> 4));
    if ((ids & 2) != 0) image_u32(m, "tokenizer.ggml.eos_token_id", 256 + take(in) % 16);
    if ((ids & 4) != 0) image_bool(m, "tokenizer.ggml.add_bos_token", (ids & 8) != 0);
    for (size_t n = take(in) % 24; n > 0; --n) {
        char entry[64];
        int32_t type = take(in) % 7;
        size_t len =
            take_text(in, entry, sizeof entry, type != BPI_TOK_CONTROL && type != BPI_TOK_USER);
        (void)image_token_n(m, entry, len, type);
    }
    for (size_t n = take(in) % 24; n > 0; --n) {
        char line[160];
        size_t len = take_text(in, line, 64, true);
        line[len++] = ' ';
        (void)take_text(in, line + len, 64, true);
        image_merge(m, line);
    }
}

static void recipe_input(struct input in)
{
    size_t n_names = 0;
    const char *const *names = bpi_pretok_names();
    while (names[n_names] != NULL) ++n_names;
    struct image m;
    struct bpi_token *t = NULL;
    struct bp_error err = BP_ERROR_INIT;
    image_begin(&m, names[take(&in) % n_names]);
    image_bytes(&m);
    add_recipe(&m, &in);
    int32_t rc = image_open(&m, &t, &err);
    must((rc == BP_OK) == (t != NULL) && (rc == BP_OK) == (err.code == BP_OK));
    if (t != NULL) use(t, (const char *)in.p, in.n);
    bpi_token_close(t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input in = {data, size};
    if (take(&in) % 2 == 0) {
        file_input(in);
    } else {
        recipe_input(in);
    }
    return 0;
}
