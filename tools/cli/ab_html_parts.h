/* ab_html_parts.h - pieces of the report of `ab`, between the files ab_html*.c.
 * The page is report/page.html, with the style sheet and the program of report/ already inside (report/embed.cmake). A name
 * between two pairs of @ in it stands for one of the functions below. SPDX-License-Identifier: MIT */
#ifndef CLI_AB_HTML_PARTS_H
#define CLI_AB_HTML_PARTS_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

/* Made at build time. */
extern const unsigned char cli_ab_page[];
extern const size_t cli_ab_page_bytes;

/* Text as HTML: markup is escaped, control characters become their pictures or U+FFFD. Never inside of a tag's name, a
 * comment, a script or a style. */
void ab_put_text(FILE *f, const char *text, size_t n);
/* The same in an element of its own whose direction of writing cannot reach outside. A dash when `s` is no string. */
void ab_put_string(FILE *f, const json_t *s);
/* A number with three digits and perhaps a unit. */
void ab_put_number(FILE *f, double v, const char *unit);
/* A number of `key`: false when it is missing, null or no number. */
bool ab_number(const json_t *o, const char *key, double *out);
const char *ab_string(const json_t *o, const char *key); /* "" when there is none */
/* Microseconds, bytes, operations with a unit that suits them. */
void ab_put_us(FILE *f, double us);
void ab_put_bytes(FILE *f, double bytes);
void ab_put_flops(FILE *f, double flops);
/* "ok", "flip", "fail", "inherited" (a fail that an earlier op made), else what the op says. */
const char *ab_status_of(const json_t *op);
void ab_put_status(FILE *f, const char *status);
size_t ab_flips_of(const json_t *op); /* how many there were; the list may hold the first of them only */
/* A time with samples. */
bool ab_median(const json_t *op, const char *key, double *out);
/* Medians times calls, summed over the ops that were timed on both sides. */
struct ab_times {
    double a_us, b_us;
    double a_lo, a_hi, b_lo, b_hi; /* the intervals added up */
    bool known;
};
struct ab_times ab_times_of(const json_t *result);
struct ab_counts {
    size_t ops, ok, flip, fail, inherited;
};
struct ab_counts ab_counts_of(const json_t *result);

/* ab_html_top.c */
void ab_part_title(FILE *f, const json_t *r);
void ab_part_verdict(FILE *f, const json_t *r);
void ab_part_tiles(FILE *f, const json_t *r);
void ab_part_findings(FILE *f, const json_t *r);
/* ab_html_tables.c */
void ab_part_ops(FILE *f, const json_t *r);
void ab_part_flips(FILE *f, const json_t *r);
void ab_part_positions(FILE *f, const json_t *r);
void ab_part_times(FILE *f, const json_t *r);
/* ab_html_sides.c */
void ab_part_sides(FILE *f, const json_t *r);
void ab_part_prompt(FILE *f, const json_t *r);
void ab_part_cost(FILE *f, const json_t *r);

#endif
