/* ab_html_sides.c - what was compared, in the report of `ab`: settings, backends and files of both sides next to each other,
 * the prompt, time and memory. These objects differ from command to command, so they are shown as they come: one line for
 * each value, named by the way to it.
 * No file-scope state. SPDX-License-Identifier: MIT */
#include "ab_html_parts.h"

#include <stdlib.h>
#include <string.h>

/* No object of ours is deeper or longer; a line that is too long is cut. */
enum { MAX_DEPTH = 12, MAX_NAME = 200, MAX_LINES = 600, MAX_IDS = 4096 };

struct line {
    char name[MAX_NAME];
    const json_t *value; /* no object; an array holds no objects */
};

struct lines {
    struct line *at;
    size_t n;
};

/* Takes away the beginning of a character at the end of a text that was cut there. */
static void whole_characters(char *text)
{
    size_t n = strlen(text), tail = 0;
    while (tail < n && tail < 3 && ((unsigned char)text[n - 1 - tail] & 0xc0) == 0x80) ++tail;
    if (tail == n) return;
    const unsigned char lead = (unsigned char)text[n - 1 - tail];
    const size_t wanted = lead >= 0xf0 ? 3 : lead >= 0xe0 ? 2 : lead >= 0xc0 ? 1 : 0;
    if (wanted > tail) text[n - 1 - tail] = '\0';
}

/* The name of an element: what it says it is, else its number. */
static void element_name(const json_t *e, size_t i, char *out, size_t n)
{
    const char *name = ab_string(e, "slot"), *layers = ab_string(e, "layers");
    if (name[0] == '\0') name = ab_string(e, "name");
    if (name[0] != '\0' && layers[0] != '\0')
        snprintf(out, n, "%s, layers %s", name, layers);
    else if (name[0] != '\0' || layers[0] != '\0')
        snprintf(out, n, "%s%s", name[0] != '\0' ? name : "layers ", name[0] != '\0' ? "" : layers);
    else
        snprintf(out, n, "%zu", i);
    whole_characters(out);
}

static bool of_objects(const json_t *v)
{
    return json_is_array(v) &&
           (json_is_object(json_array_get(v, 0)) || json_is_array(json_array_get(v, 0)));
}

/* NOLINTNEXTLINE(misc-no-recursion): at most MAX_DEPTH deep */
static void add_lines(struct lines *out, const char *name, const json_t *v, int depth)
{
    char below[MAX_NAME];
    if (out->n >= MAX_LINES || depth > MAX_DEPTH) return;
    if (json_is_object(v)) {
        const char *key;
        json_t *child;
        json_object_foreach((json_t *)v, key, child)
        {
            /* These named the element already. */
            if (depth > 0 &&
                (strcmp(key, "slot") == 0 || strcmp(key, "name") == 0 ||
                 strcmp(key, "layers") == 0) &&
                strstr(name, ab_string(v, key)) != NULL)
                continue;
            snprintf(below, sizeof below, "%s%s%s", name, name[0] != '\0' ? " › " : "", key);
            whole_characters(below);
            add_lines(out, below, child, depth + 1);
        }
    } else if (of_objects(v)) {
        size_t i;
        json_t *child;
        json_array_foreach(v, i, child)
        {
            char element[MAX_NAME / 2];
            element_name(child, i, element, sizeof element);
            snprintf(below, sizeof below, "%s%s%s", name, name[0] != '\0' ? " › " : "", element);
            whole_characters(below);
            add_lines(out, below, child, depth + 1);
        }
    } else {
        snprintf(out->at[out->n].name, MAX_NAME, "%s", name);
        out->at[out->n++].value = v;
    }
}

static const struct line *find_line(const struct lines *in, const char *name)
{
    for (size_t i = 0; i < in->n; ++i)
        if (strcmp(in->at[i].name, name) == 0) return &in->at[i];
    return NULL;
}

static bool ends_with(const char *text, const char *end)
{
    const size_t n = strlen(text), k = strlen(end);
    return n >= k && strcmp(text + n - k, end) == 0;
}

static void put_scalar(FILE *f, const char *name, const json_t *v)
{
    if (json_is_string(v)) {
        ab_put_string(f, v);
    } else if (json_is_boolean(v)) {
        fputs(json_is_true(v) ? "yes" : "no", f);
    } else if (json_is_number(v)) {
        const double d = json_number_value(v);
        if (strstr(name, "bytes") != NULL)
            ab_put_bytes(f, d);
        else if (strstr(name, "_us") != NULL)
            ab_put_us(f, d);
        else if (ends_with(name, "_ms"))
            ab_put_us(f, d * 1000);
        else if (ends_with(name, "_s"))
            ab_put_us(f, d * 1e6);
        else
            ab_put_number(f, d, "");
    } else {
        fputs("–", f);
    }
}

static void put_value(FILE *f, const char *name, const json_t *v)
{
    size_t i;
    json_t *e;
    if (!json_is_array(v)) {
        put_scalar(f, name, v);
        return;
    }
    if (json_array_size(v) == 0) fputs("–", f);
    json_array_foreach(v, i, e)
    {
        if (i > 0) fputs(", ", f);
        put_scalar(f, name, e);
    }
}

static void put_name(FILE *f, const char *name)
{
    fputs("<th scope=\"row\"><bdi>", f);
    ab_put_text(f, name, strlen(name));
    fputs("</bdi></th>", f);
}

static struct lines lines_of(const json_t *v)
{
    struct lines l = {.at = calloc(MAX_LINES, sizeof *l.at)};
    if (l.at != NULL && v != NULL && !json_is_null(v)) add_lines(&l, "", v, 0);
    return l;
}

static bool is_same(const json_t *a, const json_t *b)
{
    return a != NULL && b != NULL && json_equal(a, b);
}

static void put_side_row(FILE *f, const char *name, const json_t *a, const json_t *b)
{
    const bool same = is_same(a, b);
    fputs(same ? "<tr>" : "<tr class=\"differs\">", f);
    put_name(f, name);
    for (int side = 0; side < 2; ++side) {
        const json_t *v = side == 0 ? a : b;
        fputs("<td>", f);
        if (v == NULL)
            fputs("–", f);
        else
            put_value(f, name, v);
        if (side == 1 && !same)
            fputs(" <span class=\"ne\" title=\"A and B differ here\">≠</span>", f);
        fputs("</td>", f);
    }
    fputs("</tr>\n", f);
}

static void put_sides_table(FILE *f, const struct lines *a, const struct lines *b, bool want_same)
{
    fprintf(f,
            "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"%s\">"
            "<table id=\"sides-%s\" class=\"wide\"><caption>%s</caption><thead><tr>"
            "<th scope=\"col\">What</th><th scope=\"col\"><span class=\"key a\"></span>A</th>"
            "<th scope=\"col\"><span class=\"key b\"></span>B</th></tr></thead><tbody>\n",
            want_same ? "The same on both sides" : "What differs", want_same ? "same" : "differ",
            want_same ? "The same on both sides" : "What differs");
    for (size_t i = 0; i < a->n; ++i) {
        const struct line *other = find_line(b, a->at[i].name);
        const json_t *value = other != NULL ? other->value : NULL;
        if (is_same(a->at[i].value, value) == want_same)
            put_side_row(f, a->at[i].name, a->at[i].value, value);
    }
    for (size_t i = 0; i < b->n && !want_same; ++i)
        if (find_line(a, b->at[i].name) == NULL)
            put_side_row(f, b->at[i].name, NULL, b->at[i].value);
    fputs("</tbody></table></div>\n", f);
}

void ab_part_sides(FILE *f, const json_t *r)
{
    struct lines a = lines_of(json_object_get(r, "a")), b = lines_of(json_object_get(r, "b"));
    size_t n_same = 0;
    for (size_t i = 0; i < a.n; ++i) {
        const struct line *other = find_line(&b, a.at[i].name);
        n_same += other != NULL && is_same(a.at[i].value, other->value);
    }
    if (a.n + b.n == 0) fputs("<p class=\"empty\">Nothing is said about the sides.</p>\n", f);
    if (n_same < a.n || n_same < b.n) {
        put_sides_table(f, &a, &b, false);
    } else if (a.n > 0) {
        fputs("<p class=\"empty\">Both sides have the same settings, backends and files.</p>\n", f);
    }
    if (n_same > 0) {
        fprintf(f, "<details><summary>%zu more, the same on both sides</summary>\n", n_same);
        put_sides_table(f, &a, &b, true);
        fputs("</details>\n", f);
    }
    free(a.at);
    free(b.at);
}

void ab_part_prompt(FILE *f, const json_t *r)
{
    const json_t *prompt = json_object_get(r, "prompt"), *ids = json_object_get(prompt, "ids");
    const json_t *text = json_object_get(prompt, "text");
    const size_t n = json_array_size(ids);
    if (json_is_string(text)) {
        fputs("<blockquote>", f);
        ab_put_string(f, text);
        fputs("</blockquote>\n", f);
    }
    if (n == 0) {
        if (!json_is_string(text)) fputs("<p class=\"empty\">No prompt is given.</p>\n", f);
        return;
    }
    fprintf(f, "<details><summary>%zu token ids</summary><p class=\"ids\">", n);
    for (size_t i = 0; i < n && i < MAX_IDS; ++i) {
        if (i > 0) putc(' ', f);
        put_scalar(f, "", json_array_get(ids, i));
    }
    fprintf(f, "%s</p></details>\n", n > MAX_IDS ? " …" : "");
}

/* The name of a quantity whose value shows its unit: "load_ms" as "load". */
static void put_quantity(FILE *f, const char *name)
{
    static const char *const units[] = {"_ms", "_us", "_s", "_bytes"};
    char plain[MAX_NAME];
    snprintf(plain, sizeof plain, "%s", name);
    for (size_t i = 0; i < sizeof units / sizeof units[0]; ++i)
        if (ends_with(plain, units[i])) plain[strlen(plain) - strlen(units[i])] = '\0';
    for (char *p = plain; *p != '\0'; ++p)
        if (*p == '_') *p = ' ';
    put_name(f, plain);
}

static void put_table(FILE *f, const char *title, const json_t *v)
{
    struct lines l = lines_of(v);
    if (l.n > 0) {
        fprintf(f,
                "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"%s\">"
                "<table class=\"wide\"><caption>%s</caption><tbody>\n",
                title, title);
        for (size_t i = 0; i < l.n; ++i) {
            if (strncmp(l.at[i].name, "by_op", 5) == 0) continue; /* has a table of its own */
            fputs("<tr>", f);
            put_quantity(f, l.at[i].name);
            fputs("<td class=\"n\">", f);
            put_value(f, l.at[i].name, l.at[i].value);
            fputs("</td></tr>\n", f);
        }
        fputs("</tbody></table></div>\n", f);
    } else {
        fprintf(f, "<p class=\"empty\">%s: nothing is recorded.</p>\n", title);
    }
    free(l.at);
}

static void put_bytes_cell(FILE *f, const json_t *o, const char *key)
{
    double v;
    fputs("<td class=\"n\">", f);
    if (ab_number(o, key, &v))
        ab_put_bytes(f, v);
    else
        fputs("–", f);
    fputs("</td>", f);
}

/* Bytes of both sides next to each other, and of the comparison itself. */
static void put_memory(FILE *f, const json_t *memory)
{
    const json_t *a = json_object_get(memory, "a"), *b = json_object_get(memory, "b");
    const char *key;
    json_t *v;
    fputs("<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"Memory\">"
          "<table class=\"wide\"><caption>Memory</caption><thead><tr><th scope=\"col\">Of what</th>"
          "<th scope=\"col\" class=\"n\"><span class=\"key a\"></span>A</th>"
          "<th scope=\"col\" class=\"n\"><span class=\"key b\"></span>B</th></tr></thead><tbody>\n",
          f);
    json_object_foreach((json_t *)a, key, v)
    {
        fputs("<tr>", f);
        put_name(f, key);
        put_bytes_cell(f, a, key);
        put_bytes_cell(f, b, key);
        fputs("</tr>\n", f);
    }
    fputs("</tbody></table></div>\n", f);
    double compare;
    if (ab_number(memory, "compare", &compare)) {
        fputs("<p class=\"note\">And for the comparison itself: ", f);
        ab_put_bytes(f, compare);
        fputs("</p>\n", f);
    }
}

void ab_part_cost(FILE *f, const json_t *r)
{
    const json_t *memory = json_object_get(r, "memory");
    if (json_object_size(json_object_get(memory, "a")) > 0)
        put_memory(f, memory);
    else
        put_table(f, "Memory", memory);
    put_table(f, "Time of the comparison", json_object_get(r, "timing"));
}
