// device.cpp: start, devices, primary contexts, peer access.
#include <atomic>
#include <cstdio>
#include <cstring>

#include "emu/cuda/driver.h"
#include "emu/memory.h"

namespace emu {

struct Context {
    int card;
};

static Context contexts[CARDS_MAX] = {{0}, {1}};
static std::atomic<bool> initialised{false};
static thread_local int current = -1;

constexpr int DRIVER_VERSION = 12080;
constexpr int PEER_ATTRIBUTE_SUPPORTED = 2;

int current_card() { return current; }

Status usable(int card) {
    if (!initialised) return NOT_INITIALIZED;
    if (card < 0 || card_state(card).retained <= 0) return INVALID_CONTEXT;
    return Status(card_state(card).error.load());
}

Status usable() { return usable(current); }

static Status check_device(int device) {
    if (!initialised) return NOT_INITIALIZED;
    return device >= 0 && device < card_count() ? SUCCESS : INVALID_DEVICE;
}

int card_of_context(void* handle) {
    for (const Context& c : contexts) {
        if (handle == &c) return c.card;
    }
    return -1;
}

// CUdevice_attribute and its value on every card.
struct Attribute {
    int number;
    int value;
};

constexpr Attribute ATTRIBUTES[] = {
    {1, 1024},       // MAX_THREADS_PER_BLOCK
    {2, 1024},       // MAX_BLOCK_DIM_X
    {3, 1024},       // MAX_BLOCK_DIM_Y
    {4, 64},         // MAX_BLOCK_DIM_Z
    {5, 2147483647}, // MAX_GRID_DIM_X
    {6, 65535},      // MAX_GRID_DIM_Y
    {7, 65535},      // MAX_GRID_DIM_Z
    {8, 49152},      // MAX_SHARED_MEMORY_PER_BLOCK
    {10, 32},        // WARP_SIZE
    {12, 65536},     // MAX_REGISTERS_PER_BLOCK
    {13, 50000},     // CLOCK_RATE, kHz: slow, as it is
    {14, 512},       // TEXTURE_ALIGNMENT
    {15, 1},         // GPU_OVERLAP
    {18, 0},         // INTEGRATED
    {19, 1},         // CAN_MAP_HOST_MEMORY
    {20, 0},         // COMPUTE_MODE: default
    {31, 1},         // CONCURRENT_KERNELS
    {32, 0},         // ECC_ENABLED
    {34, 0},         // PCI_DEVICE_ID
    {35, 0},         // TCC_DRIVER
    {36, 40000},     // MEMORY_CLOCK_RATE, kHz
    {37, 256},       // GLOBAL_MEMORY_BUS_WIDTH
    {38, 1048576},   // L2_CACHE_SIZE
    {39, 2048},      // MAX_THREADS_PER_MULTIPROCESSOR
    {40, 2},         // ASYNC_ENGINE_COUNT
    {41, 1},         // UNIFIED_ADDRESSING
    {50, 0},         // PCI_DOMAIN_ID
    {78, 1},         // STREAM_PRIORITIES_SUPPORTED
    {81, 233472},    // MAX_SHARED_MEMORY_PER_MULTIPROCESSOR
    {82, 65536},     // MAX_REGISTERS_PER_MULTIPROCESSOR
    {83, 0},         // MANAGED_MEMORY
    {95, 0},         // COOPERATIVE_LAUNCH
    {97, 232448},    // MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
    {106, 32},       // MAX_BLOCKS_PER_MULTIPROCESSOR
    {115, 0},        // MEMORY_POOLS_SUPPORTED: memory is allocated and freed synchronously
};

}  // namespace emu

using namespace emu;

EXPORT int cuInit(unsigned flags) {
    if (flags != 0) return INVALID_VALUE;
    if (card_count() == 0) return NO_DEVICE;
    if (!initialised.exchange(true)) report_faults();
    return SUCCESS;
}

EXPORT int cuDriverGetVersion(int* version) {
    *version = DRIVER_VERSION;
    return SUCCESS;
}

// A compiler that finds this library asks for private tables and takes this answer as "no driver of mine".
EXPORT int cuGetExportTable(const void** exported, const void*) {
    *exported = nullptr;
    return NOT_FOUND;
}

EXPORT int cuDeviceGetCount(int* count) {
    if (!initialised) return NOT_INITIALIZED;
    *count = card_count();
    return SUCCESS;
}

EXPORT int cuDeviceGet(int* device, int ordinal) {
    if (const Status status = check_device(ordinal)) return status;
    *device = ordinal;
    return SUCCESS;
}

EXPORT int cuDeviceGetName(char* name, int bytes, int device) {
    if (const Status status = check_device(device)) return status;
    snprintf(name, size_t(bytes), "%s", CARDS[device].name);
    return SUCCESS;
}

EXPORT int cuDeviceGetUuid_v2(unsigned char* uuid, int device) {
    if (const Status status = check_device(device)) return status;
    memcpy(uuid, "tandem-virtual-", 15);
    uuid[15] = static_cast<unsigned char>(device);
    return SUCCESS;
}

EXPORT int cuDeviceGetUuid(unsigned char* uuid, int device) { return cuDeviceGetUuid_v2(uuid, device); }

EXPORT int cuDeviceGetPCIBusId(char* text, int bytes, int device) {
    if (const Status status = check_device(device)) return status;
    snprintf(text, size_t(bytes), "0000:%02x:00.0", device + 1);
    return SUCCESS;
}

EXPORT int cuDeviceTotalMem_v2(size_t* bytes, int device) {
    if (const Status status = check_device(device)) return status;
    *bytes = memory_bytes(device);
    return SUCCESS;
}

EXPORT int cuDeviceGetAttribute(int* value, int attribute, int device) {
    constexpr int MULTIPROCESSOR_COUNT = 16, PCI_BUS_ID = 33, CAPABILITY_MAJOR = 75, CAPABILITY_MINOR = 76;
    if (const Status status = check_device(device)) return status;
    switch (attribute) {
        case MULTIPROCESSOR_COUNT: *value = CARDS[device].multiprocessors; return SUCCESS;
        case PCI_BUS_ID: *value = device + 1; return SUCCESS;
        case CAPABILITY_MAJOR: *value = CARDS[device].capability_major; return SUCCESS;
        case CAPABILITY_MINOR: *value = CARDS[device].capability_minor; return SUCCESS;
        default: break;
    }
    for (const Attribute& a : ATTRIBUTES) {
        if (a.number != attribute) continue;
        *value = a.value;
        return SUCCESS;
    }
    return refuse(INVALID_VALUE, "cuDeviceGetAttribute", "attribute " + std::to_string(attribute) + " has no value here");
}

EXPORT int cuDevicePrimaryCtxRetain(void** context, int device) {
    if (const Status status = check_device(device)) return status;
    card_state(device).retained++;
    *context = &contexts[device];
    return SUCCESS;
}

// The last release ends the context: a real driver frees what is left in it, a program should have freed it.
EXPORT int cuDevicePrimaryCtxRelease_v2(int device) {
    if (const Status status = check_device(device)) return status;
    if (card_state(device).retained <= 0) return INVALID_CONTEXT;
    if (card_state(device).retained == 1) finish_card(device);
    card_state(device).retained--;
    return SUCCESS;
}

EXPORT int cuDevicePrimaryCtxGetState(int device, unsigned* flags, int* active) {
    if (const Status status = check_device(device)) return status;
    *flags = 0;
    *active = card_state(device).retained > 0;
    return SUCCESS;
}

EXPORT int cuCtxSetCurrent(void* context) {
    if (!initialised) return NOT_INITIALIZED;
    if (context == nullptr) {
        current = -1;
        return SUCCESS;
    }
    const int card = card_of_context(context);
    if (card < 0 || card_state(card).retained <= 0) return INVALID_CONTEXT;
    current = card;
    return SUCCESS;
}

EXPORT int cuCtxGetCurrent(void** context) {
    if (!initialised) return NOT_INITIALIZED;
    *context = current < 0 ? nullptr : &contexts[current];
    return SUCCESS;
}

EXPORT int cuCtxGetDevice(int* device) {
    if (const Status status = usable()) return status;
    *device = current;
    return SUCCESS;
}

EXPORT int cuCtxSetFlags(unsigned) { return usable(); }

EXPORT int cuCtxSynchronize() {
    if (const Status status = usable()) return status;
    if (const Status status = forbid_capturing("cuCtxSynchronize")) return status;
    finish_card(current);
    return usable();
}

EXPORT int cuCtxGetStreamPriorityRange(int* least, int* greatest) {
    *least = *greatest = 0;
    return usable();
}

EXPORT int cuDeviceCanAccessPeer(int* can, int device, int peer) {
    if (const Status status = check_device(device)) return status;
    if (const Status status = check_device(peer)) return status;
    *can = device != peer;
    return SUCCESS;
}

EXPORT int cuDeviceGetP2PAttribute(int* value, int attribute, int device, int peer) {
    if (const Status status = check_device(device)) return status;
    if (const Status status = check_device(peer)) return status;
    if (device == peer) return INVALID_DEVICE;
    *value = attribute == PEER_ATTRIBUTE_SUPPORTED;
    return SUCCESS;
}

EXPORT int cuCtxEnablePeerAccess(void* peer, unsigned flags) {
    if (const Status status = usable()) return status;
    const int card = card_of_context(peer);
    if (card < 0) return INVALID_CONTEXT;
    if (flags != 0 || card == current) return INVALID_VALUE;
    return card_state(current).reaches[card].exchange(true) ? PEER_ACCESS_ALREADY_ENABLED : SUCCESS;
}

EXPORT int cuCtxDisablePeerAccess(void* peer) {
    if (const Status status = usable()) return status;
    const int card = card_of_context(peer);
    if (card < 0) return INVALID_CONTEXT;
    return card_state(current).reaches[card].exchange(false) ? SUCCESS : PEER_ACCESS_NOT_ENABLED;
}
