/* gguf_write_priv.h - what collecting (gguf_write.c) and saving (gguf_save.c) share. Not here: the interface (gguf.h).
 * SPDX-License-Identifier: MIT */
#ifndef BPI_GGUF_WRITE_PRIV_H
#define BPI_GGUF_WRITE_PRIV_H

#include "gguf/gguf_priv.h"

/* A file that is being written. */
struct bpi_gguf_saving {
    char *path, *tmp; /* NULL: nothing is being written */
    int fd;          /* -1: closed */
    bool created;    /* tmp exists */
    uint64_t tensor; /* the one that the next bytes belong to */
    uint64_t at;     /* bytes of it that are written */
};

struct bpi_gguf_writer {
    struct bp_error error; /* the first failure of a put_ call */
    struct bpi_buf kv;     /* encoded records */
    uint64_t *key_at;      /* where each record begins in kv */
    uint64_t n_kv, cap_kv;
    struct bpi_gguf_tensor *tensors; /* offset: from the start of the data section */
    uint64_t n_tensors, cap_tensors;
    uint64_t data_bytes;
    struct bpi_gguf_saving saving;
};

/* Reserves the first n_bytes of an open file. 0, or the errno that says that there is no room: full disk, quota, limit.
 * A file system that cannot reserve is fine: writing will tell. */
int bpi_gguf_reserve(int fd, uint64_t n_bytes);

enum { BPI_GGUF_WRITE_ALIGNMENT = BPI_GGUF_DEFAULT_ALIGNMENT };

#endif
