// driver.h: what the files of the stub driver share: statuses, handles, the calling thread's context.
//
// The stub exports the functions of CUDA's driver that the engine calls, by the names and with the numbers of cuda.h, on
// host memory. Invariants: what a real driver refuses is refused here with the same status, and with a line on stderr
// where a program should never do it; a handle is looked up before it is followed. Thread-safe.
// Does not know: the engine, what kernels compute.
#pragma once
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <set>
#include <string>

#include "emu/cards.h"
#include "emu/streams.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace emu {

using DevicePointer = unsigned long long;

// Whose library the files are linked into: NVIDIA's driver, or the stub of AMD's (`hip/`).
enum class Maker { Nvidia, Amd };
extern const Maker MAKER;

// CUresult.
enum Status : int {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_IMAGE = 200,
    INVALID_CONTEXT = 201,
    NO_BINARY_FOR_GPU = 209,
    UNSUPPORTED_PTX_VERSION = 222,
    INVALID_SOURCE = 300,
    INVALID_HANDLE = 400,
    NOT_FOUND = 500,
    NOT_READY = 600,
    ILLEGAL_ADDRESS = 700,
    LAUNCH_OUT_OF_RESOURCES = 701,
    PEER_ACCESS_ALREADY_ENABLED = 704,
    PEER_ACCESS_NOT_ENABLED = 705,
    HOST_MEMORY_ALREADY_REGISTERED = 712,
    HOST_MEMORY_NOT_REGISTERED = 713,
    LAUNCH_FAILED = 719,
    NOT_SUPPORTED = 801,
    CAPTURE_UNSUPPORTED = 900,
    CAPTURE_INVALIDATED = 901,
    CAPTURE_ISOLATION = 905,
    CAPTURED_EVENT = 907,
    CAPTURE_WRONG_THREAD = 908,
    UNKNOWN = 999,
};

// The name in cuda.h, or null.
const char* status_name(int status);
// True for statuses after which a context is of no use.
bool is_sticky(int status);

// Prints `call: why` and returns the status.
Status refuse(Status status, const char* call, const std::string& why);
// The same, and the card's context ends with it if it is of that kind.
Status end_context(int card, Status status, const char* call, const std::string& why);

// The card whose context is current on this thread; -1: none.
int current_card();
// The card of a context's handle; -1: no context.
int card_of_context(void* handle);
// SUCCESS where cuInit was called, the card's context is alive and has not ended with an error.
Status usable(int card);
// `usable` of the current context.
Status usable();

// Objects that exist, so that a dead or foreign handle is found.
template <class T> class Handles {
  public:
    T* add(T* object) {
        std::lock_guard<std::mutex> lock(mutex_);
        live_.insert(object);
        return object;
    }
    T* find(void* handle) {
        std::lock_guard<std::mutex> lock(mutex_);
        return live_.count(static_cast<T*>(handle)) != 0 ? static_cast<T*>(handle) : nullptr;
    }
    // The object, which the caller deletes; null where there is none.
    T* remove(void* handle) {
        std::lock_guard<std::mutex> lock(mutex_);
        return live_.erase(static_cast<T*>(handle)) != 0 ? static_cast<T*>(handle) : nullptr;
    }
    size_t count() {
        std::lock_guard<std::mutex> lock(mutex_);
        return live_.size();
    }

  private:
    std::mutex mutex_;
    std::set<T*> live_;
};

// The stream behind a handle; 0, 1 and 2 mean the current card's null stream. Null for no such stream.
StreamRef find_stream(void* handle);
// Streams, events, modules and graphs that were made and not destroyed.
size_t live_streams();
size_t live_events();
size_t live_modules();
size_t live_graphs();

// A call that waits, or does what no graph can do, with a stream that is captured: refused, and the capture fails.
Status forbid_captured(const char* call, const StreamRef& stream);
// The same for a call that no thread may make while it captures, whatever stream the call is for.
Status forbid_capturing(const char* call);

// On demand, for tests: once `count` more launches were made, the next one fails with `status` (0: off).
void fail_launch_after(uint64_t count, int status);
// The status that this launch, of a kernel or a graph, fails with on demand, or SUCCESS.
Status demanded_failure();
// Kernels run since the start.
uint64_t launches();
// Fibers and blocks in falling order.
void set_downwards(bool downwards);
// Faults inside kernels are reported with kernel, block and thread from here on.
void report_faults();

}  // namespace emu
