/* fuzz_loader_note.c - any bytes as a plugin's file.
 * Watches: no crash; a refusal has a code and a sentence; texts end; what is accepted offers only names that can be
 * asked for. SPDX-License-Identifier: MIT */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "loader/plugin_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void must(bool ok, const char *what)
{
    if (ok) return;
    fprintf(stderr, "fuzz_loader_note: %s\n", what);
    abort();
}

static bool ends(const char *text, size_t cap)
{
    return memchr(text, '\0', cap) != NULL;
}

static void check_refusal(bool ok, const struct bpi_refusal *why)
{
    must(ok == (why->code == BP_R_NONE), "the answer and its reason disagree");
    must(ends(why->text, sizeof why->text) && ends(why->field, sizeof why->field) &&
             ends(why->mend, sizeof why->mend),
         "a text of a refusal has no end");
    must(ok == (why->text[0] == '\0'), "a refusal is no sentence");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct bpi_plugin_file f;
    struct bpi_refusal why;
    bool ok = bpi_plugin_file_parse(data, n, &f, &why);
    check_refusal(ok, &why);
    must(ends(f.needed, sizeof f.needed) && ends(f.exports, sizeof f.exports), "a list has no end");
    must(f.n_needed <= n / 16 && f.n_exports <= n / 24, "more names than the file has room for");
    if ((f.flags & BPI_PF_NOTE) != 0)
        must(ends(f.note.name, sizeof f.note.name) && ends(f.note.version, sizeof f.note.version) &&
                 ends(f.note.ifaces, sizeof f.note.ifaces),
             "a text of the note has no end");
    if (!ok) return 0;
    ok = bpi_plugin_file_check(&f, &why);
    check_refusal(ok, &why);
    if (ok) {
        must(f.note.name[0] != '\0' && (f.flags & BPI_PF_ENTRY) != 0,
             "an accepted file lacks much");
        must(f.note.abi_major == BP_ABI_MAJOR && f.note.abi_minor == BP_ABI_MINOR, "another ABI");
        must(!bpi_note_offers(&f.note, "") && !bpi_note_offers(&f.note, " "), "offers nothing");
    }
    return 0;
}
