// fibers.h: one block of a kernel's threads on one OS thread, a fiber for each thread.
//
// Invariants: a fiber runs until it waits at a barrier or a warp exchange, or returns; then the next live fiber runs, in
// rising or falling order. A block never leaves its OS thread, so `static thread_local` is shared memory. A wait that
// cannot end aborts the process and names kernel, block and thread. A thread that has returned is waited for nowhere.
// Does not know: grids, cards, drivers, what kernels compute.
#pragma once
#include <cstddef>
#include <cstdint>

#include "emu/order.h"

namespace emu {

struct Dim {
    unsigned x, y, z;
    uint64_t count() const { return uint64_t(x) * y * z; }
};

// A kernel call as every block of it sees it.
struct Launch {
    const char* kernel;
    void (*body)(void* const* arguments);
    void* const* arguments;
    Dim grid;
    Dim block;
    size_t dynamic_bytes;  // of shared memory
    bool downwards;        // fibers and blocks in falling order
    Order* order;  // among the launches of its stream
};

constexpr unsigned WARP_LANES = 32;
constexpr unsigned BLOCK_THREADS_MAX = 1024;
constexpr size_t DYNAMIC_BYTES_MAX = 227 * 1024;

// What the lanes of a warp do when they meet; lanes that meet with different kinds are a divergence.
enum class Meeting : uint8_t { Barrier, Shuffle, ShuffleXor, ShuffleDown };

// The indices of the running fiber.
const Dim& thread_index();
const Dim& block_index();
const Dim& block_dim();
const Dim& grid_dim();
unsigned lane();

// Waits for all live threads of the block.
void sync_block();
// Every live lane of the warp gives a value and takes the source lane's; that of a lane that has returned is all ones.
uint64_t exchange(uint64_t value, unsigned source, Meeting kind, size_t bytes);
// The running thread waits for the kernel before, which has ended long ago; lets the next one begin; fences what it wrote.
void note_wait();
void note_let();
void note_fence();
// The order of the running launch while neither the running thread has waited nor, behind a barrier, another of its block;
// null from then on.
const Order* unwaited_order();
// The number of the running launch; 1 where none runs.
uint32_t running_launch();
// The launch's dynamic shared memory; its end is the end of what may be touched.
void* dynamic_shared();

// Runs one block to its end on the calling OS thread.
void run_block(const Launch& launch, Dim index);

// The running kernel, block and thread of this OS thread as text, for messages; false where none runs.
bool describe_running(char* text, size_t bytes);

}  // namespace emu
