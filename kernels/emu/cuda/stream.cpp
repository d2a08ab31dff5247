// stream.cpp: streams and events.
//
// Invariant: an event that was recorded in a capture is no event of the stream's time until it is recorded again.
#include <atomic>

#include "emu/cuda/driver.h"

namespace emu {

struct StreamHandle {
    StreamRef stream;
};

struct EventHandle {
    EventRef event;
    bool timed;
    std::atomic<Stream*> captured_in{nullptr};  // the captured stream in which it was last recorded
};

static Handles<StreamHandle> streams;
static Handles<EventHandle> events;

constexpr unsigned STREAM_NON_BLOCKING = 1;
constexpr unsigned EVENT_DISABLE_TIMING = 2;
constexpr uintptr_t NULL_STREAMS = 2;  // 0: null stream, 1: legacy, 2: per thread

StreamRef find_stream(void* handle) {
    if (reinterpret_cast<uintptr_t>(handle) <= NULL_STREAMS) {
        return current_card() >= 0 ? null_stream(current_card()) : nullptr;
    }
    StreamHandle* found = streams.find(handle);
    return found != nullptr ? found->stream : nullptr;
}

size_t live_streams() { return streams.count(); }
size_t live_events() { return events.count(); }

// An event that a host may wait for or ask about.
static Status find_event(const char* call, void* handle, EventRef* event) {
    EventHandle* found = events.find(handle);
    if (found == nullptr) return INVALID_HANDLE;
    if (found->captured_in != nullptr) return refuse(CAPTURED_EVENT, call, "the event was last recorded in a capture");
    *event = found->event;
    return SUCCESS;
}

// The stream of a call, if its card may be used.
static Status open(void* handle, StreamRef* stream) {
    *stream = find_stream(handle);
    if (*stream == nullptr) return INVALID_HANDLE;
    return usable(card_of(*stream));
}

}  // namespace emu

using namespace emu;

EXPORT int cuStreamCreate(void** stream, unsigned flags) {
    if (const Status status = usable()) return status;
    *stream = streams.add(new StreamHandle{make_stream(current_card(), (flags & STREAM_NON_BLOCKING) == 0)});
    return SUCCESS;
}

EXPORT int cuStreamCreateWithPriority(void** stream, unsigned flags, int) { return cuStreamCreate(stream, flags); }

EXPORT int cuStreamDestroy_v2(void* handle) {
    StreamHandle* stream = streams.remove(handle);
    if (stream == nullptr) return INVALID_HANDLE;
    end_recording(stream->stream);
    finish(stream->stream);
    delete stream;
    return SUCCESS;
}

EXPORT int cuStreamSynchronize(void* handle) {
    StreamRef stream;
    if (const Status status = open(handle, &stream)) return status;
    if (const Status status = forbid_captured("cuStreamSynchronize", stream)) return status;
    finish(stream);
    return usable(card_of(stream));
}

EXPORT int cuStreamQuery(void* handle) {
    StreamRef stream;
    if (const Status status = open(handle, &stream)) return status;
    if (const Status status = forbid_captured("cuStreamQuery", stream)) return status;
    return is_finished(stream) ? SUCCESS : NOT_READY;
}

EXPORT int cuStreamWaitEvent(void* handle, void* event_handle, unsigned) {
    StreamRef stream;
    if (const Status status = open(handle, &stream)) return status;
    EventHandle* event = events.find(event_handle);
    if (event == nullptr) return INVALID_HANDLE;
    if (event->captured_in == nullptr && !is_recorded(stream)) {
        wait_for(stream, event->event);
        return SUCCESS;
    }
    if (event->captured_in == stream.get() && is_recorded(stream)) return SUCCESS;  // a graph keeps this order anyway
    forbid_captured("cuStreamWaitEvent", stream);
    return refuse(CAPTURE_ISOLATION, "cuStreamWaitEvent", "a capture is of one stream here");
}

EXPORT int cuLaunchHostFunc(void* handle, void (*function)(void*), void* argument) {
    StreamRef stream;
    if (const Status status = open(handle, &stream)) return status;
    post(stream, [function, argument] { function(argument); });
    return SUCCESS;
}

EXPORT int cuEventCreate(void** event, unsigned flags) {
    if (const Status status = usable()) return status;
    *event = events.add(new EventHandle{make_event(), (flags & EVENT_DISABLE_TIMING) == 0, {nullptr}});
    return SUCCESS;
}

EXPORT int cuEventDestroy_v2(void* handle) {
    EventHandle* event = events.remove(handle);
    if (event == nullptr) return INVALID_HANDLE;
    delete event;
    return SUCCESS;
}

EXPORT int cuEventRecord(void* handle, void* stream_handle) {
    StreamRef stream;
    if (const Status status = open(stream_handle, &stream)) return status;
    EventHandle* event = events.find(handle);
    if (event == nullptr) return INVALID_HANDLE;
    event->captured_in = is_recorded(stream) ? stream.get() : nullptr;
    if (event->captured_in == nullptr) record(event->event, stream);
    return SUCCESS;
}

EXPORT int cuEventSynchronize(void* handle) {
    EventRef event;
    if (const Status status = find_event("cuEventSynchronize", handle, &event)) return status;
    finish(event);
    return usable();
}

EXPORT int cuEventQuery(void* handle) {
    EventRef event;
    if (const Status status = find_event("cuEventQuery", handle, &event)) return status;
    return is_finished(event) ? SUCCESS : NOT_READY;
}

EXPORT int cuEventElapsedTime_v2(float* milliseconds, void* from, void* to) {
    EventHandle* start = events.find(from);
    EventHandle* end = events.find(to);
    if (start == nullptr || end == nullptr || !start->timed || !end->timed) return INVALID_HANDLE;
    if (start->captured_in != nullptr || end->captured_in != nullptr) return CAPTURED_EVENT;
    if (!was_recorded(start->event) || !was_recorded(end->event)) return INVALID_HANDLE;
    if (!is_finished(start->event) || !is_finished(end->event)) return NOT_READY;
    *milliseconds = float((time_of(end->event) - time_of(start->event)) * 1e3);
    return SUCCESS;
}

EXPORT int cuEventElapsedTime(float* milliseconds, void* from, void* to) {
    return cuEventElapsedTime_v2(milliseconds, from, to);
}
