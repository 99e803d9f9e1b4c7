/* ref_lanes.h - eight doubles side by side: the fixed summation order of this room, in a form the compiler keeps in
 * registers of whatever width the target has. The type is a GNU C extension; what it means is plain element-wise
 * arithmetic. For .c files of core/ref only; lanes never cross a function that is not inlined.
 * SPDX-License-Identifier: MIT */
#ifndef BPI_REF_LANES_H
#define BPI_REF_LANES_H

#include <stdint.h>
#include <string.h>

enum { BPI_REF_LANES = 8 };
typedef double bpi_ref_lanes __attribute__((vector_size(8 * sizeof(double))));
typedef float bpi_ref_lanes_narrow __attribute__((vector_size(8 * sizeof(float))));

/* Eight neighbours at p, which needs no alignment; p of type float or double. */
#define BPI_REF_LANES_F(out, p)                                                                    \
    do {                                                                                           \
        bpi_ref_lanes_narrow narrow_;                                                              \
        memcpy(&narrow_, (p), sizeof narrow_);                                                     \
        (out) = __builtin_convertvector(narrow_, bpi_ref_lanes);                                   \
    } while (0)
#define BPI_REF_LANES_D(out, p) memcpy(&(out), (p), sizeof(out))

/* The tree that folds lanes into one number. */
static inline double bpi_ref_fold(const double s[BPI_REF_LANES])
{
    return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
}

#endif
