/* gguf_write_priv.h - what collecting (gguf_write.c) and saving (gguf_save.c) share. Not here: the interface (gguf.h).
 * SPDX-License-Identifier: MIT */
#ifndef BPI_GGUF_WRITE_PRIV_H
#define BPI_GGUF_WRITE_PRIV_H

#include "gguf/gguf_priv.h"

/* A file that is being written. */
struct bpi_gguf_saving {
    struct bpi_output out;
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

enum { BPI_GGUF_WRITE_ALIGNMENT = BPI_GGUF_DEFAULT_ALIGNMENT };

#endif
