// copies.cuh: copies from a card's memory to shared memory that run beside what the thread does next.
//
// Invariants: a thread's copies are counted in the groups that it closes; what a group brought can be read by the thread
// that waited for it, and by others behind a barrier. Cards without such an instruction copy at once.
// Does not know: what is copied.
#pragma once
#include "device/types.h"
#include "device/vendor.h"

#if !TANDEM_EMU && __CUDA_ARCH__ >= 800

// Copies the first `bytes`, 0 .. 16, of 16; the others become 0. Both addresses are multiples of 16.
DEVICE void start_copy(u8* to, const u8* from, i32 bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :
                 : "r"((u32) __cvta_generic_to_shared(to)), "l"(from), "r"(bytes)
                 : "memory");
}

// Copies four bytes; both addresses are multiples of 4.
DEVICE void start_copy_word(u8* to, const u8* from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;"
                 :
                 : "r"((u32) __cvta_generic_to_shared(to)), "l"(from)
                 : "memory");
}

// Ends a group: the copies started since the last one.
DEVICE void close_copies() { asm volatile("cp.async.commit_group;" : : : "memory"); }

// Waits until at most the last OPEN closed groups are under way.
template <i32 OPEN> DEVICE void wait_copies() { asm volatile("cp.async.wait_group %0;" : : "n"(OPEN) : "memory"); }

#else

DEVICE void start_copy(u8* to, const u8* from, i32 bytes) {
    Words4 words = {};
    if (bytes == 16) {
        words = *(const Words4*) from;
    } else {
        for (i32 i = 0; i < bytes; i++) words.word[i / 4] |= (u32) from[i] << (8 * (i % 4));
    }
    *(Words4*) to = words;
}

DEVICE void start_copy_word(u8* to, const u8* from) { *(u32*) to = *(const u32*) from; }

DEVICE void close_copies() {}

template <i32 OPEN> DEVICE void wait_copies() {}

#endif
