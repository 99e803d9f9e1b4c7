/* cases.h - stage 6: one function for each interface, which walks its grid. They run in a child and tell what they find
 * through the kit. SPDX-License-Identifier: MIT */
#ifndef CASES_H
#define CASES_H

struct kit;

void case_device(struct kit *k);
void case_dense(struct kit *k);
void case_quant(struct kit *k);
void case_mla_common(struct kit *k);
void case_mla_prefill(struct kit *k);
void case_mla_decode(struct kit *k);
void case_mla_index(struct kit *k);
void case_moe(struct kit *k);
void case_coll(struct kit *k);

#endif
