// streams.cpp: see streams.h.
//
// Late work of all streams runs under one lock, because waiting for an event runs another stream's work; work at once
// takes its stream's lock alone, so cards work side by side.
#include "emu/streams.h"

#include <atomic>
#include <chrono>
#include <deque>
#include <mutex>
#include <utility>
#include <vector>

#include "emu/cards.h"

namespace emu {

class Stream {
  public:
    Stream(int card, bool blocking) : card(card), blocking(blocking) {}
    const int card;
    const bool blocking;
    std::recursive_mutex running;   // held while work runs at once
    std::deque<Work> queue;         // late work; under the lock of all late work
    uint64_t posted = 0;            // works ever queued
    uint64_t run = 0;               // works of the queue that have run
    uint64_t begun = 0;             // works that have begun, also at once; under the lock under which they run
    std::mutex recording;
    std::shared_ptr<Works> recorded;  // null unless it is recorded
};

class Event {
  public:
    std::mutex mutex;
    StreamRef stream;     // where it was last recorded
    uint64_t ticket = 0;  // the stream's works it waits for
    double time = 0;
};

namespace {

std::recursive_mutex late_mutex;
std::atomic<bool> late{false};

// All streams that live, by card, so that a card can be finished.
struct Streams {
    std::mutex mutex;
    std::vector<std::weak_ptr<Stream>> all;
};

Streams& streams() {
    static Streams* const s = new Streams;
    return *s;
}

std::vector<StreamRef> streams_of(int card) {
    std::lock_guard<std::mutex> lock(streams().mutex);
    std::vector<StreamRef> found;
    for (const auto& weak : streams().all) {
        StreamRef s = weak.lock();
        if (s != nullptr && s->card == card) found.push_back(s);
    }
    return found;
}

double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

thread_local Turn turn{nullptr, 0};

// A work may run others, of the same stream too.
void begin(Stream& stream, const Work& work) {
    const Turn outer = turn;
    turn = Turn{&stream, ++stream.begun};
    work();
    turn = outer;
}

// Runs queued work until `ticket` works have run.
void run_until(Stream& stream, uint64_t ticket) {
    std::lock_guard<std::recursive_mutex> lock(late_mutex);
    while (stream.run < ticket && !stream.queue.empty()) {
        Work work = std::move(stream.queue.front());
        stream.queue.pop_front();
        begin(stream, work);
        stream.run++;
    }
}

uint64_t posted(Stream& stream) {
    std::lock_guard<std::recursive_mutex> lock(late_mutex);
    return stream.posted;
}

}  // namespace

StreamRef make_stream(int card, bool blocking) {
    auto stream = std::make_shared<Stream>(card, blocking);
    std::lock_guard<std::mutex> lock(streams().mutex);
    auto& all = streams().all;
    for (size_t i = 0; i < all.size();) {
        if (!all[i].expired()) {
            i++;
            continue;
        }
        all[i] = all.back();
        all.pop_back();
    }
    all.push_back(stream);
    return stream;
}

EventRef make_event() { return std::make_shared<Event>(); }

StreamRef null_stream(int card) {
    static StreamRef* const null = [] {
        auto* made = new StreamRef[CARDS_MAX];
        for (int c = 0; c < CARDS_MAX; c++) made[c] = make_stream(c, true);
        return made;
    }();
    return null[card];
}

int card_of(const StreamRef& stream) { return stream->card; }

// False where the stream is not recorded.
static bool keep(Stream& stream, Work& work) {
    std::lock_guard<std::mutex> lock(stream.recording);
    if (stream.recorded == nullptr) return false;
    stream.recorded->push_back(std::move(work));
    return true;
}

void post(const StreamRef& stream, Work work) {
    if (keep(*stream, work)) return;
    if (!late) {
        finish(stream);  // what was queued before the mode changed
        std::lock_guard<std::recursive_mutex> lock(stream->running);
        begin(*stream, work);
        return;
    }
    const bool is_null = stream == null_stream(stream->card);
    std::lock_guard<std::recursive_mutex> lock(late_mutex);
    if (is_null) {
        for (const StreamRef& other : streams_of(stream->card)) {
            if (other->blocking) run_until(*other, other->posted);
        }
        begin(*stream, work);
        return;
    }
    stream->queue.push_back(std::move(work));
    stream->posted++;
}

Turn current_turn() { return turn; }

void finish(const StreamRef& stream) { run_until(*stream, posted(*stream)); }

void finish_card(int card) {
    for (const StreamRef& stream : streams_of(card)) finish(stream);
}

bool is_finished(const StreamRef& stream) {
    std::lock_guard<std::recursive_mutex> lock(late_mutex);
    // Somebody who asks again and again must see progress.
    if (stream->run < stream->posted) run_until(*stream, stream->run + 1);
    return stream->run == stream->posted;
}

bool begin_recording(const StreamRef& stream) {
    std::lock_guard<std::mutex> lock(stream->recording);
    if (stream->recorded != nullptr) return false;
    stream->recorded = std::make_shared<Works>();
    return true;
}

std::shared_ptr<Works> end_recording(const StreamRef& stream) {
    std::lock_guard<std::mutex> lock(stream->recording);
    return std::exchange(stream->recorded, nullptr);
}

bool is_recorded(const StreamRef& stream) {
    std::lock_guard<std::mutex> lock(stream->recording);
    return stream->recorded != nullptr;
}

void record(const EventRef& event, const StreamRef& stream) {
    {
        std::lock_guard<std::mutex> lock(event->mutex);
        event->stream = stream;
    }
    post(stream, [event] {
        std::lock_guard<std::mutex> lock(event->mutex);
        event->time = now();
    });
    const uint64_t ticket = posted(*stream);
    std::lock_guard<std::mutex> lock(event->mutex);
    event->ticket = ticket;
}

static bool place(const EventRef& event, StreamRef* stream, uint64_t* ticket) {
    std::lock_guard<std::mutex> lock(event->mutex);
    *stream = event->stream;
    *ticket = event->ticket;
    return *stream != nullptr;
}

void wait_for(const StreamRef& stream, const EventRef& event) {
    StreamRef at;
    uint64_t ticket = 0;
    if (!place(event, &at, &ticket)) return;  // an event that was never recorded is no wait
    post(stream, [at, ticket] { run_until(*at, ticket); });
}

void finish(const EventRef& event) {
    StreamRef at;
    uint64_t ticket = 0;
    if (place(event, &at, &ticket)) run_until(*at, ticket);
}

bool is_finished(const EventRef& event) {
    StreamRef at;
    uint64_t ticket = 0;
    if (!place(event, &at, &ticket)) return true;
    std::lock_guard<std::recursive_mutex> lock(late_mutex);
    if (at->run < ticket) run_until(*at, at->run + 1);
    return at->run >= ticket;
}

bool was_recorded(const EventRef& event) {
    std::lock_guard<std::mutex> lock(event->mutex);
    return event->stream != nullptr;
}

double time_of(const EventRef& event) {
    std::lock_guard<std::mutex> lock(event->mutex);
    return event->time;
}

void set_late(bool on) { late = on; }

}  // namespace emu
