/* ab_html_top.c - the upper end of the report of `ab`: title, verdict in one sentence, the few numbers that matter; and how
 * text and numbers are written everywhere in it.
 * Not here: the program in the page, which writes numbers the same way (report/page.js). No file-scope state.
 * SPDX-License-Identifier: MIT */
#include "ab_html_parts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- text ---- */

void ab_put_text(FILE *f, const char *text, size_t n)
{
    for (size_t i = 0; i < n; ++i) {
        const unsigned char c = (unsigned char)text[i];
        switch (c) {
        case '&':
            fputs("&amp;", f);
            break;
        case '<':
            fputs("&lt;", f);
            break;
        case '>':
            fputs("&gt;", f);
            break;
        case '"':
            fputs("&quot;", f);
            break;
        case '\'':
            fputs("&#39;", f);
            break;
        default:
            if (c < 0x20 && c != '\n' && c != '\t') /* U+2400.. are pictures of these */
                fprintf(f, "&#x24%02x;", c);
            else if (c == 0x7f)
                fputs("&#x2421;", f);
            else if (c == 0xc2 && i + 1 < n &&
                     (unsigned char)text[i + 1] < 0xa0) { /* C1, no characters of HTML */
                fputs("&#xfffd;", f);
                ++i;
            } else
                putc(c, f);
        }
    }
}

void ab_put_string(FILE *f, const json_t *s)
{
    if (!json_is_string(s)) {
        fputs("–", f);
        return;
    }
    fputs("<bdi>", f);
    ab_put_text(f, json_string_value(s), json_string_length(s));
    fputs("</bdi>", f);
}

const char *ab_string(const json_t *o, const char *key)
{
    const json_t *s = json_object_get(o, key);
    return json_is_string(s) ? json_string_value(s) : "";
}

/* ---- numbers ---- */

bool ab_number(const json_t *o, const char *key, double *out)
{
    const json_t *v = json_object_get(o, key);
    if (!json_is_number(v)) return false;
    *out = json_number_value(v);
    return isfinite(*out);
}

void ab_put_number(FILE *f, double v, const char *unit)
{
    char text[40];
    if (v == floor(v) && fabs(v) < 1e6) {
        snprintf(text, sizeof text, "%.0f", v);
    } else {
        snprintf(text, sizeof text, "%.3g", v);
        char *e = strchr(text, 'e'); /* 1.2e-05 as 1.2e-5 */
        if (e != NULL)
            snprintf(e + 1, sizeof text - (size_t)(e + 1 - text), "%ld", strtol(e + 1, NULL, 10));
    }
    /* A minus sign as wide as a plus sign. */
    for (const char *p = text; *p != '\0'; ++p) {
        if (*p == '-')
            fputs("−", f);
        else
            putc(*p, f);
    }
    if (unit[0] != '\0') fprintf(f, "\u00a0%s", unit);
}

static void put_scaled(FILE *f, double v, double step, const char *const *units, size_t n)
{
    size_t i = 0;
    while (i + 1 < n && fabs(v) >= step * 0.9995) {
        v /= step;
        ++i;
    }
    ab_put_number(f, v, units[i]);
}

void ab_put_us(FILE *f, double us)
{
    static const char *const units[] = {"µs", "ms", "s"};
    put_scaled(f, us, 1000, units, 3);
}

void ab_put_bytes(FILE *f, double bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    put_scaled(f, bytes, 1024, units, 5);
}

void ab_put_flops(FILE *f, double flops)
{
    static const char *const units[] = {"FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP"};
    put_scaled(f, flops, 1000, units, 5);
}

/* ---- ops ---- */

const char *ab_status_of(const json_t *op)
{
    const char *status = ab_string(op, "status");
    if (strcmp(status, "fail") == 0 && json_is_false(json_object_get(op, "made_here")))
        return "inherited";
    return status;
}

void ab_put_status(FILE *f, const char *status)
{
    static const struct {
        const char *status, *sign;
    } known[] = {{"ok", "✓"}, {"flip", "◆"}, {"fail", "✕"}, {"inherited", "↳"}};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; ++i)
        if (strcmp(known[i].status, status) == 0) {
            fprintf(f, "<span class=\"st %s\">%s %s</span>", status, known[i].sign, status);
            return;
        }
    if (status[0] == '\0') status = "–";
    ab_put_text(f, status, strlen(status));
}

size_t ab_flips_of(const json_t *op)
{
    const json_t *n = json_object_get(op, "n_flips");
    return json_is_integer(n) && json_integer_value(n) >= 0
               ? (size_t)json_integer_value(n)
               : json_array_size(json_object_get(op, "flips"));
}

bool ab_median(const json_t *op, const char *key, double *out)
{
    return ab_number(json_object_get(op, key), "median", out) && *out > 0;
}

static void add_interval(const json_t *op, const char *key, double median, double calls, double *lo,
                         double *hi)
{
    double v;
    const json_t *t = json_object_get(op, key);
    *lo += calls * (ab_number(t, "lo", &v) ? v : median);
    *hi += calls * (ab_number(t, "hi", &v) ? v : median);
}

struct ab_times ab_times_of(const json_t *result)
{
    struct ab_times t = {0};
    size_t i;
    json_t *op;
    json_array_foreach(json_object_get(result, "ops"), i, op)
    {
        double a, b, calls = 1;
        if (!ab_median(op, "time_a_us", &a) || !ab_median(op, "time_b_us", &b)) continue;
        (void)ab_number(op, "calls", &calls);
        t.a_us += a * calls;
        t.b_us += b * calls;
        t.known = true;
        add_interval(op, "time_a_us", a, calls, &t.a_lo, &t.a_hi);
        add_interval(op, "time_b_us", b, calls, &t.b_lo, &t.b_hi);
    }
    return t;
}

struct ab_counts ab_counts_of(const json_t *result)
{
    struct ab_counts n = {0};
    size_t i;
    json_t *op;
    json_array_foreach(json_object_get(result, "ops"), i, op)
    {
        const char *status = ab_status_of(op);
        ++n.ops;
        n.ok += strcmp(status, "ok") == 0;
        n.flip += strcmp(status, "flip") == 0;
        n.fail += strcmp(status, "fail") == 0;
        n.inherited += strcmp(status, "inherited") == 0;
    }
    return n;
}

/* ---- verdict ---- */

static bool passed(const json_t *r)
{
    return json_is_true(json_object_get(json_object_get(r, "verdict"), "pass"));
}

static void put_place(FILE *f, const json_t *d)
{
    const char *slot = ab_string(d, "slot"), *op = ab_string(d, "op"), *tap = ab_string(d, "tap");
    double layer;
    fputs("<code><bdi>", f);
    if (slot[0] == '\0' && op[0] == '\0') {
        ab_put_text(f, tap[0] != '\0' ? tap : "an op", strlen(tap[0] != '\0' ? tap : "an op"));
    } else {
        ab_put_text(f, slot, strlen(slot));
        if (slot[0] != '\0' && op[0] != '\0') putc('.', f);
        ab_put_text(f, op, strlen(op));
    }
    fputs("</bdi></code>", f);
    if (ab_number(d, "layer", &layer) && layer >= 0) {
        fputs(" in layer ", f);
        ab_put_number(f, layer, "");
    } else {
        fputs(" outside of the layers", f);
    }
}

void ab_part_title(FILE *f, const json_t *r)
{
    const json_t *d = json_object_get(r, "first_difference");
    fputs(passed(r) ? "PASS" : "DIFFERENT", f);
    if (json_is_object(d)) {
        const char *slot = ab_string(d, "slot"), *op = ab_string(d, "op");
        double layer;
        fputs(": ", f);
        ab_put_text(f, slot, strlen(slot));
        putc('.', f);
        ab_put_text(f, op, strlen(op));
        if (ab_number(d, "layer", &layer) && layer >= 0) {
            fputs(", layer ", f);
            ab_put_number(f, layer, "");
        }
    }
}

static void put_thresholds(FILE *f, const json_t *t)
{
    const char *key;
    json_t *v;
    size_t n = 0;
    json_object_foreach((json_t *)t, key, v)
    {
        if (json_is_null(v)) continue; /* not asked for */
        if (n++ == 0) fputs("<p class=\"note\">Thresholds:", f);
        fputs(" <span class=\"pair\"><bdi>", f);
        ab_put_text(f, key, strlen(key));
        fputs("</bdi> <b>", f);
        if (json_is_number(v))
            ab_put_number(f, json_number_value(v), "");
        else if (json_is_boolean(v))
            fputs(json_is_true(v) ? "yes" : "no", f);
        else
            ab_put_string(f, v);
        fputs("</b></span>", f);
    }
    if (n > 0) fputs("</p>\n", f);
}

void ab_part_verdict(FILE *f, const json_t *r)
{
    const json_t *v = json_object_get(r, "verdict"), *d = json_object_get(r, "first_difference");
    const json_t *mode = json_object_get(r, "mode");
    const bool pass = passed(r);
    fprintf(f, "<p class=\"eyebrow\">Backplane A/B report, mode ");
    ab_put_string(f, mode);
    fprintf(f, "</p>\n<h1><span class=\"badge %s\">%s</span> ", pass ? "ok" : "fail",
            pass ? "✓ Pass" : "✕ Different");
    if (json_is_object(d)) {
        fputs(pass ? "A and B agree; they begin to differ at " : "A and B first differ at ", f);
        put_place(f, d);
        putc('.', f);
    } else if (pass) {
        fputs("B agrees with A everywhere.", f);
    } else {
        fputs("B is not within the thresholds, though no single op is to blame.", f);
    }
    fputs("</h1>\n", f);
    if (json_is_string(json_object_get(v, "text"))) {
        fputs("<p class=\"lead\">", f);
        ab_put_string(f, json_object_get(v, "text"));
        fputs("</p>\n", f);
    }
    if (json_is_object(d)) {
        const json_t *text = json_object_get(d, "text"), *made = json_object_get(d, "made_here");
        double row;
        fputs("<p class=\"note\">", f);
        if (json_string_length(text) > 0 &&
            strstr(ab_string(v, "text"), json_string_value(text)) == NULL) {
            const char last = json_string_value(text)[json_string_length(text) - 1];
            ab_put_string(f, text);
            fputs(last == '.' ? " " : ". ", f);
        }
        if (json_is_string(json_object_get(d, "tap")) && ab_string(d, "tap")[0] != '\0') {
            fputs("<span class=\"pair\">tap <code>", f);
            ab_put_string(f, json_object_get(d, "tap"));
            fputs("</code></span> ", f);
        }
        if (ab_number(d, "row", &row) && row >= 0) {
            fputs("<span class=\"pair\">row <b>", f);
            ab_put_number(f, row, "");
            fputs("</b></span> ", f);
        }
        if (json_is_false(made))
            fputs("Inherited: this op got inputs that already differed.", f);
        else if (json_is_true(made))
            fputs(strcmp(ab_string(r, "mode"), "free") == 0
                      ? "Made here: what came before agrees."
                      : "Made here: this op of B got the very inputs of A.",
                  f);
        fputs("</p>\n", f);
    }
    put_thresholds(f, json_object_get(v, "thresholds"));
}

/* ---- tiles ---- */

static void tile_begin(FILE *f, const char *name)
{
    fprintf(f, "<div class=\"tile\"><dt>%s</dt><dd>", name);
}

static void tile_value(FILE *f, double v, const char *unit)
{
    ab_put_number(f, v, "");
    if (unit[0] != '\0') fprintf(f, " <span class=\"unit\">%s</span>", unit);
}

static void tile_end(FILE *f, const char *note)
{
    fprintf(f, "<small>%s</small></dd></div>\n", note);
}

static void tile_ops(FILE *f, const json_t *r)
{
    const struct ab_counts n = ab_counts_of(r);
    char note[160] = "none is beyond its bound";
    size_t at = 0;
    tile_begin(f, "Ops compared");
    fprintf(f, "%zu", n.ops);
    if (n.fail > 0) at += (size_t)snprintf(note, sizeof note, "%zu beyond the bound", n.fail);
    if (n.inherited > 0)
        at += (size_t)snprintf(note + at, sizeof note - at, "%s%zu inherited", at > 0 ? ", " : "",
                               n.inherited);
    if (n.flip > 0)
        snprintf(note + at, sizeof note - at, "%s%zu with flips", at > 0 ? ", " : "", n.flip);
    tile_end(f, n.ops == 0 ? "nothing was compared op by op" : note);
}

static void tile_logits(FILE *f, const json_t *l)
{
    double v;
    char note[96] = "";
    if (ab_number(l, "kl", &v)) {
        tile_begin(f, "KL of A to B");
        tile_value(f, v, "nats");
        fputs("<small>", f);
        if (ab_number(l, "kl_ba", &v)) {
            fputs("B to A: ", f);
            ab_put_number(f, v, "nats");
        }
        fputs("</small></dd></div>\n", f);
    }
    if (ab_number(l, "max_abs", &v)) {
        tile_begin(f, "Largest logit difference");
        ab_put_number(f, v, "");
        fputs("<small>", f);
        if (ab_number(l, "mean_abs", &v)) {
            fputs("mean ", f);
            ab_put_number(f, v, "");
        }
        fputs("</small></dd></div>\n", f);
    }
    if (ab_number(l, "topk_overlap", &v)) {
        double top = 0;
        char name[48] = "Top-k overlap";
        if (ab_number(l, "top_k", &top)) snprintf(name, sizeof name, "Top-%.0f overlap", top);
        tile_begin(f, name);
        /* Never 100 % unless it is. */
        tile_value(f, v >= 1 - 1e-12 ? 100 : floor(v * 1000) / 10, "%");
        size_t i, differ = 0;
        json_t *p;
        const json_t *positions = json_object_get(l, "by_position");
        json_array_foreach(positions, i, p)
        {
            const json_t *a = json_object_get(p, "a_id"), *b = json_object_get(p, "b_id");
            if (json_is_integer(a) && json_is_integer(b) && !json_equal(a, b)) ++differ;
        }
        if (json_array_size(positions) > 0)
            snprintf(note, sizeof note, "best token differs at %zu of %zu positions", differ,
                     json_array_size(positions));
        tile_end(f, note);
    }
}

void ab_part_tiles(FILE *f, const json_t *r)
{
    const struct ab_times t = ab_times_of(r);
    tile_ops(f, r);
    tile_logits(f, json_object_get(r, "logits"));
    if (!t.known || t.a_us <= 0 || t.b_us <= 0) return;
    const double ratio = t.a_us / t.b_us;
    tile_begin(f, "Speed of B, all ops");
    tile_value(f, floor(ratio * 100 + 0.5) / 100, "×");
    fputs("<small>A ", f);
    ab_put_us(f, t.a_us);
    fputs(", B ", f);
    ab_put_us(f, t.b_us);
    /* A median of one call has an interval without width, which tells nothing. */
    const bool few = t.a_hi <= t.a_lo || t.b_hi <= t.b_lo,
               overlap = t.a_lo <= t.b_hi && t.b_lo <= t.a_hi;
    fprintf(f, "%s</small></dd></div>\n",
            few       ? ": too few calls to tell"
            : overlap ? ": no clear difference"
                      : "");
}

/* What the comparison says in words about single ops, the worst kinds first. */
void ab_part_findings(FILE *f, const json_t *r)
{
    enum { SHOWN = 8 };
    static const char *const kinds[] = {"fail", "flip"};
    const json_t *v = json_object_get(r, "verdict"); /* whose sentence is at the top */
    size_t n = 0, i;
    json_t *op;
    for (size_t kind = 0; kind < sizeof kinds / sizeof kinds[0]; ++kind)
        json_array_foreach(json_object_get(r, "ops"), i, op)
        {
            const json_t *text = json_object_get(op, "text");
            if (strcmp(ab_status_of(op), kinds[kind]) != 0 || json_string_length(text) == 0 ||
                strstr(ab_string(v, "text"), json_string_value(text)) != NULL)
                continue;
            if (n++ >= SHOWN) continue;
            if (n == 1) fputs("<ul class=\"findings\">\n", f);
            fputs("<li>", f);
            ab_put_status(f, kinds[kind]);
            ab_put_string(f, text);
            fputs("</li>\n", f);
        }
    if (n > SHOWN) fprintf(f, "<li>and %zu more in the table of ops</li>\n", n - SHOWN);
    if (n > 0) fputs("</ul>\n", f);
}
