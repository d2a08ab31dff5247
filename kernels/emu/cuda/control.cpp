// control.cpp: what tests ask of the stub beyond CUDA: orders, sizes, failures on demand, counts of what lives.
//
// A test finds these functions in the loaded library by name. All act on the whole process, from now on.
#include "emu/cuda/driver.h"
#include "emu/grid.h"
#include "emu/memory.h"

using namespace emu;

// Cards that the driver shows: 0, 1 or 2. Before cuInit.
EXPORT void tandem_emu_set_cards(int count) { set_card_count(count); }
EXPORT void tandem_emu_set_memory(int card, uint64_t bytes) {
    if (card >= 0 && card < CARDS_MAX) set_memory_bytes(card, bytes);
}

// 0: threads and blocks of kernels run in rising order; 1: falling.
EXPORT void tandem_emu_set_order(int falling) { set_downwards(falling != 0); }
// 0: work runs when it is posted; 1: when something waits for it.
EXPORT void tandem_emu_set_late(int late) { set_late(late != 0); }
// Operating-system threads for the blocks of a kernel; 0: as many as there are processors.
EXPORT void tandem_emu_set_threads(unsigned threads) { set_threads(threads); }

// Allocations fail once so many more bytes have been given out; all ones: never.
EXPORT void tandem_emu_fail_allocation_after(uint64_t bytes) { fail_allocation_after(bytes); }
EXPORT void tandem_emu_fail_host_allocation_after(uint64_t bytes) { fail_host_allocation_after(bytes); }
// The launch, of a kernel or a graph, after the next `count` fails with this CUresult, once; 0: none does.
EXPORT void tandem_emu_fail_launch_after(uint64_t count, int status) { fail_launch_after(count, status); }
// A card whose context has ended with an error works again.
EXPORT void tandem_emu_heal(int card) {
    if (card >= 0 && card < CARDS_MAX) card_state(card).error = SUCCESS;
}

EXPORT uint64_t tandem_emu_used_bytes(int card) { return card >= 0 && card < CARDS_MAX ? used_bytes(card) : 0; }
EXPORT uint64_t tandem_emu_live_allocations() { return live_allocations(); }
EXPORT uint64_t tandem_emu_live_streams() { return live_streams(); }
EXPORT uint64_t tandem_emu_live_events() { return live_events(); }
EXPORT uint64_t tandem_emu_live_modules() { return live_modules(); }
EXPORT uint64_t tandem_emu_live_graphs() { return live_graphs(); }
EXPORT uint64_t tandem_emu_launches() { return launches(); }
