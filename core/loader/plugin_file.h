/* plugin_file.h - plugins as files: what their bytes say, whether their place can be trusted, which ones there are.
 * Nothing here runs any code of a plugin; that begins when a slot wants it (bpi_loader_op, bpi_loader_choose).
 * Threads: parsing and trust are pure; scanning as loader.h says. SPDX-License-Identifier: MIT */
#ifndef BPI_PLUGIN_FILE_H
#define BPI_PLUGIN_FILE_H

#include "loader/loader.h"

/* Why a plugin cannot be used. code BP_R_NONE: it can, as far as is known. */
struct bpi_refusal {
    uint32_t code; /* enum bp_reason_code */
    int64_t got, want_lo, want_hi;
    char field[32];
    char text[448]; /* one sentence without full stop */
    char mend[512]; /* the command that mends it; "" when no command does, or it would not fit */
};

/* ---- bytes (loader_note.c) ---- */

enum {
    BPI_PF_NOTE = 1,       /* has our note: it is a plugin */
    BPI_PF_ENTRY = 2,      /* exports the entry function */
    BPI_PF_STATIC_TLS = 4, /* wants room in the static TLS block, which a running process may not have */
    BPI_PF_TEXTREL = 8,    /* writes to its own code while being loaded */
    BPI_PF_UNIQUE = 16     /* exports a symbol that is one for the whole process (STB_GNU_UNIQUE) */
};

/* What the bytes of a file say. Texts are printable; lists have one blank between names and lose what does not fit. */
struct bpi_plugin_file {
    uint32_t flags;
    uint32_t n_needed, n_exports;     /* exports: defined dynamic symbols but the entry */
    uint64_t tls_bytes;
    struct bp_plugin_note note;       /* when BPI_PF_NOTE; every text ends with a NUL */
    char needed[512], exports[512];   /* libraries; symbols */
};

/* Reads an ELF image. Any bytes are legal input. False with *why when this is no shared object of this machine, or its
 * tables or its note are broken; *out then holds what was read up to there (the note, when BPI_PF_NOTE is set).
 * A shared object without a note is no failure: BPI_PF_NOTE is not set. */
bool bpi_plugin_file_parse(const unsigned char *bytes, uint64_t n_bytes, struct bpi_plugin_file *out,
                           struct bpi_refusal *why);
/* Could this engine use it, from the note alone? False with *why: no note, another ABI (both numbers), an unknown kind,
 * a bad name, interfaces that are misspelt. */
bool bpi_plugin_file_check(const struct bpi_plugin_file *f, struct bpi_refusal *why);
/* Is `iface` in the note's list? */
bool bpi_note_offers(const struct bp_plugin_note *note, const char *iface);

/* ---- place (loader_trust.c) ---- */

/* Follows an absolute path component by component, symbolic links too, and writes the real path to real[0..cap).
 * Every component must belong to root or to the effective user, and nobody else may write to it; a sticky folder such
 * as /tmp may stand on the way, but may not itself be the last folder. want_folder: the path is a folder, else a
 * regular file. False with *why, which names the guilty component and the command that mends it. */
bool bpi_trust_path(const char *path, bool want_folder, char *real, size_t cap, struct bpi_refusal *why);

/* ---- all of them (loader_scan.c) ---- */

enum bpi_found_state { BPI_FOUND_REFUSED, BPI_FOUND_READY, BPI_FOUND_OPEN };

/* One plugin file, and how the configuration calls it. */
struct bpi_found {
    char name[64];       /* of the provider: NAME of [plugin.NAME], else of the note, else made from the file's name */
    const char *path;    /* real path when the place is trusted, else as it was found; lies behind the struct */
    uint32_t state;      /* enum bpi_found_state */
    uint32_t named;      /* a section names the file */
    uint32_t shadowed;   /* another file of this name comes first, and this one is never used */
    uint32_t told;       /* a warning was logged that it is passed over */
    uint32_t folder, order; /* which folder of the search, and which of all finds: only to sort by */
    struct bpi_plugin_file file;
    struct bpi_refusal why; /* REFUSED */
};

/* Finds the plugins: [plugin.NAME] file = ..., then the folders of engine.plugin_path or the default ones. Call it
 * once, after the static plugins are registered. Sorted by name; of one name the one that counts is first.
 * strict: a folder of engine.plugin_path that cannot be trusted, or a file of a section that is in no folder, is an error
 * (BP_E_CONFIG); otherwise such files are merely refused. Errors also: BP_E_CONFIG a relative or missing folder of
 * engine.plugin_path, a section with an impossible name; BP_E_LIMIT; BP_E_NOMEM. */
int32_t bpi_loader_scan(struct bpi_loader *l, bool strict, struct bp_error *err);
size_t bpi_loader_n_found(const struct bpi_loader *l);
const struct bpi_found *bpi_loader_found(const struct bpi_loader *l, size_t i);
/* The one that a provider name stands for; NULL when no file has it. */
const struct bpi_found *bpi_loader_found_named(const struct bpi_loader *l, const char *name);
/* Looks at one file, wherever it lies: its place is not checked. Free with bpi_free. Errors: BP_E_IO, BP_E_NOMEM. */
int32_t bpi_plugin_file_look(const char *path, struct bpi_found **out, struct bp_error *err);

/* "... (code); run: ..." for messages. */
void bpi_refusal_format(const struct bpi_refusal *why, struct bpi_buf *b);

#endif
