/* kit_rules.h - the rules that the kit checks: one table for findings, --list and docs/kit.md.
 * SPDX-License-Identifier: MIT */
#ifndef KIT_RULES_H
#define KIT_RULES_H

#include <stdint.h>

struct kit_rule {
    const char *id;        /* "3.2": stage and number; never used for another rule */
    const char *text;      /* the rule */
    const char *otherwise; /* what happens when it is broken */
};
/* i-th rule, NULL past the end. */
const struct kit_rule *kit_rule_at(uint32_t i);
/* The text of a rule; "" for an id that is not in the table. */
const char *kit_rule_text(const char *id);

#endif
