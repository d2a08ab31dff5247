// Both images of 256 values of a row, made by one warp, or of a row in shared memory, made by a block.
//
// Invariants: codes and scales are those of `quantise_a32`, `quantise_a256`; codes lie at a multiple of 8.
// Does not know: where the values come from. Source: docs/numerics.md, Activation images.
// twin: src/device/cpu/plain/image.rs.
#pragma once
#include "device/image.cuh"
#include "device/reduce.cuh"

// Neighbouring values that a lane has.
constexpr i32 LANE_VALUES = A256_VALUES / SHORT_LANES;

// Codes and scales of a row's images; a null pointer is an image that nobody reads.
struct Images {
    i8* codes32;
    f32* scales32;
    i8* codes256;
    f32* scales256;

    // A warp makes the images of 256 values, of which a lane has eight neighbours; those from `left` on do not exist,
    // whole blocks of 32. The largest magnitude.
    DEVICE u32 write(const f32 (&value)[LANE_VALUES], i64 at, i32 left) const {
        const i32 first = (i32) threadIdx.x % SHORT_LANES * LANE_VALUES;
        const bool is_there = first < left;
        u32 largest = 0;
#pragma unroll
        for (i32 j = 0; j < LANE_VALUES; j++) {
            const u32 one = is_there ? magnitude(value[j]) : 0;
            largest = one > largest ? one : largest;
        }
        if (codes32 != nullptr) {
            // Four lanes have a block.
            u32 block = largest;
#pragma unroll
            for (i32 bit = 1; bit < A32_VALUES / LANE_VALUES; bit *= 2) {
                const u32 other = shuffle_xor(block, bit);
                block = other > block ? other : block;
            }
            const ImageScale scale = image_scale(block);
            if (is_there) {
                store_codes(codes32 + at + first, value, scale);
                if (first % A32_VALUES == 0) scales32[(at + first) / A32_VALUES] = scale.scale;
            }
        }
        largest = warp_largest(largest);
        if (codes256 != nullptr) {
            const ImageScale scale = image_scale(largest);
            store_codes(codes256 + at + first, value, scale);
            if (first == 0) scales256[at / A256_VALUES] = scale.scale;
        }
        return largest;
    }

    // A block of WARPS warps makes the images of a row of `values` values at `near`, a multiple of 16 in shared memory, and
    // tells of what is not finite.
    template <i32 WARPS> DEVICE void write_row(const f32* near, i32 values, i64 at, u32* fault, u32 fault_id) const {
        const i32 lane = (i32) threadIdx.x % SHORT_LANES;
#pragma unroll 1
        for (i32 group = (i32) threadIdx.x / SHORT_LANES * A256_VALUES; group < values; group += WARPS * A256_VALUES) {
            Words4 both[2] = {};
            if (group + lane * LANE_VALUES < values) {
                const Words4* const words = (const Words4*)(near + group + lane * LANE_VALUES);
                both[0] = words[0];
                both[1] = words[1];
            }
            f32 mine[LANE_VALUES];
#pragma unroll
            for (i32 j = 0; j < LANE_VALUES; j++) mine[j] = bits_f32(both[j / 4].word[j % 4]);
            const u32 largest = write(mine, at + group, values - group);
            if (!is_finite(largest) && lane == 0) report_fault(fault, fault_id);
        }
    }

    // A block makes the images of 256 values, of which each of its first 256 threads has one; those from `left` on do not
    // exist, whole blocks of 32. `largest`: one word a warp. Whether what the thread's warp has is finite.
    DEVICE bool write_one(f32 value, i64 at, i32 left, u32 (&largest)[A256_VALUES / WARP]) const {
        const i32 thread = (i32) threadIdx.x;
        const bool is_there = thread < left;
        const u32 block = warp_largest(is_there ? magnitude(value) : 0);
        if (codes256 != nullptr && thread < A256_VALUES && thread % WARP == 0) largest[thread / WARP] = block;
        if (codes32 != nullptr && is_there) {
            const ImageScale scale = image_scale(block);
            codes32[at + thread] = (i8) image_code(value, scale);
            if (thread % A32_VALUES == 0) scales32[(at + thread) / A32_VALUES] = scale.scale;
        }
        if (codes256 != nullptr) {
            __syncthreads();
            u32 all = largest[0];
#pragma unroll
            for (i32 warp = 1; warp < A256_VALUES / WARP; warp++) all = largest[warp] > all ? largest[warp] : all;
            const ImageScale scale = image_scale(all);
            if (is_there) {
                codes256[at + thread] = (i8) image_code(value, scale);
                if (thread == 0) scales256[at / A256_VALUES] = scale.scale;
            }
        }
        return is_finite(block);
    }

    DEVICE static void store_codes(i8* to, const f32 (&value)[LANE_VALUES], ImageScale scale) {
        Words2 words = {};
#pragma unroll
        for (i32 j = 0; j < LANE_VALUES; j++) words.word[j / 4] |= (u32) (u8) (i8) image_code(value[j], scale) << (8 * (j % 4));
        *(Words2*)to = words;
    }
};
