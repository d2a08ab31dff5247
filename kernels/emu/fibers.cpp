// fibers.cpp: see fibers.h.
//
// Invariants: the switch saves the callee-saved integer registers of the System V ABI and nothing else, because no kernel
// changes the floating-point control word. Stacks lie between pages that may not be touched.
#include "emu/fibers.h"

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <sys/mman.h>
#include <vector>

#if !defined(__x86_64__)
#error "the fiber switch is written for x86-64"
#endif

// Saves the running stack pointer into *save and continues at the stack `to`.
extern "C" void tandem_emu_switch(void** save, void* to);
asm(R"(
.text
.hidden tandem_emu_switch
.globl tandem_emu_switch
.type tandem_emu_switch,@function
tandem_emu_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size tandem_emu_switch,.-tandem_emu_switch
)");
constexpr unsigned SAVED_REGISTERS = 6;

namespace emu {
namespace {

constexpr size_t PAGE_BYTES = 4096;
constexpr size_t STACK_BYTES = 64 * 1024;
// Tops of neighbouring stacks are moved apart, or all would fall into the same sets of the cache.
constexpr size_t STAGGER_BYTES = 64;

struct Fiber {
    void* stack;
    Dim thread;
    unsigned number;
    bool live;
    bool has_waited;  // for the kernel before
    bool has_fenced;
};

struct Warp {
    uint64_t given[WARP_LANES];
    uint64_t taken[WARP_LANES];
    uint32_t releases[WARP_LANES];
    uint8_t source[WARP_LANES];
    uint32_t arrived;  // a bit for each lane that waits
    uint32_t live;     // a bit for each lane that has not returned
    Meeting kind;
    size_t bytes;
};

// Memory with a page before and behind it that may not be touched.
class Guarded {
  public:
    explicit Guarded(size_t bytes) : bytes_(bytes) {
        void* at = mmap(nullptr, bytes + 2 * PAGE_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (at == MAP_FAILED) fail();
        start_ = static_cast<char*>(at) + PAGE_BYTES;
        if (mprotect(start_, bytes, PROT_READ | PROT_WRITE) != 0) fail();
    }
    ~Guarded() { munmap(start_ - PAGE_BYTES, bytes_ + 2 * PAGE_BYTES); }
    Guarded(const Guarded&) = delete;
    Guarded& operator=(const Guarded&) = delete;

    char* start() const { return start_; }
    char* end() const { return start_ + bytes_; }

  private:
    [[noreturn]] static void fail() {
        perror("emu: memory for stacks");
        abort();
    }
    char* start_;
    size_t bytes_;
};

constexpr size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

// The one block that an OS thread runs, and what it keeps between blocks.
struct Block {
    std::vector<Fiber> fibers;
    std::vector<Warp> warps;
    std::vector<std::unique_ptr<Guarded>> stacks;
    Guarded dynamic{round_up(DYNAMIC_BYTES_MAX, PAGE_BYTES)};
    Guarded signal_stack{STACK_BYTES};
    const Launch* launch = nullptr;
    Dim index{};
    unsigned count = 0;
    unsigned live = 0;
    unsigned arrived = 0;     // at the block's barrier
    unsigned generation = 0;  // of the block's barrier
    unsigned idle = 0;        // switches since a fiber arrived somewhere, was let go, or ended
    bool any_waited = false;  // a fiber waited for the kernel before
    bool all_waited = false;  // so did all, or they met one that had
    Fiber* current = nullptr;
    void* caller_stack = nullptr;

    Block() {
        // The handler of faults must not need the stack that overflowed.
        stack_t present{};
        sigaltstack(nullptr, &present);
        if (!(present.ss_flags & SS_DISABLE)) return;
        stack_t ours{};
        ours.ss_sp = signal_stack.start();
        ours.ss_size = STACK_BYTES;
        sigaltstack(&ours, nullptr);
    }
};

// A plain pointer, so that reading it needs no check for a first use. It is never freed: an OS thread that has run one
// block will run more.
__thread Block* block = nullptr;

[[noreturn]] void stuck(const char* what) {
    char running[256] = "";
    describe_running(running, sizeof running);
    fprintf(stderr, "emu: %s: %s\n", running, what);
    abort();
}

Fiber* next_live(Block& b) {
    unsigned number = b.current->number;
    for (unsigned k = 0; k < b.count; k++) {
        if (b.launch->downwards) {
            number = number == 0 ? b.count - 1 : number - 1;
        } else {
            number = number + 1 == b.count ? 0 : number + 1;
        }
        if (b.fibers[number].live) return &b.fibers[number];
    }
    return nullptr;
}

// Lets the others run. When each of them had its turn and all still wait, nobody will ever come.
void yield(Block& b, const char* waiting) {
    if (b.idle++ > 2 * b.count) stuck(waiting);
    Fiber* from = b.current;
    Fiber* to = next_live(b);
    if (to == from) return;
    b.current = to;
    tandem_emu_switch(&from->stack, to->stack);
}

void release_block(Block& b) {
    b.arrived = 0;
    b.generation++;
    // What one thread waited for, all may read behind the barrier.
    if (b.any_waited && !b.all_waited) {
        for (unsigned number = 0; number < b.count; number++) b.fibers[number].has_waited = true;
        b.all_waited = true;
    }
}

// Serves all lanes of a warp at once and lets each of them go.
void release_warp(Warp& warp) {
    for (uint32_t lanes = warp.arrived; lanes != 0; lanes &= lanes - 1) {
        const unsigned to = __builtin_ctz(lanes);
        const unsigned from = warp.source[to];
        warp.taken[to] = (warp.arrived >> from & 1) ? warp.given[from] : ~uint64_t(0);
        warp.releases[to]++;
    }
    warp.arrived = 0;
}

// Where every fiber begins and ends.
void fiber_main() {
    Block& b = *block;
    b.launch->body(b.launch->arguments);
    Fiber* self = b.current;
    self->live = false;
    b.live--;
    b.idle = 0;
    if (b.live > 0 && b.arrived == b.live) release_block(b);
    Warp& warp = b.warps[self->number / WARP_LANES];
    warp.live &= ~(1u << self->number % WARP_LANES);
    if (warp.live != 0 && warp.arrived == warp.live) release_warp(warp);
    Fiber* to = b.live > 0 ? next_live(b) : nullptr;
    if (to != nullptr) b.current = to;
    tandem_emu_switch(&self->stack, to != nullptr ? to->stack : b.caller_stack);
    abort();  // nobody switches to a fiber that has ended
}

void prepare(Block& b, Fiber& fiber, unsigned number) {
    const Dim& dim = b.launch->block;
    fiber.number = number;
    fiber.live = true;
    fiber.has_waited = fiber.has_fenced = false;
    fiber.thread = Dim{number % dim.x, number / dim.x % dim.y, number / (dim.x * dim.y)};
    char* top = b.stacks[number]->end() - (number % WARP_LANES) * STAGGER_BYTES;
    void** at = reinterpret_cast<void**>(top);
    *--at = nullptr;  // where fiber_main would return to: keeps the stack aligned as after a call
    *--at = reinterpret_cast<void*>(fiber_main);
    for (unsigned k = 0; k < SAVED_REGISTERS; k++) *--at = nullptr;
    fiber.stack = at;
}

}  // namespace

const Dim& thread_index() { return block->current->thread; }
const Dim& block_index() { return block->index; }
const Dim& block_dim() { return block->launch->block; }
const Dim& grid_dim() { return block->launch->grid; }

void note_wait() {
    block->current->has_waited = block->any_waited = true;
    block->launch->order->waited.store(true, std::memory_order_relaxed);
}

void note_let() {
    Order& order = *block->launch->order;
    order.let.store(true, std::memory_order_relaxed);
    if (!block->current->has_waited) order.let_unwaited.store(true, std::memory_order_relaxed);
    if (!block->current->has_fenced) order.let_unfenced.store(true, std::memory_order_relaxed);
}

void note_fence() { block->current->has_fenced = true; }

uint32_t running_launch() { return block != nullptr && block->current != nullptr ? block->launch->order->number : 1; }

const Order* unwaited_order() {
    if (block == nullptr || block->current == nullptr || block->current->has_waited) return nullptr;
    return block->launch->order;
}

unsigned lane() { return block->current->number % WARP_LANES; }

void* dynamic_shared() {
    // The end, to 16 bytes, is the launch's last byte: what lies behind faults.
    return block->dynamic.end() - round_up(block->launch->dynamic_bytes, 16);
}

void sync_block() {
    Block& b = *block;
    const unsigned generation = b.generation;
    b.idle = 0;
    if (++b.arrived == b.live) return release_block(b);
    while (b.generation == generation) yield(b, "a barrier is not reached by all threads");
}

uint64_t exchange(uint64_t value, unsigned source, Meeting kind, size_t bytes) {
    Block& b = *block;
    const unsigned own = lane();
    Warp& warp = b.warps[b.current->number / WARP_LANES];
    if (warp.arrived == 0) {
        warp.kind = kind;
        warp.bytes = bytes;
    } else if (warp.kind != kind || warp.bytes != bytes) {
        stuck("the lanes of a warp meet at different places");
    }
    warp.given[own] = value;
    warp.source[own] = uint8_t(source % WARP_LANES);
    warp.arrived |= 1u << own;
    b.idle = 0;
    const uint32_t releases = warp.releases[own];
    if (warp.arrived == warp.live) release_warp(warp);
    while (warp.releases[own] == releases) yield(b, "a warp exchange is not reached by all lanes");
    return warp.taken[own];
}

void run_block(const Launch& launch, Dim index) {
    if (block == nullptr) block = new Block;
    Block& b = *block;
    b.launch = &launch;
    b.index = index;
    b.count = unsigned(launch.block.count());
    b.live = b.count;
    b.arrived = 0;
    b.idle = 0;
    b.any_waited = b.all_waited = false;
    while (b.stacks.size() < b.count) b.stacks.push_back(std::make_unique<Guarded>(STACK_BYTES));
    b.fibers.resize(b.count);
    b.warps.assign((b.count + WARP_LANES - 1) / WARP_LANES, Warp{});
    for (unsigned number = 0; number < b.count; number++) {
        prepare(b, b.fibers[number], number);
        b.warps[number / WARP_LANES].live |= 1u << number % WARP_LANES;
    }
    // Shared memory holds no values at first; all ones are no number.
    memset(dynamic_shared(), 0xff, round_up(launch.dynamic_bytes, 16));
    b.current = &b.fibers[launch.downwards ? b.count - 1 : 0];
    tandem_emu_switch(&b.caller_stack, b.current->stack);
    b.current = nullptr;
}

bool describe_running(char* text, size_t bytes) {
    if (block == nullptr || block->current == nullptr) return false;
    const Dim &b = block->index, &t = block->current->thread;
    snprintf(text, bytes, "kernel %s, block (%u, %u, %u), thread (%u, %u, %u)", block->launch->kernel, b.x, b.y, b.z, t.x,
             t.y, t.z);
    return true;
}

}  // namespace emu
