// library.cpp: a stub of AMD's run-time library, by the names and with the numbers of hip_runtime_api.h.
//
// Each call is the one of the stub CUDA driver that it mirrors, on cards of the same emulation; what differs is here: a
// device that is set in place of a context, a name in place of a compute capability, launches that never begin early,
// 64 KiB of shared memory. Invariant: statuses are CUDA's numbers, which HIP shares. Does not know: what calls do.
#include <cstdio>
#include <cstring>

#include "emu/cuda/driver.h"

namespace emu {

const Maker MAKER = Maker::Amd;

// The calls of the stub CUDA driver that this library is made of.
extern "C" {
int cuInit(unsigned);
int cuDeviceGetCount(int*);
int cuDeviceGet(int*, int);
int cuDeviceGetName(char*, int, int);
int cuDeviceTotalMem_v2(size_t*, int);
int cuDeviceGetAttribute(int*, int, int);
int cuDeviceCanAccessPeer(int*, int, int);
int cuDevicePrimaryCtxRetain(void**, int);
int cuCtxSetCurrent(void*);
int cuCtxEnablePeerAccess(void*, unsigned);
int cuMemGetInfo_v2(size_t*, size_t*);
int cuMemAlloc_v2(DevicePointer*, size_t);
int cuMemFree_v2(DevicePointer);
int cuMemHostAlloc(void**, size_t, unsigned);
int cuMemFreeHost(void*);
int cuMemHostGetDevicePointer_v2(DevicePointer*, void*, unsigned);
int cuMemcpyHtoDAsync_v2(DevicePointer, const void*, size_t, void*);
int cuMemcpyDtoHAsync_v2(void*, DevicePointer, size_t, void*);
int cuMemcpyPeerAsync(DevicePointer, void*, DevicePointer, void*, size_t, void*);
int cuMemsetD8Async(DevicePointer, unsigned char, size_t, void*);
int cuStreamCreate(void**, unsigned);
int cuStreamDestroy_v2(void*);
int cuStreamSynchronize(void*);
int cuStreamWaitEvent(void*, void*, unsigned);
int cuStreamBeginCapture_v2(void*, int);
int cuStreamEndCapture(void*, void**);
int cuEventCreate(void**, unsigned);
int cuEventDestroy_v2(void*);
int cuEventRecord(void*, void*);
int cuEventSynchronize(void*);
int cuEventQuery(void*);
int cuEventElapsedTime(float*, void*, void*);
int cuModuleLoadData(void**, const void*);
int cuModuleUnload(void*);
int cuModuleGetFunction(void**, void*, const char*);
int cuOccupancyMaxActiveBlocksPerMultiprocessor(int*, void*, int, size_t);
int cuFuncSetAttribute(void*, int, int);
int cuLaunchKernel(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**, void**);
int cuGraphInstantiateWithFlags(void**, void*, unsigned long long);
int cuGraphLaunch(void*, void*);
int cuGraphExecDestroy(void*);
int cuGraphDestroy(void*);
}

constexpr int VERSION = 6 * 10000000 + 3 * 100000;
constexpr int SHARED_BYTES = 64 * 1024;
constexpr int MAX_DYNAMIC_SHARED_SIZE_BYTES = 8;  // CUfunction_attribute

// hipDeviceAttribute_t, and CUdevice_attribute; 0: a value of AMD's.
struct Attribute {
    int number;
    int cuda;
    int value;
};

constexpr Attribute ATTRIBUTES[] = {
    {5, 13, 0},             // ClockRate
    {59, 37, 0},            // MemoryBusWidth
    {60, 36, 0},            // MemoryClockRate
    {63, 16, 0},            // MultiprocessorCount
    {67, 33, 0},            // PciBusId
    {68, 34, 0},            // PciDeviceId
    {69, 50, 0},            // PciDomainId
    {74, 0, SHARED_BYTES},  // MaxSharedMemoryPerBlock
};

// hipDeviceProp_tR0600: its bytes, and where the architecture's name lies.
constexpr size_t PROPERTIES_BYTES = 1472, ARCHITECTURE_AT = 1160, ARCHITECTURE_BYTES = 256;

constexpr unsigned HOST_FLAGS = 0x40000003;  // portable, mapped, coherent

struct Text {
    int status;
    const char* name;
    const char* meaning;
};

constexpr Text TEXTS[] = {
    {SUCCESS, "hipSuccess", "no error"},
    {INVALID_VALUE, "hipErrorInvalidValue", "invalid argument"},
    {OUT_OF_MEMORY, "hipErrorOutOfMemory", "out of memory"},
    {NOT_INITIALIZED, "hipErrorNotInitialized", "initialization error"},
    {NO_DEVICE, "hipErrorNoDevice", "no ROCm-capable device is detected"},
    {INVALID_DEVICE, "hipErrorInvalidDevice", "invalid device ordinal"},
    {INVALID_IMAGE, "hipErrorInvalidImage", "device kernel image is invalid"},
    {INVALID_CONTEXT, "hipErrorInvalidContext", "invalid device context"},
    {NO_BINARY_FOR_GPU, "hipErrorNoBinaryForGpu", "no kernel image is available for execution on the device"},
    {INVALID_HANDLE, "hipErrorInvalidHandle", "invalid resource handle"},
    {NOT_FOUND, "hipErrorNotFound", "named symbol not found"},
    {NOT_READY, "hipErrorNotReady", "device not ready"},
    {ILLEGAL_ADDRESS, "hipErrorIllegalAddress", "an illegal memory access was encountered"},
    {PEER_ACCESS_ALREADY_ENABLED, "hipErrorPeerAccessAlreadyEnabled", "peer access is already enabled"},
    {LAUNCH_FAILED, "hipErrorLaunchFailure", "unspecified launch failure"},
    {NOT_SUPPORTED, "hipErrorNotSupported", "operation not supported"},
    {CAPTURE_UNSUPPORTED, "hipErrorStreamCaptureUnsupported", "operation not permitted when stream is capturing"},
    {CAPTURE_INVALIDATED, "hipErrorStreamCaptureInvalidated",
     "operation failed due to a previous error during capture"},
    {UNKNOWN, "hipErrorUnknown", "unknown error"},
};

static const Text& text_of(int status) {
    for (const Text& t : TEXTS) {
        if (t.status == status) return t;
    }
    return TEXTS[sizeof(TEXTS) / sizeof(TEXTS[0]) - 1];
}

// A device's context, retained for the whole process by the first call that names the device.
static int context_of(int device, void** context) {
    static std::mutex mutex;
    static void* contexts[CARDS_MAX];
    std::lock_guard<std::mutex> lock(mutex);
    if (device < 0 || device >= card_count()) return INVALID_DEVICE;
    if (contexts[device] == nullptr) {
        if (const int status = cuDevicePrimaryCtxRetain(&contexts[device], device)) return status;
    }
    *context = contexts[device];
    return SUCCESS;
}

}  // namespace emu

using namespace emu;

EXPORT int hipInit(unsigned flags) { return cuInit(flags); }

EXPORT int hipRuntimeGetVersion(int* version) {
    *version = VERSION;
    return SUCCESS;
}

EXPORT const char* hipGetErrorName(int status) { return text_of(status).name; }
EXPORT const char* hipGetErrorString(int status) { return text_of(status).meaning; }

EXPORT int hipGetDeviceCount(int* count) { return cuDeviceGetCount(count); }
EXPORT int hipDeviceGet(int* device, int ordinal) { return cuDeviceGet(device, ordinal); }
EXPORT int hipDeviceGetName(char* name, int bytes, int device) { return cuDeviceGetName(name, bytes, device); }
EXPORT int hipDeviceTotalMem(size_t* bytes, int device) { return cuDeviceTotalMem_v2(bytes, device); }
EXPORT int hipDeviceCanAccessPeer(int* can, int device, int peer) { return cuDeviceCanAccessPeer(can, device, peer); }

EXPORT int hipDeviceGetAttribute(int* value, int attribute, int device) {
    for (const Attribute& a : ATTRIBUTES) {
        if (a.number != attribute) continue;
        if (a.cuda != 0) return cuDeviceGetAttribute(value, a.cuda, device);
        *value = a.value;
        return SUCCESS;
    }
    return refuse(INVALID_VALUE, "hipDeviceGetAttribute",
                  "attribute " + std::to_string(attribute) + " has no value here");
}

// What else the structure has is zeros.
EXPORT int hipGetDevicePropertiesR0600(void* properties, int device) {
    int found;
    if (const int status = cuDeviceGet(&found, device)) return status;
    memset(properties, 0, PROPERTIES_BYTES);
    snprintf(static_cast<char*>(properties) + ARCHITECTURE_AT, ARCHITECTURE_BYTES, "%s", CARDS[device].gfx);
    return SUCCESS;
}

EXPORT int hipSetDevice(int device) {
    void* context;
    if (const int status = context_of(device, &context)) return status;
    return cuCtxSetCurrent(context);
}

EXPORT int hipDeviceEnablePeerAccess(int peer, unsigned flags) {
    void* context;
    if (const int status = context_of(peer, &context)) return status;
    return cuCtxEnablePeerAccess(context, flags);
}

EXPORT int hipMemGetInfo(size_t* free, size_t* total) { return cuMemGetInfo_v2(free, total); }
EXPORT int hipMalloc(DevicePointer* pointer, size_t bytes) { return cuMemAlloc_v2(pointer, bytes); }
EXPORT int hipFree(DevicePointer pointer) { return cuMemFree_v2(pointer); }

EXPORT int hipHostMalloc(void** pointer, size_t bytes, unsigned flags) {
    if ((flags & ~HOST_FLAGS) != 0) return refuse(INVALID_VALUE, "hipHostMalloc", "flags");
    return cuMemHostAlloc(pointer, bytes, flags & 3);
}
EXPORT int hipHostFree(void* pointer) { return cuMemFreeHost(pointer); }
EXPORT int hipHostGetDevicePointer(DevicePointer* device, void* pointer, unsigned flags) {
    return cuMemHostGetDevicePointer_v2(device, pointer, flags);
}

EXPORT int hipMemcpyHtoDAsync(DevicePointer to, const void* from, size_t bytes, void* stream) {
    return cuMemcpyHtoDAsync_v2(to, from, bytes, stream);
}
EXPORT int hipMemcpyDtoHAsync(void* to, DevicePointer from, size_t bytes, void* stream) {
    return cuMemcpyDtoHAsync_v2(to, from, bytes, stream);
}
EXPORT int hipMemcpyPeerAsync(DevicePointer to, int to_device, DevicePointer from, int from_device, size_t bytes,
                              void* stream) {
    void *to_context, *from_context;
    if (const int status = context_of(to_device, &to_context)) return status;
    if (const int status = context_of(from_device, &from_context)) return status;
    return cuMemcpyPeerAsync(to, to_context, from, from_context, bytes, stream);
}
EXPORT int hipMemsetD8Async(DevicePointer to, unsigned char value, size_t count, void* stream) {
    return cuMemsetD8Async(to, value, count, stream);
}

EXPORT int hipStreamCreateWithFlags(void** stream, unsigned flags) { return cuStreamCreate(stream, flags); }
EXPORT int hipStreamDestroy(void* stream) { return cuStreamDestroy_v2(stream); }
EXPORT int hipStreamSynchronize(void* stream) { return cuStreamSynchronize(stream); }
EXPORT int hipStreamWaitEvent(void* stream, void* event, unsigned flags) {
    return cuStreamWaitEvent(stream, event, flags);
}
EXPORT int hipStreamBeginCapture(void* stream, int mode) { return cuStreamBeginCapture_v2(stream, mode); }
EXPORT int hipStreamEndCapture(void* stream, void** graph) { return cuStreamEndCapture(stream, graph); }

EXPORT int hipEventCreateWithFlags(void** event, unsigned flags) { return cuEventCreate(event, flags); }
EXPORT int hipEventDestroy(void* event) { return cuEventDestroy_v2(event); }
EXPORT int hipEventRecord(void* event, void* stream) { return cuEventRecord(event, stream); }
EXPORT int hipEventSynchronize(void* event) { return cuEventSynchronize(event); }
EXPORT int hipEventQuery(void* event) { return cuEventQuery(event); }
EXPORT int hipEventElapsedTime(float* milliseconds, void* from, void* to) {
    return cuEventElapsedTime(milliseconds, from, to);
}

EXPORT int hipModuleLoadData(void** module, const void* image) { return cuModuleLoadData(module, image); }
EXPORT int hipModuleUnload(void* module) { return cuModuleUnload(module); }
EXPORT int hipModuleGetFunction(void** function, void* module, const char* name) {
    if (const int status = cuModuleGetFunction(function, module, name)) return status;
    return cuFuncSetAttribute(*function, MAX_DYNAMIC_SHARED_SIZE_BYTES, SHARED_BYTES);
}
EXPORT int hipModuleOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, void* function, int threads, size_t shared_bytes) {
    return cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks, function, threads, shared_bytes);
}
EXPORT int hipModuleLaunchKernel(void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                                 unsigned block_y, unsigned block_z, unsigned shared_bytes, void* stream, void** given,
                                 void** extra) {
    return cuLaunchKernel(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream, given, extra);
}

EXPORT int hipGraphInstantiateWithFlags(void** exec, void* graph, unsigned long long flags) {
    return cuGraphInstantiateWithFlags(exec, graph, flags);
}
EXPORT int hipGraphLaunch(void* exec, void* stream) { return cuGraphLaunch(exec, stream); }
EXPORT int hipGraphExecDestroy(void* exec) { return cuGraphExecDestroy(exec); }
EXPORT int hipGraphDestroy(void* graph) { return cuGraphDestroy(graph); }
