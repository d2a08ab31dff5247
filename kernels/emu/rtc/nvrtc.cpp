// nvrtc.cpp: a stub of NVIDIA's run-time compiler, by the names of nvrtc.h.
//
// The architecture must be named, and products and sums must not be contracted (--fmad=false). Does not know: kernels.
#include <algorithm>
#include <cstdlib>

#include "emu/rtc/program.h"

using namespace rtc;

namespace {

constexpr int VERSION_MAJOR = 12, VERSION_MINOR = 9;

// What the compiler serves; a program is told another list, as of an older compiler, by TANDEM_EMU_ARCHITECTURES=75,80.
std::vector<int> architectures() {
    const char* given = getenv("TANDEM_EMU_ARCHITECTURES");
    if (given == nullptr) return {75, 80, 86, 89, 90, 100, 120};
    std::vector<int> all;
    for (const char* at = given; *at != '\0'; at += *at == ',') {
        char* end = nullptr;
        all.push_back(int(strtol(at, &end, 10)));
        if (end == at) abort();  // no number
        at = end;
    }
    return all;
}

// Whether the architecture is one of text alone.
bool is_virtual(const std::string& image) { return image.find("=compute_") != std::string::npos; }

bool serves(const Options& options) {
    for (const int architecture : architectures()) {
        for (const char* kind : {"sm_", "compute_"}) {
            const std::string name = kind + std::to_string(architecture);
            if (has_option(options, "--gpu-architecture=" + name) || has_option(options, "-arch=" + name)) return true;
        }
    }
    return false;
}

std::string complaint(const Options& options) {
    std::string log;
    if (!has_option(options, "--gpu-architecture=") && !has_option(options, "-arch=")) {
        log += "error: no architecture is named\n";
    } else if (!serves(options)) {
        log += "error: an architecture that this compiler does not serve\n";
    }
    if (!has_option(options, "--fmad=false") && !has_option(options, "-fmad=false")) {
        log += "error: --fmad=false is missing: products and sums would be contracted\n";
    }
    return log;
}

}  // namespace

EXPORT const char* nvrtcGetErrorString(int status) {
    switch (status) {
        case SUCCESS: return "NVRTC_SUCCESS";
        case INVALID_INPUT: return "NVRTC_ERROR_INVALID_INPUT";
        case INVALID_PROGRAM: return "NVRTC_ERROR_INVALID_PROGRAM";
        case INVALID_OPTION: return "NVRTC_ERROR_INVALID_OPTION";
        case COMPILATION: return "NVRTC_ERROR_COMPILATION";
        default: return "NVRTC_ERROR unknown";
    }
}

EXPORT int nvrtcVersion(int* major, int* minor) {
    *major = VERSION_MAJOR;
    *minor = VERSION_MINOR;
    return SUCCESS;
}

EXPORT int nvrtcGetNumSupportedArchs(int* count) {
    *count = int(architectures().size());
    return SUCCESS;
}

EXPORT int nvrtcGetSupportedArchs(int* out) {
    const std::vector<int> all = architectures();
    std::copy(all.begin(), all.end(), out);
    return SUCCESS;
}

EXPORT int nvrtcCreateProgram(void** handle, const char* source, const char* name, int header_count,
                              const char* const* headers, const char* const* header_names) {
    return create(handle, source, name, header_count, headers, header_names);
}

EXPORT int nvrtcDestroyProgram(void** handle) { return destroy(handle); }

EXPORT int nvrtcCompileProgram(void* handle, int count, const char* const* given) {
    return compile(handle, count, given, complaint);
}

EXPORT int nvrtcGetProgramLogSize(void* handle, size_t* bytes) {
    *bytes = log_bytes(handle);
    return SUCCESS;
}
EXPORT int nvrtcGetProgramLog(void* handle, char* log) {
    copy_log(handle, log);
    return SUCCESS;
}

EXPORT int nvrtcGetCUBINSize(void* handle, size_t* bytes) {
    const std::string& image = program_of(handle).image;
    *bytes = is_virtual(image) ? 0 : image.size();
    return image.empty() ? INVALID_PROGRAM : SUCCESS;
}
EXPORT int nvrtcGetCUBIN(void* handle, char* image) {
    copy_image(handle, image);
    return SUCCESS;
}

EXPORT int nvrtcGetPTXSize(void* handle, size_t* bytes) {
    *bytes = program_of(handle).image.size();
    return *bytes != 0 ? SUCCESS : INVALID_PROGRAM;
}
EXPORT int nvrtcGetPTX(void* handle, char* image) {
    copy_image(handle, image);
    return SUCCESS;
}

EXPORT void tandem_emu_nvrtc_fail_compilations(int count) { fail_compilations(count); }
EXPORT unsigned long long tandem_emu_nvrtc_compilations() { return compilations(); }
