// graph.cpp: capture of streams, graphs and their launches.
//
// Invariants: a graph is what one stream was given, in its order; a capture that a forbidden call met gives no graph; a
// thread ends the captures that it began. Modes beside thread-local are refused: the engine uses no other.
#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "emu/cuda/driver.h"

namespace emu {

struct Graph {
    int card;
    std::shared_ptr<const Works> works;
};

struct GraphExec {
    int card;
    std::shared_ptr<const Works> works;
};

struct Capture {
    StreamRef stream;
    bool failed;
};

static Handles<Graph> graphs;
static Handles<GraphExec> execs;
// Captures that this thread began.
static thread_local std::vector<Capture> captures;

constexpr int MODE_THREAD_LOCAL = 1;

size_t live_graphs() { return graphs.count() + execs.count(); }

static Status forbid(const char* call) {
    return refuse(CAPTURE_UNSUPPORTED, call, "not while a stream is captured");
}

Status forbid_captured(const char* call, const StreamRef& stream) {
    if (!is_recorded(stream)) return SUCCESS;
    for (Capture& c : captures) c.failed = c.failed || c.stream == stream;
    return forbid(call);
}

Status forbid_capturing(const char* call) {
    if (captures.empty()) return SUCCESS;
    for (Capture& c : captures) c.failed = true;
    return forbid(call);
}

// The stream of a call, if its card may be used.
static Status open(void* handle, StreamRef* stream) {
    *stream = find_stream(handle);
    if (*stream == nullptr) return INVALID_HANDLE;
    return usable(card_of(*stream));
}

}  // namespace emu

using namespace emu;

EXPORT int cuStreamBeginCapture_v2(void* handle, int mode) {
    StreamRef stream;
    if (const Status status = open(handle, &stream)) return status;
    if (stream == null_stream(card_of(stream))) return forbid("cuStreamBeginCapture");
    if (mode != MODE_THREAD_LOCAL) return refuse(NOT_SUPPORTED, "cuStreamBeginCapture", "a mode beside thread-local");
    if (!begin_recording(stream)) return refuse(INVALID_VALUE, "cuStreamBeginCapture", "the stream is captured already");
    captures.push_back(Capture{stream, false});
    return SUCCESS;
}

EXPORT int cuStreamEndCapture(void* handle, void** graph) {
    StreamRef stream;
    *graph = nullptr;
    if (const Status status = open(handle, &stream)) return status;
    if (!is_recorded(stream)) return refuse(INVALID_VALUE, "cuStreamEndCapture", "the stream is not captured");
    const auto own = std::find_if(captures.begin(), captures.end(), [&](const Capture& c) { return c.stream == stream; });
    if (own == captures.end()) return refuse(CAPTURE_WRONG_THREAD, "cuStreamEndCapture", "another thread began the capture");
    const bool failed = own->failed;
    captures.erase(own);
    auto works = end_recording(stream);
    if (failed) return refuse(CAPTURE_INVALIDATED, "cuStreamEndCapture", "a call of the capture was refused");
    *graph = graphs.add(new Graph{card_of(stream), std::move(works)});
    return SUCCESS;
}

EXPORT int cuStreamIsCapturing(void* handle, int* capturing) {
    StreamRef stream;
    if (const Status status = open(handle, &stream)) return status;
    *capturing = is_recorded(stream);
    return SUCCESS;
}

EXPORT int cuGraphInstantiateWithFlags(void** exec, void* handle, unsigned long long flags) {
    if (const Status status = usable()) return status;
    if (const Status status = forbid_capturing("cuGraphInstantiate")) return status;
    const Graph* graph = graphs.find(handle);
    if (graph == nullptr) return INVALID_HANDLE;
    if (flags != 0) return refuse(NOT_SUPPORTED, "cuGraphInstantiate", "flags");
    *exec = execs.add(new GraphExec{graph->card, graph->works});
    return SUCCESS;
}

EXPORT int cuGraphLaunch(void* handle, void* stream_handle) {
    StreamRef stream;
    if (const Status status = open(stream_handle, &stream)) return status;
    const GraphExec* exec = execs.find(handle);
    if (exec == nullptr) return INVALID_HANDLE;
    if (exec->card != card_of(stream)) {
        return refuse(INVALID_HANDLE, "cuGraphLaunch", "graph and stream are of different cards");
    }
    if (const Status status = demanded_failure()) {
        return end_context(exec->card, status, "cuGraphLaunch", "fails on demand");
    }
    post(stream, [works = exec->works] {
        for (const Work& work : *works) work();
    });
    return SUCCESS;
}

EXPORT int cuGraphExecDestroy(void* handle) {
    GraphExec* exec = execs.remove(handle);
    if (exec == nullptr) return INVALID_HANDLE;
    delete exec;
    return SUCCESS;
}

EXPORT int cuGraphDestroy(void* handle) {
    Graph* graph = graphs.remove(handle);
    if (graph == nullptr) return INVALID_HANDLE;
    delete graph;
    return SUCCESS;
}
