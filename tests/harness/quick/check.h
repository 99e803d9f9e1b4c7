/* check.h - stands before the check library's header of that name: assertions that hold cost nothing. The library's own
 * write a record to a file for each assertion, so that a crash can name the last one; in loops over elements that took
 * most of the time of some tests. After a crash the test's name and the sanitizers' report remain.
 * Not here: any other change; assertions that fail say what they always said. SPDX-License-Identifier: MIT */
#ifndef BP_TEST_QUICK_CHECK_H
#define BP_TEST_QUICK_CHECK_H

#include_next <check.h>

#undef ck_assert
#undef ck_assert_msg
/* The library's other assertions are made of ck_assert_msg, so they become quick too. Expressions, as the originals. */
#define ck_assert(expr) ((expr) ? (void)0 : ck_abort_msg("Assertion '%s' failed", #expr))
#define ck_assert_msg(expr, ...) ((expr) ? (void)0 : ck_abort_msg(__VA_ARGS__))

#endif
