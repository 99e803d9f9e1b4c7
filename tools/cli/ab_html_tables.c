/* ab_html_tables.c - the tables in the report of `ab`: ops, flips, positions. They are whole without the program in the page,
 * which only sorts and filters them.
 * Not here: plots. No file-scope state. SPDX-License-Identifier: MIT */
#include "ab_html_parts.h"

#include <math.h>
#include <string.h>

/* Lists that grow with the prompt end here in the tables; the numbers in the page hold all. */
enum { MAX_ROWS = 2000 };

static void cell_status(FILE *f, const json_t *op)
{
    fputs("<td>", f);
    ab_put_status(f, ab_status_of(op));
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
    if (!ab_median(op, key, &v)) {
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
    const char *status = ab_status_of(op);
    const size_t n_flips = ab_flips_of(op);
    const bool fails = strcmp(status, "fail") == 0 || strcmp(status, "inherited") == 0,
               nan = fails && n_flips == 0;
    double a, b, layer, v;
    const bool bad = strcmp(status, "fail") == 0, flip = strcmp(status, "flip") == 0;
    fprintf(f, "<tr%s data-i=\"%zu\">",
            bad    ? " class=\"bad\""
            : flip ? " class=\"flipped\""
                   : "",
            i);
    cell_status(f, op);
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
    /* No baseline was made where an op is right without one. */
    known =
        ab_number(op, "baseline_norm_rel", &b) && known && (a > 0 ? b > 0 || fails : n_flips == 0);
    cell_ratio(f, known, known ? a : 0, known ? b : 0);
    cell_number(f, op, "max_abs", nan);
    cell_number(f, op, "max_rel", nan);
    cell_number(f, op, json_object_get(op, "worst_row") != NULL ? "worst_row" : "worst_pos", false);
    fprintf(f, "<td class=\"n\">%zu</td>", n_flips);
    cell_number(f, op, "calls", false);
    cell_time(f, op, "time_a_us");
    cell_time(f, op, "time_b_us");
    known = ab_median(op, "time_a_us", &a);
    known = ab_median(op, "time_b_us", &b) && known;
    cell_ratio(f, known, known ? b : 0, known ? a : 1);
    fputs("<td class=\"n\">", f);
    if (ab_number(op, "bytes", &v) && v > 0)
        ab_put_bytes(f, v);
    else
        fputs("–", f);
    fputs("</td><td class=\"n\">", f);
    if (ab_number(op, "flops", &v) && v > 0)
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
    static const char *const names[] = {"Status",   "#Layer",   "Op",   "Tap",       "#Row",
                                        "#A chose", "#B chose", "#Gap", "The gap is"};
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
            cell_status(f, op);
            cell_number(f, op, "layer", false);
            fputs("<td><bdi>", f);
            ab_put_text(f, ab_string(op, "slot"), strlen(ab_string(op, "slot")));
            putc('.', f);
            ab_put_text(f, ab_string(op, "op"), strlen(ab_string(op, "op")));
            fputs("</bdi></td>", f);
            cell_string(f, op, "tap");
            cell_number(f, flip, json_object_get(flip, "row") != NULL ? "row" : "pos", false);
            cell_number(f, flip, "a", false);
            cell_number(f, flip, "b", false);
            cell_number(f, flip, "gap", false);
            const json_t *wide = json_object_get(flip, "wide");
            const bool is_wide =
                json_is_true(wide) || (json_is_integer(wide) && json_integer_value(wide) != 0);
            fprintf(f, "<td>%s</td></tr>\n",
                    is_wide                                          ? "wider than the precision"
                    : json_is_boolean(wide) || json_is_integer(wide) ? "below the precision"
                                                                     : "–");
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
    if (strcmp(ab_string(r, "mode"), "shadow") == 0)
        fputs("<p class=\"note\">Shadow mode: these are what B's last op makes of A's inputs. What "
              "the errors of all ops add up "
              "to is seen in free mode.</p>\n",
              f);
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

static void put_time_row(FILE *f, const json_t *row)
{
    double a = 0, b = 0, v;
    const bool has_a = ab_number(row, "a_us", &a), has_b = ab_number(row, "b_us", &b);
    fputs("<tr>", f);
    cell_string(f, row, "slot");
    cell_string(f, row, "op");
    cell_number(f, row, "calls", false);
    for (int side = 0; side < 2; ++side) {
        fputs("<td class=\"n\">", f);
        if (side == 0 ? has_a : has_b)
            ab_put_us(f, side == 0 ? a : b);
        else
            fputs("–", f);
        fputs("</td>", f);
    }
    cell_ratio(f, has_a && has_b && a > 0, b, a);
    fputs("<td class=\"n\">", f);
    if (ab_number(row, "bytes", &v) && v > 0)
        ab_put_bytes(f, v);
    else
        fputs("–", f);
    fputs("</td><td class=\"n\">", f);
    if (ab_number(row, "flops", &v) && v > 0)
        ab_put_flops(f, v);
    else
        fputs("–", f);
    fputs("</td></tr>\n", f);
}

void ab_part_times(FILE *f, const json_t *r)
{
    static const char *const names[] = {"Slot",       "Op",     "#Calls", "#Time of A",
                                        "#Time of B", "#B / A", "#Bytes", "#Work"};
    const json_t *rows = json_object_get(json_object_get(r, "timing"), "by_op");
    size_t i;
    json_t *row;
    if (json_array_size(rows) == 0) return;
    fputs("<details><summary>As a table</summary>\n", f);
    put_head(f, "times-table", "Time by op, all layers and calls", names,
             sizeof names / sizeof names[0]);
    json_array_foreach(rows, i, row) put_time_row(f, row);
    fputs("</tbody></table></div>\n</details>\n", f);
}
