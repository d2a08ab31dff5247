// tile.cuh: 16 weight rows with up to 8 images: group values by integer products of small matrices, a group a warp at a time.
//
// A warp brings the bytes of a group of 256 values of 16 rows into shared memory. There lane 4 g + t decodes unit t, two
// parts, of rows g and g + 8. In the products column c of the images is activation row c & 1 at the values of unit c >> 1
// and 0 at the others: so every lane gets the sums of the parts that it decoded, for two activation rows.
// Invariants: integers are exact, their order free; the float steps of a group and the chain of groups are in rising order
// (docs/numerics.md). What stands behind a row's last group or the last row is read by none of them.
// Does not know: who is multiplied, where results go.
#pragma once
#include "device/copies.cuh"
#include "device/mma_int8.cuh"
#include "formats/part.cuh"

constexpr i32 TILE_ROWS = 16;
constexpr i32 GROUP_VALUES = 256;
constexpr i32 GROUP_PARTS = GROUP_VALUES / PART_VALUES;
constexpr i32 UNIT_PARTS = 2;  // of a lane

// Values of one scale of an image.
template <class F> DEVICE constexpr i32 image_values() { return F::ORDER == Order::SUPER ? 256 : 32; }

// Whether the halves of a part have scales of their own.
template <class F> DEVICE constexpr bool two_scales() {
    return F::ORDER == Order::SUPER ? F::SCALE_VALUES == 16 : F::HALVES;
}

// The bytes of one group of 16 rows in shared memory.
template <class F>
struct Slot {
    static constexpr i32 GROUP_BYTES = GROUP_VALUES / F::VALUES * F::BYTES;
    // A row's bytes begin inside its first 16 here as they do in memory.
    static constexpr i32 PIECES = (GROUP_BYTES + (16 - F::ALIGN) + 15) / 16;
    // Odd, so that 8 rows lie in different banks.
    static constexpr i32 STRIDE = 16 * (PIECES | 1);
    alignas(16) u8 byte[TILE_ROWS * STRIDE];
};

// Rows of a matrix in file order: those of a tile, of which at least one is in the matrix.
struct Bytes {
    const u8* at;
    i32 row_bytes, rows;
};

template <class F, bool WHOLE>
DEVICE void fill_rows(Slot<F>& slot, const Bytes& m, i32 group, i32 lane) {
    constexpr i32 PIECES = Slot<F>::PIECES, GROUP_BYTES = Slot<F>::GROUP_BYTES;
    const u8* const group_at = m.at + (u32) (group * GROUP_BYTES);
    // A row of small blocks may end inside its last group, and there the matrix.
    constexpr bool MAY_END = F::VALUES < GROUP_VALUES;
    const i32 row_left = m.row_bytes - group * GROUP_BYTES, bytes = MAY_END && row_left < GROUP_BYTES ? row_left : GROUP_BYTES;
#pragma unroll
    for (i32 first = 0; first < PIECES; first += 8) {
        const i32 here = PIECES - first >= 8 ? 8 : PIECES % 8;
        const i32 lanes = here > 4 ? 8 : here > 2 ? 4 : here;  // of a row
        const i32 number = first + lane % lanes;
        if (lane % lanes >= here) continue;
#pragma unroll
        for (i32 row = 0; row < TILE_ROWS; row += WARP / lanes) {
            const i32 own = row + lane / lanes;
            if (own >= TILE_ROWS) continue;
            const u8* const from = group_at + (u64) (u32) (WHOLE || own < m.rows ? own : m.rows - 1) * (u32) m.row_bytes;
            u8* const to = slot.byte + own * Slot<F>::STRIDE + 16 * number;
            if constexpr (F::ALIGN == 16) {
                start_copy(to, from + 16 * number, 16);
            } else {
                // Nothing past the group: behind it the matrix may end.
                const i32 skip = (i32) ((u32) (u64) from & 15), left = skip + bytes - 16 * number;
                if ((MAY_END || 16 * PIECES > GROUP_BYTES + 15) && left <= 0) continue;
                start_copy(to, from - skip + 16 * number, left < 16 ? left : 16);
            }
        }
    }
}

// Starts copying a group of 16 rows: neighbouring lanes take neighbouring pieces of a row. In place of rows past the last
// it is copied again.
template <class F>
DEVICE void fill(Slot<F>& slot, const Bytes& m, i32 group, i32 lane) {
    if (m.rows >= TILE_ROWS) {
        fill_rows<F, true>(slot, m, group, lane);
    } else {
        fill_rows<F, false>(slot, m, group, lane);
    }
}

// ---- four lanes t, each with values for all four

// Lane t gets the sum over the lanes of value t.
DEVICE i32 quad_sum(const i32 (&v)[4], i32 t) {
    const bool second = t & 2, odd = t & 1;
    const i32 low = (second ? v[2] : v[0]) + shuffle_xor(second ? v[0] : v[2], 2);
    const i32 high = (second ? v[3] : v[1]) + shuffle_xor(second ? v[1] : v[3], 2);
    return (odd ? high : low) + shuffle_xor(odd ? low : high, 1);
}

// Lane t gets value t of each lane, in their order.
template <class T>
DEVICE void quad_transpose(const T (&v)[4], i32 t, T (&out)[4]) {
    const bool second = t & 2, odd = t & 1;
    const T own0 = second ? v[2] : v[0], own1 = second ? v[3] : v[1];
    const T far0 = shuffle_xor(second ? v[0] : v[2], 2), far1 = shuffle_xor(second ? v[1] : v[3], 2);
    const T own = odd ? own1 : own0, far = odd ? far1 : far0;
    const T next = shuffle_xor(odd ? own0 : own1, 1), far_next = shuffle_xor(odd ? far0 : far1, 1);
    const T even_one = odd ? next : own, odd_one = odd ? own : next;
    const T far_even = odd ? far_next : far, far_odd = odd ? far : far_next;
    out[0] = second ? far_even : even_one;
    out[1] = second ? far_odd : odd_one;
    out[2] = second ? even_one : far_even;
    out[3] = second ? odd_one : far_odd;
}

// ---- a group

// Activation rows, dense.
struct Images {
    const i8* codes;
    const f32* scales;
    i32 cols, count;
};

// Group values of 16 rows with 2 SETS activation rows; lane 4 g + t makes those of row g + 8 (t >> 1) with activation row
// 2 s + (t & 1).
template <class F, i32 SETS>
struct GroupWork {
    static constexpr bool SUPER = F::ORDER == Order::SUPER;
    static constexpr bool TWO_SCALES = two_scales<F>();
    static constexpr i32 SCALES = SUPER ? 1 : GROUP_PARTS;
    static constexpr i32 HALVES = F::HALVES ? 2 : 1;
    // Few activation rows leave room for what both parts need; many do not.
    static constexpr bool BOTH = SETS == 1;

    const i8* codes_at;  // what this lane gives to products: its activation row of set 0, its unit of group 0
    const f32* scales_at;
    i32 cols, per_row;
    i32 count, given, scaled;  // activation rows; those from the lane's own of set 0 on

    u32 codes[BOTH ? UNIT_PARTS : 1][PART_WORDS];
    f32 scales[SETS][SCALES];
    i32 sums[SETS][4], mins[SETS][4];  // SUPER
    f32 g[SETS];                       // else: the chain of steps

    // The parts of a unit: of SUPER those that share bytes, else those that let the float steps go part by part.
    static DEVICE i32 part_of(i32 unit, i32 i) {
        if constexpr (SUPER) {
            return F::FAR_PARTS ? 4 * (unit >> 1) + (unit & 1) + 2 * i : UNIT_PARTS * unit + i;
        } else {
            return unit + GROUP_PARTS / UNIT_PARTS * i;
        }
    }

    DEVICE GroupWork(const Images& x, i32 lane) {
        const i32 row = lane >> 2 & 1, of_scale = lane & 1;
        cols = x.cols;
        per_row = x.cols / image_values<F>();
        count = x.count;
        given = (lane & 3) == lane >> 3 ? x.count - row : 0;
        scaled = x.count - of_scale;
        codes_at = x.codes + (u32) (row * x.cols) + part_of(lane & 3, 0) * PART_VALUES;
        scales_at = x.scales + (u32) (of_scale * per_row);
        if constexpr (BOTH) {
#pragma unroll
            for (i32 i = 0; i < UNIT_PARTS; i++) clear(codes[i]);
        }
    }

    static DEVICE void clear(u32 (&words)[PART_WORDS]) {
#pragma unroll
        for (i32 w = 0; w < PART_WORDS; w++) words[w] = 0;
    }

    // Part i of the lane's unit of a group, for set s. `out` is 0 where the lane gives nothing.
    DEVICE void load_part(i32 s, i32 lane, i32 group, i32 i, u32 (&out)[PART_WORDS]) const {
        constexpr i32 APART = SUPER ? (F::FAR_PARTS ? 2 : 1) : GROUP_PARTS / UNIT_PARTS;
        if (2 * s >= given) return;
        if constexpr (!SUPER) {
            if ((group * GROUP_PARTS + part_of(lane & 3, i)) * PART_VALUES >= cols) {
                clear(out);
                return;
            }
        }
        load_words<16>((const u8*) (codes_at + (u32) (2 * s * cols + group * GROUP_VALUES) + i * APART * PART_VALUES), out);
    }

    // Loads what a group needs of the activation rows.
    DEVICE void load(i32 group, i32 lane) {
        if constexpr (BOTH) {
#pragma unroll
            for (i32 i = 0; i < UNIT_PARTS; i++) load_part(0, lane, group, i, codes[i]);
        }
#pragma unroll
        for (i32 s = 0; s < SETS; s++) {
            const bool wanted = 2 * s < scaled;
            const f32* const at = scales_at + (u32) (2 * s * per_row + group * SCALES);
#pragma unroll
            for (i32 k = 0; k < SCALES; k++)
                scales[s][k] = wanted && (SUPER || group * SCALES + k < per_row) ? at[k] : 0.0f;
        }
    }

    DEVICE void values(const Slot<F>& slot, const Bytes& m, i32 group, i32 lane, f32 (&out)[SETS]) {
        const i32 t = lane & 3;
        Near at[2];
#pragma unroll
        for (i32 k = 0; k < 2; k++) {
            const i32 row = (lane >> 2) + 8 * k;
            const u32 from = (u32) (u64) m.at + (u32) (row * m.row_bytes + group * Slot<F>::GROUP_BYTES);
            at[k] = Near{slot.byte + row * Slot<F>::STRIDE + (F::ALIGN == 16 ? 0 : from & 15)};
        }
#pragma unroll
        for (i32 s = 0; s < SETS; s++) {
            g[s] = 0.0f;
#pragma unroll
            for (i32 v = 0; v < 4; v++) sums[s][v] = mins[s][v] = 0;
        }
        f32 d[2], min[2];  // SUPER: those of any part
        if constexpr (BOTH) {
#pragma unroll
            for (i32 i = 0; i < UNIT_PARTS; i++) part(at, group, lane, i, d, min);
        } else {
#pragma unroll 1
            for (i32 i = 0; i < UNIT_PARTS; i++) part(at, group, lane, i, d, min);
        }
#pragma unroll
        for (i32 s = 0; s < SETS; s++) {
            if constexpr (SUPER) {
                const f32 a = scales[s][0], scaled = (t & 2 ? d[1] : d[0]) * a;
                const i32 total = quad_sum(sums[s], t);
                if constexpr (F::OFFSET) {
                    out[s] = fmaf(scaled, (f32) total, -(((t & 2 ? min[1] : min[0]) * a) * (f32) quad_sum(mins[s], t)));
                } else {
                    out[s] = scaled * (f32) total;
                }
            } else {
                out[s] = g[s];
            }
        }
    }

  private:
    // Part i of this lane's unit, rows g and g + 8.
    DEVICE void part(const Near (&at)[2], i32 group, i32 lane, i32 i, f32 (&d)[2], f32 (&m)[2]) {
        constexpr i32 BLOCK_PARTS = F::VALUES / PART_VALUES;
        const i32 t = lane & 3, number = part_of(t, i);
        Part p[2];
#pragma unroll
        for (i32 k = 0; k < 2; k++) {
            // Keeps the second row's bytes out of registers while the first's are there.
            if constexpr (!BOTH) warp_barrier();
            F::decode(at[k] + number / BLOCK_PARTS * F::BYTES, number % BLOCK_PARTS, p[k]);
            remove_bias<F>(p[k]);
            d[k] = p[k].d[0];
            if constexpr (F::OFFSET) m[k] = p[k].m;
        }
        f32 row_d[HALVES][4], row_m[4];
        if constexpr (!SUPER) {
#pragma unroll
            for (i32 h = 0; h < HALVES; h++) {
                const f32 both[4] = {p[0].d[h], p[0].d[h], p[1].d[h], p[1].d[h]};
                quad_transpose(both, t, row_d[h]);
            }
            if constexpr (F::OFFSET) {
                const f32 both[4] = {m[0], m[0], m[1], m[1]};
                quad_transpose(both, t, row_m);
            }
        }
#pragma unroll
        for (i32 s = 0; s < SETS; s++) {
            if (SETS > 1 && 2 * s >= count) break;
            u32 q[PART_WORDS];
            if constexpr (BOTH) {
#pragma unroll
                for (i32 w = 0; w < PART_WORDS; w++) q[w] = codes[i][w];
            } else {
                clear(q);
                load_part(s, lane, group, i, q);
            }
            // Sums of codes; of the minimum as code at every place, which is minimum * sum(q), or of ones.
            i32 dot[2][4] = {}, low[4] = {};
#pragma unroll
            for (i32 w = 0; w < PART_WORDS; w += 2) {
                const u32 a[4] = {p[0].code[w], p[1].code[w], p[0].code[w + 1], p[1].code[w + 1]};
                mma_int8(dot[TWO_SCALES ? w / 4 : 0], a, q[w], q[w + 1]);
                if constexpr (F::OFFSET) {
                    const u32 first = SUPER ? four((u32) p[0].min[w / 4]) : four(1);
                    const u32 second = SUPER ? four((u32) p[1].min[w / 4]) : four(1);
                    const u32 b[4] = {first, second, first, second};
                    mma_int8(SUPER ? mins[s] : low, b, q[w], q[w + 1]);
                }
            }
            if constexpr (SUPER) {
#pragma unroll
                for (i32 v = 0; v < 4; v++) {
                    sums[s][v] += p[v / 2].scale[0] * dot[0][v];
                    if constexpr (TWO_SCALES) sums[s][v] += p[v / 2].scale[1] * dot[1][v];
                }
            } else {
                i32 of_unit[HALVES][4], ones_of[4];
#pragma unroll
                for (i32 h = 0; h < HALVES; h++) quad_transpose(dot[h], t, of_unit[h]);
                if constexpr (F::OFFSET) quad_transpose(low, t, ones_of);
                const i32 parts = cols / PART_VALUES - group * GROUP_PARTS;
#pragma unroll
                for (i32 unit = 0; unit < 4; unit++) {
                    const i32 here = part_of(unit, i);
                    const f32 a = i == 0 ? scales[s][unit] : scales[s][unit + GROUP_PARTS / UNIT_PARTS];
                    f32 next = g[s];
#pragma unroll
                    for (i32 h = 0; h < HALVES; h++) next = fmaf(row_d[h][unit] * a, (f32) of_unit[h][unit], next);
                    if constexpr (F::OFFSET) next = fmaf(row_m[unit] * a, (f32) ones_of[unit], next);
                    g[s] = here < parts ? next : g[s];
                }
            }
        }
    }
};
