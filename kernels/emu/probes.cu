// probes.cu: device functions by themselves, for the parity check, and kernels that break the rules of barriers and of early
// launches, for the check of the stub; no part of the engine.
//
// shapes   x, y [n] f32
// launch   grid (ceil(n / 256)), block 256
// order    none: each value by itself
// moves    8 bytes a value
// twin     src/device/cpu/plain/functions.rs
#include "device/functions.cuh"

constexpr i32 PROBE_BLOCK = 256;

extern "C" __global__ void __launch_bounds__(PROBE_BLOCK) probe_exp(const f32* x, f32* y, i32 n) {
    const i32 i = (i32) (blockIdx.x * PROBE_BLOCK + threadIdx.x);
    if (i < n) y[i] = exp_f32(x[i]);
}

extern "C" __global__ void __launch_bounds__(PROBE_BLOCK) probe_silu(const f32* x, f32* y, i32 n) {
    const i32 i = (i32) (blockIdx.x * PROBE_BLOCK + threadIdx.x);
    if (i < n) y[i] = silu_f32(x[i]);
}

// Thread 0 waits for its warp, the others for the block.
extern "C" __global__ void __launch_bounds__(PROBE_BLOCK) probe_divergent_barrier() {
    if (threadIdx.x == 0) warp_barrier();
    else __syncthreads();
}

// The halves of a warp meet in different exchanges.
extern "C" __global__ void __launch_bounds__(PROBE_BLOCK) probe_divergent_warp(f32* y) {
    const i32 lane = (i32) threadIdx.x % WARP;
    y[threadIdx.x] = lane < WARP / 2 ? shuffle_xor((f32) lane, 1) : shuffle_down((f32) lane, 1);
}

// Reads before it waits.
extern "C" __global__ void __launch_bounds__(PROBE_BLOCK) probe_early_read(const f32* x, f32* y, i32 n) {
    const i32 i = (i32) (blockIdx.x * PROBE_BLOCK + threadIdx.x);
    const f32 early = i < n ? x[i] : 0.0f;
    wait_for_previous();
    if (i < n) y[i] = early;
}

// Writes before it waits.
extern "C" __global__ void __launch_bounds__(PROBE_BLOCK) probe_early_write(f32* y) {
    y[threadIdx.x] = 1.0f;
    wait_for_previous();
}

// Lets the next kernel see what it wrote before that one begins.
extern "C" __global__ void __launch_bounds__(PROBE_BLOCK) probe_shown(f32* y) {
    wait_for_previous();
    y[threadIdx.x] = 2.0f;
    fence_system();
    __syncthreads();
    let_next_start();
}
