/* elf_image.h - a small ELF shared object, written field by field, so that a test may bend any of them.
 * One loadable segment covers the whole image at address 0, so addresses are offsets. SPDX-License-Identifier: MIT */
#ifndef ELF_IMAGE_H
#define ELF_IMAGE_H

#include <elf.h>
#include <stdint.h>
#include <string.h>
#include "backplane/sdk.h"

enum {
    IMG_PHDRS = sizeof(Elf64_Ehdr),
    IMG_NOTES = 512,   /* room for two records */
    IMG_DYN = 1280,
    IMG_STR = 1600,
    IMG_SYM = 1760,
    IMG_HASH = 1900,   /* old hash table: 2 words that count */
    IMG_GNU = 1920,
    IMG_BYTES = 2048
};

struct elf_image {
    unsigned char b[IMG_BYTES];
    uint64_t n;
};

static inline void img_put(struct elf_image *im, uint64_t at, const void *p, size_t n)
{
    memcpy(im->b + at, p, n);
}

static inline Elf64_Ehdr img_header(const struct elf_image *im)
{
    Elf64_Ehdr h;
    memcpy(&h, im->b, sizeof h);
    return h;
}

static inline Elf64_Phdr img_phdr(const struct elf_image *im, int i)
{
    Elf64_Phdr p;
    memcpy(&p, im->b + IMG_PHDRS + (size_t)i * sizeof p, sizeof p);
    return p;
}

static inline void img_set_phdr(struct elf_image *im, int i, const Elf64_Phdr *p)
{
    img_put(im, IMG_PHDRS + (size_t)i * sizeof *p, p, sizeof *p);
}

static inline struct bp_note_record img_record(const char *name, const char *ifaces)
{
    struct bp_note_record r = {.namesz = sizeof(BP_NOTE_OWNER),
                               .descsz = sizeof(struct bp_plugin_note),
                               .type = BP_NOTE_PLUGIN,
                               .owner = BP_NOTE_OWNER,
                               .desc = {.abi_major = BP_ABI_MAJOR, .abi_minor = BP_ABI_MINOR}};
    strncpy(r.desc.name, name, sizeof r.desc.name - 1);
    strcpy(r.desc.version, "1.0");
    strncpy(r.desc.ifaces, ifaces, sizeof r.desc.ifaces - 1);
    return r;
}

/* Segments: 0 load, 1 notes, 2 dynamic, 3 TLS. Symbols: 1 undefined, 2 the entry, 3 another export, 4 hidden. */
static inline void img_make(struct elf_image *im)
{
    static const char strings[] = "\0libm.so.6\0libdl.so.2\0" BP_PLUGIN_ENTRY "\0extra\0sin";
    const uint32_t libm = 1, libdl = 11, entry = 22, extra = entry + sizeof BP_PLUGIN_ENTRY,
                   sine = extra + 6;
    memset(im, 0, sizeof *im);
    im->n = IMG_BYTES;
    Elf64_Ehdr h = {.e_type = ET_DYN,
#if defined(__aarch64__)
                    .e_machine = EM_AARCH64,
#else
                    .e_machine = EM_X86_64,
#endif
                    .e_version = EV_CURRENT,
                    .e_phoff = IMG_PHDRS,
                    .e_ehsize = sizeof h,
                    .e_phentsize = sizeof(Elf64_Phdr),
                    .e_phnum = 4};
    memcpy(h.e_ident, ELFMAG, SELFMAG);
    h.e_ident[EI_CLASS] = ELFCLASS64;
    h.e_ident[EI_DATA] = ELFDATA2LSB;
    h.e_ident[EI_VERSION] = EV_CURRENT;
    img_put(im, 0, &h, sizeof h);
    const Elf64_Dyn dyn[] = {{DT_NEEDED, {libm}},
                             {DT_NEEDED, {libdl}},
                             {DT_STRTAB, {IMG_STR}},
                             {DT_STRSZ, {sizeof strings}},
                             {DT_SYMTAB, {IMG_SYM}},
                             {DT_SYMENT, {sizeof(Elf64_Sym)}},
                             {DT_HASH, {IMG_HASH}},
                             {DT_FLAGS, {0}},
                             {DT_NULL, {0}}};
    const Elf64_Phdr phdr[] = {
        {.p_type = PT_LOAD, .p_filesz = IMG_BYTES, .p_memsz = IMG_BYTES},
        {.p_type = PT_NOTE, .p_offset = IMG_NOTES, .p_filesz = sizeof(struct bp_note_record), .p_align = 4},
        {.p_type = PT_DYNAMIC, .p_offset = IMG_DYN, .p_filesz = sizeof dyn},
        {.p_type = PT_TLS, .p_memsz = 48}};
    img_put(im, IMG_PHDRS, phdr, sizeof phdr);
    struct bp_note_record r = img_record("image", "bp.quant bp.mla.decode acme.own");
    img_put(im, IMG_NOTES, &r, sizeof r);
    img_put(im, IMG_DYN, dyn, sizeof dyn);
    img_put(im, IMG_STR, strings, sizeof strings);
    const unsigned char global = ELF64_ST_INFO(STB_GLOBAL, STT_FUNC);
    const Elf64_Sym sym[5] = {{.st_name = 0},
                              {.st_name = sine, .st_info = global},
                              {.st_name = entry, .st_info = global, .st_shndx = 1},
                              {.st_name = extra, .st_info = global, .st_shndx = 1},
                              {.st_name = extra, .st_info = global, .st_shndx = 1, .st_other = STV_HIDDEN}};
    img_put(im, IMG_SYM, sym, sizeof sym);
    const uint32_t hash[2] = {1, 5};
    img_put(im, IMG_HASH, hash, sizeof hash);
    /* one bucket that begins with symbol 1; the chain has four words, the last one ends it */
    const uint32_t gnu[] = {1, 1, 1, 0, 0, 0, 1, 2, 2, 2, 3};
    img_put(im, IMG_GNU, gnu, sizeof gnu);
}

/* The i-th entry of the dynamic section. */
static inline void img_set_dyn(struct elf_image *im, int i, int64_t tag, uint64_t value)
{
    const Elf64_Dyn d = {tag, {value}};
    img_put(im, IMG_DYN + (size_t)i * sizeof d, &d, sizeof d);
}

#endif
