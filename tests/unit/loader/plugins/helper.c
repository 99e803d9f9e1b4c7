/* helper.c - a library that one of the test plugins needs, and that lies beside it only while it is linked.
 * SPDX-License-Identifier: MIT */
int bp_test_helper(void);
__attribute__((visibility("default"))) int bp_test_helper(void)
{
    return 0;
}
