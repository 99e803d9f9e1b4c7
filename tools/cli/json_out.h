/* json_out.h - pieces of JSON that several commands print.
 * Not here: what a command's object contains. SPDX-License-Identifier: MIT */
#ifndef CLI_JSON_OUT_H
#define CLI_JSON_OUT_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <backplane/backplane.h>
#include <backplane/tools.h>

/* Is it whole UTF-8? Else *out_at (may be NULL) is the offset of the first byte that is not. */
bool cli_utf8_valid(const char *text, size_t n, size_t *out_at);
/* A JSON string of any bytes: every longest beginning of a character that does not go on validly becomes U+FFFD. */
json_t *cli_json_text(const char *text, size_t n);
/* Sets key to the text, and `bytes` to the array of its bytes when it is not whole UTF-8. */
void cli_json_put_text(json_t *o, const char *key, const char *text, size_t n);
/* NaN and infinities, which JSON lacks, become null. */
json_t *cli_json_real(double v);
json_t *cli_json_ids(const int32_t *ids, size_t n);
/* {"code": "E_IO", "where": ..., "message": ...} */
json_t *cli_json_error(const struct bp_error *err);
/* "a, b" -> ["a", "b"] */
json_t *cli_json_words(const char *list);
/* "0-3" of [0, 4); null outside of layers. */
json_t *cli_json_layers(int32_t begin, int32_t end);
/* {dtype, layout, asked, why, groups[] {layers, layout, index_layout, token_bytes, index_token_bytes}} */
json_t *cli_json_kv(const struct bp_decisions *d);
/* {kind, ordinal, name, asked, why} */
json_t *cli_json_device(const struct bp_decisions *d);
/* {dtype, asked, why} of activations. */
json_t *cli_json_act(const struct bp_decisions *d);
/* [{name, version, file}] of those that serve or wrap something */
json_t *cli_json_plugins(const struct bp_decisions *d);
/* {slots[] {slot, layers, provider}, wrappers[] {slot, layers, wrappers[]}, kv, device, act, plugins} */
json_t *cli_json_backends(const struct bp_session *s);
/* [{id, logprob, text[, bytes]}] */
json_t *cli_json_top(const struct bp_model *m, const struct bp_token_prob *top, uint32_t n);

#endif
