// memory.h: the memory of the virtual cards and pinned memory of the host: who owns what, until when.
//
// Invariants: an allocation ends at the end of a page, to 256 bytes, and lies between regions that may not be touched; a
// freed range is never given out again and may not be touched; new memory holds no numbers (all bits set). Used bytes of
// a card never exceed its size. Thread-safe. Does not know: streams, kernels, drivers.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

namespace emu {

// The owner of pinned host memory, which every card reads.
constexpr int HOST = -1;

struct Allocation {
    uint64_t address;
    size_t bytes;
    int owner;  // a card, or HOST
};

enum class Taken { Yes, Full };

// Takes `bytes` (at least 1) of a card's or the host's memory.
Taken take(int owner, size_t bytes, uint64_t* address);
// Notes host memory that the caller owns as pinned. False where it overlaps what is known.
bool note_host(uint64_t address, size_t bytes);
// Gives back what `take` gave, or forgets what was noted. False where no allocation of that owner begins there.
bool give_back(int owner, uint64_t address);

// The allocation that holds `address`.
bool find_allocation(uint64_t address, Allocation* found);
// True where [address, address + bytes) lies inside one allocation, which is then written to `found`.
bool holds(uint64_t address, size_t bytes, Allocation* found);
// Where the address lies, for messages: an allocation and the distance to it, a freed one, or nothing known.
std::string describe_address(uint64_t address);
// Aborts, naming it, where something behind an allocation's end was written that no page protects.
void check_end(uint64_t address, const char* after);

// A range of a card's memory, with a mark for each byte: 0 until it was written, then the number of the launch that wrote
// it last (order.h), 1 where that was none.
struct Marks {
    uint64_t first, end;
    uint32_t* marks;
};

// From now on, before the first allocation, it is kept who wrote which bytes of cards (reads/).
void keep_marks();
// The marks of the allocation that holds `address`. False where it is no card's, or none are kept.
bool find_marks(uint64_t address, Marks* found);
// Marks what was written by others than kernels.
void note_written(uint64_t address, size_t bytes);

size_t memory_bytes(int card);
size_t used_bytes(int card);
size_t live_allocations();

// On demand, for tests. A card's size; and allocations (of cards, of pinned memory) that fail once so many more bytes
// have been given out.
void set_memory_bytes(int card, size_t bytes);
void fail_allocation_after(uint64_t bytes);
void fail_host_allocation_after(uint64_t bytes);

}  // namespace emu
