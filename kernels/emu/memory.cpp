// memory.cpp: see memory.h.
#include "emu/memory.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <sys/mman.h>

#include "emu/cards.h"

namespace emu {
namespace {

constexpr size_t PAGE_BYTES = 4096;
constexpr size_t ALIGNMENT = 256;
// What lies before and behind an allocation and may not be touched.
constexpr size_t GUARD_BYTES = size_t(1) << 20;
// Larger allocations begin as zeros, or an arena would cost its size in real memory.
constexpr size_t FILL_BYTES_MAX = size_t(64) << 20;
constexpr int FILL = 0xff;

// What stands between an allocation's end and the next multiple of 256: words that are a signalling NaN, which sums and
// products of no number leave as it is.
constexpr uint32_t PADDING = 0xffa5a5a5;
unsigned char padding_at(uint64_t address) { return static_cast<unsigned char>(PADDING >> 8 * (address % 4)); }

struct Entry {
    Allocation allocation;
    char* mapping;  // null: noted, not ours
    size_t mapping_bytes;
    uint32_t* marks;  // null: none are kept
};

struct Table {
    std::mutex mutex;
    std::map<uint64_t, Entry> live;
    std::map<uint64_t, Allocation> freed;
    size_t used[CARDS_MAX]{};
    size_t sizes[CARDS_MAX];
    uint64_t left = UINT64_MAX;       // bytes until allocations of cards fail
    uint64_t host_left = UINT64_MAX;  // and of pinned memory

    Table() {
        for (int card = 0; card < CARDS_MAX; card++) sizes[card] = CARDS[card].memory_bytes;
    }
};

// Never destroyed: other threads may free while the process ends.
Table& table() {
    static Table* const t = new Table;
    return *t;
}

constexpr size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

// The entry whose allocation begins at or before the address, or null.
template <class Map> auto* at_or_before(Map& map, uint64_t address) {
    auto after = map.upper_bound(address);
    return after == map.begin() ? nullptr : &std::prev(after)->second;
}

bool keeps_marks = false;

// A mark for each byte of new memory, or null. They are never given back: a kernel that touches freed memory is told so.
uint32_t* new_marks(int owner, size_t bytes) {
    if (owner == HOST || !keeps_marks) return nullptr;
    void* marks = mmap(nullptr, bytes * sizeof(uint32_t), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (marks != MAP_FAILED) return static_cast<uint32_t*>(marks);
    perror("emu: no memory for marks");
    abort();
}

std::string owner_name(int owner) { return owner == HOST ? "the host" : "card " + std::to_string(owner); }

std::string distance(const Allocation& a, uint64_t address) {
    const std::string what = std::to_string(a.bytes) + " bytes of " + owner_name(a.owner);
    if (address < a.address + a.bytes) return "byte " + std::to_string(address - a.address) + " of " + what;
    return std::to_string(address - a.address - a.bytes) + " bytes behind the end of " + what;
}

}  // namespace

Taken take(int owner, size_t bytes, uint64_t* address) {
    Table& t = table();
    std::lock_guard<std::mutex> lock(t.mutex);
    uint64_t& left = owner == HOST ? t.host_left : t.left;
    if (bytes > left) return Taken::Full;
    if (owner != HOST && bytes > t.sizes[owner] - std::min(t.used[owner], t.sizes[owner])) return Taken::Full;
    const size_t padded = round_up(bytes, ALIGNMENT);
    const size_t inner = round_up(padded, PAGE_BYTES);
    const size_t mapping_bytes = inner + 2 * GUARD_BYTES;
    void* mapped =
        mmap(nullptr, mapping_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) return Taken::Full;
    char* mapping = static_cast<char*>(mapped);
    if (mprotect(mapping + GUARD_BYTES, inner, PROT_READ | PROT_WRITE) != 0) {
        munmap(mapping, mapping_bytes);
        return Taken::Full;
    }
    char* start = mapping + GUARD_BYTES + inner - padded;
    *address = reinterpret_cast<uint64_t>(start);
    if (bytes <= FILL_BYTES_MAX) memset(start, FILL, bytes);
    for (size_t i = bytes; i < padded; i++) start[i] = static_cast<char>(padding_at(*address + i));
    t.live[*address] = Entry{{*address, bytes, owner}, mapping, mapping_bytes, new_marks(owner, bytes)};
    if (owner != HOST) t.used[owner] += bytes;
    if (left != UINT64_MAX) left -= bytes;
    return Taken::Yes;
}

bool note_host(uint64_t address, size_t bytes) {
    Table& t = table();
    std::lock_guard<std::mutex> lock(t.mutex);
    const Entry* before = at_or_before(t.live, address + bytes - 1);
    if (before != nullptr && before->allocation.address + before->allocation.bytes > address) return false;
    t.live[address] = Entry{{address, bytes, HOST}, nullptr, 0, nullptr};
    return true;
}

bool give_back(int owner, uint64_t address) {
    check_end(address, "free");
    Table& t = table();
    std::lock_guard<std::mutex> lock(t.mutex);
    auto found = t.live.find(address);
    if (found == t.live.end() || found->second.allocation.owner != owner) return false;
    const Entry entry = found->second;
    t.live.erase(found);
    if (owner != HOST) t.used[owner] -= entry.allocation.bytes;
    if (entry.mapping == nullptr) return true;
    // The pages go, the range stays taken.
    if (mmap(entry.mapping, entry.mapping_bytes, PROT_NONE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED) {
        perror("emu: memory cannot be given back");
        abort();
    }
    t.freed[address] = entry.allocation;
    return true;
}

bool find_allocation(uint64_t address, Allocation* found) { return holds(address, 1, found); }

bool holds(uint64_t address, size_t bytes, Allocation* found) {
    Table& t = table();
    std::lock_guard<std::mutex> lock(t.mutex);
    const Entry* entry = at_or_before(t.live, address);
    if (entry == nullptr) return false;
    const uint64_t end = entry->allocation.address + entry->allocation.bytes;
    if (address >= end || bytes > end - address) return false;
    *found = entry->allocation;
    return true;
}

std::string describe_address(uint64_t address) {
    Table& t = table();
    // A fault may come while the table is held; then there is nothing to say.
    std::unique_lock<std::mutex> lock(t.mutex, std::try_to_lock);
    if (!lock.owns_lock()) return "an address";
    const Entry* live = at_or_before(t.live, address);
    if (live != nullptr && address < live->allocation.address + live->allocation.bytes + GUARD_BYTES) {
        return distance(live->allocation, address);
    }
    const Allocation* freed = at_or_before(t.freed, address);
    if (freed != nullptr && address < freed->address + freed->bytes + GUARD_BYTES) {
        return distance(*freed, address) + ", which were freed";
    }
    auto after = t.live.upper_bound(address);
    if (after != t.live.end() && after->first - address <= GUARD_BYTES) {
        return std::to_string(after->first - address) + " bytes before " + distance(after->second.allocation, after->first);
    }
    return address == 0 ? "a null pointer" : "memory of no card";
}

void check_end(uint64_t address, const char* after) {
    Allocation a;
    if (!find_allocation(address, &a)) return;
    {
        Table& t = table();
        std::lock_guard<std::mutex> lock(t.mutex);
        auto entry = t.live.find(a.address);
        if (entry == t.live.end() || entry->second.mapping == nullptr) return;
    }
    const unsigned char* end = reinterpret_cast<const unsigned char*>(a.address + a.bytes);
    for (size_t i = 0; i < round_up(a.bytes, ALIGNMENT) - a.bytes; i++) {
        if (end[i] == padding_at(a.address + a.bytes + i)) continue;
        fprintf(stderr, "emu: %s: byte %zu behind the end of %zu bytes of %s was written\n", after, i, a.bytes,
                owner_name(a.owner).c_str());
        abort();
    }
}

void keep_marks() { keeps_marks = true; }

bool find_marks(uint64_t address, Marks* found) {
    Table& t = table();
    std::lock_guard<std::mutex> lock(t.mutex);
    const Entry* entry = at_or_before(t.live, address);
    if (entry == nullptr || entry->marks == nullptr) return false;
    const Allocation& a = entry->allocation;
    *found = Marks{a.address, a.address + a.bytes, entry->marks};
    return address < found->end;
}

void note_written(uint64_t address, size_t bytes) {
    Marks found;
    if (!keeps_marks || bytes == 0 || !find_marks(address, &found)) return;
    std::fill_n(found.marks + (address - found.first), std::min<uint64_t>(bytes, found.end - address), 1u);
}

size_t memory_bytes(int card) {
    std::lock_guard<std::mutex> lock(table().mutex);
    return table().sizes[card];
}

size_t used_bytes(int card) {
    std::lock_guard<std::mutex> lock(table().mutex);
    return table().used[card];
}

size_t live_allocations() {
    std::lock_guard<std::mutex> lock(table().mutex);
    return table().live.size();
}

void set_memory_bytes(int card, size_t bytes) {
    std::lock_guard<std::mutex> lock(table().mutex);
    table().sizes[card] = bytes;
}

void fail_allocation_after(uint64_t bytes) {
    std::lock_guard<std::mutex> lock(table().mutex);
    table().left = bytes;
}

void fail_host_allocation_after(uint64_t bytes) {
    std::lock_guard<std::mutex> lock(table().mutex);
    table().host_left = bytes;
}

}  // namespace emu
