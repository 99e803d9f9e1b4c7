/* main.c - backplane-check: the command line, and which stages run in which children.
 * Exit status: 0 all rules held, 1 a finding, 2 wrong usage or a file that cannot be read.
 * SPDX-License-Identifier: MIT */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kit.h"
#include "kit_child.h"
#include "kit_device.h"
#include "kit_man.h"
#include "kit_report.h"
#include "kit_rules.h"

static const struct {
    uint32_t stage;
    bool each; /* one child for each interface */
    void (*fn)(struct kit *k);
} stages[] = {
    {0, false, kit_stage_file},   {1, false, kit_stage_query}, {2, false, kit_stage_config},
    {3, true, kit_stage_sizes},   {4, false, kit_stage_life},  {5, true, kit_stage_supports},
    {6, true, kit_stage_numbers}, {7, true, kit_stage_turns},  {8, true, kit_stage_turns},
    {9, true, kit_stage_turns},   {10, true, kit_stage_wrap}};

enum { DEVICE_STAGES = 7u << 7 };

static int usage(const char *before, const char *word, const char *after)
{
    (void)fprintf(stderr, "backplane-check: %s%s%s; try backplane-check --help\n", before, word,
                  after);
    return 2;
}

/* A whole number in [0, max]; false for anything else. */
static bool number(const char *text, uint64_t max, uint64_t *out)
{
    char *end;
    errno = 0;
    unsigned long long v = strtoull(text, &end, 0);
    if (*text < '0' || *text > '9' || *end != '\0' || errno != 0 || v > max) return false;
    *out = v;
    return true;
}

static bool read_stages(const char *list, uint32_t *out)
{
    *out = 0;
    while (*list != '\0') {
        char *end;
        unsigned long n = strtoul(list, &end, 10);
        if (end == list || *list < '0' || *list > '9' || n > 10) return false;
        uint32_t bit = 0;
        for (size_t i = 0; i < KIT_LEN(stages); ++i) {
            if (stages[i].stage == n) bit = 1u << n;
        }
        if (bit == 0 || (*end != ',' && *end != '\0')) return false;
        *out |= bit;
        list = *end == ',' ? end + 1 : end;
    }
    return *out != 0;
}

static bool read_set(struct kit_options *o, const char *text)
{
    const char *eq = strchr(text, '=');
    struct kit_set *s = &o->sets[o->n_sets];
    if (eq == NULL || eq == text || o->n_sets == KIT_MAX_SETS ||
        (size_t)(eq - text) >= sizeof s->key)
        return false;
    memcpy(s->key, text, (size_t)(eq - text));
    s->key[eq - text] = '\0';
    s->value = eq + 1;
    o->n_sets++;
    return true;
}

static int list_rules(void)
{
    const struct kit_rule *r;
    for (uint32_t i = 0; (r = kit_rule_at(i)) != NULL; ++i)
        (void)printf("KIT-%-5s %s\n          otherwise: %s\n", r->id, r->text, r->otherwise);
    return 0;
}

/* Takes the value of an option; 0, or the exit status. */
static int value_option(struct kit_options *o, const char *name, const char *v)
{
    uint64_t n = 0;
    if (strcmp(name, "--iface") == 0) {
        o->iface = v;
        return kit_iface_of(v) != NULL ? 0 : usage("there is no interface '", v, "'");
    }
    if (strcmp(name, "--stage") == 0)
        return read_stages(v, &o->stages) ? 0 : usage("'", v, "' is no list of stages (0-10)");
    if (strcmp(name, "--set") == 0)
        return read_set(o, v) ? 0 : usage("'", v, "' is no key=value, or one too many");
    if (strcmp(name, "--case") == 0) {
        o->case_part = v;
        return 0;
    }
    if (strcmp(name, "--device-plugin") == 0) {
        o->device_plugin = v;
        return 0;
    }
    if (strcmp(name, "--gpu") == 0) {
        if (!number(v, 1023, &n)) return usage("'", v, "' is no number of a device");
        o->gpu = (int32_t)n;
        return 0;
    }
    if (strcmp(name, "--seed") == 0)
        return number(v, INT64_MAX, &o->seed) ? 0 : usage("'", v, "' is no seed");
    if (strcmp(name, "--budget") == 0) { /* may be a part of a second */
        char *end;
        o->budget_s = strtod(v, &end);
        const bool is_number = *v >= '0' && *v <= '9' && *end == '\0';
        return is_number && o->budget_s >= 0.001 && o->budget_s <= 3600
                   ? 0
                   : usage("'", v, "' is no time in seconds");
    }
    if (!number(v, 3600, &n) || n == 0) return usage("'", v, "' is no time in seconds");
    o->timeout_s = (uint32_t)n;
    return 0;
}

/* -1: go on; else the exit status. */
static int read_line(struct kit_options *o, int argc, char **argv)
{
    static const char *const valued[] = {"--iface",  "--stage",   "--set",
                                         "--seed",   "--timeout", "--case",
                                         "--budget", "--gpu",     "--device-plugin"};
    for (int i = 1; i < argc; ++i) {
        const char *a = argv[i], *name = NULL;
        for (size_t v = 0; v < KIT_LEN(valued); ++v) {
            if (strcmp(a, valued[v]) == 0) name = valued[v];
        }
        if (name != NULL) {
            if (i + 1 == argc) return usage("", a, " needs a value");
            int rc = value_option(o, name, argv[++i]);
            if (rc != 0) return rc;
        } else if (strcmp(a, "--json") == 0) {
            o->json = true;
        } else if (strcmp(a, "--verbose") == 0) {
            o->verbose = true;
        } else if (strcmp(a, "--quick") == 0) {
            o->quick = true;
        } else if (strcmp(a, "--full") == 0) {
            o->full = true;
        } else if (strcmp(a, "--reference") == 0) {
            o->reference = true;
        } else if (strcmp(a, "--list") == 0) {
            return list_rules();
        } else if (strcmp(a, "--help") == 0 || strcmp(a, "-h") == 0) {
            return kit_help(stdout);
        } else if (strcmp(a, "--man") == 0) {
            return kit_man(stdout);
        } else if (strcmp(a, "--version") == 0) {
            (void)printf("backplane-check, ABI %d.%d\n", BP_ABI_MAJOR, BP_ABI_MINOR);
            return 0;
        } else if (a[0] == '-') {
            return usage("there is no option '", a, "'");
        } else if (o->file != NULL) {
            return usage("'", a, "' is one file too many");
        } else {
            o->file = a;
        }
    }
    if (o->reference == (o->file != NULL))
        return usage("give ", "the file of one plugin, or --reference", "");
    if (o->reference && o->gpu >= 0)
        return usage("", "--reference", " computes on the CPU, so it goes without --gpu");
    if (o->gpu < 0 && o->stages != UINT32_MAX && (o->stages & DEVICE_STAGES) != 0)
        return usage("", "stages 7 to 9", " need --gpu N");
    if (o->device_plugin != NULL && o->gpu < 0)
        return usage("", "--device-plugin", " needs --gpu N");
    return -1;
}

/* A child whose device is lost ends its grid; another goes on behind the case that lost it, a few times. */
static void run_child(const struct kit_options *o, struct kit_report *r, size_t s,
                      const char *iface)
{
    struct kit_options again = *o;
    for (uint32_t turn = 0; turn < 8; ++turn) {
        const uint32_t n_lost = kit_report_count(r, "lost");
        if (!kit_child_run(&again, stages[s].stage, iface, stages[s].fn, kit_report_add, r))
            exit(2);
        const char *lost = kit_report_fact(r, "lost", n_lost);
        if (lost == NULL) return;
        again.n_done = (uint32_t)strtoul(lost, NULL, 10);
    }
}

/* The file of the device plugin: as told, or the subject itself, or one beside it. */
static bool find_device_plugin(struct kit_options *o, const struct kit_report *r, char *path)
{
    const char *iface, *slash = strrchr(o->file, '/');
    const char *file = o->device_plugin;
    char beside[PATH_MAX];
    for (uint32_t i = 0; file == NULL && (iface = kit_report_fact(r, "iface", i)) != NULL; ++i) {
        if (strcmp(iface, "bp.device") == 0) file = o->file;
    }
    if (file == NULL) {
        (void)snprintf(beside, sizeof beside, "%.*s/backplane-device_cuda.so",
                       (int)(slash - o->file), o->file);
        file = beside;
    }
    if (realpath(file, path) == NULL) {
        (void)fprintf(stderr,
                      "backplane-check: %s, which opens the device, cannot be read; give "
                      "--device-plugin FILE\n",
                      file);
        return false;
    }
    o->device_plugin = path;
    return true;
}

/* Is the device there? false, with a sentence, when it is not. */
static bool find_device(struct kit_options *o, struct kit_report *r, char *path)
{
    if (!find_device_plugin(o, r, path)) return false;
    if (!kit_child_run(o, 0, "", kit_stage_device, kit_report_add, r)) return false;
    const char *why = kit_report_fact(r, "no device", 0);
    if (why == NULL && kit_report_fact(r, "device", 0) == NULL)
        why = "its plugin did not come to an end";
    if (why != NULL)
        (void)fprintf(stderr, "backplane-check: device %d cannot be used: %s\n", o->gpu, why);
    return why == NULL;
}

static void run_stage(const struct kit_options *o, struct kit_report *r, size_t s)
{
    const char *iface;
    if (!stages[s].each) {
        run_child(o, r, s, "");
        return;
    }
    for (uint32_t i = 0; (iface = kit_report_fact(r, "iface", i)) != NULL; ++i) {
        const struct kit_iface *known = kit_iface_of(iface);
        if (known == NULL || (o->iface != NULL && strcmp(o->iface, iface) != 0)) continue;
        run_child(o, r, s, known->name);
    }
}

int main(int argc, char **argv)
{
    struct kit_options o = {
        .seed = 20240607u, .stages = UINT32_MAX, .timeout_s = KIT_TIMEOUT_S, .gpu = -1};
    struct kit_report r = {0};
    char path[PATH_MAX], device_path[PATH_MAX];
    struct stat st;
    int rc = read_line(&o, argc, argv);
    if (rc >= 0) return rc;
    if (o.file != NULL) {
        if (realpath(o.file, path) == NULL || stat(path, &st) != 0 || !S_ISREG(st.st_mode) ||
            access(path, R_OK) != 0) {
            (void)fprintf(stderr, "backplane-check: %s cannot be read as a file\n", o.file);
            return 2;
        }
        o.file = path;
    }
    for (size_t s = 0; s < KIT_LEN(stages); ++s) {
        const uint32_t bit = 1u << stages[s].stage;
        /* Stage 1 tells which interfaces there are, so it always runs. */
        if (o.gpu < 0 && (bit & DEVICE_STAGES) != 0) continue;
        if ((o.stages & bit) == 0 && stages[s].stage != 1) continue;
        if (o.reference && stages[s].stage == 0) { /* built in: there is no file */
            r.ran |= bit;
            continue;
        }
        r.ran |= bit;
        run_stage(&o, &r, s);
        if (stages[s].stage == 1 && kit_report_fact(&r, "name", 0) == NULL) break;
        if (stages[s].stage == 1 && o.gpu >= 0 && !find_device(&o, &r, device_path)) {
            kit_report_free(&r);
            return 2;
        }
    }
    rc = kit_report_print(&r, &o);
    kit_report_free(&r);
    return rc;
}
