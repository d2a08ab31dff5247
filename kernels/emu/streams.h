// streams.h: the order of work on virtual cards: streams, events, and the two extremes of when work runs.
//
// Invariants: work of one stream runs in its order. At once (the default): when it is posted, on the caller's thread.
// Late: when something waits for it, and then only what must have run, so that a missing wait shows as old data. Work
// posted to a card's null stream runs after what is queued on the card's other streams that are not "non-blocking".
// Work posted to a stream that is recorded does not run: it is kept in its order. Thread-safe. Does not know: what work is.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace emu {

class Stream;
class Event;
using StreamRef = std::shared_ptr<Stream>;
using EventRef = std::shared_ptr<Event>;
using Work = std::function<void()>;
using Works = std::vector<Work>;

StreamRef make_stream(int card, bool blocking);
EventRef make_event();
StreamRef null_stream(int card);
int card_of(const StreamRef& stream);

void post(const StreamRef& stream, Work work);
// The work that the calling thread runs: its stream, and how many works of that have begun.
struct Turn {
    const void* stream;
    uint64_t number;
};
Turn current_turn();
// Runs all work posted to a stream so far.
void finish(const StreamRef& stream);
// The same for every stream of a card.
void finish_card(int card);
bool is_finished(const StreamRef& stream);

// Records what is posted from now on. False where it is recorded already.
bool begin_recording(const StreamRef& stream);
// What was recorded; null where nothing was being recorded. Work runs again from now on.
std::shared_ptr<Works> end_recording(const StreamRef& stream);
bool is_recorded(const StreamRef& stream);

// The event happens when the stream's work so far has run.
void record(const EventRef& event, const StreamRef& stream);
// The stream's later work runs after the event, as it was last recorded.
void wait_for(const StreamRef& stream, const EventRef& event);
void finish(const EventRef& event);
bool is_finished(const EventRef& event);
bool was_recorded(const EventRef& event);
// Seconds on some clock at which the event happened last.
double time_of(const EventRef& event);

// False: work runs at once. True: late.
void set_late(bool late);

}  // namespace emu
