// kernels.cpp: see kernels.h.
#include "emu/kernels.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace emu {

// Constant-initialised, so it exists before the first registration.
static const Kernel* all_kernels = nullptr;

const Kernel* find_kernel(const char* name) {
    for (const Kernel* k = all_kernels; k != nullptr; k = k->next) {
        if (strcmp(k->name, name) == 0) return k;
    }
    return nullptr;
}

void register_kernel(Kernel* kernel) {
    if (find_kernel(kernel->name) != nullptr) {
        fprintf(stderr, "emu: two kernels are named %s\n", kernel->name);
        abort();
    }
    kernel->next = all_kernels;
    all_kernels = kernel;
}

}  // namespace emu
