// Tiles of binary16 in shared memory as the operands of tensor cores.
//
// Invariants: a tile has rows of W halves in pieces of eight; piece p of row r lies where p ^ (r mod 8) would, so that
// the same piece of eight neighbouring rows lies in different banks. Every lane of the warp calls, or none.
// Does not know: attention, what a row is. Source: the PTX manual's layouts, as device/vendor.h states them.
// twin: none; kernels/emu/parity.py compares what is made of it.
#pragma once
#include "device/reduce.cuh"

// Rows and columns of `a`, and columns of `b`, of one product on tensor cores.
constexpr i32 MMA_ROWS = 16;
constexpr i32 MMA_DEPTH = 16;
constexpr i32 MMA_COLS = 8;
// Halves that one copy moves.
constexpr i32 PIECE = 8;

// Index of the first half of a piece.
template <i32 W> DEVICE i32 piece_at(i32 row, i32 piece) {
    static_assert(W % (8 * PIECE) == 0, "eight pieces take turns");
    return row * W + (piece ^ (row % 8)) * PIECE;
}

// The places of a lane in its loads, for row and column 0, as indices of halves. A column of whole MMA_DEPTH is joined
// by ^: `at ^ column`; rows of whole eights are added: `+ row * W`. The index is hidden from the compiler, which would
// keep one register for each column.
template <i32 W> DEVICE i32 left_at() {
    const i32 lane = (i32) threadIdx.x % SHORT_LANES;
    return hidden(piece_at<W>(lane % 16, lane / 16));
}
template <i32 W> DEVICE i32 right_at() {
    const i32 lane = (i32) threadIdx.x % SHORT_LANES;
    return hidden(piece_at<W>(lane / 16 * 8 + lane % 8, lane / 8 % 2));
}

// a = rows row .. row + 15, columns column .. column + 15; `at` is left_at.
template <i32 W> DEVICE void load_left(const u16* tile, i32 at, i32 row, i32 column, u32 (&to)[4]) {
    load_pieces(tile + row * W + (at ^ column), to);
}

// b of two products, whose columns are the tile's rows row .. row + 7 and row + 8 .. row + 15, depth column .. column +
// 15: to[0], to[1] of the first, to[2], to[3] of the second; `at` is right_at.
template <i32 W> DEVICE void load_right(const u16* tile, i32 at, i32 row, i32 column, u32 (&to)[4]) {
    load_pieces(tile + row * W + (at ^ column), to);
}

// b of two products, whose depth is the tile's rows row .. row + 15, and whose columns are the tile's columns column ..
// column + 7 and column + 8 .. column + 15; `at` is left_at.
template <i32 W> DEVICE void load_right_turned(const u16* tile, i32 at, i32 row, i32 column, u32 (&to)[4]) {
    load_pieces_turned(tile + row * W + (at ^ column), to);
}
