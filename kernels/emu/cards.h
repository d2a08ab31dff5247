// cards.h: the table of virtual cards, and what may reach what.
//
// Does not know: memory, streams. Thread-safe.
#pragma once
#include <atomic>
#include <cstddef>

namespace emu {

constexpr int CARDS_MAX = 2;

struct CardFacts {
    const char* name;
    size_t memory_bytes;
    int capability_major, capability_minor;
    int multiprocessors;
    const char* gfx;  // the architecture, where AMD's library shows the card
};

constexpr CardFacts CARDS[CARDS_MAX] = {
    {"tandem virtual card 0", size_t(1) << 30, 9, 0, 4, "gfx1100"},
    {"tandem virtual card 1", size_t(1) << 30, 9, 0, 4, "gfx906:sramecc+:xnack-"},
};

// What a card is in: kept until the process ends, as a real context keeps its first error.
struct CardState {
    std::atomic<int> retained{0};           // references to the primary context
    std::atomic<int> error{0};              // a status that ends the context
    std::atomic<bool> reaches[CARDS_MAX]{};  // peer access to these cards is enabled
};

CardState& card_state(int card);
// Cards that the driver shows, 0 .. CARDS_MAX.
int card_count();
void set_card_count(int count);
// True where work of `card` may touch memory of `owner`.
bool reaches(int card, int owner);

}  // namespace emu
