// faults.cpp: a kernel that touches what it may not ends the process with a line that names kernel, thread and address.
//
// Invariant: faults outside of kernels go to whoever handled them before.
#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "emu/cuda/driver.h"
#include "emu/fibers.h"
#include "emu/memory.h"

namespace emu {

static struct sigaction before[NSIG];

static void on_fault(int signal, siginfo_t* info, void*) {
    char running[256];
    if (describe_running(running, sizeof running)) {
        const auto address = reinterpret_cast<uint64_t>(info->si_addr);
        fprintf(stderr, "emu: %s touched %s\n", running, describe_address(address).c_str());
        abort();
    }
    sigaction(signal, &before[signal], nullptr);  // the access is repeated and finds the earlier handler
}

void report_faults() {
    for (int signal : {SIGSEGV, SIGBUS}) {
        struct sigaction action {};
        action.sa_sigaction = on_fault;
        action.sa_flags = SA_SIGINFO | SA_ONSTACK;
        sigemptyset(&action.sa_mask);
        sigaction(signal, &action, &before[signal]);
    }
}

}  // namespace emu
