// grid.h: all blocks of a launch, shared among OS threads.
//
// Invariant: blocks are independent, so who runs which never shows. Does not know: what kernels compute, cards.
#pragma once
#include "emu/fibers.h"

namespace emu {

// Runs every block of a launch and returns when all have ended.
void run_grid(const Launch& launch);

// OS threads that a large grid may use, the caller's among them; 0 for as many as there are processors.
void set_threads(unsigned threads);

}  // namespace emu
