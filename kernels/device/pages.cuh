// Where keys and values lie in a page.
//
// Invariant: a page holds keys [kv_heads][64][key bytes], then values [kv_heads][64][value bytes].
// Does not know: forms, pools, states. Source: docs/numerics.md, Attention.
// twin: src/device/cpu/plain/attention.rs.
#pragma once
#include "device/vendor.h"

constexpr i32 PAGE_POSITIONS = 64;

// Where the rows of one K/V head lie inside a page.
template <class Form> struct HeadRows {
    i64 key_bytes;
    i64 value_bytes;
    i64 keys_at;
    i64 values_at;

    DEVICE HeadRows(i32 kv_heads, i32 head, i32 key_width, i32 value_width)
        : key_bytes(Form::row_bytes(key_width)), value_bytes(Form::row_bytes(value_width)) {
        keys_at = head * PAGE_POSITIONS * key_bytes;
        values_at = PAGE_POSITIONS * (kv_heads * key_bytes + head * value_bytes);
    }
};
