// memory.cpp: allocations, pinned memory, copies and fills.
//
// Invariant: both ends of a copy are checked before it is posted: a card's end lies inside one allocation that the
// copy's card may touch; an end in pinned memory lies inside it.
#include "emu/memory.h"

#include <cstring>
#include <memory>
#include <vector>

#include "emu/cuda/driver.h"

namespace emu {

// Where a copy runs: a stream's card, or the current one.
struct Place {
    StreamRef stream;
    int card;
};

static Status open(const char* call, void* handle, bool wait, Place* place) {
    place->stream = find_stream(handle);
    if (place->stream == nullptr) return current_card() < 0 ? INVALID_CONTEXT : INVALID_HANDLE;
    place->card = card_of(place->stream);
    if (const Status status = usable(place->card)) return status;
    return wait ? forbid_capturing(call) : SUCCESS;
}

static void move(void* to, const void* from, size_t bytes) {
    memmove(to, from, bytes);
    note_written(reinterpret_cast<uint64_t>(to), bytes);
}

// Posts a copy. One that is recorded looks for its ends again when the graph runs, for memory may have been freed.
template <class Check> static void post_copy(const char* call, const Place& place, void* to, const void* from,
                                             size_t bytes, Check check) {
    if (!is_recorded(place.stream)) {
        post(place.stream, [=] { move(to, from, bytes); });
        return;
    }
    post(place.stream, [=] {
        if (const Status status = check()) end_context(place.card, ILLEGAL_ADDRESS, call, status_name(status));
        else move(to, from, bytes);
    });
}

// A range of a card's memory that work of `card` may touch.
static Status check_card_range(const char* call, int card, DevicePointer at, size_t bytes) {
    Allocation found;
    if (bytes == 0) return SUCCESS;
    const std::string where = describe_address(at);
    if (!holds(at, bytes, &found)) {
        return refuse(INVALID_VALUE, call, std::to_string(bytes) + " bytes from " + where + " are no memory of a card");
    }
    if (!reaches(card, found.owner)) {
        return refuse(INVALID_VALUE, call, "card " + std::to_string(card) + " has no peer access to " + where);
    }
    return SUCCESS;
}

// A range of the host's memory. What is not pinned is known to the caller alone; a card's memory is not the host's.
static Status check_host_range(const char* call, const void* at, size_t bytes, bool* pinned) {
    Allocation found;
    const auto address = reinterpret_cast<uint64_t>(at);
    *pinned = bytes > 0 && find_allocation(address, &found);
    if (bytes > 0 && at == nullptr) return refuse(INVALID_VALUE, call, "the host's address is null");
    if (!*pinned) return SUCCESS;
    if (found.owner != HOST || !holds(address, bytes, &found)) {
        const std::string where = describe_address(address);
        return refuse(INVALID_VALUE, call, std::to_string(bytes) + " bytes from " + where + " are no memory of the host");
    }
    return SUCCESS;
}

static Status to_card(const char* call, DevicePointer to, const void* from, size_t bytes, void* stream, bool wait) {
    Place place;
    bool pinned;
    if (const Status status = open(call, stream, wait, &place)) return status;
    const auto check = [=](bool* is_pinned) {
        if (const Status status = check_card_range(call, place.card, to, bytes)) return status;
        return check_host_range(call, from, bytes, is_pinned);
    };
    if (const Status status = check(&pinned)) return status;
    if (!pinned && bytes > 0) {
        if (const Status status = forbid_captured(call, place.stream)) return status;
    }
    void* target = reinterpret_cast<void*>(to);
    if (pinned || wait) {
        post_copy(call, place, target, from, bytes, [=] {
            bool still_pinned;
            const Status status = check(&still_pinned);
            return status == SUCCESS && bytes > 0 && !still_pinned ? INVALID_VALUE : status;
        });
    } else {
        // A driver reads memory that is not pinned before it returns.
        const char* start = static_cast<const char*>(from);
        auto staged = std::make_shared<std::vector<char>>(start, start + bytes);
        post(place.stream, [=] { move(target, staged->data(), bytes); });
    }
    if (wait) finish(place.stream);
    return SUCCESS;
}

static Status to_host(const char* call, void* to, DevicePointer from, size_t bytes, void* stream, bool wait) {
    Place place;
    bool pinned;
    if (const Status status = open(call, stream, wait, &place)) return status;
    const auto check = [=](bool* is_pinned) {
        if (const Status status = check_card_range(call, place.card, from, bytes)) return status;
        return check_host_range(call, to, bytes, is_pinned);
    };
    if (const Status status = check(&pinned)) return status;
    if (!pinned && bytes > 0) {
        if (const Status status = forbid_captured(call, place.stream)) return status;
    }
    post_copy(call, place, to, reinterpret_cast<const void*>(from), bytes, [=] {
        bool still_pinned;
        const Status status = check(&still_pinned);
        return status == SUCCESS && bytes > 0 && !still_pinned ? INVALID_VALUE : status;
    });
    // A driver returns from a copy into memory that is not pinned when it is done.
    if (wait || !pinned) finish(place.stream);
    return usable(place.card);
}

static Status between(const char* call, DevicePointer to, DevicePointer from, size_t bytes, void* stream, bool wait) {
    Place place;
    if (const Status status = open(call, stream, wait, &place)) return status;
    if (const Status status = check_card_range(call, place.card, to, bytes)) return status;
    if (const Status status = check_card_range(call, place.card, from, bytes)) return status;
    post(place.stream, [=] { move(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes); });
    if (wait) finish(place.stream);
    return SUCCESS;
}

// A range that lies in memory of the named context's card, which a peer copy demands of both ends.
static Status check_peer_range(const char* call, void* context, DevicePointer at, size_t bytes) {
    Allocation found;
    const int card = card_of_context(context);
    if (card < 0) return INVALID_CONTEXT;
    if (const Status status = check_card_range(call, card, at, bytes)) return status;
    if (bytes > 0 && holds(at, bytes, &found) && found.owner != card) {
        return refuse(INVALID_VALUE, call, describe_address(at) + " is not memory of card " + std::to_string(card));
    }
    return SUCCESS;
}

static Status peer(const char* call, DevicePointer to, void* to_context, DevicePointer from, void* from_context,
                   size_t bytes, void* stream, bool wait) {
    Place place;
    if (const Status status = open(call, stream, wait, &place)) return status;
    if (const Status status = check_peer_range(call, to_context, to, bytes)) return status;
    if (const Status status = check_peer_range(call, from_context, from, bytes)) return status;
    post(place.stream, [=] { move(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes); });
    if (wait) finish(place.stream);
    return SUCCESS;
}

template <class T>
static Status fill(const char* call, DevicePointer to, T value, size_t count, void* stream, bool wait) {
    Place place;
    if (const Status status = open(call, stream, wait, &place)) return status;
    if (to % sizeof(T) != 0) return refuse(INVALID_VALUE, call, "the address is not aligned to the value");
    if (const Status status = check_card_range(call, place.card, to, count * sizeof(T))) return status;
    T* start = reinterpret_cast<T*>(to);
    post(place.stream, [=] {
        for (size_t i = 0; i < count; i++) start[i] = value;
        note_written(to, count * sizeof(T));
    });
    if (wait) finish(place.stream);
    return SUCCESS;
}

}  // namespace emu

using namespace emu;

EXPORT int cuMemGetInfo_v2(size_t* free, size_t* total) {
    if (const Status status = usable()) return status;
    const size_t used = used_bytes(current_card());
    *total = memory_bytes(current_card());
    *free = *total > used ? *total - used : 0;
    return SUCCESS;
}

EXPORT int cuMemAlloc_v2(DevicePointer* pointer, size_t bytes) {
    if (const Status status = usable()) return status;
    if (const Status status = forbid_capturing("cuMemAlloc")) return status;
    if (bytes == 0) return INVALID_VALUE;
    uint64_t address;
    if (take(current_card(), bytes, &address) == Taken::Full) return OUT_OF_MEMORY;
    *pointer = address;
    return SUCCESS;
}

// Waits for the card's work, as a driver does.
EXPORT int cuMemFree_v2(DevicePointer pointer) {
    if (pointer == 0) return SUCCESS;
    if (const Status status = forbid_capturing("cuMemFree")) return status;
    Allocation found;
    if (!find_allocation(pointer, &found) || found.owner == HOST) {
        return refuse(INVALID_VALUE, "cuMemFree", describe_address(pointer) + " cannot be freed");
    }
    finish_card(found.owner);
    if (!give_back(found.owner, pointer)) {
        return refuse(INVALID_VALUE, "cuMemFree", describe_address(pointer) + " is not where an allocation begins");
    }
    return SUCCESS;
}

EXPORT int cuMemHostAlloc(void** pointer, size_t bytes, unsigned) {
    if (const Status status = usable()) return status;
    if (const Status status = forbid_capturing("cuMemHostAlloc")) return status;
    if (bytes == 0) return INVALID_VALUE;
    uint64_t address;
    if (take(HOST, bytes, &address) == Taken::Full) return OUT_OF_MEMORY;
    *pointer = reinterpret_cast<void*>(address);
    return SUCCESS;
}

EXPORT int cuMemFreeHost(void* pointer) {
    if (const Status status = forbid_capturing("cuMemFreeHost")) return status;
    for (int card = 0; card < CARDS_MAX; card++) finish_card(card);
    const auto address = reinterpret_cast<uint64_t>(pointer);
    if (give_back(HOST, address)) return SUCCESS;
    return refuse(INVALID_VALUE, "cuMemFreeHost", describe_address(address) + " cannot be freed");
}

EXPORT int cuMemHostRegister_v2(void* pointer, size_t bytes, unsigned) {
    if (const Status status = usable()) return status;
    if (pointer == nullptr || bytes == 0) return INVALID_VALUE;
    return note_host(reinterpret_cast<uint64_t>(pointer), bytes) ? SUCCESS : HOST_MEMORY_ALREADY_REGISTERED;
}

EXPORT int cuMemHostUnregister(void* pointer) {
    for (int card = 0; card < CARDS_MAX; card++) finish_card(card);
    return give_back(HOST, reinterpret_cast<uint64_t>(pointer)) ? SUCCESS : HOST_MEMORY_NOT_REGISTERED;
}

EXPORT int cuMemHostGetDevicePointer_v2(DevicePointer* device, void* pointer, unsigned) {
    if (const Status status = usable()) return status;
    Allocation found;
    const auto address = reinterpret_cast<uint64_t>(pointer);
    if (!find_allocation(address, &found) || found.owner != HOST) return INVALID_VALUE;
    *device = address;
    return SUCCESS;
}

EXPORT int cuMemcpyHtoD_v2(DevicePointer to, const void* from, size_t bytes) {
    return to_card("cuMemcpyHtoD", to, from, bytes, nullptr, true);
}
EXPORT int cuMemcpyHtoDAsync_v2(DevicePointer to, const void* from, size_t bytes, void* stream) {
    return to_card("cuMemcpyHtoDAsync", to, from, bytes, stream, false);
}
EXPORT int cuMemcpyDtoH_v2(void* to, DevicePointer from, size_t bytes) {
    return to_host("cuMemcpyDtoH", to, from, bytes, nullptr, true);
}
EXPORT int cuMemcpyDtoHAsync_v2(void* to, DevicePointer from, size_t bytes, void* stream) {
    return to_host("cuMemcpyDtoHAsync", to, from, bytes, stream, false);
}
EXPORT int cuMemcpyDtoD_v2(DevicePointer to, DevicePointer from, size_t bytes) {
    return between("cuMemcpyDtoD", to, from, bytes, nullptr, true);
}
EXPORT int cuMemcpyDtoDAsync_v2(DevicePointer to, DevicePointer from, size_t bytes, void* stream) {
    return between("cuMemcpyDtoDAsync", to, from, bytes, stream, false);
}
EXPORT int cuMemcpyPeer(DevicePointer to, void* to_context, DevicePointer from, void* from_context, size_t bytes) {
    return peer("cuMemcpyPeer", to, to_context, from, from_context, bytes, nullptr, true);
}
EXPORT int cuMemcpyPeerAsync(DevicePointer to, void* to_context, DevicePointer from, void* from_context, size_t bytes,
                             void* stream) {
    return peer("cuMemcpyPeerAsync", to, to_context, from, from_context, bytes, stream, false);
}

EXPORT int cuMemsetD8_v2(DevicePointer to, unsigned char value, size_t count) {
    return fill("cuMemsetD8", to, value, count, nullptr, true);
}
EXPORT int cuMemsetD8Async(DevicePointer to, unsigned char value, size_t count, void* stream) {
    return fill("cuMemsetD8Async", to, value, count, stream, false);
}
EXPORT int cuMemsetD32_v2(DevicePointer to, unsigned value, size_t count) {
    return fill("cuMemsetD32", to, value, count, nullptr, true);
}
EXPORT int cuMemsetD32Async(DevicePointer to, unsigned value, size_t count, void* stream) {
    return fill("cuMemsetD32Async", to, value, count, stream, false);
}
