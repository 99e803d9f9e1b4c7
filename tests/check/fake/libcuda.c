/* libcuda.c - one function of a driver: the context that is current, and how the fake device changes it.
 * SPDX-License-Identifier: MIT */
#include "libcuda.h"

static void *current;

int cuCtxGetCurrent(void **context)
{
    *context = current;
    return 0;
}

void fake_context_set(void *context)
{
    current = context;
}
