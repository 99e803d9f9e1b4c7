/* case_real.h - MLA at the sizes of real models, where an oracle of everything would take hours: heads up to 128, caches up to
 * 64k tokens, pools beyond 2^31 elements. A few rows and heads are compared with the oracle; that numbers are finite, and
 * NaN where they have to be, is looked at everywhere. The long ones come with --full. SPDX-License-Identifier: MIT */
#ifndef CASE_REAL_H
#define CASE_REAL_H

#include "cases/mla_case.h"

/* Decode; `common` writes the cache on the host. */
void case_real_decode(struct mla_suite *s, struct mla_op *common, struct mla_op *op);
void case_real_prefill(struct mla_suite *s, struct mla_op *op);
void case_real_index(struct mla_suite *s, struct mla_op *op);

#endif
