/* test_cuda_host.c - cuda/host.h and cuda/blas.h against a run time and a cuBLAS of the test's own, every call of which
 * can be made to fail: an error is told once, in a sentence, and forgotten by the run time; nothing is leaked; memory is freed on
 * the device that it is on; cuBLAS may not round parts of a sum.
 * Not here: what CUDA itself does (tests/gpu). SPDX-License-Identifier: MIT */
#include "fake_cuda.h"

static const struct bp_device second = {
    .h = BP_HDR(struct bp_device, name), .kind = BP_DEV_CUDA, .ordinal = 1};

static int products; /* that cuBLAS was asked for */

static void reset(cudaError_t failure, int fails)
{
    cuda_reset(failure, fails, -1);
    cuda.real = 1;
    products = 0;
}

/* ---- cuBLAS ---- */

/* Column by column, as cuBLAS counts; and it refuses what cuBLAS does: rows that are longer than their stride. */
cublasStatus_t cublasGemmEx_64(cublasHandle_t h, cublasOperation_t turn_a, cublasOperation_t turn_b,
                               int64_t m, int64_t n, int64_t k, const void *alpha, const void *a,
                               cudaDataType a_type, int64_t a_ld, const void *b,
                               cudaDataType b_type, int64_t b_ld, const void *beta, void *c,
                               cudaDataType c_type, int64_t c_ld, cublasComputeType_t compute,
                               cublasGemmAlgo_t algo)
{
    const float *x = a, *y = b, scale = *(const float *)alpha, keep = *(const float *)beta;
    float *out = c;
    (void)h, (void)algo;
    ck_assert(turn_a == CUBLAS_OP_T && turn_b == CUBLAS_OP_N);
    ck_assert(a_type == CUDA_R_32F && b_type == CUDA_R_32F && c_type == CUDA_R_32F);
    ck_assert_int_eq(compute, CUBLAS_COMPUTE_32F);
    products++;
    if (a_ld < k || b_ld < k || c_ld < m) return CUBLAS_STATUS_INVALID_VALUE;
    for (int64_t j = 0; j < n; ++j) {
        for (int64_t i = 0; i < m; ++i) {
            float sum = 0;
            for (int64_t l = 0; l < k; ++l) sum += x[l + i * a_ld] * y[l + j * b_ld];
            out[i + j * c_ld] = scale * sum + (keep == 0 ? 0 : keep * out[i + j * c_ld]);
        }
    }
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t
cublasGemmStridedBatchedEx_64(cublasHandle_t h, cublasOperation_t turn_a, cublasOperation_t turn_b,
                              int64_t m, int64_t n, int64_t k, const void *alpha, const void *a,
                              cudaDataType a_type, int64_t a_ld, long long a_step, const void *b,
                              cudaDataType b_type, int64_t b_ld, long long b_step, const void *beta,
                              void *c, cudaDataType c_type, int64_t c_ld, long long c_step,
                              int64_t n_batch, cublasComputeType_t compute, cublasGemmAlgo_t algo)
{
    cublasStatus_t s = CUBLAS_STATUS_SUCCESS;
    for (int64_t i = 0; i < n_batch && s == CUBLAS_STATUS_SUCCESS; ++i) {
        s = cublasGemmEx_64(h, turn_a, turn_b, m, n, k, alpha, (const float *)a + i * a_step,
                            a_type, a_ld, (const float *)b + i * b_step, b_type, b_ld, beta,
                            (float *)c + i * c_step, c_type, c_ld, compute, algo);
    }
    return s;
}

/* ---- tests ---- */

static void one_sentence(const struct bp_error *err, int32_t rc)
{
    ck_assert_int_ne(rc, BP_OK);
    ck_assert_int_eq(err->code, rc);
    ck_assert_str_eq(err->domain, "test");
    ck_assert_uint_gt(strlen(err->msg), 20);
    ck_assert_int_eq(cuda.last, cudaSuccess);
}

START_TEST(an_error_that_was_told_is_forgotten)
{
    static const cudaError_t failures[] = {cudaErrorInvalidValue, cudaErrorMemoryAllocation,
                                           cudaErrorIllegalAddress};
    for (uint32_t i = 0; i < BP_LEN(failures); ++i) {
        struct bp_error err = BP_ERROR_INIT;
        void *p = &err;
        reset(failures[i], 1);
        one_sentence(&err, bp_cuda_use(&second, &err, "test", "here"));
        reset(failures[i], 1);
        const int32_t rc = bp_cuda_alloc(&p, 64, &err, "test", "here", "the weight");
        one_sentence(&err, rc);
        ck_assert_int_eq(rc, bp_cuda_code(failures[i]));
        ck_assert_ptr_null(p);
        reset(failures[i], 1);
        ck_assert_int_ne(bp_cuda_use(&second, NULL, "test", "here"), BP_OK);
        ck_assert_int_eq(cuda.last, cudaSuccess);
    }
}
END_TEST

START_TEST(memory_is_freed_on_its_device)
{
    void *p = NULL;
    reset(cudaSuccess, 0);
    ck_assert_int_eq(bp_cuda_alloc(&p, 64, NULL, "test", "here", "the weight"), BP_OK);
    cuda.owner = 1;
    bp_cuda_free(&second, NULL);
    ck_assert_int_eq(cuda.device, 0);
    bp_cuda_free(&second, p);
    ck_assert_int_eq(cuda.device, 1);
    ck_assert_int_eq(cuda.held, 0);
}
END_TEST

/* Rows from a longer pitch, through both buffers, with every call failing once. */
START_TEST(an_upload_arrives_or_leaves_nothing)
{
    enum { ROW = 3 << 20, PITCH = ROW + 5, ROWS = 7 };
    unsigned char *src = malloc((size_t)PITCH * ROWS), *dst = malloc((size_t)ROW * ROWS);
    struct bp_error err = BP_ERROR_INIT;
    int failed = 0, n = 0;
    ck_assert(src != NULL && dst != NULL);
    for (size_t i = 0; i < (size_t)PITCH * ROWS; ++i) src[i] = (unsigned char)(i * 131 >> 7);
    do {
        struct bp_cuda_staging s;
        memset(&s, 0, sizeof s);
        memset(dst, 0, (size_t)ROW * ROWS);
        reset(cudaErrorInvalidValue, ++n);
        int32_t rc = bp_cuda_upload_rows(&s, dst, src, ROW, PITCH, ROWS, &err, "test", "here");
        if (rc == BP_OK) rc = bp_cuda_upload_done(&s, &err, "test", "here");
        failed = cuda.calls >= n;
        if (failed) one_sentence(&err, rc);
        if (!failed) ck_assert_int_eq(rc, BP_OK);
        for (int64_t i = 0; i < ROWS && !failed; ++i)
            ck_assert_int_eq(memcmp(dst + i * ROW, src + i * PITCH, ROW), 0);
        bp_cuda_staging_end(&s);
        ck_assert_int_eq(cuda.held, 0);
        ck_assert_int_eq(cuda.last, cudaSuccess);
    } while (failed);
    ck_assert_int_gt(n, 10);
    free(src);
    free(dst);
}
END_TEST

START_TEST(cublas_keeps_f32_sums)
{
    cublasHandle_t h = NULL;
    struct bp_error err = BP_ERROR_INIT;
    reset(cudaSuccess, 0);
    ck_assert_int_eq(bp_cuda_blas_create(&h, &err, "test", "here"), BP_OK);
    ck_assert_int_ne(cuda.math_mode & CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION, 0);
    ck_assert_int_eq(cuda.math_mode & 15, CUBLAS_DEFAULT_MATH); /* and no TF32 */
    (void)cublasDestroy(h);
    for (int n = 1; n <= 2; ++n) {
        reset(cudaErrorMemoryAllocation, n);
        one_sentence(&err, bp_cuda_blas_create(&h, &err, "test", "here"));
        ck_assert_ptr_null(h);
        ck_assert_int_eq(cuda.held, 0);
    }
}
END_TEST

/* Small whole numbers: every sum is exact. What lies between rows stays as it was. */
START_TEST(products_are_row_by_row)
{
    static const int64_t shapes[][4] = {{3, 5, 7, 1}, {3, 5, 7, 2}, {1, 4, 6, 1},
                                        {1, 1, 1, 3}, {0, 4, 4, 1}, {4, 0, 4, 2}};
    enum { MOST = 1024 };
    float a[MOST], b[MOST], c[MOST];
    for (uint32_t s = 0; s < BP_LEN(shapes); ++s) {
        const int64_t m = shapes[s][0], n = shapes[s][1], k = shapes[s][2], n_batch = shapes[s][3];
        /* A single row may come with any stride, as views do. */
        const struct bp_cuda_matrix x = {a, m == 1 ? 0 : k + 2, 100, BP_DT_F32, 0},
                                    w = {b, n == 1 ? 0 : k + 1, 120, BP_DT_F32, 0},
                                    y = {c, m == 1 ? 0 : n + 3, 140, BP_DT_F32, 0};
        for (int i = 0; i < MOST; ++i) {
            a[i] = (float)(i * 7 % 11 - 5);
            b[i] = (float)(i * 5 % 13 - 6);
            c[i] = 2.0f;
        }
        reset(cudaSuccess, 0);
        ck_assert_int_eq(bp_cuda_blas_abt(NULL, &x, &w, &y, m, n, k, n_batch, 2.0f, 0.5f),
                         CUBLAS_STATUS_SUCCESS);
        ck_assert_int_eq(products, m * n == 0 ? 0 : n_batch);
        int64_t changed = 0;
        for (int i = 0; i < MOST; ++i) {
            const int64_t at = i % 140, r = m == 1 ? 0 : at / (n + 3),
                          j = m == 1 ? at : at % (n + 3);
            float want = 2.0f;
            if (i / 140 < n_batch && r < m && j < n) {
                const float *left = a + i / 140 * 100 + r * x.row,
                            *right = b + i / 140 * 120 + j * w.row;
                want = 1.0f;
                for (int64_t l = 0; l < k; ++l) want += 2.0f * left[l] * right[l];
                ++changed;
            }
            ck_assert_msg(c[i] == want, "shape %u, element %d: %g, not %g", s, i, (double)c[i],
                          (double)want);
        }
        ck_assert_int_eq(changed, m * n * n_batch);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("cuda_host");
    TCase *tc = tcase_create("all");
    tcase_add_test(tc, an_error_that_was_told_is_forgotten);
    tcase_add_test(tc, memory_is_freed_on_its_device);
    tcase_add_test(tc, an_upload_arrives_or_leaves_nothing);
    tcase_add_test(tc, cublas_keeps_f32_sums);
    tcase_add_test(tc, products_are_row_by_row);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    const int n_failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return n_failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
