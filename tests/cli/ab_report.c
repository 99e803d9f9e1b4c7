/* ab_report.c - ab_report RESULT.json FILE.html: the report of `backplane ab` from a result in a file. For tests.
 * Exit status 0, 1 for a report that could not be written, 2 for a result that is no JSON.
 * SPDX-License-Identifier: MIT */
#include "ab_html.h"

#include <stdio.h>

int main(int argc, char **argv)
{
    if (argc != 3) return 2;
    json_error_t at;
    json_t *result = json_load_file(argv[1], JSON_ALLOW_NUL | JSON_DECODE_ANY, &at);
    if (result == NULL) {
        fprintf(stderr, "%s: %s\n", argv[1], at.text);
        return 2;
    }
    struct bp_error err = BP_ERROR_INIT;
    const int32_t rc = cli_ab_html(result, argv[2], &err);
    if (rc != BP_OK) fprintf(stderr, "%s: %s\n", err.where, err.msg);
    json_decref(result);
    return rc == BP_OK ? 0 : 1;
}
