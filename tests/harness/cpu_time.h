/* cpu_time.h - how long a thread really ran: the machine may be busy with other things while a test measures.
 * SPDX-License-Identifier: MIT */
#ifndef BP_TEST_CPU_TIME_H
#define BP_TEST_CPU_TIME_H

#include <stdint.h>
#include <time.h>

static inline uint64_t bp_test_cpu_ns(void)
{
    struct timespec ts = {0};
    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

#endif
