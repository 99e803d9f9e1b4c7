/* fuzz_token_chat.c - hostile chat templates and conversations. The input is a recipe: which markers the vocabulary has
 * and of what kind, then a template and messages, both made of known fragments and of raw bytes.
 * Checked besides memory: a failure says so and leaves the ids alone; contents never become markers, whatever they
 * spell; no content is lost, cut or changed; asking for an answer only adds to the end.
 * Not here: texts without a chat (fuzz_token.c). Threads: one. SPDX-License-Identifier: MIT */
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

/* ---- what inputs are made of ---- */

#define BAR "\xef\xbd\x9c"
#define LOW "\xe2\x96\x81"
/* Markers of all families first: the vocabulary is made of these. */
static const char *const fragments[] = {"[gMASK]",
                                        "<sop>",
                                        "<|system|>",
                                        "<|user|>",
                                        "<|assistant|>",
                                        "<" BAR "User" BAR ">",
                                        "<" BAR "Assistant" BAR ">",
                                        "<" BAR "begin" LOW "of" LOW "sentence" BAR ">",
                                        "<" BAR "end" LOW "of" LOW "sentence" BAR ">",
                                        "<|im_system|>",
                                        "<|im_user|>",
                                        "<|im_assistant|>",
                                        "<|im_middle|>",
                                        "<|im_end|>",
                                        "[gMASK]<sop>",
                                        "<|user|>\n{{ ",
                                        "<|user|>\\n",
                                        "bos_token",
                                        "eos_token",
                                        "User: ",
                                        "Assistant: ",
                                        "Assistant:",
                                        "\n\n",
                                        "\\n\\n",
                                        "<|im_system|>system<|im_middle|>",
                                        "{{ ",
                                        " }}",
                                        "' + content + '",
                                        "You are a helper",
                                        "<",
                                        "|>",
                                        "[",
                                        "]",
                                        " ",
                                        "\n",
                                        "\xe4\xb8\xad"};
enum { N_MARKERS = 14, RAW = 64 };

/* Bytes below 64 are fragments, 255 ends the text, any other byte stands for itself but for its top bits: all of ASCII
 * from '@' on, and all bytes that UTF-8 makes trouble with. */
static void take_text(struct input *in, struct bpi_buf *out)
{
    bpi_buf_puts(out, "");
    while (in->n > 0) {
        uint8_t byte = take(in);
        if (byte == 255) break;
        if (byte < RAW) {
            bpi_buf_puts(out, fragments[byte % BPI_ARRAY_LEN(fragments)]);
        } else {
            bpi_buf_append(out, &byte, 1);
        }
    }
}

static struct bpi_token *open_recipe(struct input *in)
{
    struct image m;
    struct bpi_token *t = NULL;
    struct bp_error err = BP_ERROR_INIT;
    struct bpi_buf text = {0};
    uint8_t pre = take(in), kind = take(in), missing = take(in), ids = take(in);
    size_t n_pre = 0;
    while (bpi_pretok_names()[n_pre] != NULL) ++n_pre;
    image_begin(&m, bpi_pretok_names()[pre % n_pre]);
    image_bytes(&m);
    for (uint32_t i = 0; i < N_MARKERS; ++i) {
        int32_t type = (kind >> i % 8 & 1) != 0 ? BPI_TOK_USER : BPI_TOK_CONTROL;
        /* At most one marker is missing, so that most conversations can be written. */
        if (missing != i + 1) (void)image_token(&m, fragments[i], type);
    }
    if ((ids & 1) == 0) image_u32(&m, "tokenizer.ggml.bos_token_id", 256 + (ids >> 1) % 8);
    if ((ids & 16) == 0) image_u32(&m, "tokenizer.ggml.eos_token_id", 256 + (ids >> 5) % 8);
    take_text(in, &text);
    image_key(&m, "tokenizer.chat_template", BPI_GGUF_STRING);
    image_text(&m.b, text.data, text.len);
    bpi_buf_free(&text);
    must(image_open(&m, &t, &err) == BP_OK);
    return t;
}

/* ---- one conversation ---- */

enum { MAX_MESSAGES = 6 };
struct chat {
    struct bpi_chat_msg msg[MAX_MESSAGES], empty[MAX_MESSAGES];
    struct bpi_buf content[MAX_MESSAGES];
    size_t n, n_content;
    bool bad_role;
};

static void take_chat(struct input *in, struct chat *c)
{
    static const char *const roles[] = {"user", "assistant", "system", "tool", NULL, ""};
    *c = (struct chat){0};
    while (in->n > 0 && c->n < MAX_MESSAGES) {
        size_t role = take(in) % 16;
        if (role >= BPI_ARRAY_LEN(roles)) role %= 3;
        struct bpi_buf *content = &c->content[c->n];
        take_text(in, content);
        c->msg[c->n] = (struct bpi_chat_msg){roles[role], content->data, content->len};
        c->empty[c->n++] = (struct bpi_chat_msg){roles[role], "", 0};
        c->n_content += content->len;
        c->bad_role = c->bad_role || role > 2;
    }
}

/* Everything in this vocabulary that is not normal is a marker. */
static size_t decode(const struct bpi_token *t, const struct bpi_ids *ids, struct bpi_buf *text)
{
    size_t n_markers = 0;
    bpi_buf_puts(text, "");
    for (size_t i = 0; i < ids->n; ++i) {
        must(bpi_token_bytes(t, ids->ids[i], true, text) == BP_OK);
        n_markers += bpi_token_type(t, ids->ids[i]) != BPI_TOK_NORMAL;
    }
    return n_markers;
}

static bool contains(const struct bpi_buf *text, const struct bpi_chat_msg *m)
{
    for (size_t at = 0; at + m->n_content <= text->len; ++at) {
        if (memcmp(text->data + at, m->content, m->n_content) == 0) return true;
    }
    return false;
}

static void check_written(const struct bpi_token *t, const struct chat *c,
                          const struct bpi_ids *ids)
{
    struct bpi_ids bare = {0}, open = {0};
    struct bpi_buf text = {0}, bare_text = {0}, open_text = {0};
    must(bpi_chat_format(t, c->empty, c->n, true, &bare, NULL) == BP_OK);
    must(bpi_chat_format(t, c->msg, c->n, false, &open, NULL) == BP_OK);
    must(decode(t, ids, &text) == decode(t, &bare, &bare_text));
    (void)decode(t, &open, &open_text);
    must(text.len == bare_text.len + c->n_content);
    for (size_t i = 0; i < c->n; ++i) must(contains(&text, &c->msg[i]));
    must(open_text.len <= text.len && memcmp(open_text.data, text.data, open_text.len) == 0);
    bpi_ids_free(&bare);
    bpi_ids_free(&open);
    bpi_buf_free(&text);
    bpi_buf_free(&bare_text);
    bpi_buf_free(&open_text);
}

static void check_chat(const struct bpi_token *t, const struct chat *c)
{
    struct bpi_ids ids = {0};
    struct bp_error err = BP_ERROR_INIT;
    must(bpi_ids_push(&ids, 7) == BP_OK);
    int32_t rc = bpi_chat_format(t, c->msg, c->n, true, &ids, &err);
    must(err.code == rc && ids.ids[0] == 7);
    if (rc != BP_OK) {
        must(ids.n == 1 && err.msg[0] != '\0');
        must(bpi_chat_family(t) == NULL ? rc == BP_E_UNSUPPORTED
                                        : rc == BP_E_FORMAT || (rc == BP_E_ARG && c->bad_role));
    } else {
        must(bpi_chat_family(t) != NULL && !c->bad_role);
        memmove(ids.ids, ids.ids + 1, --ids.n * sizeof *ids.ids);
        check_written(t, c, &ids);
    }
    bpi_ids_free(&ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input in = {data, size};
    struct chat chat;
    struct bpi_token *t = open_recipe(&in);
    take_chat(&in, &chat);
    check_chat(t, &chat);
    for (size_t i = 0; i < chat.n; ++i) bpi_buf_free(&chat.content[i]);
    bpi_token_close(t);
    return 0;
}
