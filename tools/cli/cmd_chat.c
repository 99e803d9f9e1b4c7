/* cmd_chat.c - `backplane run -i`: a conversation, a line at a time, in one sequence.
 * Every turn formats the whole conversation anew and feeds only what the sequence does not hold yet: an answer may be
 * cut into other tokens when it is read back as text, and then the sequence is cut to what still agrees.
 * SPDX-License-Identifier: MIT */
#include "generate.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct chat {
    struct cli *c;
    struct gen gen;
    struct bp_chat_message *msgs; /* contents are owned; roles are constants */
    size_t n_msgs, cap_msgs;
    int32_t *held; /* tokens that the sequence holds */
    size_t n_held;
    bool tty;
};

static int32_t push(struct chat *chat, const char *role, const char *text, size_t n)
{
    if (chat->n_msgs == chat->cap_msgs) {
        size_t cap = chat->cap_msgs > 0 ? 2 * chat->cap_msgs : 16;
        struct bp_chat_message *msgs = realloc(chat->msgs, cap * sizeof *msgs);
        if (msgs == NULL) return cli_fail(&chat->c->err, BP_E_NOMEM, "chat", "out of memory");
        chat->msgs = msgs;
        chat->cap_msgs = cap;
    }
    char *copy = malloc(n + 1);
    if (copy == NULL) return cli_fail(&chat->c->err, BP_E_NOMEM, "chat", "out of memory");
    memcpy(copy, text, n);
    copy[n] = '\0';
    chat->msgs[chat->n_msgs++] = (struct bp_chat_message){role, copy, n};
    return BP_OK;
}

static void pop(struct chat *chat)
{
    free((char *)chat->msgs[--chat->n_msgs].content);
}

/* Back to the system message, if there is one. */
static int32_t start_over(struct chat *chat)
{
    size_t keep = cli_text(&chat->c->line, "system") != NULL ? 1 : 0;
    while (chat->n_msgs > keep) pop(chat);
    chat->n_held = 0;
    return bp_seq_reset(chat->c->session, 0, &chat->c->err);
}

/* Notes what the sequence holds: the first seq_len of prompt and generated tokens. Right after an interrupted step too,
 * because such a step leaves its sequence as it was. */
static int32_t note_held(struct chat *chat, const int32_t *ids, size_t n_ids)
{
    struct cli *c = chat->c;
    size_t n = bp_seq_len(c->session, 0);
    int32_t *held = realloc(chat->held, (n + 1) * sizeof *held);
    if (held == NULL) return cli_fail(&c->err, BP_E_NOMEM, "chat", "out of memory");
    for (size_t i = 0; i < n; ++i) held[i] = i < n_ids ? ids[i] : chat->gen.ids[i - n_ids];
    chat->held = held;
    chat->n_held = n;
    return BP_OK;
}

/* Answers the last message; without an answer the message is taken back. */
static int32_t answer(struct chat *chat)
{
    struct cli *c = chat->c;
    int32_t *ids = NULL, rc;
    size_t n = 0, common = 0;
    BP_TRY(gen_chat_ids(c, chat->msgs, chat->n_msgs, &ids, &n));
    while (common < n && common < chat->n_held && ids[common] == chat->held[common]) ++common;
    if (common == n && n > 0) --common; /* the last token is fed again for its logits */
    BP_TRY_GOTO(rc, bp_seq_truncate(c->session, 0, (uint32_t)common, &c->err), done);
    chat->n_held = common;
    term_rearm();
    rc = gen_run(&chat->gen, ids + common, n - common);
    term_rearm();           /* a Ctrl-C that stopped the answer is used up */
    if (rc == BP_E_LIMIT) { /* refused before anything was computed */
        term_say("%s; /reset starts over", c->err.msg);
        c->err = (struct bp_error)BP_ERROR_INIT;
        pop(chat);
        rc = BP_OK;
        goto done;
    }
    if (rc != BP_OK) goto done;
    term_out("\n", 1);
    BP_TRY_GOTO(rc, note_held(chat, ids, n), done);
    if (c->verbose) gen_say_stats(&chat->gen);
    if (chat->gen.result.stop == BP_STOP_CONTEXT)
        term_say("the context of %u tokens is full; /reset starts over",
                 bp_session_ctx(c->session));
    if (chat->gen.n_text == 0)
        pop(chat);
    else
        rc = push(chat, "assistant", chat->gen.text, chat->gen.n_text);
done:
    bp_free(ids);
    return rc;
}

static int32_t take_line(struct chat *chat, char *line, size_t n)
{
    struct cli *c = chat->c;
    while (n > 0 && (line[n - 1] == '\n' || line[n - 1] == '\r')) --n;
    if (n == 0) return BP_OK;
    if (n == 6 && memcmp(line, "/reset", 6) == 0) return start_over(chat);
    int32_t rc = cli_check_utf8(c, "standard input", line, n);
    if (rc != BP_OK && chat->tty) { /* a slip of the keyboard does not end a conversation */
        term_say("%s", c->err.msg);
        c->err = (struct bp_error)BP_ERROR_INIT;
        return BP_OK;
    }
    if (rc != BP_OK) return rc;
    BP_TRY(push(chat, "user", line, n));
    return answer(chat);
}

static int32_t talk(struct chat *chat)
{
    for (;;) {
        char *line = NULL;
        size_t n = 0;
        if (chat->tty) fputs("> ", stderr);
        int32_t rc = term_read_line(&line, &n);
        if (rc == BP_E_ABORTED) {
            term_say("(Ctrl-D ends the chat, another Ctrl-C kills it)");
            continue;
        }
        if (rc == BP_DECLINED) {
            if (chat->tty) fputc('\n', stderr);
            return BP_OK;
        }
        if (rc == BP_E_LIMIT)
            return cli_fail(&chat->c->err, rc, "standard input",
                            "a message is longer than 1 MiB; use shorter lines");
        if (rc != BP_OK)
            return cli_fail(&chat->c->err, rc, "standard input", "a line cannot be read: %s",
                            strerror(errno));
        BP_TRY(take_line(chat, line, n));
    }
}

/* Refused before the session is loaded when the model's chat format is not known. */
static int32_t check_family(struct cli *c)
{
    const struct bp_chat_message probe = {"user", "x", 1};
    int32_t *ids = NULL;
    size_t n = 0;
    int32_t rc = gen_chat_ids(c, &probe, 1, &ids, &n);
    bp_free(ids);
    return rc;
}

int32_t cli_chat(struct cli *c)
{
    struct chat chat = {.c = c, .tty = isatty(STDIN_FILENO) != 0};
    const char *system = cli_text(&c->line, "system"), *first = cli_text(&c->line, "prompt");
    int32_t rc;
    if (first != NULL) BP_TRY(cli_check_utf8(c, "-p, --prompt", first, strlen(first)));
    BP_TRY(cli_open_model(c));
    BP_TRY(check_family(c));
    BP_TRY(cli_open_session(c));
    BP_TRY_GOTO(rc, gen_open(&chat.gen, c), done);
    if (system != NULL) BP_TRY_GOTO(rc, push(&chat, "system", system, strlen(system)), done);
    if (first != NULL && first[0] != '\0') {
        BP_TRY_GOTO(rc, push(&chat, "user", first, strlen(first)), done);
        BP_TRY_GOTO(rc, answer(&chat), done);
    }
    rc = talk(&chat);
done:
    gen_close(&chat.gen);
    while (chat.n_msgs > 0) pop(&chat);
    free(chat.msgs);
    free(chat.held);
    return rc;
}
