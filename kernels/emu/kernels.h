// kernels.h: the kernels of this build by name, called through an array of argument addresses as a driver is.
//
// Invariants: sizes of arguments are those of the kernel's own signature; the list itself is generated from the sources
// (list_kernels.py). Does not know: cards, streams.
#pragma once
#include <cstddef>
#include <tuple>
#include <type_traits>
#include <utility>

namespace emu {

struct Kernel {
    const char* name;
    void (*body)(void* const* arguments);
    unsigned argument_count;
    const size_t* argument_bytes;
    const bool* argument_is_pointer;
    unsigned threads_max;  // of a block
    const Kernel* next;    // in the list of all
};

// The kernel of that name, or null.
const Kernel* find_kernel(const char* name);
// Called once for each kernel while the library is loaded.
void register_kernel(Kernel* kernel);

// Unpacks arguments by a kernel's signature.
template <class... A> struct Signature {
    static constexpr unsigned count = sizeof...(A);
    static constexpr size_t bytes[] = {sizeof(A)...};
    static constexpr bool is_pointer[] = {std::is_pointer_v<A>...};

    template <void (*K)(A...), size_t... I> static void call(void* const* arguments, std::index_sequence<I...>) {
        K(*static_cast<A*>(arguments[I])...);
    }
    template <void (*K)(A...)> static void body(void* const* arguments) {
        call<K>(arguments, std::index_sequence_for<A...>{});
    }
};

template <class... A> Signature<A...> signature_of(void (*)(A...));

template <auto K> struct Registered {
    using Call = decltype(signature_of(K));
    Kernel kernel;

    Registered(const char* name, unsigned threads_max)
        : kernel{name, &Call::template body<K>, Call::count, Call::bytes, Call::is_pointer, threads_max, nullptr} {
        register_kernel(&kernel);
    }
};

}  // namespace emu

#define TANDEM_EMU_KERNEL(name, threads_max) const emu::Registered<&name> registered_##name(#name, threads_max);
