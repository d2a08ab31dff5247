// hiprtc.cpp: a stub of AMD's run-time compiler, by the names of hiprtc.h.
//
// The architecture must be named and served, products and sums must not be contracted, and divisions and roots must be
// rounded correctly. Does not know: kernels.
#include <algorithm>

#include "emu/rtc/program.h"

using namespace rtc;

namespace {

constexpr int VERSION_MAJOR = 6, VERSION_MINOR = 3;

constexpr const char* ARCHITECTURES[] = {"gfx906", "gfx1030", "gfx1100"};

std::string complaint(const Options& options) {
    const auto is_named = [&](const char* name) {
        const std::string option = std::string("--offload-arch=") + name;
        return std::find(options.begin(), options.end(), option) != options.end();
    };
    std::string log;
    if (std::none_of(std::begin(ARCHITECTURES), std::end(ARCHITECTURES), is_named)) {
        log += "error: no architecture is named that this compiler serves\n";
    }
    for (const char* needed : {"-ffp-contract=off", "-fhip-fp32-correctly-rounded-divide-sqrt"}) {
        if (!has_option(options, needed)) log += std::string("error: ") + needed + " is missing\n";
    }
    return log;
}

}  // namespace

EXPORT const char* hiprtcGetErrorString(int status) {
    switch (status) {
        case SUCCESS: return "HIPRTC_SUCCESS";
        case INVALID_INPUT: return "HIPRTC_ERROR_INVALID_INPUT";
        case INVALID_PROGRAM: return "HIPRTC_ERROR_INVALID_PROGRAM";
        case INVALID_OPTION: return "HIPRTC_ERROR_INVALID_OPTION";
        case COMPILATION: return "HIPRTC_ERROR_COMPILATION";
        default: return "Invalid HIPRTC error code";
    }
}

EXPORT int hiprtcVersion(int* major, int* minor) {
    *major = VERSION_MAJOR;
    *minor = VERSION_MINOR;
    return SUCCESS;
}

EXPORT int hiprtcCreateProgram(void** handle, const char* source, const char* name, int header_count,
                               const char* const* headers, const char* const* header_names) {
    return create(handle, source, name, header_count, headers, header_names);
}

EXPORT int hiprtcDestroyProgram(void** handle) { return destroy(handle); }

EXPORT int hiprtcCompileProgram(void* handle, int count, const char* const* given) {
    return compile(handle, count, given, complaint);
}

EXPORT int hiprtcGetProgramLogSize(void* handle, size_t* bytes) {
    *bytes = log_bytes(handle);
    return SUCCESS;
}
EXPORT int hiprtcGetProgramLog(void* handle, char* log) {
    copy_log(handle, log);
    return SUCCESS;
}

EXPORT int hiprtcGetCodeSize(void* handle, size_t* bytes) {
    *bytes = program_of(handle).image.size();
    return *bytes != 0 ? SUCCESS : INVALID_PROGRAM;
}
EXPORT int hiprtcGetCode(void* handle, char* image) {
    copy_image(handle, image);
    return SUCCESS;
}
