// lanes.cuh: weight rows with few images: a lane makes the value of a group of 256 columns of a row, by products of four bytes.
//
// Eight rows at the same group are a cell, of which eight lanes have a row each; a warp has an item of four cells at a time. It
// copies their bytes to shared memory, neighbouring lanes neighbouring pieces of a row; there each lane decodes its group
// part by part and reads the images, which lie in shared memory too, at the same place as the seven others of the cell.
// Invariants: integers are exact, their order free; the float steps of a group are in rising order (docs/numerics.md). What
// stands behind a row's last group or the last row is read by none of them.
// Does not know: who is multiplied, where results go.
#pragma once
#include "device/image.cuh"
#include "formats/tile.cuh"

constexpr i32 CELL_ROWS = 8;
constexpr i32 ITEM_CELLS = WARP / CELL_ROWS;

// Values of each of an image's sums that a format's products need; 0: none.
template <class F> DEVICE constexpr i32 sum_values() {
    return !F::OFFSET && F::BIAS == 0 ? 0 : two_scales<F>() ? 16 : 32;
}

// The bytes of an item in shared memory.
template <class F>
struct Bank {
    alignas(16) u8 byte[WARP * Slot<F>::STRIDE];
};

// Rows of images in shared memory, each of whole groups; what a last group lacks is any value.
template <class F, i32 COUNT>
struct NearImages {
    static constexpr i32 SCALES = GROUP_VALUES / image_values<F>();
    static constexpr i32 SUMS = sum_values<F>() > 0 ? GROUP_VALUES / sum_values<F>() : 0;
    static constexpr i32 GROUP_BYTES = GROUP_VALUES + 4 * (SCALES + SUMS);

    i8* code;    // [row][group][256]
    f32* scale;  // [row][group][SCALES]
    i32* sum;    // [row][group][SUMS]: of codes, times -BIAS where the format has one
    i32 groups, parts;

    DEVICE NearImages(u8* memory, i32 cols) : groups((cols + GROUP_VALUES - 1) / GROUP_VALUES), parts(cols / PART_VALUES) {
        code = (i8*) memory;
        scale = (f32*) (memory + COUNT * groups * GROUP_VALUES);
        sum = (i32*) (scale + COUNT * groups * SCALES);
    }

    // Behind the images.
    DEVICE u8* end() const { return (u8*) (sum + COUNT * groups * SUMS); }

    // Puts down the sum of EACH codes from `first` on of a row, of which this lane has one and the next lanes the others.
    // All lanes of the warp take part.
    template <i32 EACH>
    DEVICE void put_sum(i32 row, i32 first, i32 own, bool wanted) const {
        if constexpr (SUMS > 0) {
            constexpr i32 VALUES = sum_values<F>();
#pragma unroll
            for (i32 bit = 1; bit < VALUES / EACH; bit *= 2) own += shuffle_xor(own, bit);
            if (wanted && first % VALUES == 0)
                sum[row * groups * SUMS + first / VALUES] = F::BIAS > 0 ? -F::BIAS * own : own;
        }
    }

    // Copies rows of images, by all of THREADS threads of a block.
    template <i32 THREADS>
    DEVICE void copy(const Images& x) const {
        constexpr i32 EACH = 16;
        const i32 per_row = x.cols / image_values<F>(), whole_warps = (x.cols + WARP * EACH - 1) / (WARP * EACH) * (WARP * EACH);
#pragma unroll 1
        for (i32 row = 0; row < x.count; row++) {
#pragma unroll 1
            for (i32 k = (i32) threadIdx.x; k < per_row; k += THREADS) scale[row * groups * SCALES + k] = x.scales[row * per_row + k];
#pragma unroll 1
            for (i32 first = (i32) threadIdx.x * EACH; first < whole_warps; first += THREADS * EACH) {
                const bool wanted = first < x.cols;
                const Words4 word = wanted ? *(const Words4*) (x.codes + (u32) (row * x.cols + first)) : Words4{};
                if (wanted) *(Words4*) (code + row * groups * GROUP_VALUES + first) = word;
                i32 own = 0;
#pragma unroll
                for (i32 i = 0; i < 4; i++) own = dp4a(four(1), word.word[i], own);
                put_sum<EACH>(row, first, own, wanted);
            }
        }
    }

    // Makes the image of a row of floats, by all of THREADS threads of a block; a thread takes 8 values.
    template <i32 THREADS>
    DEVICE void make(const f32* x, i32 cols, u32* fault, u32 fault_id) const {
        constexpr i32 EACH = 8, LANES = image_values<F>() / EACH;
        const i32 whole_warps = (cols + WARP * EACH - 1) / (WARP * EACH) * (WARP * EACH);
#pragma unroll 1
        for (i32 first = (i32) threadIdx.x * EACH; first < whole_warps; first += THREADS * EACH) {
            const bool wanted = first < cols;
            f32 value[EACH];
            u32 largest = 0;
#pragma unroll
            for (i32 i = 0; i < EACH; i++) value[i] = wanted ? x[first + i] : 0.0f;
#pragma unroll
            for (i32 i = 0; i < EACH; i++) {
                const u32 here = magnitude(value[i]);
                largest = here > largest ? here : largest;
            }
#pragma unroll
            for (i32 bit = LANES / 2; bit > 0; bit /= 2) {
                const u32 other = shuffle_xor(largest, bit);
                largest = other > largest ? other : largest;
            }
            if (wanted && !is_finite(largest)) report_fault(fault, fault_id);
            const ImageScale scaled = image_scale(largest);
            Words2 word = {};
#pragma unroll
            for (i32 i = 0; i < EACH; i++) word.word[i / 4] |= (u32) (image_code(value[i], scaled) & 255) << (8 * (i % 4));
            if (wanted) {
                *(Words2*) (code + first) = word;
                if (first % image_values<F>() == 0) scale[first / image_values<F>()] = scaled.scale;
            }
            put_sum<EACH>(0, first, dp4a(four(1), word.word[0], dp4a(four(1), word.word[1], 0)), wanted);
        }
    }

    // The values of group `group` of a weight row with all rows of images.
    DEVICE void values(Near bytes, i32 group, f32 (&out)[COUNT]) const {
        constexpr bool SUPER = F::ORDER == Order::SUPER;
        constexpr i32 BLOCK_PARTS = F::VALUES / PART_VALUES, HALVES = two_scales<F>() ? 2 : 1, WORDS = PART_WORDS / HALVES;
        i32 total[COUNT] = {}, below[COUNT] = {};
        f32 d = 0.0f, m = 0.0f;
#pragma unroll
        for (i32 r = 0; r < COUNT; r++) out[r] = 0.0f;
#pragma unroll
        for (i32 part = 0; part < GROUP_PARTS; part++) {
            Part p;
            F::decode(bytes + part / BLOCK_PARTS * F::BYTES, part % BLOCK_PARTS, p);
            d = p.d[0];
            if constexpr (F::OFFSET) m = p.m;
#pragma unroll
            for (i32 r = 0; r < COUNT; r++) {
                const i32 place = r * groups + group;
                u32 q[PART_WORDS];
                load_words<16>((const u8*) code + place * GROUP_VALUES + part * PART_VALUES, q);
                const i32* const sums = sum + place * SUMS + part * (SUMS / GROUP_PARTS);
                const f32 a = SUPER ? 0.0f : scale[place * SCALES + part];
                f32 next = out[r];
#pragma unroll
                for (i32 h = 0; h < HALVES; h++) {
                    i32 dot = 0;
                    if constexpr (F::BIAS > 0) dot = sums[h];
#pragma unroll
                    for (i32 w = h * WORDS; w < (h + 1) * WORDS; w++) dot = dp4a(p.code[w], q[w], dot);
                    if constexpr (SUPER) {
                        total[r] += p.scale[h] * dot;
                        if constexpr (F::OFFSET) below[r] += p.min[h] * sums[h];
                    } else {
                        next = fmaf(p.d[h] * a, (f32) dot, next);
                    }
                }
                if constexpr (!SUPER) {
                    if constexpr (F::OFFSET) next = fmaf(p.m * a, (f32) sums[0], next);
                    out[r] = group * GROUP_PARTS + part < parts ? next : out[r];
                }
            }
        }
        if constexpr (SUPER) {
#pragma unroll
            for (i32 r = 0; r < COUNT; r++) {
                const f32 a = scale[r * groups + group], scaled = d * a;
                if constexpr (F::OFFSET) {
                    out[r] = fmaf(scaled, (f32) total[r], -((m * a) * (f32) below[r]));
                } else {
                    out[r] = scaled * (f32) total[r];
                }
            }
        }
    }
};

// Rows of one matrix or of two, in eights: eights of two matrices alternate. A line is an eight's cells.
struct Lines {
    const u8* first;  // the first row in either matrix
    const u8* second;
    i32 row_bytes, rows;  // left in the matrix from there on
    i32 groups, two, count;
};

// Which cell a lane has a row of.
struct Spot {
    i32 line, group;

    DEVICE Spot(const Lines& lines, i32 cell) : line(0), group(0) { advance(lines, cell); }

    // A few cells: a division would take longer.
    DEVICE void advance(const Lines& lines, i32 cells) {
        group += cells;
#pragma unroll 1
        while (group >= lines.groups) {
            group -= lines.groups;
            line++;
        }
    }

    DEVICE i32 row(const Lines& lines) const { return (line >> lines.two) * CELL_ROWS + (i32) threadIdx.x % CELL_ROWS; }
    DEVICE bool is_there(const Lines& lines) const { return line < lines.count && row(lines) < lines.rows; }

    template <class F>
    DEVICE const u8* at(const Lines& lines) const {
        const u8* const matrix = line & lines.two ? lines.second : lines.first;
        return matrix + (u32) (row(lines) * lines.row_bytes + group * Slot<F>::GROUP_BYTES);
    }
};

// Starts copying the groups of an item, of which a lane has a spot: neighbouring lanes take neighbouring pieces of a row.
template <class F>
DEVICE void bring(Bank<F>& bank, const Lines& lines, const Spot& spot) {
    constexpr i32 PIECES = Slot<F>::PIECES, GROUP_BYTES = Slot<F>::GROUP_BYTES, STRIDE = Slot<F>::STRIDE;
    constexpr bool MAY_END = F::VALUES < GROUP_VALUES;
    const i32 lane = (i32) threadIdx.x % WARP;
    const u8* const at = spot.at<F>(lines);
    const i32 skip = F::ALIGN == 16 ? 0 : (i32) ((u32) (u64) at & 15);
    const i32 row_left = lines.row_bytes - spot.group * GROUP_BYTES, bytes = MAY_END && row_left < GROUP_BYTES ? row_left : GROUP_BYTES;
    const u64 from = (u64) at - skip;
    // Nothing past the group: behind it the matrix may end.
    const i32 end = spot.is_there(lines) ? skip + bytes : 0;
#pragma unroll
    for (i32 first = 0; first < PIECES; first += 8) {
        const i32 here = PIECES - first >= 8 ? 8 : PIECES % 8;
        const i32 lanes = here > 4 ? 8 : here > 2 ? 4 : here;  // of a row
        const i32 number = first + lane % lanes;
        const bool whole = !MAY_END && 16 * (first + here) <= GROUP_BYTES;
#pragma unroll
        for (i32 k = 0; k < lanes; k++) {
            const i32 row = WARP / lanes * k + lane / lanes;
            const u64 row_from = shuffle(from, row);
            const i32 left = shuffle(end, row) - 16 * number;
            if (left <= 0 || lane % lanes >= here) continue;
            start_copy(bank.byte + row * STRIDE + 16 * number, (const u8*) row_from + 16 * number, whole || left >= 16 ? 16 : left);
        }
    }
    close_copies();
}
