/* ab_html_tables.c - the tables in the report of `ab`: ops, flips, positions. They are whole without the program in the page,
 * which only sorts and filters them.
 * Not here: plots. No file-scope state. SPDX-License-Identifier: MIT */
#include "ab_html_parts.h"

#include <math.h>
#include <string.h>

/* Lists that grow with the prompt end here in the tables; the numbers in the page hold all. */
enum { MAX_ROWS = 2000 };

static void put_status(FILE *f, const char *status)
{
    static const struct {
        const char *status, *sign;
    } known[] = {{"ok", "✓"}, {"flip", "◆"}, {"fail", "✕"}, {"inherited", "↳"}};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; ++i)
        if (strcmp(known[i].status, status) == 0) {
            fprintf(f, "<td><span class=\"st %s\">%s %s</span></td>", status, known[i].sign,
                    status);
            return;
        }
    fputs("<td>", f);
    ab_put_text(f, status[0] != '\0' ? status : "–", strlen(status[0] != '\0' ? status : "–"));
    fputs("</td>", f);
}

static void cell_number(FILE *f, const json_t *o, const char *key, bool may_be_nan)
{
    double v;
    fputs("<td class=\"n\">", f);
    if (ab_number(o, key, &v))
        ab_put_number(f, v, "");
    else
        fputs(may_be_nan && json_is_null(json_object_get(o, key)) ? "not finite" : "–", f);
    fputs("</td>", f);
}

static void cell_string(FILE *f, const json_t *o, const char *key)
{
    fputs("<td>", f);
    ab_put_string(f, json_object_get(o, key));
    fputs("</td>", f);
}

static void cell_time(FILE *f, const json_t *op, const char *key)
{
    const json_t *t = json_object_get(op, key);
    double v, lo, hi;
    fputs("<td class=\"n\">", f);
    if (!ab_number(t, "median", &v)) {
        fputs("–</td>", f);
        return;
    }
    ab_put_us(f, v);
    if (ab_number(t, "lo", &lo) && ab_number(t, "hi", &hi)) {
        fputs(" <small>(", f);
        ab_put_us(f, lo);
        fputs(" to ", f);
        ab_put_us(f, hi);
        fputs(")</small>", f);
    }
    fputs("</td>", f);
}

static void cell_ratio(FILE *f, bool known, double top, double bottom)
{
    fputs("<td class=\"n\">", f);
    if (!known)
        fputs("–", f);
    else if (top <= 0)
        fputs("exact", f);
    else if (bottom > 0)
        ab_put_number(f, top / bottom, "×");
    else
        fputs("∞", f);
    fputs("</td>", f);
}

static void put_op(FILE *f, const json_t *op, size_t i)
{
    const char *status = ab_string(op, "status");
    const json_t *flips = json_object_get(op, "flips");
    const size_t n_flips = json_array_size(flips);
    const bool nan = strcmp(status, "fail") == 0 && n_flips == 0;
    double a, b, layer, v;
    const bool bad = strcmp(status, "fail") == 0, flip = strcmp(status, "flip") == 0;
    fprintf(f, "<tr%s data-i=\"%zu\">",
            bad    ? " class=\"bad\""
            : flip ? " class=\"flipped\""
                   : "",
            i);
    put_status(f, status);
    fputs("<td class=\"n\">", f);
    if (ab_number(op, "layer", &layer) && layer >= 0)
        ab_put_number(f, layer, "");
    else
        fputs("–", f);
    fputs("</td>", f);
    cell_string(f, op, "slot");
    cell_string(f, op, "op");
    cell_string(f, op, "tap");
    cell_number(f, op, "norm_rel", nan);
    cell_number(f, op, "baseline_norm_rel", false);
    bool known = ab_number(op, "norm_rel", &a);
    known = ab_number(op, "baseline_norm_rel", &b) && known;
    cell_ratio(f, known, known ? a : 0, known ? b : 0);
    cell_number(f, op, "max_abs", nan);
    cell_number(f, op, "max_rel", nan);
    cell_number(f, op, "worst_row", false);
    fprintf(f, "<td class=\"n\">%zu</td>", n_flips);
    cell_number(f, op, "calls", false);
    cell_time(f, op, "time_a_us");
    cell_time(f, op, "time_b_us");
    known = ab_number(json_object_get(op, "time_a_us"), "median", &a);
    known = ab_number(json_object_get(op, "time_b_us"), "median", &b) && known && a > 0;
    cell_ratio(f, known, known ? b : 0, known ? a : 1);
    fputs("<td class=\"n\">", f);
    if (ab_number(op, "bytes", &v))
        ab_put_bytes(f, v);
    else
        fputs("–", f);
    fputs("</td><td class=\"n\">", f);
    if (ab_number(op, "flops", &v))
        ab_put_flops(f, v);
    else
        fputs("–", f);
    fputs("</td></tr>\n", f);
}

static void put_head(FILE *f, const char *id, const char *caption, const char *const *names,
                     size_t n)
{
    fprintf(f,
            "<div class=\"scroll tall\" tabindex=\"0\" role=\"region\" aria-label=\"%s\"><table "
            "id=\"%s\">"
            "<caption>%s</caption><thead><tr>",
            caption, id, caption);
    for (size_t i = 0; i < n; ++i) {
        const bool number = names[i][0] == '#';
        fprintf(f, "<th scope=\"col\"%s>%s</th>", number ? " class=\"n\"" : "", names[i] + number);
    }
    fputs("</tr></thead><tbody>\n", f);
}

static void put_left_out(FILE *f, size_t n)
{
    if (n > MAX_ROWS)
        fprintf(f,
                "<p class=\"note\">The first %d of %zu; the JSON of the command holds all.</p>\n",
                MAX_ROWS, n);
}

void ab_part_ops(FILE *f, const json_t *r)
{
    static const char *const names[] = {
        "Status",    "#Layer",     "Slot",       "Op",         "Tap",        "#Error",
        "#Baseline", "#Ratio",     "#Max. abs.", "#Max. rel.", "#Worst row", "#Flips",
        "#Calls",    "#Time of A", "#Time of B", "#B / A",     "#Bytes",     "#Work"};
    const json_t *ops = json_object_get(r, "ops");
    size_t i;
    json_t *op;
    if (json_array_size(ops) == 0) {
        fputs("<p class=\"empty\">No ops were compared.</p>\n", f);
        return;
    }
    put_head(f, "ops-table", "Every op that was compared, in the order of the run", names,
             sizeof names / sizeof names[0]);
    json_array_foreach(ops, i, op) put_op(f, op, i);
    fputs("</tbody></table></div>\n", f);
}

void ab_part_flips(FILE *f, const json_t *r)
{
    static const char *const names[] = {"Status", "#Layer",   "Op",       "Tap",
                                        "#Row",   "#A chose", "#B chose", "#Gap"};
    size_t i, k, n = 0;
    json_t *op, *flip;
    json_array_foreach(json_object_get(r, "ops"), i, op)
    {
        json_array_foreach(json_object_get(op, "flips"), k, flip)
        {
            if (n++ >= MAX_ROWS) continue;
            if (n == 1)
                put_head(f, "flips-table", "Choices that came out differently", names,
                         sizeof names / sizeof names[0]);
            fputs("<tr>", f);
            put_status(f, ab_string(op, "status"));
            cell_number(f, op, "layer", false);
            fputs("<td><bdi>", f);
            ab_put_text(f, ab_string(op, "slot"), strlen(ab_string(op, "slot")));
            putc('.', f);
            ab_put_text(f, ab_string(op, "op"), strlen(ab_string(op, "op")));
            fputs("</bdi></td>", f);
            cell_string(f, op, "tap");
            cell_number(f, flip, "row", false);
            cell_number(f, flip, "a", false);
            cell_number(f, flip, "b", false);
            cell_number(f, flip, "gap", false);
            fputs("</tr>\n", f);
        }
    }
    if (n == 0) {
        fputs("<p class=\"empty\">No choice flipped: routers, index selections and best tokens are "
              "the same.</p>\n",
              f);
        return;
    }
    fputs("</tbody></table></div>\n", f);
    put_left_out(f, n);
}

void ab_part_positions(FILE *f, const json_t *r)
{
    static const char *const names[] = {"#Position", "#KL, nats", "#Max. logit difference",
                                        "#Best token of A", "#Best token of B"};
    const json_t *positions = json_object_get(json_object_get(r, "logits"), "by_position");
    const size_t n = json_array_size(positions);
    if (n == 0) {
        fputs("<p class=\"empty\">No logits were compared position by position.</p>\n", f);
        return;
    }
    fputs("<details><summary>As a table</summary>\n", f);
    put_head(f, "positions-table", "Logits by position", names, sizeof names / sizeof names[0]);
    for (size_t i = 0; i < n && i < MAX_ROWS; ++i) {
        const json_t *p = json_array_get(positions, i);
        const json_t *a = json_object_get(p, "a_id"), *b = json_object_get(p, "b_id");
        const bool differ = json_is_integer(a) && json_is_integer(b) && !json_equal(a, b);
        fputs(differ ? "<tr class=\"differs\">" : "<tr>", f);
        cell_number(f, p, "pos", false);
        cell_number(f, p, "kl", true);
        cell_number(f, p, "max_abs", true);
        for (int side = 0; side < 2; ++side) {
            const json_t *text = json_object_get(p, side == 0 ? "a_text" : "b_text");
            double id;
            fputs("<td class=\"n\">", f);
            if (ab_number(p, side == 0 ? "a_id" : "b_id", &id))
                ab_put_number(f, id, "");
            else
                fputs("–", f);
            if (json_is_string(text)) {
                fputs(" <q>", f);
                ab_put_string(f, text);
                fputs("</q>", f);
            }
            if (side == 1 && differ) fputs(" ≠", f);
            fputs("</td>", f);
        }
        fputs("</tr>\n", f);
    }
    fputs("</tbody></table></div>\n", f);
    put_left_out(f, n);
    fputs("</details>\n", f);
}
