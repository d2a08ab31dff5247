// reads.cpp: a kernel that reads memory of a card which nothing wrote, or, before it has waited, what a launch wrote that may
// still run then, or that writes before it has waited, ends the process with a line that names kernel, thread and address.
//
// Kernels are compiled with -fsanitize=thread, whose calls before each load and store of a unit end here in place of its
// own library. Invariant: loads and stores of shared memory and of the host pass. Does not know: kernels.
#include <cstdio>
#include <cstdlib>

#include "emu/fibers.h"
#include "emu/memory.h"

namespace emu {
namespace {

struct Keeping {
    Keeping() { keep_marks(); }
} keeping;

// Where the marks of addresses were found last: allocations are far larger than what an entry stands for.
constexpr unsigned SHIFT = 16;
constexpr size_t ENTRIES = 256;
thread_local Marks known[ENTRIES];

// The marks of `bytes` bytes, or null where they are no card's.
uint32_t* marks_of(uint64_t address, size_t bytes) {
    Marks& entry = known[address >> SHIFT & (ENTRIES - 1)];
    if (address < entry.first || address + bytes > entry.end) {
        Marks found;
        if (!find_marks(address, &found) || address + bytes > found.end) return nullptr;
        entry = found;
    }
    return entry.marks + (address - entry.first);
}

void end(const char* what, uint64_t address) {
    char running[256];
    if (!describe_running(running, sizeof running)) return;
    fprintf(stderr, "emu: %s %s: %s\n", running, what, describe_address(address).c_str());
    abort();
}

void on_read(const void* at, size_t bytes) {
    const auto address = reinterpret_cast<uint64_t>(at);
    const uint32_t* marks = marks_of(address, bytes);
    if (marks == nullptr) return;
    const Order* unwaited = unwaited_order();
    for (size_t i = 0; i < bytes; i++) {
        if (marks[i] == 0) end("reads what nothing wrote", address + i);
        if (unwaited != nullptr && marks[i] >= FIRST_LAUNCH && unwaited->may_run(marks[i]))
            end("reads before it waits what a launch wrote that may still run", address + i);
    }
}

void on_write(void* at, size_t bytes) {
    const auto address = reinterpret_cast<uint64_t>(at);
    uint32_t* marks = marks_of(address, bytes);
    if (marks == nullptr) return;
    const Order* unwaited = unwaited_order();
    if (unwaited != nullptr && unwaited->begins_early()) end("writes before it waits", address);
    const uint32_t writer = running_launch();
    for (size_t i = 0; i < bytes; i++) marks[i] = writer;
}

}  // namespace
}  // namespace emu

using emu::on_read;
using emu::on_write;

extern "C" {

void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}

#define READ_WRITE(BYTES)                                                                                              \
    void __tsan_read##BYTES(void* at) { on_read(at, BYTES); }                                                          \
    void __tsan_write##BYTES(void* at) { on_write(at, BYTES); }

READ_WRITE(1)
READ_WRITE(2)
READ_WRITE(4)
READ_WRITE(8)
READ_WRITE(16)

void __tsan_read_range(void* at, size_t bytes) { on_read(at, bytes); }
void __tsan_write_range(void* at, size_t bytes) { on_write(at, bytes); }

unsigned __tsan_atomic32_load(const volatile unsigned* at, int) {
    on_read(const_cast<const unsigned*>(at), sizeof *at);
    return __atomic_load_n(at, __ATOMIC_SEQ_CST);
}
void __tsan_atomic32_store(volatile unsigned* at, unsigned value, int) {
    on_write(const_cast<unsigned*>(at), sizeof *at);
    __atomic_store_n(at, value, __ATOMIC_SEQ_CST);
}
unsigned __tsan_atomic32_fetch_add(volatile unsigned* at, unsigned value, int) {
    on_read(const_cast<const unsigned*>(at), sizeof *at);
    return __atomic_fetch_add(at, value, __ATOMIC_SEQ_CST);
}
int __tsan_atomic32_compare_exchange_strong(volatile unsigned* at, unsigned* expected, unsigned value, int, int) {
    on_read(const_cast<const unsigned*>(at), sizeof *at);
    return __atomic_compare_exchange_n(at, expected, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}
int __tsan_atomic32_compare_exchange_weak(volatile unsigned* at, unsigned* expected, unsigned value, int, int) {
    return __tsan_atomic32_compare_exchange_strong(at, expected, value, 0, 0);
}
void __tsan_atomic_thread_fence(int) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
}
