/* token_chat.c - conversations in a model's own format. A family is data: how its template is recognised, and what
 * stands before and behind each role's content. Markers become special ids, by look-up; contents are tokenized with
 * markup switched off, so no content can forge a turn. Plain parts of a marker ("User: ") are tokenized together
 * with the content they touch, as the whole rendered text would be.
 * Not here: Jinja, tools, thinking switches: <think></think> that some templates add around answers is left out.
 * Threads: pure on an open tokenizer.
 * Source: the chat_template of GLM-4.5 to GLM-5 (zai-org), DeepSeek-V2, V3 and R1 (deepseek-ai), Kimi-K2 and
 * Moonlight (moonshotai).
 * SPDX-License-Identifier: MIT */
#include "token/token_priv.h"

#include <string.h>

/* A part of a marker is plain text, or one of these. */
#define TOKEN "\001" /* the special token whose text follows */
#define BOS "\002"   /* the token that bos_token_id names; needed */
#define EOS "\003"
#define NEWLINE "\004" /* a newline if the template has one there */
/* U+FF5C and U+2581, which DeepSeek's tokens are written with. */
#define BAR "\xef\xbd\x9c"
#define LOW "\xe2\x96\x81"

enum { MAX_PARTS = 3, N_ROLES = 3, ROLE_SYSTEM = 0, ROLE_USER = 1, ROLE_ASSISTANT = 2 };
static const char *const role_names[N_ROLES] = {"system", "user", "assistant"};

struct bpi_chat_family {
    const char *name;
    const char *needs[6];  /* the template contains all of these */
    const char *one_of[3]; /* and, where any is named, one of these */
    const char
        *newline[3]; /* it writes a newline behind role markers when it contains one of these */
    const char *begin[MAX_PARTS];
    struct {
        const char *before[MAX_PARTS], *after[MAX_PARTS];
    } role[N_ROLES];
    const char *generation[MAX_PARTS]; /* after which the model answers */
    bool system_first; /* all system messages, joined by an empty line, stand at the beginning */
    /* Between these two texts the template may spell out the system message of chats that do not begin with one. */
    const char *default_system[2];
};

/* The first that fits is taken. */
static const struct bpi_chat_family families[] = {
    {.name = "glm",
     .needs = {"[gMASK]<sop>", "<|user|>", "<|assistant|>"},
     /* "{{-" would take the newline away again. */
     .newline = {"<|user|>\n{{ ", "<|user|>\\n"},
     .begin = {TOKEN "[gMASK]", TOKEN "<sop>"},
     .role = {[ROLE_SYSTEM] = {.before = {TOKEN "<|system|>", NEWLINE}},
              [ROLE_USER] = {.before = {TOKEN "<|user|>", NEWLINE}},
              [ROLE_ASSISTANT] = {.before = {TOKEN "<|assistant|>", NEWLINE}}},
     .generation = {TOKEN "<|assistant|>"}},
    {.name = "deepseek3",
     .needs = {"<" BAR "User" BAR ">", "<" BAR "Assistant" BAR ">"},
     .begin = {BOS},
     .role = {[ROLE_USER] = {.before = {TOKEN "<" BAR "User" BAR ">"}},
              [ROLE_ASSISTANT] = {.before = {TOKEN "<" BAR "Assistant" BAR ">"},
                                  .after = {TOKEN "<" BAR "end" LOW "of" LOW "sentence" BAR ">"}}},
     .generation = {TOKEN "<" BAR "Assistant" BAR ">"},
     .system_first = true},
    {.name = "deepseek2",
     .needs = {"User: ", "Assistant: ", "Assistant:", "bos_token", "eos_token"},
     .one_of = {"\n\n", "\\n\\n"},
     .begin = {BOS},
     .role = {[ROLE_SYSTEM] = {.after = {"\n\n"}},
              [ROLE_USER] = {.before = {"User: "}, .after = {"\n\n"}},
              [ROLE_ASSISTANT] = {.before = {"Assistant: "}, .after = {EOS}}},
     .generation = {"Assistant:"}},
    {.name = "kimi",
     .needs = {"<|im_system|>", "<|im_user|>", "<|im_assistant|>", "<|im_middle|>", "<|im_end|>"},
     .role = {[ROLE_SYSTEM] = {.before = {TOKEN "<|im_system|>", "system", TOKEN "<|im_middle|>"},
                               .after = {TOKEN "<|im_end|>"}},
              [ROLE_USER] = {.before = {TOKEN "<|im_user|>", "user", TOKEN "<|im_middle|>"},
                             .after = {TOKEN "<|im_end|>"}},
              [ROLE_ASSISTANT] = {.before = {TOKEN "<|im_assistant|>", "assistant",
                                             TOKEN "<|im_middle|>"},
                                  .after = {TOKEN "<|im_end|>"}}},
     .generation = {TOKEN "<|im_assistant|>", "assistant", TOKEN "<|im_middle|>"},
     .default_system = {"<|im_system|>system<|im_middle|>", "<|im_end|>"}},
};

/* ---- recognising ---- */

/* The first place of `what`, or NULL. */
static const char *find(const char *text, size_t n, const char *what)
{
    size_t len = strlen(what);
    while (n >= len) {
        const char *p = memchr(text, what[0], n - len + 1);
        if (p == NULL || memcmp(p, what, len) == 0) return p;
        n -= (size_t)(p + 1 - text);
        text = p + 1;
    }
    return NULL;
}

static bool contains(const char *text, size_t n, const char *what)
{
    return find(text, n, what) != NULL;
}

static bool contains_any(const char *text, size_t n, const char *const *what, size_t n_what)
{
    for (size_t i = 0; i < n_what && what[i] != NULL; ++i) {
        if (contains(text, n, what[i])) return true;
    }
    return false;
}

static bool is_family(const struct bpi_chat_family *f, const char *text, size_t n)
{
    for (size_t i = 0; i < BPI_ARRAY_LEN(f->needs) && f->needs[i] != NULL; ++i) {
        if (!contains(text, n, f->needs[i])) return false;
    }
    return f->one_of[0] == NULL || contains_any(text, n, f->one_of, BPI_ARRAY_LEN(f->one_of));
}

/* What stands between the two texts at their first place where it is plain text: no end of a string, no piece of the
 * template's own language, which only a rendered template could tell. */
static struct bpi_span find_default_system(const struct bpi_chat_family *f, const char *text,
                                           size_t n)
{
    static const char language[] = "{}'\"\\<\n\r";
    const char *begin = f->default_system[0], *end = f->default_system[1];
    const char *stop = text + n;
    while (begin != NULL && (text = find(text, (size_t)(stop - text), begin)) != NULL) {
        text += strlen(begin);
        size_t len = 0, left = (size_t)(stop - text);
        while (len < left && text[len] != '\0' && strchr(language, text[len]) == NULL) ++len;
        if (len > 0 && left - len >= strlen(end) && memcmp(text + len, end, strlen(end)) == 0) {
            return (struct bpi_span){text, len};
        }
        text += len;
    }
    return (struct bpi_span){0};
}

int32_t bpi_chat_recognise(struct bpi_token *t, const char *text, size_t n)
{
    for (size_t i = 0; i < BPI_ARRAY_LEN(families); ++i) {
        const struct bpi_chat_family *f = &families[i];
        if (!is_family(f, text, n)) continue;
        t->chat = f;
        t->chat_newline = contains_any(text, n, f->newline, BPI_ARRAY_LEN(f->newline));
        struct bpi_span system = find_default_system(f, text, n);
        if (system.n == 0) return BP_OK;
        t->chat_system.data = bpi_arena_strndup(&t->strings.arena, system.data, (size_t)system.n);
        if (t->chat_system.data == NULL) return BP_E_NOMEM;
        t->chat_system.n = system.n;
        return BP_OK;
    }
    return BP_OK;
}

const char *bpi_chat_family(const struct bpi_token *t)
{
    return t->chat != NULL ? t->chat->name : NULL;
}

/* ---- writing ---- */

struct writer {
    const struct bpi_token *t;
    struct bpi_buf text; /* not tokenized yet: up to the next special id it is one text */
    struct bpi_ids *out;
    struct bp_error *err;
};

static int32_t flush_text(struct writer *w)
{
    if (w->text.failed) return bpi_fail_nomem(w->err, BPI_TOKEN_DOMAIN, w->text.len);
    if (w->text.len == 0) return BP_OK;
    BP_TRY(
        bpi_tokenize_plain(w->t, w->text.data, w->text.len, BPI_TOKENIZE_CONTENT, w->out, w->err));
    w->text.len = 0;
    return BP_OK;
}

static int32_t find_marker(const struct writer *w, const char *part, int32_t *id)
{
    const char *missing;
    if (part[0] == TOKEN[0]) {
        *id = bpi_token_find(w->t, part + 1, strlen(part + 1));
        if (*id != BPI_TOKEN_NONE && (w->t->attr[*id] & BPI_ATTR_SPECIAL) != 0) return BP_OK;
        missing = part + 1;
    } else {
        *id = part[0] == BOS[0] ? w->t->bos : w->t->eos;
        if (*id != BPI_TOKEN_NONE) return BP_OK;
        missing = part[0] == BOS[0] ? "tokenizer.ggml.bos_token_id" : "tokenizer.ggml.eos_token_id";
    }
    return bpi_fail(w->err, BP_E_FORMAT, BPI_TOKEN_DOMAIN, missing,
                    "the chat format \"%s\" writes this special token, but the file's vocabulary "
                    "has none; give the "
                    "text as a plain prompt, without --chat",
                    w->t->chat->name);
}

static int32_t write_parts(struct writer *w, const char *const parts[MAX_PARTS])
{
    for (size_t i = 0; i < MAX_PARTS && parts[i] != NULL; ++i) {
        const char *part = parts[i];
        if (part[0] == NEWLINE[0]) {
            if (w->t->chat_newline) bpi_buf_puts(&w->text, "\n");
        } else if (part[0] == TOKEN[0] || part[0] == BOS[0] || part[0] == EOS[0]) {
            int32_t id;
            BP_TRY(flush_text(w));
            BP_TRY(find_marker(w, part, &id));
            if (bpi_ids_push(w->out, id) != BP_OK) {
                return bpi_fail_nomem(w->err, BPI_TOKEN_DOMAIN, sizeof id);
            }
        } else {
            bpi_buf_puts(&w->text, part);
        }
    }
    return BP_OK;
}

static int find_role(const char *name)
{
    for (int i = 0; i < N_ROLES && name != NULL; ++i) {
        if (strcmp(name, role_names[i]) == 0) return i;
    }
    return -1;
}

static void write_system_first(struct writer *w, const struct bpi_chat_msg *msgs, size_t n)
{
    bool any = false;
    for (size_t i = 0; i < n; ++i) {
        if (find_role(msgs[i].role) != ROLE_SYSTEM) continue;
        if (any) bpi_buf_puts(&w->text, "\n\n");
        bpi_buf_append(&w->text, msgs[i].content, msgs[i].n_content);
        any = true;
    }
}

static int32_t write_message(struct writer *w, int role, const char *content, size_t n)
{
    BP_TRY(write_parts(w, w->t->chat->role[role].before));
    bpi_buf_append(&w->text, content, n);
    return write_parts(w, w->t->chat->role[role].after);
}

static int32_t write_messages(struct writer *w, const struct bpi_chat_msg *msgs, size_t n,
                              bool add_generation)
{
    const struct bpi_chat_family *f = w->t->chat;
    BP_TRY(write_parts(w, f->begin));
    if (f->system_first) write_system_first(w, msgs, n);
    if (w->t->chat_system.n > 0 && (n == 0 || find_role(msgs[0].role) != ROLE_SYSTEM)) {
        BP_TRY(write_message(w, ROLE_SYSTEM, w->t->chat_system.data, (size_t)w->t->chat_system.n));
    }
    for (size_t i = 0; i < n; ++i) {
        int role = find_role(msgs[i].role);
        if (role < 0) {
            return bpi_fail(
                w->err, BP_E_ARG, BPI_TOKEN_DOMAIN, "chat",
                "message %zu has the role \"%.40s\"; roles are system, user and assistant", i,
                msgs[i].role != NULL ? msgs[i].role : "(none)");
        }
        if (role == ROLE_SYSTEM && f->system_first) continue;
        BP_TRY(write_message(w, role, msgs[i].content, msgs[i].n_content));
    }
    if (add_generation) BP_TRY(write_parts(w, f->generation));
    return flush_text(w);
}

int32_t bpi_chat_format(const struct bpi_token *t, const struct bpi_chat_msg *msgs, size_t n,
                        bool add_generation, struct bpi_ids *out, struct bp_error *err)
{
    if (t->chat == NULL) {
        return bpi_fail(
            err, BP_E_UNSUPPORTED, BPI_TOKEN_DOMAIN, "tokenizer.chat_template",
            "%s; give the text as a plain prompt, without --chat",
            t->has_template
                ? "the file's chat template is none of the known formats (GLM, DeepSeek-V2, "
                  "DeepSeek-V3, Kimi-K2)"
                : "the file has no chat template, so it may not be a chat model");
    }
    size_t before = out->n;
    struct writer w = {.t = t, .out = out, .err = err};
    int32_t rc = write_messages(&w, msgs, n, add_generation);
    bpi_buf_free(&w.text);
    if (rc != BP_OK) out->n = before;
    return rc;
}
