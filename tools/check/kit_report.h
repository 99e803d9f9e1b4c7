/* kit_report.h - what the children told, printed as text or JSON. SPDX-License-Identifier: MIT */
#ifndef KIT_REPORT_H
#define KIT_REPORT_H

#include "kit.h"

struct kit_report {
    struct kit_record *records;
    uint32_t n, cap, n_findings, n_dropped;
    uint32_t ran, failed; /* bits of stages */
};
/* A sink for kit_child_run; ctx is the report. The same finding of another child is taken once. */
void kit_report_add(void *ctx, const struct kit_record *r);
/* Prints all; the program's exit status. */
int kit_report_print(const struct kit_report *p, const struct kit_options *o);
/* How many facts of a name there are. */
uint32_t kit_report_count(const struct kit_report *p, const char *name);
void kit_report_free(struct kit_report *p);
/* Value of the i-th fact of that name; NULL past the end. */
const char *kit_report_fact(const struct kit_report *p, const char *name, uint32_t i);

#endif
