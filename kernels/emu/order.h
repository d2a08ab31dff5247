// order.h: which launches of a stream may still run while one that begins early has not waited yet.
//
// Invariants: numbers rise in a stream. A launch that begins in order, or behind other work than a launch, finds all before
// it ended. One that begins early finds ended what every thread of the launch before it had waited for when it let the next
// one begin; that launch itself only if its threads had waited, and fenced what they wrote. Thread-safe.
// Does not know: what kernels compute, where marks are kept.
#pragma once
#include <atomic>
#include <cstdint>

namespace emu {

// A launch among those of its stream. Launches of one stream have the upper eight bits of their numbers in common.
struct Order {
    uint32_t number;
    uint32_t oldest;  // from this one on, launches may still run until a thread has waited; `number` where none may
    std::atomic<bool> waited{false};        // some thread waited for the kernel before
    std::atomic<bool> let{false};           // some thread let the next one begin,
    std::atomic<bool> let_unwaited{false};  // before it had waited,
    std::atomic<bool> let_unfenced{false};  // or before others could see what it had written

    bool begins_early() const { return oldest != number; }
    // Whether the launch of this number may still run while a thread has not waited.
    bool may_run(uint32_t other) const { return other >> 24 == number >> 24 && other >= oldest; }
};

// Numbers from here on are launches'.
constexpr uint32_t FIRST_LAUNCH = 2;

// A launch begins, as the work of this number of its stream, and ends.
void begin_launch(Order& order, const void* stream, uint64_t work, bool early);
void end_launch(const Order& order, const void* stream);

}  // namespace emu
