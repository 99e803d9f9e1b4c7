/* kit_elf.h - an ELF shared object as bytes; nothing of it is run. SPDX-License-Identifier: MIT */
#ifndef KIT_ELF_H
#define KIT_ELF_H

#include <elf.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backplane/plugin.h"

struct kit_elf {
    const unsigned char *bytes;
    size_t n_bytes;
    const Elf64_Ehdr *h;
    const Elf64_Phdr *ph;
    const Elf64_Shdr *sh; /* NULL: no section headers */
    const Elf64_Dyn *dyn;
    size_t n_dyn;
    const char *strings; /* DT_STRTAB */
    size_t n_strings;
    const Elf64_Sym *sym; /* dynamic symbols, [0, n_sym) */
    size_t n_sym;
    const char *why; /* after a failure: what is wrong */
};
/* Maps the file; everything that the struct points to lies inside of it. false: e->why. */
bool kit_elf_open(struct kit_elf *e, const char *path);
void kit_elf_close(struct kit_elf *e);
/* "" for an offset outside of the table. */
const char *kit_elf_string(const struct kit_elf *e, uint64_t at);
/* Value of the i-th entry with that tag; false past the end. */
bool kit_elf_dyn(const struct kit_elf *e, int64_t tag, uint32_t i, uint64_t *out);
/* The i-th note of this owner and type; NULL past the end. */
const void *kit_elf_note(const struct kit_elf *e, const char *owner, uint32_t type, uint32_t i, uint32_t *n_bytes);

#endif
