// chosen.cuh: the formats whose kernels a compilation makes: here all of them, for a card one that its stage uses.
//
// Invariant: PLAIN_FORMATS(KERNELS) and BLOCK_FORMATS(KERNELS) are KERNELS(name, struct) for each chosen format.
// Does not know: kernels. Written by src/device/cuda/source.rs, which a test compares.
#pragma once
#include "formats/iq1_m.cuh"
#include "formats/iq1_s.cuh"
#include "formats/iq2_s.cuh"
#include "formats/iq2_xs.cuh"
#include "formats/iq2_xxs.cuh"
#include "formats/iq3_s.cuh"
#include "formats/iq3_xxs.cuh"
#include "formats/iq4_nl.cuh"
#include "formats/iq4_xs.cuh"
#include "formats/mxfp4.cuh"
#include "formats/nvfp4.cuh"
#include "formats/plain.cuh"
#include "formats/q1_0.cuh"
#include "formats/q2_0.cuh"
#include "formats/q2_k.cuh"
#include "formats/q3_k.cuh"
#include "formats/q4_0.cuh"
#include "formats/q4_1.cuh"
#include "formats/q4_k.cuh"
#include "formats/q5_0.cuh"
#include "formats/q5_1.cuh"
#include "formats/q5_k.cuh"
#include "formats/q6_k.cuh"
#include "formats/q8_0.cuh"
#include "formats/tq1_0.cuh"
#include "formats/tq2_0.cuh"

#define PLAIN_FORMATS(KERNELS) \
    KERNELS(f32, F32) \
    KERNELS(f16, F16) \
    KERNELS(bf16, BF16)

#define BLOCK_FORMATS(KERNELS) \
    KERNELS(q4_0, Q4_0) \
    KERNELS(q4_1, Q4_1) \
    KERNELS(q5_0, Q5_0) \
    KERNELS(q5_1, Q5_1) \
    KERNELS(q8_0, Q8_0) \
    KERNELS(q2_k, Q2_K) \
    KERNELS(q3_k, Q3_K) \
    KERNELS(q4_k, Q4_K) \
    KERNELS(q5_k, Q5_K) \
    KERNELS(q6_k, Q6_K) \
    KERNELS(iq2_xxs, IQ2_XXS) \
    KERNELS(iq2_xs, IQ2_XS) \
    KERNELS(iq2_s, IQ2_S) \
    KERNELS(iq3_xxs, IQ3_XXS) \
    KERNELS(iq3_s, IQ3_S) \
    KERNELS(iq1_s, IQ1_S) \
    KERNELS(iq1_m, IQ1_M) \
    KERNELS(iq4_nl, IQ4_NL) \
    KERNELS(iq4_xs, IQ4_XS) \
    KERNELS(tq1_0, TQ1_0) \
    KERNELS(tq2_0, TQ2_0) \
    KERNELS(mxfp4, MXFP4) \
    KERNELS(nvfp4, NVFP4) \
    KERNELS(q1_0, Q1_0) \
    KERNELS(q2_0, Q2_0)
