/* token_model.h - opens the tokenizer of a model file that tests have, or says that they have not.
 * Not here: where files lie (models.h). SPDX-License-Identifier: MIT */
#ifndef BP_TEST_TOKEN_MODEL_H
#define BP_TEST_TOKEN_MODEL_H

#include <stdio.h>
#include "gguf/gguf.h"
#include "harness/models.h"
#include "token/token.h"

#define BP_TEST_GLM "bp-tiny-glm-dsa-Q4_K_M.gguf"         /* in the repository */
#define BP_TEST_DEEPSEEK2 "bp-tiny-deepseek2-Q4_K_M.gguf" /* in the folder of larger models */

/* NULL when the file is not there or does not open; the reason is printed. */
static inline struct bpi_token *bp_test_token(const char *file)
{
    struct bp_error err = BP_ERROR_INIT;
    struct bpi_gguf *g = NULL;
    struct bpi_token *t = NULL;
    const char *path = bp_test_model(file);
    if (path == NULL) {
        printf("no %s: set BP_MODELS to the folder that holds it\n", file);
        return NULL;
    }
    if (bpi_gguf_open(path, &g, &err) == BP_OK) (void)bpi_token_open(g, &t, &err);
    if (t == NULL) printf("%s: %s: %s\n", file, err.where, err.msg);
    bpi_gguf_close(g);
    return t;
}

#endif
