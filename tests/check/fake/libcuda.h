/* libcuda.h - see libcuda.c. SPDX-License-Identifier: MIT */
#ifndef FAKE_LIBCUDA_H
#define FAKE_LIBCUDA_H

__attribute__((visibility("default"))) int cuCtxGetCurrent(void **context);
__attribute__((visibility("default"))) void fake_context_set(void *context);

#endif
