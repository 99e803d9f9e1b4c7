/* loader_open.c - opens a plugin that was found: dlopen, entry, query, descriptor against note, open().
 * The file stays mapped for the life of the process (RTLD_NODELETE, never closed): threads, exit handlers and statics of
 * libraries below it would outlive their code otherwise. A second session gets the same code and an instance of its own.
 * Not here: finding and trusting files (loader_scan.c). A plugin that throws across open() or crashes takes the process
 * with it: backplane-check tries plugins in a process apart. Threads: as loader.h says. SPDX-License-Identifier: MIT */
#include "loader/loader_priv.h"

#include <dlfcn.h>
#include <fenv.h>
#include <float.h>
#include <locale.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

/* ---- what a plugin may not change ---- */

enum { N_SIGNALS = 32, MAX_LOCALE = 512 };

struct habits {
    char locale[MAX_LOCALE];
    fenv_t arithmetic;
    int rounding;
    bool has_tiny; /* half of the smallest normal float is not zero */
    struct sigaction act[N_SIGNALS];
};

static void note_habits(struct habits *h)
{
    const volatile float smallest = FLT_MIN;
    (void)fegetenv(&h->arithmetic);
    h->rounding = fegetround();
    h->has_tiny = smallest / 2.0f != 0.0f;
    const char *locale = setlocale(LC_ALL, NULL);
    (void)snprintf(h->locale, sizeof h->locale, "%s", locale != NULL ? locale : "C");
    for (int i = 1; i < N_SIGNALS; ++i) {
        h->act[i] = (struct sigaction){.sa_handler = SIG_DFL};
        (void)sigaction(i, NULL, &h->act[i]);
    }
}

/* Libraries that were linked with -ffast-math do this as soon as they are loaded. */
static bool arithmetic_kept(const struct habits *before, const struct habits *now,
                            struct bpi_refusal *why)
{
    if (now->rounding == before->rounding && now->has_tiny == before->has_tiny) return true;
    (void)fesetenv(&before->arithmetic);
    bpi_refuse(why, BP_R_SELFTEST,
               "the plugin changed %s for the whole thread, which a plugin may not do; it was set "
               "back%s",
               now->rounding != before->rounding ? "how numbers are rounded"
                                                 : "what becomes of tiny numbers",
               now->rounding != before->rounding ? "" : " (is it linked with -ffast-math?)");
    return false;
}

/* The locale decides how numbers are read and written everywhere in the process, so a plugin that changes it is refused
 * and the change undone; the same goes for the arithmetic of this thread. Handlers of signals are told only: libraries for many machines are known to set their own, and
 * to work without them is not for us to try. */
static bool habits_kept(const struct bpi_loader *l, const struct habits *before, const char *name,
                        struct bpi_refusal *why)
{
    struct habits now;
    note_habits(&now);
    for (int i = 1; i < N_SIGNALS; ++i) {
        if (now.act[i].sa_handler == before->act[i].sa_handler) continue;
        bpi_logf(l->env.log, BPI_LOG_WARN, "loader", "plugin %s changed what signal %d does", name,
                 i);
    }
    if (!arithmetic_kept(before, &now, why)) return false;
    if (strcmp(now.locale, before->locale) == 0) return true;
    (void)setlocale(LC_ALL, before->locale);
    bpi_refuse(
        why, BP_R_SELFTEST,
        "the plugin changed the process's locale from \"%.60s\" to \"%.60s\", which a plugin "
        "may not do; it was set back",
        before->locale, now.locale);
    return false;
}

/* ---- dlopen ---- */

/* Copies s[0..n) without control characters. */
static void take_text(char *out, size_t cap, const char *s, size_t n)
{
    size_t at = 0;
    for (; at < n && at + 1 < cap && s[at] != '\0'; ++at)
        out[at] = (unsigned char)s[at] >= ' ' ? s[at] : '?';
    out[at] = '\0';
}

/* glibc's texts name first the file that complains, then what is wrong; known ones become a sentence with a hint. */
void bpi_refuse_dlerror(struct bpi_refusal *why, const char *text)
{
    static const char no_file[] = ": cannot open shared object file";
    static const char no_symbol[] = "undefined symbol: ";
    static const char no_version[] = "version `";
    char name[160];
    const char *at = strstr(text, no_file);
    if (at != NULL) {
        const char *begin = text;
        for (const char *s = text; s < at; ++s) { /* "error while loading ...: NAME" has a front */
            if (s[0] == ':' && s[1] == ' ') begin = s + 2;
        }
        take_text(name, sizeof name, begin, (size_t)(at - begin));
        bpi_refuse(why, BP_R_LIBRARY,
                   "the library %s, which the plugin needs, is not installed or not found; install "
                   "it, or link the plugin without it",
                   name);
        return;
    }
    at = strstr(text, no_symbol);
    if (at != NULL) {
        at += strlen(no_symbol);
        take_text(name, sizeof name, at, strcspn(at, " \t\n,("));
        bpi_refuse(why, BP_R_LOAD,
                   "the symbol %s is in no library that the plugin names; link the plugin with -z "
                   "defs, which finds this while building",
                   name);
        return;
    }
    at = strstr(text, no_version);
    if (at != NULL && strstr(at, "' not found") != NULL) {
        at += strlen(no_version);
        take_text(name, sizeof name, at, strcspn(at, "'"));
        bpi_refuse(why, BP_R_LIBRARY,
                   "a library on this machine is older than the plugin needs (%s is missing); "
                   "rebuild the plugin here, or update the library",
                   name);
        return;
    }
    char all[300];
    take_text(all, sizeof all, text, strlen(text));
    bpi_refuse(why, BP_R_LOAD, "the dynamic linker refuses it: %s", all);
}

static bool open_library(const struct bpi_found *f, void **handle, struct bpi_refusal *why)
{
    (void)dlerror();
    *handle = dlopen(f->path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (*handle != NULL) return true;
    const char *text = dlerror();
    bpi_refuse_dlerror(why, text != NULL ? text : "it gave no reason");
    return false;
}

static bool find_entry(void *handle, bp_plugin_query_fn *query, struct bpi_refusal *why)
{
    void *address = dlsym(handle, BP_PLUGIN_ENTRY);
    BP_STATIC_ASSERT(sizeof address == sizeof *query,
                     "functions and data have one kind of address");
    if (address == NULL) {
        bpi_refuse(why, BP_R_LOAD, "the plugin does not export %s; declare it with BP_EXPORT",
                   BP_PLUGIN_ENTRY);
        return false;
    }
    memcpy(query, &address, sizeof address);
    return true;
}

/* ---- descriptor against note ---- */

static bool differ(struct bpi_refusal *why, const char *what, const char *note, const char *desc)
{
    bpi_refuse(why, BP_R_ABI,
               "the plugin's note and its descriptor disagree: %s is \"%.60s\" in the note and "
               "\"%.60s\" in the descriptor; rebuild the plugin, or start again if the file was "
               "replaced while in use",
               what, note, desc);
    return false;
}

static bool numbers_differ(struct bpi_refusal *why, const char *what, uint32_t note, uint32_t desc)
{
    char a[16], b[16];
    (void)snprintf(a, sizeof a, "%u", note);
    (void)snprintf(b, sizeof b, "%u", desc);
    differ(why, what, a, b);
    bpi_refusal_numbers(why, what, desc, note, note);
    return false;
}

static bool same_ifaces(const struct bp_plugin_note *note, const struct bp_plugin_desc *desc,
                        struct bpi_refusal *why)
{
    char name[sizeof note->ifaces];
    for (uint32_t i = 0; i < desc->n_ops; ++i) {
        const char *iface = bpi_desc_op(desc, i)->iface;
        if (!bpi_note_offers(note, iface)) return differ(why, "an interface", "none", iface);
    }
    for (const char *s = note->ifaces; *s != '\0';) {
        const size_t n = strcspn(s, " ");
        memcpy(name, s, n);
        name[n] = '\0';
        if (bpi_plugin_entry(desc, name) == NULL) return differ(why, "an interface", name, "none");
        s += n + (s[n] == ' ');
    }
    return true;
}

static bool desc_equals_note(const struct bp_plugin_note *note, const struct bp_plugin_desc *desc,
                             struct bpi_refusal *why)
{
    if (desc->abi_major != note->abi_major)
        return numbers_differ(why, "abi_major", note->abi_major, desc->abi_major);
    if (desc->abi_minor != note->abi_minor)
        return numbers_differ(why, "abi_minor", note->abi_minor, desc->abi_minor);
    if (desc->kind != note->kind) return numbers_differ(why, "kind", note->kind, desc->kind);
    if (strcmp(desc->name, note->name) != 0) return differ(why, "name", note->name, desc->name);
    if (desc->version == NULL || strcmp(desc->version, note->version) != 0)
        return differ(why, "version", note->version, desc->version != NULL ? desc->version : "");
    return same_ifaces(note, desc, why);
}

/* ---- all stages ---- */

/* Which reason a status of the plugin's own becomes. */
static uint32_t reason_of(int32_t rc)
{
    switch (rc) {
    case BP_E_ABI:
        return BP_R_ABI;
    case BP_E_CONFIG:
        return BP_R_CONFIG;
    case BP_E_DEVMEM:
        return BP_R_MEMORY;
    case BP_E_DEVICE:
    case BP_E_DEVICE_LOST:
        return BP_R_DEVICE;
    default:
        return BP_R_LOAD;
    }
}

/* Out of memory is no verdict on the plugin and stays a status; everything else becomes a refusal. */
static int32_t to_refusal(int32_t rc, struct bp_error *cause, struct bpi_refusal *why,
                          struct bp_error *err)
{
    cause->msg[sizeof cause->msg - 1] = cause->where[sizeof cause->where - 1] = '\0';
    if (rc == BP_E_NOMEM || rc == BP_E_LIMIT)
        return bpi_fail(err, rc, "loader", cause->where, "%s", cause->msg);
    const bool key = strncmp(cause->where, "[plugin.", 8) == 0;
    bpi_refuse(why, reason_of(rc), "%s%s%s", key ? cause->where : "", key ? ": " : "", cause->msg);
    return BP_DECLINED;
}

static int32_t open_stages(struct bpi_loader *l, struct bpi_found *f, const struct habits *before,
                           struct bp_error *err)
{
    const struct bp_plugin_desc *desc;
    struct bp_error cause = BP_ERROR_INIT;
    bp_plugin_query_fn query;
    void *handle;
    struct bpi_plugin *p = NULL;
    if (!open_library(f, &handle, &f->why) || !habits_kept(l, before, f->name, &f->why) ||
        !find_entry(handle, &query, &f->why))
        return BP_DECLINED;
    int32_t rc = bpi_loader_query(l, query, &desc, &cause);
    if (rc != BP_OK) return to_refusal(rc, &cause, &f->why, err);
    if (!habits_kept(l, before, f->name, &f->why) ||
        !desc_equals_note(&f->file.note, desc, &f->why))
        return BP_DECLINED;
    rc = bpi_loader_admit(l, f->name, desc, &p, &cause);
    if (rc != BP_OK) {
        rc = to_refusal(rc, &cause, &f->why, err);
        (void)habits_kept(l, before, f->name, &f->why);
        return rc;
    }
    if (habits_kept(l, before, f->name, &f->why)) return BP_OK;
    bpi_loader_dismiss(l, p);
    return BP_DECLINED;
}

int32_t bpi_found_open(struct bpi_loader *l, struct bpi_found *f, struct bp_error *err)
{
    struct habits before;
    if (f->state == BPI_FOUND_OPEN) return BP_OK;
    if (f->state == BPI_FOUND_REFUSED) return BP_DECLINED;
    note_habits(&before);
    int32_t rc = open_stages(l, f, &before, err);
    if (rc == BP_OK) f->state = BPI_FOUND_OPEN;
    if (rc != BP_DECLINED) return rc;
    /* Once is enough: its constructors have run, and the answer would be the same for every slot and layer. */
    f->state = BPI_FOUND_REFUSED;
    return BP_DECLINED;
}

int32_t bpi_loader_need(struct bpi_loader *l, const char *name, const char *where,
                        struct bpi_plugin **out, struct bp_error *err)
{
    *out = bpi_loader_find(l, name);
    if (*out != NULL) return BP_OK;
    struct bpi_found *f = bpi_found_named(l, name);
    if (f == NULL) return bpi_loader_fail_unknown(l, name, where, err);
    int32_t rc = bpi_found_open(l, f, err);
    if (rc == BP_DECLINED) return bpi_found_fail(f, where, err);
    *out = bpi_loader_find(l, name);
    return rc;
}

int32_t bpi_found_fail(const struct bpi_found *f, const char *where, struct bp_error *err)
{
    struct bpi_buf b = {0};
    bpi_refusal_format(&f->why, &b);
    const int32_t code = f->why.code == BP_R_ABI ? BP_E_ABI : BP_E_CONFIG;
    int32_t rc =
        b.failed || b.data == NULL
            ? bpi_fail_nomem(err, "loader", b.cap)
            : bpi_fail(err, code, "loader", where, "plugin %s cannot be used: %s", f->name, b.data);
    bpi_buf_free(&b);
    return rc;
}

/* ---- built for this device? ---- */

bool bpi_desc_fits_device(const struct bp_plugin_desc *desc, const struct bp_device *dev,
                          struct bpi_refusal *why)
{
    memset(why, 0, sizeof *why);
    if (dev == NULL || dev->kind != BP_DEV_CUDA || dev->cc_major <= 0) return true;
    if (desc->cuda_min_driver > dev->driver_version && dev->driver_version != 0) {
        bpi_refuse(why, BP_R_DRIVER, "the plugin needs driver %u and this machine has %u",
                   desc->cuda_min_driver, dev->driver_version);
        bpi_refusal_numbers(why, "driver", dev->driver_version, desc->cuda_min_driver, INT32_MAX);
        return false;
    }
    if (desc->n_sm == 0 || desc->sm == NULL) return true;
    const uint32_t cc = (uint32_t)dev->cc_major * 100 + (uint32_t)dev->cc_minor * 10;
    uint32_t lo = UINT32_MAX, hi = 0;
    for (uint32_t i = 0; i < desc->n_sm; ++i) {
        const uint32_t sm = desc->sm[i] & ~(UINT32_C(1) << 31);
        const bool ptx = (desc->sm[i] >> 31) != 0;
        /* Machine code runs on later minors of its major, PTX on everything later. */
        if (sm <= cc && (ptx || sm / 100 == cc / 100)) return true;
        lo = sm < lo ? sm : lo;
        hi = sm > hi ? sm : hi;
    }
    bpi_refuse(why, BP_R_ARCH,
               "the plugin was not built for this device's sm_%u; rebuild it for it", cc / 10);
    bpi_refusal_numbers(why, "sm", cc, lo, hi);
    return false;
}
