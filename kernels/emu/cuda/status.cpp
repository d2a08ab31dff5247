// status.cpp: statuses as text, and refusals.
#include <cstdio>

#include "emu/cuda/driver.h"

namespace emu {

struct StatusText {
    Status status;
    const char* name;
    const char* text;
};

constexpr StatusText TEXTS[] = {
    {SUCCESS, "CUDA_SUCCESS", "no error"},
    {INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {INVALID_SOURCE, "CUDA_ERROR_INVALID_SOURCE", "device kernel source is invalid"},
    {INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {LAUNCH_OUT_OF_RESOURCES, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources requested for launch"},
    {PEER_ACCESS_ALREADY_ENABLED, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED", "peer access is already enabled"},
    {PEER_ACCESS_NOT_ENABLED, "CUDA_ERROR_PEER_ACCESS_NOT_ENABLED", "peer access has not been enabled"},
    {HOST_MEMORY_ALREADY_REGISTERED, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
     "part or all of the requested memory range is already mapped"},
    {HOST_MEMORY_NOT_REGISTERED, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", "pointer does not correspond to a registered memory region"},
    {LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing"},
    {CAPTURE_INVALIDATED, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
     "operation failed due to a previous error during capture"},
    {CAPTURE_ISOLATION, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION",
     "dependency created on uncaptured work in another stream"},
    {CAPTURED_EVENT, "CUDA_ERROR_CAPTURED_EVENT", "operation not permitted on an event last recorded in a capturing stream"},
    {CAPTURE_WRONG_THREAD, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD",
     "attempt to terminate a thread-local capture sequence from another thread"},
};

static const StatusText* find(int status) {
    for (const StatusText& t : TEXTS) {
        if (t.status == status) return &t;
    }
    return nullptr;
}

const char* status_name(int status) {
    const StatusText* t = find(status);
    return t != nullptr ? t->name : nullptr;
}

bool is_sticky(int status) { return status == ILLEGAL_ADDRESS || status == LAUNCH_FAILED; }

Status refuse(Status status, const char* call, const std::string& why) {
    const char* name = status_name(status);
    fprintf(stderr, "emu: %s: %s (%s)\n", call, why.c_str(), name != nullptr ? name : "?");
    return status;
}

Status end_context(int card, Status status, const char* call, const std::string& why) {
    if (is_sticky(status)) card_state(card).error = status;
    return refuse(status, call, why);
}

}  // namespace emu

using namespace emu;

EXPORT int cuGetErrorName(int status, const char** text) {
    const StatusText* t = find(status);
    *text = t != nullptr ? t->name : nullptr;
    return t != nullptr ? SUCCESS : INVALID_VALUE;
}

EXPORT int cuGetErrorString(int status, const char** text) {
    const StatusText* t = find(status);
    *text = t != nullptr ? t->text : nullptr;
    return t != nullptr ? SUCCESS : INVALID_VALUE;
}
