/* config_keys.c - the table: every key with type, default, range and meaning, and the INI printed from it.
 * Not here: reading values (config_load.c, config_store.c), giving them out (config_read.c).
 * After a change run scripts/update-etc. State: constant data only. SPDX-License-Identifier: MIT */
#include "config/config_priv.h"

#include <stdio.h>
#include <string.h>

// clang-format off
#define KEY_STR(s, k, d, lo, hi, doc)      {s, k, BPI_CFG_STRING, d, NULL, lo, hi, doc, 0}
#define KEY_INT(s, k, d, word, lo, hi, doc) {s, k, BPI_CFG_INT, d, word, lo, hi, doc, 0}
#define KEY_POW2(s, k, d, lo, hi, doc)     {s, k, BPI_CFG_INT, d, NULL, lo, hi, doc, BPI_CFG_POW2}
#define KEY_FLOAT(s, k, d, word, lo, hi, doc) {s, k, BPI_CFG_FLOAT, d, word, lo, hi, doc, 0}
#define KEY_BOOL(s, k, d, doc)             {s, k, BPI_CFG_BOOL, d, NULL, 0, 0, doc, 0}
#define KEY_ENUM(s, k, d, words, doc)      {s, k, BPI_CFG_ENUM, d, words, 0, 0, doc, 0}
#define KEY_SLOT(k, doc)                   {"slots", k, BPI_CFG_LIST, "auto", NULL, 0, 0, doc, 0}
#define KEY_RANK_SLOT(k, doc)              {"slots", k, BPI_CFG_LIST, "auto", NULL, 0, 0, doc, BPI_CFG_NO_LAYERS}

/* 2^53: the largest range whose ends a double holds exactly. */
#define MAX_SEED 9007199254740992.0

static const struct bpi_config_key keys[] = {
    KEY_STR("engine", "device", "auto", 1, 63,
            "Where the model runs: cpu, cuda:N (the N-th GPU, which needs a plugin for the device slot), or auto: the first "
            "GPU when there is one and a plugin serves it, else cpu."),
    KEY_ENUM("engine", "act", "auto", "auto|f32|bf16|f16",
             "Element type of what one op hands to the next; residual, norms, router, softmax and logits are f32 in any "
             "case. auto = f32 on the host; on a GPU bf16 when all who compute there take it, else f32. f16 overflows "
             "above 65504, which stops the sequence with an error."),
    KEY_ENUM("engine", "graph", "auto", "auto|off|on",
             "Steps of single new tokens on a device as one captured graph: auto = where all ops of the step can be captured; "
             "on = an op that cannot be is an error that names it; off = never. The results are the same bits."),
    KEY_INT("engine", "threads", "auto", "auto", 1, 1024,
            "Worker threads of the CPU backends. auto = as many as this process may use cores."),
    KEY_INT("engine", "ctx", "auto", "auto", 1, 4194304,
            "Tokens per sequence, prompt included; the cache is allocated for it. auto = the smaller of the "
            "model's own context length and 4096."),
    KEY_INT("engine", "max_seqs", "1", NULL, 1, 1024,
            "Sequences that may be open at once; the cache is allocated for all of them."),
    KEY_INT("engine", "batch_tokens", "512", NULL, 1, 65536,
            "Most tokens that one step takes, over all sequences; the work buffers are allocated for it."),
    KEY_INT("engine", "slab", "512", NULL, 64, 65536,
            "Keys per prefill slab, a multiple of [kv] block. Prefill work is cut at multiples of it, so that "
            "results do not depend on how a prompt is chunked."),
    KEY_STR("engine", "plugin_path", "", 0, 4000,
            "Colon list of absolute, trusted folders that are searched for plugins. Empty = "
            "../lib/backplane/plugins beside the executable, then the user's own folder."),
    KEY_ENUM("engine", "fallback", "error", "error|warn",
             "When a provider that is named alone in [slots] cannot serve: error = stop and print its "
             "reasons; warn = print them and take another provider that can."),
    KEY_ENUM("engine", "log", "warn", "error|warn|info|debug",
             "The most detailed kind of message that is printed."),
    KEY_BOOL("engine", "mmap", "true",
             "true = map the model file, so that its pages are shared and read on demand; false = read it "
             "into memory at start."),

    KEY_RANK_SLOT("device", "Memory, copies and streams of the device of a rank."),
    KEY_SLOT("dense", "Embedding, norms, rotary positions, activations and matrix products of plain floats."),
    KEY_SLOT("quant", "Matrix products with quantized weights."),
    KEY_SLOT("mla.common", "Latent cache writes, weight absorption, and merging of partial attention results."),
    KEY_SLOT("mla.prefill", "Attention of prompts, in the multi-head form."),
    KEY_SLOT("mla.decode", "Attention of single new tokens over the latent cache."),
    KEY_SLOT("mla.index", "Sparse selection of keys, in models that have an indexer."),
    KEY_SLOT("moe", "Routing of tokens to experts, and the experts."),
    KEY_RANK_SLOT("coll", "Sums and gathers over ranks."),

    KEY_ENUM("kv", "dtype", "auto", "auto|f32|bf16|f16",
             "Element type of the latent cache. auto = the first of bf16, f16 and f32 that providers of all attention "
             "slots share. When none is shared, or the one asked for is not, starting fails and prints the sets."),
    KEY_POW2("kv", "block", "64", 16, 1024,
             "Tokens per cache block, a power of two."),

    KEY_INT("parallel", "tp", "1", NULL, 1, 64,
            "Ranks that share one model by tensor parallelism."),

    KEY_ENUM("model", "indexer", "auto", "auto|on|off",
             "Sparse selection of DSA models. auto = used when the file has an indexer; on = a file without "
             "one is refused; off = dense attention, whatever the file has."),
    KEY_ENUM("model", "index_layers", "auto", "auto|all|glm5.2",
             "Which layers of a glm-dsa model choose keys; the others reuse the last choice. auto = what the file says in "
             "attention.indexer.types, else by its context length; all = every layer; glm5.2 = layers 0, 1, 2, 6, 10, ..., "
             "the pattern of GLM-5.2, which some engines assume for every file."),
    KEY_FLOAT("model", "yarn_log_multiplier", "auto", "auto", 0, 10,
              "Stands in for the file's rope.scaling.yarn_log_multiplier (0.1 times mscale_all_dim), which "
              "files made before that key existed lack. auto = what the file says."),
    KEY_FLOAT("model", "yarn_beta_fast", "auto", "auto", 1, 1000,
              "YaRN: dimensions that turn at least this often within the original context keep their "
              "frequency. auto = what the file says, else 32."),
    KEY_FLOAT("model", "yarn_beta_slow", "auto", "auto", 0.01, 1000,
              "YaRN: dimensions that turn at most this often within the original context are fully stretched; "
              "not above yarn_beta_fast. auto = what the file says, else 1."),

    KEY_FLOAT("sample", "temp", "0.8", NULL, 0, 100,
              "Temperature. 0 = always the likeliest token."),
    KEY_INT("sample", "top_k", "40", NULL, 0, 1000000,
            "Keep this many of the likeliest tokens. 0 = all."),
    KEY_FLOAT("sample", "top_p", "0.95", NULL, 0, 1,
              "Keep the likeliest tokens until their probabilities reach this sum, at least one. 1 = all."),
    KEY_FLOAT("sample", "min_p", "0.05", NULL, 0, 1,
              "Drop tokens less likely than this share of the likeliest one's probability. 0 = none."),
    KEY_FLOAT("sample", "repeat_penalty", "1.0", NULL, 0.01, 100,
              "Divides the positive logits, and multiplies the negative ones, of tokens seen lately. 1 = off."),
    KEY_INT("sample", "repeat_last", "64", NULL, 0, 4194304,
            "How many of the last tokens repeat_penalty looks at. 0 = none."),
    KEY_INT("sample", "seed", "auto", "auto", 0, MAX_SEED,
            "Seed of the random choice: the same seed gives the same text. auto = a new one for each run."),

    KEY_ENUM("plugin.ref", "round", "none", "none|bf16|f16",
             "none = f32 in and out of every op, sums in double; bf16 or f16 = inputs and output of every op "
             "are also rounded to that type, which is the baseline that other backends are measured against."),
};

static const struct bpi_config_section sections[] = {
    {"engine", "The engine as a whole."},
    {"slots", "Who computes what: per slot a comma list of providers, of which the first that can serve wins. "
              "auto = any that can. Layers can be singled out, as in mla.decode@layers=0-2 = ref"},
    {"kv", "The latent cache."},
    {"parallel", "Several devices."},
    {"model", "Readings of the model file that can be overridden."},
    {"sample", "How the next token is chosen. Flags of the command line override these."},
    {"plugin.ref", "The reference backend, which is built in. Every other plugin has its own section "
                   "[plugin.NAME]: the keys it declares, and `file` for a file name other than the one its "
                   "name gives."},
    {"wrap", "Wrappers around slots, outermost first, under the same names as in [slots]; none by default. "
             "Example: mla.decode = trace, check"},
};
// clang-format on

const struct bpi_config_key *bpi_config_keys(size_t *out_n)
{
    *out_n = BPI_ARRAY_LEN(keys);
    return keys;
}

const struct bpi_config_section *bpi_config_sections(size_t *out_n)
{
    *out_n = BPI_ARRAY_LEN(sections);
    return sections;
}

const struct bpi_config_key *bpi_config_row(const char *section, const char *key, size_t key_len)
{
    for (size_t i = 0; i < BPI_ARRAY_LEN(keys); ++i) {
        if (strcmp(keys[i].section, section) == 0 && strlen(keys[i].key) == key_len &&
            memcmp(keys[i].key, key, key_len) == 0)
            return &keys[i];
    }
    return NULL;
}

/* ---- ranges in words ---- */

/* printf's %g follows the process's locale; the bounds in the table have at most two decimals. */
static void bound_text(double v, char *out, size_t cap)
{
    long long whole = (long long)v;
    int cents = (int)((v - (double)whole) * 100.0 + 0.5);
    if (cents == 0)
        snprintf(out, cap, "%lld", whole);
    else
        snprintf(out, cap, "%lld.%02d", whole, cents);
}

/* "a|b|c" as "a, b, c". */
static void words_text(const char *words, char *out, size_t cap)
{
    size_t n = 0;
    for (; *words != '\0' && n + 3 < cap; ++words) {
        if (*words == '|') {
            out[n++] = ',';
            out[n++] = ' ';
        } else {
            out[n++] = *words;
        }
    }
    out[n] = '\0';
}

void bpi_config_allowed(const struct bpi_config_key *key, char *out, size_t cap)
{
    char lo[32], hi[32], words[128];
    bound_text(key->lo, lo, sizeof lo);
    bound_text(key->hi, hi, sizeof hi);
    words_text(key->choices != NULL ? key->choices : "", words, sizeof words);
    const char *or_words = key->choices != NULL ? ", or " : "";
    switch (key->type) {
    case BPI_CFG_INT:
        snprintf(out, cap, "%s from %s to %s%s%s",
                 (key->flags & BPI_CFG_POW2) != 0 ? "a power of two" : "an integer", lo, hi,
                 or_words, words);
        break;
    case BPI_CFG_FLOAT:
        snprintf(out, cap, "a number from %s to %s%s%s", lo, hi, or_words, words);
        break;
    case BPI_CFG_BOOL:
        snprintf(out, cap, "true or false");
        break;
    case BPI_CFG_ENUM:
        snprintf(out, cap, "one of %s", words);
        break;
    case BPI_CFG_LIST:
        snprintf(out, cap, "a comma list of provider names");
        break;
    default:
        snprintf(out, cap, "a text of %s to %s bytes", lo, hi);
        break;
    }
}

/* ---- the default INI ---- */

/* Appends the text as comment lines of at most 100 columns. */
static void comment(struct bpi_buf *out, const char *text)
{
    const size_t width = 98;
    while (*text != '\0') {
        size_t n = strlen(text);
        if (n > width) {
            for (n = width; n > 0 && text[n] != ' '; --n) {
            }
            if (n == 0) n = width;
        }
        bpi_buf_puts(out, "# ");
        bpi_buf_append(out, text, n);
        bpi_buf_puts(out, "\n");
        text += n;
        while (*text == ' ') ++text;
    }
}

void bpi_config_print_default(struct bpi_buf *out)
{
    comment(out, "Backplane: every key with its default.");
    comment(out, "Printed from the table in core/config/config_keys.c; scripts/update-etc renews "
                 "it. How the "
                 "file is read, and what comes before what: docs/configuration.md.");
    for (size_t s = 0; s < BPI_ARRAY_LEN(sections); ++s) {
        bpi_buf_puts(out, "\n");
        comment(out, sections[s].doc);
        bpi_buf_printf(out, "[%s]\n", sections[s].name);
        for (size_t i = 0; i < BPI_ARRAY_LEN(keys); ++i) {
            if (strcmp(keys[i].section, sections[s].name) != 0) continue;
            bpi_buf_puts(out, "\n");
            comment(out, keys[i].doc);
            if (keys[i].type != BPI_CFG_LIST) { /* the section's comment says it for lists */
                char allowed[192];
                bpi_config_allowed(&keys[i], allowed, sizeof allowed);
                bpi_buf_printf(out, "# (%s)\n", allowed);
            }
            bpi_buf_printf(out, "%s =%s%s\n", keys[i].key, keys[i].dflt[0] != '\0' ? " " : "",
                           keys[i].dflt);
        }
    }
}
