/* models.h - where tests find model files: the one that the repository carries, then the folder of larger ones.
 * Not here: opening them. Threads: not safe (static buffer). SPDX-License-Identifier: MIT */
#ifndef BP_TEST_MODELS_H
#define BP_TEST_MODELS_H

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* Path of a model file by its name, or NULL: the test then exits with 77 and says which file it lacks. Looks in
 * models/ and tests/data/zoo/ of the repository, then in $BP_MODELS, then in ../shared/models beside the repository.
 * The text is valid until the next call. */
static inline const char *bp_test_model(const char *file)
{
    static char path[4096];
    const char *extra = getenv("BP_MODELS");
    const char *folders[] = {BP_SOURCE_DIR "/models", BP_SOURCE_DIR "/tests/data/zoo", extra,
                             BP_SOURCE_DIR "/../shared/models"};
    for (size_t i = 0; i < sizeof folders / sizeof folders[0]; ++i) {
        if (folders[i] == NULL || folders[i][0] == '\0') continue;
        int n = snprintf(path, sizeof path, "%s/%s", folders[i], file);
        if (n > 0 && (size_t)n < sizeof path && access(path, R_OK) == 0) return path;
    }
    return NULL;
}

#endif
