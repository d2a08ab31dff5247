// order.cpp: see order.h.
#include "emu/order.h"

#include <map>
#include <mutex>

namespace emu {
namespace {

// What the launches of a stream left.
struct State {
    uint32_t stream;
    uint32_t launches = FIRST_LAUNCH - 1;
    uint64_t work = 0;         // of the last one
    uint32_t next_oldest = 0;  // what may still run when the next one begins early
};

std::mutex mutex;

State& state_of(const void* stream) {
    static auto* const states = new std::map<const void*, State>;
    const auto found = states->find(stream);
    if (found != states->end()) return found->second;
    return states->emplace(stream, State{uint32_t(states->size()) % 256}).first->second;
}

}  // namespace

void begin_launch(Order& order, const void* stream, uint64_t work, bool early) {
    std::lock_guard<std::mutex> lock(mutex);
    State& state = state_of(stream);
    order.number = state.stream << 24 | (++state.launches & 0xffffff);
    order.oldest = early && work == state.work + 1 ? state.next_oldest : order.number;
    state.work = work;
}

void end_launch(const Order& order, const void* stream) {
    std::lock_guard<std::mutex> lock(mutex);
    const bool is_seen = order.let && !order.let_unfenced;
    state_of(stream).next_oldest = order.let_unwaited ? order.oldest : is_seen ? order.number + 1 : order.number;
}

}  // namespace emu
