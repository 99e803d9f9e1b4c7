/* loader_note.c - the bytes of a plugin's file: ELF headers, our note, libraries needed, symbols exported.
 * Every number in the file is hostile: all reads go through one checked window.
 * Not here: opening files, judging their place (loader_scan.c, loader_trust.c), running them (loader_open.c).
 * Threads: pure. Source: the ELF gABI (generic) and its GNU hash extension. SPDX-License-Identifier: MIT */
#include "loader/loader_priv.h"

#include <elf.h>
#include <stdio.h>
#include <string.h>

enum { MAX_PHDR = 128, MAX_DYN = 4096, MAX_NOTES = 1024 };

#if defined(__x86_64__)
#define MACHINE EM_X86_64
#elif defined(__aarch64__)
#define MACHINE EM_AARCH64
#else
#error "name the ELF machine number of this architecture"
#endif

/* One file being read. */
struct image {
    const unsigned char *bytes;
    uint64_t n;
    uint32_t n_phdr;
    uint64_t phoff;
    struct bpi_plugin_file *out;
    struct bpi_refusal *why;
};

static bool refuse(const struct image *im, const char *text)
{
    bpi_refuse(im->why, BP_R_LOAD, "%s", text);
    return false;
}

/* Copies [at, at + n) out of the file; alignment does not matter. */
static bool get(const struct image *im, uint64_t at, void *out, uint64_t n)
{
    if (at > im->n || n > im->n - at) return false;
    memcpy(out, im->bytes + at, (size_t)n);
    return true;
}

static bool phdr_at(const struct image *im, uint32_t i, Elf64_Phdr *p)
{
    return get(im, im->phoff + (uint64_t)i * sizeof *p, p, sizeof *p);
}

/* Where a virtual address lies in the file, and how many bytes of the file follow it in its segment. */
static bool file_offset(const struct image *im, uint64_t vaddr, uint64_t *at, uint64_t *left)
{
    Elf64_Phdr p;
    for (uint32_t i = 0; i < im->n_phdr; ++i) {
        if (!phdr_at(im, i, &p)) return false;
        if (p.p_type != PT_LOAD || vaddr < p.p_vaddr || vaddr - p.p_vaddr >= p.p_filesz) continue;
        if (!bpi_add_u64(p.p_offset, vaddr - p.p_vaddr, at) || *at >= im->n) return false;
        *left = p.p_filesz - (vaddr - p.p_vaddr);
        if (*left > im->n - *at) *left = im->n - *at;
        return true;
    }
    return false;
}

/* ---- header ---- */

static bool read_header(struct image *im)
{
    Elf64_Ehdr h;
    if (!get(im, 0, &h, sizeof h) || memcmp(h.e_ident, ELFMAG, SELFMAG) != 0)
        return refuse(im, "this is no ELF file; a plugin is a shared object (.so)");
    if (h.e_ident[EI_CLASS] != ELFCLASS64 || h.e_ident[EI_DATA] != ELFDATA2LSB ||
        h.e_ident[EI_VERSION] != EV_CURRENT || h.e_version != EV_CURRENT)
        return refuse(im, "this is not a 64-bit little-endian ELF file; rebuild the plugin for "
                          "this machine");
    if (h.e_machine != MACHINE) {
        bpi_refuse(im->why, BP_R_ARCH,
                   "the file is for ELF machine %u and this one is %d; rebuild the plugin here",
                   h.e_machine, MACHINE);
        bpi_refusal_numbers(im->why, "machine", h.e_machine, MACHINE, MACHINE);
        return false;
    }
    if (h.e_type != ET_DYN)
        return refuse(im, "this ELF file is no shared object; link the plugin with -shared");
    if (h.e_phentsize != sizeof(Elf64_Phdr) || h.e_phnum == 0 || h.e_phnum > MAX_PHDR)
        return refuse(im, "the table of segments has an impossible size; the file is damaged");
    im->n_phdr = h.e_phnum;
    im->phoff = h.e_phoff;
    uint64_t end;
    if (!bpi_add_u64(h.e_phoff, (uint64_t)h.e_phnum * sizeof(Elf64_Phdr), &end) || end > im->n)
        return refuse(im, "the table of segments lies beyond the end; the file was cut short");
    return true;
}

/* ---- notes ---- */

static bool text_ok(const char *text, size_t cap)
{
    const char *end = memchr(text, '\0', cap);
    if (end == NULL) return false;
    for (const char *s = text; s < end; ++s) {
        if (*s < ' ' || *s > '~') return false;
    }
    for (const char *s = end; s < text + cap; ++s) {
        if (*s != '\0') return false; /* nothing may hide behind the end */
    }
    return true;
}

static bool take_note(struct image *im, uint64_t at, uint32_t n)
{
    struct bp_plugin_note note;
    if ((im->out->flags & BPI_PF_NOTE) != 0)
        return refuse(im, "the file has two plugin notes; use BP_PLUGIN_NOTE once");
    if (n != sizeof note || !get(im, at, &note, sizeof note))
        return refuse(im, "the plugin note has a wrong length; write it with BP_PLUGIN_NOTE");
    if (!text_ok(note.name, sizeof note.name) || !text_ok(note.version, sizeof note.version) ||
        !text_ok(note.ifaces, sizeof note.ifaces))
        return refuse(im, "a text of the plugin note is not printable, has no end, or has bytes "
                          "behind its end; write the note with BP_PLUGIN_NOTE");
    im->out->note = note;
    im->out->flags |= BPI_PF_NOTE;
    return true;
}

/* align: of the padding inside; 8 where the segment says so, else 4. */
static bool read_notes(struct image *im, uint64_t at, uint64_t n, uint64_t align)
{
    uint64_t end;
    if (!bpi_add_u64(at, n, &end) || end > im->n)
        return refuse(im, "a segment of notes lies beyond the end; the file was cut short");
    for (uint32_t count = 0; end - at >= sizeof(Elf64_Nhdr); ++count) {
        Elf64_Nhdr h;
        uint64_t desc, next;
        char owner[sizeof BP_NOTE_OWNER];
        if (count == MAX_NOTES || !get(im, at, &h, sizeof h)) break;
        desc = (sizeof h + (uint64_t)h.n_namesz + align - 1) & ~(align - 1); /* 32 bits: no wrap */
        next = (desc + h.n_descsz + align - 1) & ~(align - 1);
        if (desc > end - at || h.n_descsz > end - at - desc)
            return refuse(im, "a note is longer than its segment; the file is damaged");
        if (h.n_namesz == sizeof owner && get(im, at + sizeof h, owner, sizeof owner) &&
            memcmp(owner, BP_NOTE_OWNER, sizeof owner) == 0 && h.n_type == BP_NOTE_PLUGIN &&
            !take_note(im, at + desc, h.n_descsz))
            return false;
        if (next > end - at) break; /* the last one may lack its padding */
        at += next;
    }
    return true;
}

/* ---- dynamic section ---- */

struct dynamic {
    uint64_t strtab, strsz, symtab, hash, gnu_hash, syment;
    uint64_t str_at, sym_at;     /* in the file */
    uint64_t str_left, sym_left; /* bytes of the segment from there */
};

/* Adds a name of the string table to a list, printable and whole or not at all. */
static void list_add(const struct image *im, const struct dynamic *d, uint64_t name, char *list,
                     size_t cap)
{
    const size_t n = strlen(list);
    size_t at = n;
    unsigned char c = 1;
    if (n != 0 && n + 1 < cap) list[at++] = ' ';
    const size_t first = at;
    for (; name < d->str_left && at + 1 < cap && get(im, d->str_at + name, &c, 1) && c != 0; ++name)
        list[at++] = c > ' ' && c <= '~' ? (char)c : '?';
    list[c == 0 && at > first ? at : n] = '\0';
}

static bool name_is(const struct image *im, const struct dynamic *d, uint64_t name, const char *s)
{
    const size_t n = strlen(s) + 1;
    return name < d->str_left && n <= d->str_left - name && d->str_at + name <= im->n &&
           n <= im->n - (d->str_at + name) && memcmp(im->bytes + d->str_at + name, s, n) == 0;
}

/* Number of dynamic symbols: in the old hash table as a field; in the GNU one the end of the last chain. */
static bool count_symbols(const struct image *im, const struct dynamic *d, uint64_t *out)
{
    uint64_t at, left;
    uint32_t h[4];
    *out = 0;
    if (d->hash != 0) {
        if (!file_offset(im, d->hash, &at, &left) || left < 8 || !get(im, at, h, 8)) return false;
        *out = h[1];
        return true;
    }
    if (d->gnu_hash == 0) return true;
    if (!file_offset(im, d->gnu_hash, &at, &left) || left < sizeof h || !get(im, at, h, sizeof h))
        return false;
    const uint64_t n_buckets = h[0], first = h[1];
    const uint64_t buckets = sizeof h + (uint64_t)h[2] * 8, chains = buckets + n_buckets * 4;
    if (chains > left) return false;
    uint64_t last = 0;
    uint32_t word = 0;
    for (uint64_t i = 0; i < n_buckets; ++i) {
        if (!get(im, at + buckets + i * 4, &word, 4)) return false;
        if (word > last) last = word;
    }
    *out = first;
    if (last < first) return true; /* nothing is exported */
    do { /* the last symbol of a chain has bit 0 set; running into the end is damage */
        const uint64_t chain = chains + (last - first) * 4;
        if (chain + 4 > left || !get(im, at + chain, &word, 4)) return false;
        ++last;
    } while ((word & 1) == 0);
    *out = last;
    return true;
}

static bool read_symbols(struct image *im, const struct dynamic *d)
{
    uint64_t n;
    if (!count_symbols(im, d, &n) || n > d->sym_left / sizeof(Elf64_Sym))
        return refuse(im, "the table of dynamic symbols is damaged; rebuild the plugin");
    for (uint64_t i = 1; i < n; ++i) {
        Elf64_Sym s;
        if (!get(im, d->sym_at + i * sizeof s, &s, sizeof s))
            return refuse(im, "the table of dynamic symbols lies beyond the end of the file");
        const unsigned bind = ELF64_ST_BIND(s.st_info), visible = ELF64_ST_VISIBILITY(s.st_other);
        if (s.st_shndx == SHN_UNDEF || bind == STB_LOCAL || visible == STV_HIDDEN ||
            visible == STV_INTERNAL)
            continue;
        if (bind == STB_GNU_UNIQUE) im->out->flags |= BPI_PF_UNIQUE;
        if (name_is(im, d, s.st_name, BP_PLUGIN_ENTRY)) {
            im->out->flags |= BPI_PF_ENTRY;
            continue;
        }
        im->out->n_exports++;
        list_add(im, d, s.st_name, im->out->exports, sizeof im->out->exports);
    }
    return true;
}

static void take_dyn(struct image *im, struct dynamic *d, const Elf64_Dyn *e)
{
    switch (e->d_tag) {
    case DT_STRTAB:
        d->strtab = e->d_un.d_ptr;
        break;
    case DT_STRSZ:
        d->strsz = e->d_un.d_val;
        break;
    case DT_SYMTAB:
        d->symtab = e->d_un.d_ptr;
        break;
    case DT_SYMENT:
        d->syment = e->d_un.d_val;
        break;
    case DT_HASH:
        d->hash = e->d_un.d_ptr;
        break;
    case DT_GNU_HASH:
        d->gnu_hash = e->d_un.d_ptr;
        break;
    case DT_TEXTREL:
        im->out->flags |= BPI_PF_TEXTREL;
        break;
    case DT_FLAGS:
        if ((e->d_un.d_val & DF_TEXTREL) != 0) im->out->flags |= BPI_PF_TEXTREL;
        if ((e->d_un.d_val & DF_STATIC_TLS) != 0) im->out->flags |= BPI_PF_STATIC_TLS;
        break;
    default:
        break;
    }
}

static bool read_dynamic(struct image *im, uint64_t at, uint64_t n)
{
    struct dynamic d = {0};
    Elf64_Dyn e;
    uint64_t count = 0;
    for (; count < n / sizeof e; ++count) {
        if (count == MAX_DYN || !get(im, at + count * sizeof e, &e, sizeof e))
            return refuse(im, "the dynamic section is damaged or cut short; rebuild the plugin");
        if (e.d_tag == DT_NULL) break;
        take_dyn(im, &d, &e);
    }
    if (d.syment != sizeof(Elf64_Sym) || !file_offset(im, d.strtab, &d.str_at, &d.str_left) ||
        !file_offset(im, d.symtab, &d.sym_at, &d.sym_left))
        return refuse(im, "the dynamic section names no tables of symbols and texts inside the "
                          "file; rebuild the plugin");
    if (d.str_left > d.strsz) d.str_left = d.strsz;
    for (uint64_t i = 0; i < count; ++i) {
        if (!get(im, at + i * sizeof e, &e, sizeof e) || e.d_tag != DT_NEEDED) continue;
        im->out->n_needed++;
        list_add(im, &d, e.d_un.d_val, im->out->needed, sizeof im->out->needed);
    }
    return read_symbols(im, &d);
}

/* ---- whole ---- */

bool bpi_plugin_file_parse(const unsigned char *bytes, uint64_t n_bytes,
                           struct bpi_plugin_file *out, struct bpi_refusal *why)
{
    struct image im = {.bytes = bytes, .n = n_bytes, .out = out, .why = why};
    Elf64_Phdr p, dynamic = {0};
    memset(out, 0, sizeof *out);
    memset(why, 0, sizeof *why);
    if (!read_header(&im)) return false;
    for (uint32_t i = 0; i < im.n_phdr; ++i) {
        if (!phdr_at(&im, i, &p))
            return refuse(&im, "the table of segments lies beyond the end of the file");
        if (p.p_type == PT_NOTE && !read_notes(&im, p.p_offset, p.p_filesz, p.p_align == 8 ? 8 : 4))
            return false;
        if (p.p_type == PT_TLS) out->tls_bytes = p.p_memsz;
        if (p.p_type == PT_DYNAMIC) dynamic = p;
    }
    if (dynamic.p_type != PT_DYNAMIC || dynamic.p_offset > n_bytes)
        return refuse(&im, "the file has no dynamic section; link the plugin with -shared");
    return read_dynamic(&im, dynamic.p_offset, dynamic.p_filesz);
}

/* ---- judging the note ---- */

bool bpi_note_offers(const struct bp_plugin_note *note, const char *iface)
{
    const size_t n = strlen(iface);
    for (const char *s = note->ifaces; *s != '\0';) {
        const size_t len = strcspn(s, " ");
        if (len == n && memcmp(s, iface, n) == 0) return true;
        s += len + (s[len] == ' ');
    }
    return false;
}

/* Interfaces called bp.* are ours and must be known; others belong to their vendors and are never asked for. */
static bool check_iface(const char *name, struct bpi_refusal *why)
{
    static const char *const ours[] = {"bp.device",      "bp.dense",      "bp.quant",
                                       "bp.moe",         "bp.coll",       "bp.mla.common",
                                       "bp.mla.prefill", "bp.mla.decode", "bp.mla.index"};
    const size_t n = strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_.-");
    if (name[0] == '\0' || name[n] != '\0') {
        bpi_refuse(why, BP_R_ABI,
                   "the note's list of interfaces holds \"%s\"; names have a-z, 0-9, dots, minus "
                   "and _, with one blank between them",
                   name);
        return false;
    }
    if (strncmp(name, "bp.", 3) != 0) return true;
    for (size_t i = 0; i < BPI_ARRAY_LEN(ours); ++i) {
        if (strcmp(name, ours[i]) == 0) return true;
    }
    const char *near = bpi_nearest(name, ours, BPI_ARRAY_LEN(ours));
    bpi_refuse(why, BP_R_ABI, "this engine has no interface \"%s\"%s%s%s", name,
               near != NULL ? "; did you mean " : "", near != NULL ? near : "",
               near != NULL ? "?" : "");
    return false;
}

static bool check_ifaces(const char *list, struct bpi_refusal *why)
{
    char name[sizeof((struct bp_plugin_note *)0)->ifaces];
    for (const char *s = list;;) {
        const size_t n = strcspn(s, " ");
        memcpy(name, s, n);
        name[n] = '\0';
        if (!check_iface(name, why)) return false;
        if (s[n] == '\0') return true;
        s += n + 1;
    }
}

bool bpi_plugin_file_check(const struct bpi_plugin_file *f, struct bpi_refusal *why)
{
    const struct bp_plugin_note *note = &f->note;
    memset(why, 0, sizeof *why);
    if ((f->flags & BPI_PF_NOTE) == 0) {
        bpi_refuse(why, BP_R_LOAD,
                   "the file has no plugin note, so it is no plugin; add BP_PLUGIN_NOTE to it");
        return false;
    }
    if (note->abi_major != BP_ABI_MAJOR || note->abi_minor != BP_ABI_MINOR) {
        const bool major = note->abi_major != BP_ABI_MAJOR;
        bpi_refuse(why, BP_R_ABI,
                   "the plugin speaks ABI %u.%u and this engine %d.%d; rebuild the plugin with "
                   "this engine's headers",
                   note->abi_major, note->abi_minor, BP_ABI_MAJOR, BP_ABI_MINOR);
        bpi_refusal_numbers(
            why, major ? "abi_major" : "abi_minor", major ? note->abi_major : note->abi_minor,
            major ? BP_ABI_MAJOR : BP_ABI_MINOR, major ? BP_ABI_MAJOR : BP_ABI_MINOR);
        return false;
    }
    if (note->kind > BP_KIND_WRAPPER || note->reserved != 0) {
        bpi_refuse(why, BP_R_ABI, "the note says kind %u (%u); 0 is a backend, 1 a wrapper",
                   note->kind, note->reserved);
        bpi_refusal_numbers(why, "kind", note->kind, BP_KIND_BACKEND, BP_KIND_WRAPPER);
        return false;
    }
    if (!bpi_plugin_name_ok(note->name)) {
        bpi_refuse(why, BP_R_ABI,
                   "the note calls the plugin \"%s\"; a name has 1 to 31 of a-z, 0-9 and _, and is "
                   "not \"auto\"",
                   note->name);
        return false;
    }
    if (!check_ifaces(note->ifaces, why)) return false;
    if ((f->flags & BPI_PF_ENTRY) == 0) {
        bpi_refuse(why, BP_R_LOAD, "the plugin does not export %s; declare it with BP_EXPORT",
                   BP_PLUGIN_ENTRY);
        return false;
    }
    return true;
}
