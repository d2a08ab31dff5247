// chosen.cuh: the formats of K/V whose kernels a compilation makes: here all of them, for a card the one that it keeps.
//
// Invariant: KV_FORMATS(KERNELS) is KERNELS(name, struct) for each chosen format.
// Does not know: kernels. Written by src/device/cuda/source.rs, which a test compares.
#pragma once
#include "device/stored.cuh"

#define KV_FORMATS(KERNELS) \
    KERNELS(f32, StoredF32) \
    KERNELS(f16, StoredF16) \
    KERNELS(q8_0, StoredQ8)
