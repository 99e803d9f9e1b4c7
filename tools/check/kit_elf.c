/* kit_elf.c - see kit_elf.h. Every offset of the file is hostile. SPDX-License-Identifier: MIT */
#include "kit_elf.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#if defined(__x86_64__)
enum { OWN_MACHINE = EM_X86_64 };
#elif defined(__aarch64__)
enum { OWN_MACHINE = EM_AARCH64 };
#endif

static const void *span(const struct kit_elf *e, uint64_t at, uint64_t n, uint64_t elem)
{
    if (at > e->n_bytes || at % 4 != 0 || (elem != 0 && n > (e->n_bytes - at) / elem)) return NULL;
    return e->bytes + at;
}

static bool fail(struct kit_elf *e, const char *why)
{
    kit_elf_close(e);
    e->why = why;
    return false;
}

/* Where in the file an address of a loaded segment lies. */
static bool offset_of(const struct kit_elf *e, uint64_t address, uint64_t *at, uint64_t *room)
{
    for (uint32_t i = 0; i < e->h->e_phnum; ++i) {
        const Elf64_Phdr *p = &e->ph[i];
        if (p->p_type != PT_LOAD || address < p->p_vaddr || address - p->p_vaddr >= p->p_filesz)
            continue;
        *at = p->p_offset + (address - p->p_vaddr);
        if (*at < p->p_offset || *at >= e->n_bytes) return false;
        *room = p->p_filesz - (address - p->p_vaddr);
        if (*room > e->n_bytes - *at) *room = e->n_bytes - *at;
        return true;
    }
    return false;
}

static bool find_tables(struct kit_elf *e)
{
    uint64_t address, at, room;
    for (uint32_t i = 0; i < e->h->e_phnum; ++i) {
        if (e->ph[i].p_type != PT_DYNAMIC) continue;
        e->n_dyn = e->ph[i].p_filesz / sizeof *e->dyn;
        e->dyn = span(e, e->ph[i].p_offset, e->n_dyn, sizeof *e->dyn);
    }
    if (e->dyn == NULL || (uintptr_t)e->dyn % 8 != 0)
        return fail(e, "it has no dynamic section: not a shared object");
    if (kit_elf_dyn(e, DT_STRTAB, 0, &address) && offset_of(e, address, &at, &room)) {
        uint64_t n = 0;
        (void)kit_elf_dyn(e, DT_STRSZ, 0, &n);
        e->n_strings = n < room ? n : room;
        e->strings = (const char *)e->bytes + at;
    }
    e->sh = span(e, e->h->e_shoff, e->h->e_shnum, sizeof *e->sh);
    if (e->h->e_shoff == 0 || e->h->e_shentsize != sizeof *e->sh || e->h->e_shoff % 8 != 0)
        e->sh = NULL;
    for (uint32_t i = 0; e->sh != NULL && i < e->h->e_shnum; ++i) {
        if (e->sh[i].sh_type != SHT_DYNSYM) continue;
        e->n_sym = e->sh[i].sh_size / sizeof *e->sym;
        e->sym = e->sh[i].sh_offset % 8 == 0 ? span(e, e->sh[i].sh_offset, e->n_sym, sizeof *e->sym)
                                             : NULL;
        if (e->sym == NULL) e->n_sym = 0;
    }
    return true;
}

bool kit_elf_open(struct kit_elf *e, const char *path)
{
    struct stat st;
    memset(e, 0, sizeof *e);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        if (fd >= 0) (void)close(fd);
        return fail(e, "it cannot be read");
    }
    void *map =
        st.st_size > 0 ? mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0) : MAP_FAILED;
    (void)close(fd);
    if (map == MAP_FAILED) return fail(e, "it is empty or cannot be mapped");
    e->bytes = map;
    e->n_bytes = (size_t)st.st_size;
    e->h = span(e, 0, 1, sizeof *e->h);
    if (e->h == NULL || memcmp(e->h->e_ident, ELFMAG, SELFMAG) != 0)
        return fail(e, "it is no ELF file");
    if (e->h->e_ident[EI_CLASS] != ELFCLASS64 || e->h->e_ident[EI_DATA] != ELFDATA2LSB)
        return fail(e, "it is no 64-bit little-endian ELF file");
    if (e->h->e_machine != OWN_MACHINE) return fail(e, "it was built for another machine");
    if (e->h->e_type != ET_DYN) return fail(e, "it is no shared object");
    e->ph = e->h->e_phoff % 8 == 0 && e->h->e_phentsize == sizeof *e->ph
                ? span(e, e->h->e_phoff, e->h->e_phnum, sizeof *e->ph)
                : NULL;
    if (e->ph == NULL) return fail(e, "its program headers lie outside of the file");
    return find_tables(e);
}

void kit_elf_close(struct kit_elf *e)
{
    if (e->bytes != NULL) (void)munmap((void *)(uintptr_t)e->bytes, e->n_bytes);
    memset(e, 0, sizeof *e);
}

const char *kit_elf_string(const struct kit_elf *e, uint64_t at)
{
    if (e->strings == NULL || at >= e->n_strings) return "";
    return memchr(e->strings + at, '\0', e->n_strings - at) != NULL ? e->strings + at : "";
}

bool kit_elf_dyn(const struct kit_elf *e, int64_t tag, uint32_t i, uint64_t *out)
{
    for (size_t k = 0; k < e->n_dyn && e->dyn[k].d_tag != DT_NULL; ++k) {
        if (e->dyn[k].d_tag != tag || i-- != 0) continue;
        *out = e->dyn[k].d_un.d_val;
        return true;
    }
    return false;
}

const void *kit_elf_note(const struct kit_elf *e, const char *owner, uint32_t type, uint32_t i,
                         uint32_t *n_bytes)
{
    for (uint32_t s = 0; s < e->h->e_phnum; ++s) {
        const Elf64_Phdr *p = &e->ph[s];
        uint64_t left = p->p_filesz, at = p->p_offset;
        if (p->p_type != PT_NOTE || span(e, at, left, 1) == NULL) continue;
        while (left >= sizeof(Elf64_Nhdr)) {
            Elf64_Nhdr h;
            memcpy(&h, e->bytes + at, sizeof h);
            const uint64_t name = ((uint64_t)h.n_namesz + 3) & ~UINT64_C(3),
                           desc = ((uint64_t)h.n_descsz + 3) & ~UINT64_C(3);
            if (name + desc > left - sizeof h) break;
            const unsigned char *body = e->bytes + at + sizeof h;
            if (h.n_type == type && h.n_namesz == strlen(owner) + 1 &&
                memcmp(body, owner, h.n_namesz) == 0 && i-- == 0) {
                *n_bytes = h.n_descsz;
                return body + name;
            }
            at += sizeof h + name + desc;
            left -= sizeof h + name + desc;
        }
    }
    return NULL;
}
