/* replay_main.c - runs a fuzz target over every file of its seed folder, so that found inputs stay fixed.
 * Not here: making new inputs (libFuzzer does, with BP_FUZZ=ON).
 * Threads: one. SPDX-License-Identifier: MIT */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The input lies in a block of exactly its size, so that a sanitizer sees the first byte read beyond it. */
static int replay(const char *path)
{
    FILE *f = fopen(path, "rb");
    if (f == NULL) return -1;
    int rc = -1;
    uint8_t *data = NULL;
    if (fseek(f, 0, SEEK_END) == 0) {
        long n = ftell(f);
        rewind(f);
        data = n >= 0 ? malloc(n > 0 ? (size_t)n : 1) : NULL;
        if (data != NULL && fread(data, 1, (size_t)n, f) == (size_t)n) {
            (void)LLVMFuzzerTestOneInput(data, (size_t)n);
            rc = 0;
        }
    }
    free(data);
    (void)fclose(f);
    return rc;
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: %s SEED_FOLDER\n", argv[0]);
        return 2;
    }
    DIR *dir = opendir(argv[1]);
    if (dir == NULL) {
        fprintf(stderr, "cannot open the seed folder %s\n", argv[1]);
        return 1;
    }
    unsigned long count = 0, failed = 0;
    for (struct dirent *e; (e = readdir(dir)) != NULL;) {
        char path[4096];
        int n = snprintf(path, sizeof path, "%s/%s", argv[1], e->d_name);
        struct stat st;
        if (n < 0 || (size_t)n >= sizeof path || stat(path, &st) != 0) {
            fprintf(stderr, "cannot reach %s\n", e->d_name);
            ++failed;
        } else if (S_ISREG(st.st_mode)) {
            if (replay(path) == 0) {
                ++count;
            } else {
                fprintf(stderr, "cannot read %s\n", path);
                ++failed;
            }
        }
    }
    (void)closedir(dir);
    printf("%lu inputs replayed, %lu unreadable\n", count, failed);
    return count > 0 && failed == 0 ? 0 : 1;
}
