/* main.cpp - may plugins carry a static CUDA run time each? Two libraries that do are loaded as plugins are, and share one
 * context, memory, streams, events, a graph and a cuBLAS product inside of it. One line per check, PASS or FAIL; exit
 * status 0, 1, or 77 without a device. What follows from it: docs/decisions/0010-cuda-linkage.md.
 * Usage: main FOLDER   with liba.so and libb.so in it. SPDX-License-Identifier: MIT */
#include "part.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string>
#include <thread>
#include <vector>

namespace
{

constexpr int N = 4096, SIDE = 64;
int failures = 0;

bool check(bool good, const char *what, int code = 0)
{
    printf("%s %s", good ? "PASS" : "FAIL", what);
    if (code != 0) printf(" (code %d)", code);
    printf("\n");
    failures += good ? 0 : 1;
    return good;
}
bool ok(int code, const char *what)
{
    return check(code == 0, what, code);
}

const part *load(const std::string &path)
{
    void *so = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (so == nullptr) printf("%s\n", dlerror());
    auto get =
        so == nullptr ? nullptr : reinterpret_cast<const part *(*)()>(dlsym(so, "linkage_part"));
    return get == nullptr ? nullptr : get();
}

/* All N floats of x, read through p, are `want`. NaN is not. */
bool holds(const part *p, const float *x, float want, void *stream)
{
    std::vector<float> host(N, -1.0f);
    if (p->to_host(host.data(), x, N * sizeof(float), stream) != 0 || p->sync(stream) != 0)
        return false;
    for (float v : host) {
        if (!(v == want)) {
            printf("  got %g, wanted %g\n", v, want);
            return false;
        }
    }
    return true;
}

void contexts(const part *a, const part *b)
{
    void *of_a = nullptr, *of_b = nullptr;
    ok(a->context(&of_a), "A tells the current context");
    ok(b->context(&of_b), "B tells the current context, though only A chose the device");
    check(of_a != nullptr && of_a == of_b, "A and B are on one context");
    std::thread other([&] {
        void *here = nullptr, *again = nullptr;
        const int rc = a->use(0) != 0 || b->context(&here) != 0 || a->context(&again) != 0;
        check(rc == 0 && here == of_a && again == of_a,
              "a second thread, where A chose the device: the same context");
    });
    other.join();
    ok(b->use(0), "B chooses the device too");
    check(b->context(&of_b) == 0 && of_a == of_b, "and it is still the one context");
}

void graph(const part *a, const part *b, float *x, float *m, void *work, void *stream)
{
    void *exec = nullptr, *blas = nullptr;
    std::vector<float> ones(SIDE * SIDE, 1.0f), host(N, 1.0f);
    ok(b->blas_begin(&blas), "B makes a cuBLAS handle");
    ok(a->to_device(x, host.data(), N * sizeof(float), stream), "A copies to the device");
    ok(a->to_device(m, ones.data(), ones.size() * sizeof(float), stream), "A copies the matrix");
    ok(b->blas_mul(blas, work, 8u << 20, m, m, m + SIDE * SIDE, SIDE, stream),
       "B multiplies once before the capture, in a workspace of A");
    ok(a->sync(stream), "A waits");
    if (!ok(a->capture_begin(stream), "A begins a capture")) return;
    ok(a->scale_add(x, N, 2, 0, stream), "captured: a kernel of A");
    ok(b->scale_add(x, N, 1, 3, stream), "captured: a kernel of B");
    ok(b->big_smem(x, N, stream), "captured: a kernel of B with 99 KiB of shared memory");
    ok(b->blas_mul(blas, work, 8u << 20, m, m, m + SIDE * SIDE, SIDE, stream),
       "captured: a product of cuBLAS, called by B");
    if (!ok(a->capture_end(stream, &exec), "A ends the capture and instantiates the graph")) return;
    float want = 1;
    bool same = holds(a, x, want, stream);
    check(same, "the capture itself ran nothing");
    for (int i = 0; i < 10 && same; ++i) {
        same = (i % 2 ? a : b)->replay(exec, stream) == 0;
        want = 2 * want + 4;
        same = same && holds(i % 2 ? b : a, x, want, stream);
    }
    check(same, "ten replays, launched by A and by B in turn, compute the right numbers");
    std::vector<float> c(SIDE * SIDE, 0.0f);
    const int rc =
        a->to_host(c.data(), m + SIDE * SIDE, c.size() * sizeof(float), stream) || a->sync(stream);
    bool right = rc == 0;
    for (float v : c) right = right && v == static_cast<float>(SIDE);
    check(right, "the product in the graph is right");
}

} // namespace

int main(int argc, char **argv)
{
    const std::string folder = argc > 1 ? argv[1] : ".";
    const part *a = load(folder + "/liba.so"), *b = load(folder + "/libb.so");
    if (!check(a != nullptr && b != nullptr && a != b, "two libraries are loaded")) return 1;
    const int rc = a->use(0);
    if (rc == 100 || rc == 35 || rc == 34) { /* no device, driver too old, stub library */
        printf("SKIP: no CUDA device (CUDA error %d)\n", rc);
        return 77;
    }
    if (!ok(rc, "A chooses device 0")) return 1;
    contexts(a, b);
    void *x = nullptr, *m = nullptr, *work = nullptr, *s = nullptr, *s_of_b = nullptr,
         *event = nullptr;
    ok(a->alloc(&x, N * sizeof(float)), "A allocates");
    ok(a->alloc(&m, 2 * SIDE * SIDE * sizeof(float)), "A allocates a matrix");
    ok(a->alloc(&work, 8u << 20), "A allocates a workspace");
    ok(a->stream(&s), "A makes a stream");
    ok(b->stream(&s_of_b), "B makes a stream");
    ok(b->event(&event), "B makes an event");
    std::vector<float> host(N, 5.0f);
    ok(b->to_device(x, host.data(), N * sizeof(float), s),
       "B copies into memory of A on the stream of A");
    ok(b->scale_add(static_cast<float *>(x), N, 3, 1, s), "a kernel of B in memory of A");
    check(holds(a, static_cast<float *>(x), 16, s), "A reads what B computed");
    ok(a->scale_add(static_cast<float *>(x), N, 1, 1, s), "a kernel of A");
    ok(a->record(event, s), "A records the event of B");
    ok(b->wait(event, s_of_b), "B waits for it on its own stream");
    ok(b->scale_add(static_cast<float *>(x), N, 2, 0, s_of_b), "a kernel of B behind it");
    check(holds(b, static_cast<float *>(x), 34, s_of_b), "the order holds");
    check(b->bad_launch(s) != 0, "a launch that must fail fails in B");
    check(a->last_error() == 0, "A does not see the error of B");
    check(b->last_error() != 0 && b->last_error() == 0, "B sees it once");
    graph(a, b, static_cast<float *>(x), static_cast<float *>(m), work, s);
    ok(b->release(x), "B frees memory of A");
    printf("%d failures\n", failures);
    return failures == 0 ? 0 : 1;
}
