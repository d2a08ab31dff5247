// cards.cpp: see cards.h.
#include "emu/cards.h"

#include "emu/memory.h"

namespace emu {

static CardState states[CARDS_MAX];
static std::atomic<int> count{CARDS_MAX};

CardState& card_state(int card) { return states[card]; }
int card_count() { return count; }
void set_card_count(int cards) { count = cards < 0 ? 0 : cards > CARDS_MAX ? CARDS_MAX : cards; }

bool reaches(int card, int owner) {
    return owner == HOST || owner == card || states[card].reaches[owner].load();
}

}  // namespace emu
