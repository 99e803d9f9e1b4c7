/* trap.cu - a kernel that traps, and with it the context of the process. SPDX-License-Identifier: MIT */
#include <cuda_runtime.h>
#include <stdint.h>

namespace
{

__global__ void trap_kernel()
{
    asm("trap;");
}

} // namespace

extern "C" int32_t lost_launch(void *stream)
{
    trap_kernel<<<1, 1, 0, static_cast<cudaStream_t>(stream)>>>();
    return static_cast<int32_t>(cudaGetLastError());
}
