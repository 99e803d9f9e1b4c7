/* stage_file.c - stages 0 and 1: what the file says before any of its code runs; entry and descriptor.
 * SPDX-License-Identifier: MIT */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kit.h"
#include "kit_elf.h"
#include "kit_env.h"
#include "kit_guard.h"

enum { MAX_STATIC_TLS = 4096 };

/* ---- stage 0 ---- */

static bool text_ends(const char *s, size_t cap)
{
    return memchr(s, '\0', cap) != NULL && s[0] != '\0';
}

static const struct bp_plugin_note *read_note(struct kit *k, const struct kit_elf *e)
{
    uint32_t n = 0, n2 = 0;
    const struct bp_plugin_note *note = kit_elf_note(e, BP_NOTE_OWNER, BP_NOTE_PLUGIN, 0, &n);
    if (note == NULL) {
        (void)kit_refuse(k, "0.2", BP_R_LOAD, "note", NULL,
                         "the file has no note; BP_PLUGIN of sdk.h emits it");
        return NULL;
    }
    if (kit_elf_note(e, BP_NOTE_OWNER, BP_NOTE_PLUGIN, 1, &n2) != NULL)
        (void)kit_refuse(k, "0.2", BP_R_LOAD, "note", NULL, "the file has more than one note");
    if (n < sizeof *note || !text_ends(note->name, sizeof note->name) ||
        !text_ends(note->version, sizeof note->version) ||
        !text_ends(note->ifaces, sizeof note->ifaces) || note->kind > BP_KIND_WRAPPER) {
        (void)kit_refuse(k, "0.2", BP_R_LOAD, "note", NULL,
                         "the note is malformed: %u bytes, kind %u", n,
                         n >= sizeof *note ? note->kind : 0);
        return NULL;
    }
    if (note->abi_major != BP_ABI_MAJOR || note->abi_minor != BP_ABI_MINOR)
        (void)kit_refuse(k, "0.3", BP_R_ABI, "note", NULL,
                         "it names ABI %u.%u, this kit speaks %d.%d", note->abi_major,
                         note->abi_minor, BP_ABI_MAJOR, BP_ABI_MINOR);
    return note;
}

static void check_symbols(struct kit *k, const struct kit_elf *e)
{
    bool entry = false;
    uint32_t n_more = 0, n_unique = 0;
    char more[200] = "", unique[64] = "";
    for (size_t i = 1; i < e->n_sym; ++i) {
        const Elf64_Sym *s = &e->sym[i];
        const char *name = kit_elf_string(e, s->st_name);
        const unsigned bind = ELF64_ST_BIND(s->st_info), type = ELF64_ST_TYPE(s->st_info);
        if (bind == STB_GNU_UNIQUE && n_unique++ == 0)
            (void)snprintf(unique, sizeof unique, "%.60s", name);
        if (s->st_shndx == SHN_UNDEF || bind == STB_LOCAL || type == STT_SECTION) continue;
        if (strcmp(name, BP_PLUGIN_ENTRY) == 0) {
            entry = true;
            continue;
        }
        if (n_more++ < 3 && strlen(more) + strlen(name) + 3 < sizeof more) {
            strcat(more, more[0] != '\0' ? ", " : "");
            strcat(more, name);
        }
    }
    if (!entry)
        (void)kit_refuse(k, "0.4", BP_R_LOAD, "exports", NULL, "%s is not exported",
                         BP_PLUGIN_ENTRY);
    if (n_more != 0)
        (void)kit_fail(k, "0.4", "", "exports", NULL, "%u more exported: %s%s", n_more, more,
                       n_more > 3 ? ", ..." : "");
    if (n_unique != 0)
        (void)kit_fail(k, "0.8", "", "symbols", NULL,
                       "%u unique symbols, the first is %s; compile with -fno-gnu-unique", n_unique,
                       unique);
}

/* Is a library found in one of the folders of RUNPATH? */
static bool in_runpath(const struct kit *k, const char *runpath, const char *lib)
{
    char origin[1024], path[2048];
    (void)snprintf(origin, sizeof origin, "%s", k->o->file);
    char *slash = strrchr(origin, '/');
    if (slash != NULL) *slash = '\0';
    while (*runpath != '\0') {
        const size_t n = strcspn(runpath, ":");
        const bool dollar = strncmp(runpath, "$ORIGIN", 7) == 0 && n >= 7;
        (void)snprintf(path, sizeof path, "%s%.*s/%s", dollar ? origin : "",
                       (int)(n - (dollar ? 7 : 0)), runpath + (dollar ? 7 : 0), lib);
        if (access(path, R_OK) == 0) return true;
        runpath += n + (runpath[n] == ':');
    }
    return false;
}

static void check_needed(struct kit *k, const struct kit_elf *e)
{
    uint64_t at = 0;
    const char *runpath = "";
    if (kit_elf_dyn(e, DT_RUNPATH, 0, &at) || kit_elf_dyn(e, DT_RPATH, 0, &at))
        runpath = kit_elf_string(e, at);
    for (const char *p = runpath; *p != '\0';) {
        const size_t n = strcspn(p, ":");
        if (*p != '/' && strncmp(p, "$ORIGIN", 7) != 0)
            (void)kit_fail(k, "0.6", "", "RUNPATH", NULL, "`%.*s` depends on the current folder",
                           (int)n, p);
        p += n + (p[n] == ':');
    }
    for (uint32_t i = 0; kit_elf_dyn(e, DT_NEEDED, i, &at); ++i) {
        const char *lib = kit_elf_string(e, at);
        kit_at(k, "0.5", "", lib, "looking for a library");
        if (in_runpath(k, runpath, lib) || dlopen(lib, RTLD_LAZY | RTLD_LOCAL) != NULL) continue;
        (void)kit_refuse(k, "0.5", BP_R_LIBRARY, lib, NULL, "%s is not found; RUNPATH is `%s`", lib,
                         runpath);
    }
}

void kit_stage_file(struct kit *k)
{
    struct kit_elf e;
    uint64_t v = 0, flags = 0;
    uint32_t n = 0;
    kit_at(k, "0.1", "", "file", "reading the file");
    if (!kit_elf_open(&e, k->o->file)) {
        (void)kit_refuse(k, "0.1", BP_R_LOAD, "file", NULL, "%s", e.why);
        return;
    }
    (void)read_note(k, &e);
    check_symbols(k, &e);
    check_needed(k, &e);
    (void)kit_elf_dyn(&e, DT_FLAGS, 0, &flags);
    for (uint32_t i = 0; i < e.h->e_phnum; ++i) {
        if (e.ph[i].p_type == PT_TLS && e.ph[i].p_memsz > MAX_STATIC_TLS &&
            (flags & DF_STATIC_TLS) != 0)
            (void)kit_fail(k, "0.7", "", "TLS", NULL, "%llu bytes of static thread-local storage",
                           (unsigned long long)e.ph[i].p_memsz);
    }
    if (kit_elf_dyn(&e, DT_TEXTREL, 0, &v) || (flags & DF_TEXTREL) != 0)
        (void)kit_fail(k, "0.9", "", "TEXTREL", NULL,
                       "relocations in read-only pages; compile with -fPIC");
    if (kit_elf_note(&e, "GNU", NT_GNU_BUILD_ID, 0, &n) == NULL)
        (void)kit_fail(k, "0.10", "", "build id", NULL, "none; link with -Wl,--build-id");
    kit_elf_close(&e);
}

/* ---- stage 1 ---- */

static void compare_note(struct kit *k, const struct bp_plugin_desc *d)
{
    struct kit_elf e;
    uint32_t n = 0;
    char ifaces[sizeof(((struct bp_plugin_note *)0)->ifaces)];
    if (!kit_elf_open(&e, k->o->file)) return;
    const struct bp_plugin_note *note = kit_elf_note(&e, BP_NOTE_OWNER, BP_NOTE_PLUGIN, 0, &n);
    if (note != NULL && n >= sizeof *note) {
        if (strncmp(note->name, d->name, sizeof note->name) != 0)
            (void)kit_refuse(k, "1.7", BP_R_ABI, "name", NULL, "note: `%.31s`, descriptor: `%.40s`",
                             note->name, d->name);
        if (strncmp(note->version, d->version, sizeof note->version) != 0)
            (void)kit_refuse(k, "1.7", BP_R_ABI, "version", NULL,
                             "note: `%.31s`, descriptor: `%.40s`", note->version, d->version);
        if (note->abi_major != d->abi_major || note->abi_minor != d->abi_minor)
            (void)kit_refuse(k, "1.7", BP_R_ABI, "ABI", NULL, "note: %u.%u, descriptor: %u.%u",
                             note->abi_major, note->abi_minor, d->abi_major, d->abi_minor);
        if (note->kind != d->kind)
            (void)kit_refuse(k, "1.7", BP_R_ABI, "kind", NULL, "note: %u, descriptor: %u",
                             note->kind, d->kind);
        memcpy(ifaces, note->ifaces, sizeof ifaces);
        ifaces[sizeof ifaces - 1] = '\0';
        for (uint32_t i = 0; i < d->n_ops; ++i) {
            if (strstr(ifaces, kit_op_at(d, i)->iface) == NULL)
                (void)kit_refuse(k, "1.7", BP_R_ABI, "interfaces", NULL,
                                 "the note does not list %s, which is offered",
                                 kit_op_at(d, i)->iface);
        }
        char *save = NULL;
        for (char *w = strtok_r(ifaces, " ", &save); w != NULL; w = strtok_r(NULL, " ", &save)) {
            if (!kit_offers(d, w))
                (void)kit_refuse(k, "1.7", BP_R_ABI, "interfaces", NULL,
                                 "the note lists %s, which is not offered", w);
        }
    }
    kit_elf_close(&e);
}

static void tell_facts(struct kit *k, const struct bp_plugin_desc *d)
{
    kit_fact(k, "name", "%.60s", d->name);
    kit_fact(k, "version", "%.60s", d->version);
    kit_fact(k, "kind", "%s", d->kind == BP_KIND_WRAPPER ? "wrapper" : "backend");
    for (uint32_t i = 0; i < d->n_ops; ++i) {
        const struct bp_op_entry *e = kit_op_at(d, i);
        if (kit_iface_of(e->iface) == NULL)
            (void)kit_refuse(k, "1.8", BP_R_ABI, e->iface, NULL, "`%s` is no interface of this ABI",
                             e->iface);
        else if (e->iface_major != BP_ABI_MAJOR || e->iface_minor != BP_ABI_MINOR)
            (void)kit_refuse(k, "1.8", BP_R_ABI, e->iface, NULL, "version %u.%u; the ABI has %d.%d",
                             e->iface_major, e->iface_minor, BP_ABI_MAJOR, BP_ABI_MINOR);
        kit_fact(k, "iface", "%.30s", e->iface);
    }
}

void kit_stage_query(struct kit *k)
{
    const struct bp_query own = {.h = BP_HDR(struct bp_query, engine_version),
                                 .host_major = BP_ABI_MAJOR,
                                 .host_minor = BP_ABI_MINOR,
                                 .host_min_plugin_minor = BP_ABI_MINOR,
                                 .engine_version = 100};
    bp_plugin_query_fn entry = kit_entry(k);
    struct bp_query *q = kit_guard_alloc(sizeof *q, 8, KIT_AT_END, 0, "struct bp_query", k);
    if (entry == NULL || q == NULL) return;
    const struct kit_counts before = kit_counts_now();
    const struct bp_plugin_desc *d = kit_descriptor(k);
    if (d == NULL) return;
    tell_facts(k, d);
    *q = own;
    kit_at(k, "3.2", "", "query", "asking again, with a struct that ends at a guard page");
    kit_enter(k);
    const struct bp_plugin_desc *again = entry(q);
    kit_leave(k);
    if (again != d) (void)kit_fail(k, "1.5", "", "query", NULL, "another pointer the second time");
    q->host_major = BP_ABI_MAJOR + 1;
    kit_at(k, "1.6", "", "query", "asking as a host of another major version");
    kit_enter(k);
    again = entry(q);
    kit_leave(k);
    if (again != NULL)
        (void)kit_refuse(k, "1.6", BP_R_ABI, "query", NULL, "a descriptor for a host of ABI %d.%d",
                         BP_ABI_MAJOR + 1, BP_ABI_MINOR);
    const struct kit_counts after = kit_counts_now();
    if (after.threads > before.threads)
        (void)kit_fail(k, "1.4", "", "query", NULL, "%d new threads",
                       after.threads - before.threads);
    if (after.files > before.files)
        (void)kit_fail(k, "1.4", "", "query", NULL, "%d new open files",
                       after.files - before.files);
    if (d->abi_major != BP_ABI_MAJOR || d->abi_minor != BP_ABI_MINOR)
        (void)kit_refuse(k, "1.2", BP_R_ABI, "abi", NULL,
                         "the descriptor names ABI %u.%u, this kit speaks %d.%d", d->abi_major,
                         d->abi_minor, BP_ABI_MAJOR, BP_ABI_MINOR);
    if (!k->o->reference) compare_note(k, d);
}
