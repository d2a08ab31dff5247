// work.cuh: what the tiles of a row's heads leave in memory, and the merge of a span's tiles.
//
// Invariant: tiles of a span are merged from left to right. Does not know: how tiles are made, spans, images.
// Source: docs/numerics.md, Attention. twin: src/device/cpu/plain/attention.rs.
#pragma once
#include "attention/parts.cuh"

// What the tiles of a row's heads leave, from `first_head` on: acc of each [n][q_heads][tiles_max][value_width], and behind
// them maximum and sum [n][q_heads][tiles_max][2].
struct TileWork {
    f32* accs;
    Words2* partials;
    i32 width;
    i32 tiles;

    DEVICE TileWork(f32* work, i32 value_width, i32 tiles_max, i32 q_heads, i32 n, i64 row, i32 first_head)
        : width(value_width), tiles(tiles_max) {
        const i64 first = (row * q_heads + first_head) * tiles_max;
        accs = work + first * value_width;
        partials = (Words2*)(work + (i64) n * q_heads * tiles_max * value_width) + first;
    }

    DEVICE f32* acc(i32 head, i32 tile) const { return accs + ((i64) head * tiles + tile) * width; }
    DEVICE Words2* partial(i32 head, i32 tile) const { return partials + (i64) head * tiles + tile; }
};
