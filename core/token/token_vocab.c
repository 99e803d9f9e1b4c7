/* token_vocab.c - opening a tokenizer from a file's tokenizer.* keys, and what can be asked about its entries.
 * Every key is hostile: lengths, ids and kinds are checked here, so that the other files of the room need not.
 * Not here: cutting and merging text, chat formats. Threads: immutable after open.
 * SPDX-License-Identifier: MIT */
#include "token/token_priv.h"

#include <string.h>

#define KEY "tokenizer.ggml."

/* ---- the byte alphabet: printable Latin-1 stands for itself, the other 68 bytes for U+0100 and up ---- */

static bool stands_for_itself(uint32_t c)
{
    return (c >= 0x21 && c <= 0x7e) || (c >= 0xa1 && c <= 0xac) || (c >= 0xae && c <= 0xff);
}

uint32_t bpi_byte_to_cp(unsigned char byte)
{
    if (stands_for_itself(byte)) return byte;
    if (byte <= 0x20) return 0x100u + byte;
    if (byte == 0xad) return 0x143;
    return 0x121u + (byte - 0x7fu);
}

int bpi_cp_to_byte(uint32_t cp)
{
    if (stands_for_itself(cp)) return (int)cp;
    if (cp < 0x100 || cp > 0x143) return -1;
    if (cp <= 0x120) return (int)(cp - 0x100);
    return cp == 0x143 ? 0xad : (int)(cp - 0x121 + 0x7f);
}

/* ---- notes ---- */

static void add_note(struct bpi_token *t, const char *key, const char *text)
{
    t->note[t->n_notes++] = (struct bpi_token_note){key, text};
}

bool bpi_token_note(const struct bpi_token *t, uint32_t i, const char **out_key,
                    const char **out_text)
{
    if (i >= t->n_notes) return false;
    *out_key = t->note[i].key;
    *out_text = t->note[i].text;
    return true;
}

/* ---- entries ---- */

static int32_t find_array(const struct bpi_gguf *g, const char *key, uint32_t elem_kind,
                          const struct bpi_gguf_kv **out, struct bp_error *err)
{
    *out = bpi_gguf_find(g, key);
    if (*out == NULL) return BP_OK;
    if ((*out)->kind == BPI_GGUF_ARRAY && (elem_kind == (*out)->elem_kind || (*out)->count == 0)) {
        return BP_OK;
    }
    return bpi_fail(
        err, BP_E_FORMAT, BPI_TOKEN_DOMAIN, key, "expected an array of %s, got %s%s",
        bpi_gguf_kind_name(elem_kind), (*out)->kind == BPI_GGUF_ARRAY ? "an array of " : "",
        bpi_gguf_kind_name((*out)->kind == BPI_GGUF_ARRAY ? (*out)->elem_kind : (*out)->kind));
}

static int32_t add_entries(struct bpi_token *t, const struct bpi_span *text, uint32_t n,
                           struct bp_error *err)
{
    static const char key[] = KEY "tokens";
    for (uint32_t i = 0; i < n; ++i) {
        uint32_t id, other;
        if (text[i].n > BPI_TOKEN_MAX_BYTES) {
            return bpi_fail(
                err, BP_E_LIMIT, BPI_TOKEN_DOMAIN, key,
                "entry %u has %llu bytes; at most %d are supported, the file is damaged or hostile",
                i, (unsigned long long)text[i].n, BPI_TOKEN_MAX_BYTES);
        }
        int32_t rc = bpi_strings_append(&t->strings, text[i].data, text[i].n, &id);
        /* An entry without text keeps its id but can never be found or written; decoding it gives nothing. */
        if (rc == BP_OK && text[i].n > 0) rc = bpi_strings_link(&t->strings, id, &other);
        if (rc != BP_OK) return bpi_fail_nomem(err, BPI_TOKEN_DOMAIN, text[i].n + 1);
        if (text[i].n > 0 && other != id) {
            return bpi_fail(err, BP_E_FORMAT, BPI_TOKEN_DOMAIN, key,
                            "entries %u and %u have the same text \"%.*s\"; a text must have one "
                            "id, convert the "
                            "model again",
                            other, i, (int)(text[i].n < 40 ? text[i].n : 40), text[i].data);
        }
        if (text[i].n > t->max_text) t->max_text = text[i].n;
    }
    return BP_OK;
}

static int32_t load_tokens(struct bpi_token *t, const struct bpi_gguf *g, struct bp_error *err)
{
    static const char key[] = KEY "tokens";
    const struct bpi_gguf_kv *kv;
    BP_TRY(find_array(g, key, BPI_GGUF_STRING, &kv, err));
    if (kv == NULL || kv->count == 0) {
        return bpi_fail(
            err, BP_E_FORMAT, BPI_TOKEN_DOMAIN, key,
            "the file has no vocabulary; use one that was converted with its tokenizer");
    }
    if (kv->count > (UINT64_C(1) << 28)) {
        return bpi_fail(err, BP_E_LIMIT, BPI_TOKEN_DOMAIN, key,
                        "%llu entries; at most 2^28 are supported", (unsigned long long)kv->count);
    }
    struct bpi_span *text = bpi_calloc(kv->count, sizeof *text);
    if (text == NULL) return bpi_fail_nomem(err, BPI_TOKEN_DOMAIN, kv->count * sizeof *text);
    int32_t rc = bpi_gguf_arr_strings(g, kv, text, err);
    if (rc == BP_OK) rc = add_entries(t, text, (uint32_t)kv->count, err);
    bpi_free(text);
    t->n_vocab = (uint32_t)kv->count;
    return rc;
}

static int32_t load_types(struct bpi_token *t, const struct bpi_gguf *g, struct bp_error *err)
{
    static const char key[] = KEY "token_type";
    t->type = bpi_alloc(t->n_vocab);
    t->attr = bpi_calloc(t->n_vocab, 1);
    if (t->type == NULL || t->attr == NULL)
        return bpi_fail_nomem(err, BPI_TOKEN_DOMAIN, t->n_vocab);
    memset(t->type, BPI_TOK_NORMAL, t->n_vocab);
    const struct bpi_gguf_kv *kv = bpi_gguf_find(g, key);
    if (kv == NULL) return BP_OK;
    if (kv->kind != BPI_GGUF_ARRAY || kv->count < t->n_vocab) {
        return bpi_fail(
            err, BP_E_FORMAT, BPI_TOKEN_DOMAIN, key,
            "expected an array with one type for each of the %u entries, got %llu value(s)",
            t->n_vocab, (unsigned long long)kv->count);
    }
    for (uint32_t i = 0; i < t->n_vocab; ++i) {
        int64_t v;
        BP_TRY(bpi_gguf_arr_i64(g, kv, i, &v, err));
        if (v < BPI_TOK_UNDEFINED || v > BPI_TOK_BYTE) {
            return bpi_fail(err, BP_E_FORMAT, BPI_TOKEN_DOMAIN, key,
                            "entry %u has type %lld; types are 0 to %d", i, (long long)v,
                            BPI_TOK_BYTE);
        }
        t->type[i] = (unsigned char)v;
    }
    return BP_OK;
}

static bool is_graphic_ascii(struct bpi_span s)
{
    for (uint64_t i = 0; i < s.n; ++i) {
        if (s.data[i] < 0x21 || s.data[i] > 0x7e) return false;
    }
    return true;
}

static bool is_markup(struct bpi_span s)
{
    return s.n >= 2 && ((s.data[0] == '<' && s.data[s.n - 1] == '>') ||
                        (s.data[0] == '[' && s.data[s.n - 1] == ']'));
}

/* Merging may only end in entries that decode to the very bytes that were merged: never in a control token, however
 * the file's merges are written, and in a user-defined one (stored as plain text) only where both spellings agree. */
static void set_attrs(struct bpi_token *t)
{
    for (uint32_t i = 0; i < t->n_vocab; ++i) {
        struct bpi_span text = t->strings.text[i];
        if (text.n == 0) continue;
        switch (t->type[i]) {
        case BPI_TOK_UNDEFINED:
        case BPI_TOK_NORMAL:
        case BPI_TOK_UNUSED:
            t->attr[i] = BPI_ATTR_BPE;
            break;
        case BPI_TOK_USER:
            t->attr[i] = BPI_ATTR_SPECIAL;
            if (is_graphic_ascii(text)) t->attr[i] |= BPI_ATTR_BPE;
            if (is_markup(text)) t->attr[i] |= BPI_ATTR_MARKUP;
            break;
        case BPI_TOK_CONTROL:
        case BPI_TOK_UNKNOWN:
            t->attr[i] = BPI_ATTR_SPECIAL;
            break;
        default:
            break;
        }
    }
}

static int32_t find_byte_entries(struct bpi_token *t, struct bp_error *err)
{
    for (uint32_t byte = 0; byte < 256; ++byte) {
        unsigned char utf8[4];
        size_t n = bpi_utf8_encode(bpi_byte_to_cp((unsigned char)byte), utf8);
        uint32_t id = bpi_strings_find(&t->strings, (const char *)utf8, n);
        if (id == BPI_STRING_NONE || (t->attr[id] & BPI_ATTR_BPE) == 0) {
            return bpi_fail(
                err, BP_E_FORMAT, BPI_TOKEN_DOMAIN, KEY "tokens",
                "no normal entry stands for byte 0x%02x (\"%.*s\"); byte-level BPE needs all 256, "
                "convert the model again",
                byte, (int)n, (const char *)utf8);
        }
        t->byte_id[byte] = id;
    }
    return BP_OK;
}

static int32_t load_merges(struct bpi_token *t, const struct bpi_gguf *g, struct bp_error *err)
{
    static const char key[] = KEY "merges";
    const struct bpi_gguf_kv *kv;
    BP_TRY(find_array(g, key, BPI_GGUF_STRING, &kv, err));
    if (kv != NULL && kv->count > 0) return bpi_merges_load(&t->merges, &t->strings, g, kv, err);
    /* Without merges text becomes single bytes. That is right for a vocabulary of single bytes; where ids are ranks,
     * merges follow from them. */
    for (uint32_t i = 0; i < t->n_vocab; ++i) {
        struct bpi_span text = t->strings.text[i];
        uint32_t cp;
        bool ok;
        if (t->type[i] != BPI_TOK_NORMAL || text.n == 0 ||
            bpi_utf8_decode((const unsigned char *)text.data, text.n, &cp, &ok) == text.n) {
            continue;
        }
        if (t->pre->ids_are_ranks) {
            add_note(t, key,
                     "the file has no merges; they were made from the order of its entries, as the "
                     "model's own tokenizer does");
            t->whole_words = true; /* as it also does */
            return bpi_merges_from_ranks(t, err);
        }
        return bpi_fail(err, BP_E_FORMAT, BPI_TOKEN_DOMAIN, key,
                        "there are no merges, but entry %u (\"%.*s\") needs one; convert the model "
                        "again with its "
                        "merges",
                        i, (int)(text.n < 40 ? text.n : 40), text.data);
    }
    return BP_OK;
}

/* ---- keys that name one entry ---- */

static int32_t get_id(const struct bpi_token *t, const struct bpi_gguf *g, const char *key,
                      int32_t *out, struct bp_error *err)
{
    uint32_t id = 0;
    bool found = false;
    *out = BPI_TOKEN_NONE;
    BP_TRY(bpi_gguf_get_u32(g, key, &id, &found, err));
    if (!found) return BP_OK;
    if (id >= t->n_vocab) {
        return bpi_fail(err, BP_E_FORMAT, BPI_TOKEN_DOMAIN, key,
                        "id %u is outside the vocabulary of %u entries; correct the key", id,
                        t->n_vocab);
    }
    *out = (int32_t)id;
    return BP_OK;
}

/* Texts that end generation in some family, whatever the id keys say. Only entries of a special type count: "</s>"
 * as a normal entry is two characters of HTML. The role markers are there because GLM answers end with the marker
 * of the next turn. */
static const char *const end_texts[] = {"<|endoftext|>",
                                        "<|end_of_text|>",
                                        "<|im_end|>",
                                        "<|eot_id|>",
                                        "<|eom_id|>",
                                        "<|end|>",
                                        "<|eot|>",
                                        "<|return|>",
                                        "<|call|>",
                                        "<end_of_turn>",
                                        "<EOT>",
                                        "_<EOT>",
                                        "[EOT]",
                                        "[EOS]",
                                        "</s>",
                                        "<eos>",
                                        "<|user|>",
                                        "<|observation|>",
                                        "<\xef\xbd\x9c"
                                        "end\xe2\x96\x81"
                                        "of\xe2\x96\x81"
                                        "sentence\xef\xbd\x9c>",
                                        "<|fim_pad|>",
                                        "<fim-pad>",
                                        "<fim_pad>",
                                        "<PAD>",
                                        "[PAD]",
                                        "<|fim_repo|>",
                                        "<|repo_name|>",
                                        "<fim-repo>",
                                        "<REPO>",
                                        "<reponame>",
                                        "<|file_sep|>"};

static int32_t load_ends(struct bpi_token *t, const struct bpi_gguf *g, struct bp_error *err)
{
    static const char *const keys[] = {KEY "eos_token_id",     KEY "eot_token_id",
                                       KEY "eom_token_id",     KEY "fim_pad_token_id",
                                       KEY "fim_rep_token_id", KEY "fim_sep_token_id"};
    for (size_t i = 0; i < BPI_ARRAY_LEN(keys); ++i) {
        int32_t id;
        BP_TRY(get_id(t, g, keys[i], &id, err));
        if (id != BPI_TOKEN_NONE) t->attr[id] |= BPI_ATTR_EOG;
        if (i == 0) t->eos = id;
    }
    for (size_t i = 0; i < BPI_ARRAY_LEN(end_texts); ++i) {
        int32_t id = bpi_token_find(t, end_texts[i], strlen(end_texts[i]));
        if (id != BPI_TOKEN_NONE && (t->attr[id] & BPI_ATTR_SPECIAL) != 0)
            t->attr[id] |= BPI_ATTR_EOG;
    }
    return BP_OK;
}

static int32_t load_begin(struct bpi_token *t, const struct bpi_gguf *g, struct bp_error *err)
{
    bool found = false, add = false;
    BP_TRY(get_id(t, g, KEY "bos_token_id", &t->bos, err));
    BP_TRY(bpi_gguf_get_bool(g, KEY "add_bos_token", &add, &found, err));
    if (found && add && t->bos == BPI_TOKEN_NONE) {
        return bpi_fail(err, BP_E_FORMAT, BPI_TOKEN_DOMAIN, KEY "add_bos_token",
                        "it asks for a begin token, but " KEY
                        "bos_token_id is missing; add the id or set this key "
                        "to false");
    }
    t->add_bos = found ? add : t->pre->default_add_bos && t->bos != BPI_TOKEN_NONE;
    return BP_OK;
}

/* ---- the kind of tokenizer ---- */

static int32_t check_model(const struct bpi_gguf *g, struct bp_error *err)
{
    struct bpi_span model = {0};
    bool found = false;
    BP_TRY(bpi_gguf_get_str(g, KEY "model", &model, &found, err));
    if (!found) {
        return bpi_fail(err, BP_E_FORMAT, BPI_TOKEN_DOMAIN, KEY "model",
                        "the file has no tokenizer; use one that was converted with it");
    }
    if (model.n == 4 && memcmp(model.data, "gpt2", 4) == 0) return BP_OK;
    return bpi_fail(err, BP_E_UNSUPPORTED, BPI_TOKEN_DOMAIN, KEY "model",
                    "tokenizer model \"%.*s\" is not supported, only \"gpt2\" (byte-level BPE) is",
                    (int)(model.n < 40 ? model.n : 40), model.data);
}

static int32_t refuse_pre(struct bpi_span pre, struct bp_error *err)
{
    struct bpi_buf known = {0};
    char name[41];
    size_t n = pre.n < sizeof name - 1 ? (size_t)pre.n : sizeof name - 1, count = 0;
    memcpy(name, pre.data, n);
    name[n] = '\0';
    for (const char *const *p = bpi_pretok_names(); *p != NULL; ++p, ++count) {
        bpi_buf_printf(&known, "%s%s", count > 0 ? ", " : "", *p);
    }
    const char *nearest = bpi_nearest(name, bpi_pretok_names(), count);
    int32_t rc = bpi_fail(
        err, BP_E_UNSUPPORTED, BPI_TOKEN_DOMAIN, KEY "pre",
        "pre-tokenizer \"%s\" is not supported%s%s%s; known are %s; if one of them cuts "
        "text as the model was trained, write its name into this key, else the model "
        "needs a newer Backplane",
        name, nearest != NULL ? " (meant is perhaps \"" : "", nearest != NULL ? nearest : "",
        nearest != NULL ? "\")" : "", known.failed ? "others" : known.data);
    bpi_buf_free(&known);
    return rc;
}

static int32_t choose_pre(struct bpi_token *t, const struct bpi_gguf *g, struct bp_error *err)
{
    struct bpi_span pre = {BPI_PRETOK_DEFAULT, sizeof BPI_PRETOK_DEFAULT - 1};
    bool found = false;
    BP_TRY(bpi_gguf_get_str(g, KEY "pre", &pre, &found, err));
    t->pre = bpi_pretok_find(pre.data, pre.n);
    if (t->pre == NULL) return refuse_pre(pre, err);
    t->whole_words = t->pre->ignore_merges;
    if (!found) {
        add_note(t, KEY "pre",
                 "the file does not say how its text is cut into words, so the general rule "
                 "\"" BPI_PRETOK_DEFAULT "\" is used; answers get worse if the model was trained "
                 "with another one: convert it again, or add this key");
    }
    return BP_OK;
}

static int32_t load_template(struct bpi_token *t, const struct bpi_gguf *g, struct bp_error *err)
{
    struct bpi_span text = {0};
    BP_TRY(bpi_gguf_get_str(g, "tokenizer.chat_template", &text, &t->has_template, err));
    if (!t->has_template) return BP_OK;
    int32_t rc = bpi_chat_recognise(t, text.data, text.n);
    return rc == BP_OK ? BP_OK : bpi_fail_nomem(err, BPI_TOKEN_DOMAIN, text.n);
}

static int32_t load_special(struct bpi_token *t, struct bp_error *err)
{
    for (uint32_t i = 0; i < t->n_vocab; ++i) {
        if ((t->attr[i] & BPI_ATTR_SPECIAL) == 0 ||
            t->strings.text[i].n <= BPI_TOKEN_MAX_SPECIAL_BYTES) {
            continue;
        }
        return bpi_fail(err, BP_E_LIMIT, BPI_TOKEN_DOMAIN, KEY "tokens",
                        "special entry %u has %llu bytes; at most %d are supported, the file is "
                        "damaged or hostile",
                        i, (unsigned long long)t->strings.text[i].n, BPI_TOKEN_MAX_SPECIAL_BYTES);
    }
    int32_t rc = bpi_special_build(t);
    return rc == BP_OK ? BP_OK : bpi_fail_nomem(err, BPI_TOKEN_DOMAIN, t->n_vocab);
}

int32_t bpi_token_open(const struct bpi_gguf *g, struct bpi_token **out, struct bp_error *err)
{
    *out = NULL;
    struct bpi_token *t = bpi_calloc(1, sizeof *t);
    if (t == NULL) return bpi_fail_nomem(err, BPI_TOKEN_DOMAIN, sizeof *t);
    t->strings.seed = bpi_mix64(bpi_now_ns(), (uint64_t)(uintptr_t)t);
    t->merges.seed = bpi_mix64(t->strings.seed, 1);
    int32_t rc;
    BP_TRY_GOTO(rc, check_model(g, err), fail);
    BP_TRY_GOTO(rc, choose_pre(t, g, err), fail);
    BP_TRY_GOTO(rc, load_tokens(t, g, err), fail);
    BP_TRY_GOTO(rc, load_types(t, g, err), fail);
    set_attrs(t);
    BP_TRY_GOTO(rc, find_byte_entries(t, err), fail);
    BP_TRY_GOTO(rc, load_merges(t, g, err), fail);
    BP_TRY_GOTO(rc, load_begin(t, g, err), fail);
    BP_TRY_GOTO(rc, load_ends(t, g, err), fail);
    BP_TRY_GOTO(rc, load_special(t, err), fail);
    BP_TRY_GOTO(rc, load_template(t, g, err), fail);
    *out = t;
    return BP_OK;
fail:
    bpi_token_close(t);
    return rc;
}

void bpi_token_close(struct bpi_token *t)
{
    if (t == NULL) return;
    bpi_strings_free(&t->strings);
    bpi_free(t->type);
    bpi_free(t->attr);
    bpi_free(t->merges.slot);
    bpi_free(t->special.node);
    bpi_free(t);
}

/* ---- questions ---- */

static bool in_vocab(const struct bpi_token *t, int32_t id)
{
    return id >= 0 && (uint32_t)id < t->n_vocab;
}

uint32_t bpi_token_count(const struct bpi_token *t)
{
    return t->n_vocab;
}

const char *bpi_token_pre(const struct bpi_token *t)
{
    return t->pre->name;
}

int32_t bpi_token_bos(const struct bpi_token *t)
{
    return t->bos;
}

int32_t bpi_token_eos(const struct bpi_token *t)
{
    return t->eos;
}

bool bpi_token_add_bos(const struct bpi_token *t)
{
    return t->add_bos;
}

bool bpi_token_is_eog(const struct bpi_token *t, int32_t id)
{
    return in_vocab(t, id) && (t->attr[id] & BPI_ATTR_EOG) != 0;
}

uint32_t bpi_token_type(const struct bpi_token *t, int32_t id)
{
    return in_vocab(t, id) ? t->type[id] : BPI_TOK_UNDEFINED;
}

int32_t bpi_token_find(const struct bpi_token *t, const char *text, size_t n)
{
    uint32_t id = bpi_strings_find(&t->strings, text, n);
    return id < t->n_vocab ? (int32_t)id : BPI_TOKEN_NONE;
}

struct bpi_span bpi_token_text(const struct bpi_token *t, int32_t id)
{
    return in_vocab(t, id) ? t->strings.text[id] : (struct bpi_span){"", 0};
}
