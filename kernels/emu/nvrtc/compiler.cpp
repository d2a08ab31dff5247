// compiler.cpp: a stub of NVIDIA's run-time compiler; what it makes is an image that the stub driver takes.
//
// Nothing is compiled: the stub driver brings the kernels. What is checked is what a caller can get wrong: every include
// must be among the given headers, the architecture must be named, and products and sums must not be contracted
// (--fmad=false). The image names source and options, so that a cache of images can be told right from wrong.
// Invariant: numbers and names are those of nvrtc.h. Does not know: kernels.
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "emu/image.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

// nvrtcResult.
enum Status {
    SUCCESS = 0,
    INVALID_INPUT = 3,
    INVALID_PROGRAM = 4,
    INVALID_OPTION = 5,
    COMPILATION = 6,
};

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

struct Program {
    std::string source;
    std::string name;
    std::map<std::string, std::string> headers;
    std::string log;
    std::string image;
};

// Compilations that will fail on demand.
std::atomic<int> failures_wanted{0};
std::atomic<unsigned long long> compilations{0};

// The names that a text includes in quotes or angle brackets, outside of `#if TANDEM_EMU` sections: those are the host's.
std::vector<std::string> includes(const std::string& text) {
    std::vector<std::string> found;
    int depth = 0, skipped_at = 0;  // depth of conditions; where one began that is not compiled
    for (size_t at = 0; at < text.size();) {
        const size_t end = std::min(text.find('\n', at), text.size());
        const std::string line = text.substr(at, end - at);
        at = end + 1;
        if (line.rfind("#if", 0) == 0) {
            depth++;
            if (skipped_at == 0 && line.find("TANDEM_EMU") != std::string::npos) skipped_at = depth;
        } else if (line.rfind("#el", 0) == 0) {
            if (skipped_at == depth) skipped_at = 0;
        } else if (line.rfind("#endif", 0) == 0) {
            if (skipped_at == depth) skipped_at = 0;
            depth--;
        } else if (line.rfind("#include", 0) == 0 && skipped_at == 0) {
            const size_t open = line.find_first_of("\"<"), close = line.find_last_of("\">");
            if (open != std::string::npos && close > open) found.push_back(line.substr(open + 1, close - open - 1));
        }
    }
    return found;
}

// Notes in the log what `text` includes and nobody gave.
void check_includes(Program& program, const std::string& where, const std::string& text) {
    for (const std::string& name : includes(text)) {
        if (program.headers.count(name) != 0) continue;
        program.log += where + ": error: could not open source file \"" + name + "\"\n";
    }
}

// Whether the architecture is one of text alone.
bool is_virtual(const std::string& image) { return image.find("=compute_") != std::string::npos; }

bool has_option(const std::vector<std::string>& options, const std::string& start) {
    return std::any_of(options.begin(), options.end(), [&](const std::string& o) { return o.rfind(start, 0) == 0; });
}

bool serves(const std::vector<std::string>& options) {
    for (const int architecture : architectures()) {
        for (const char* kind : {"sm_", "compute_"}) {
            const std::string name = kind + std::to_string(architecture);
            if (has_option(options, "--gpu-architecture=" + name) || has_option(options, "-arch=" + name)) return true;
        }
    }
    return false;
}

Program* program_of(void* handle) { return static_cast<Program*>(handle); }

int copy_out(const std::string& text, char* out, bool with_end) {
    memcpy(out, text.data(), text.size() + (with_end ? 1 : 0));
    return SUCCESS;
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
    if (handle == nullptr || source == nullptr || header_count < 0) return INVALID_INPUT;
    auto* program = new Program;
    program->source = source;
    program->name = name != nullptr ? name : "default_program";
    for (int i = 0; i < header_count; i++) program->headers[header_names[i]] = headers[i];
    *handle = program;
    return SUCCESS;
}

EXPORT int nvrtcDestroyProgram(void** handle) {
    if (handle == nullptr || *handle == nullptr) return INVALID_PROGRAM;
    delete program_of(*handle);
    *handle = nullptr;
    return SUCCESS;
}

EXPORT int nvrtcCompileProgram(void* handle, int count, const char* const* given) {
    if (handle == nullptr) return INVALID_PROGRAM;
    Program& program = *program_of(handle);
    const std::vector<std::string> options(given, given + count);
    program.log.clear();
    program.image.clear();
    compilations++;
    if (!has_option(options, "--gpu-architecture=") && !has_option(options, "-arch=")) {
        program.log += "error: no architecture is named\n";
    } else if (!serves(options)) {
        program.log += "error: an architecture that this compiler does not serve\n";
    }
    if (!has_option(options, "--fmad=false") && !has_option(options, "-fmad=false")) {
        program.log += "error: --fmad=false is missing: products and sums would be contracted\n";
    }
    check_includes(program, program.name, program.source);
    for (const auto& [name, text] : program.headers) check_includes(program, name, text);
    if (failures_wanted > 0 && failures_wanted-- > 0) program.log += program.name + ": error: fails on demand\n";
    if (!program.log.empty()) return COMPILATION;
    program.image = std::string(IMAGE_MAGIC) + " " + program.name;
    for (const std::string& option : options) program.image += " " + option;
    program.image.push_back('\0');
    return SUCCESS;
}

EXPORT int nvrtcGetProgramLogSize(void* handle, size_t* bytes) {
    *bytes = program_of(handle)->log.size() + 1;
    return SUCCESS;
}
EXPORT int nvrtcGetProgramLog(void* handle, char* log) { return copy_out(program_of(handle)->log, log, true); }

EXPORT int nvrtcGetCUBINSize(void* handle, size_t* bytes) {
    const std::string& image = program_of(handle)->image;
    *bytes = is_virtual(image) ? 0 : image.size();
    return image.empty() ? INVALID_PROGRAM : SUCCESS;
}
EXPORT int nvrtcGetCUBIN(void* handle, char* image) { return copy_out(program_of(handle)->image, image, false); }

EXPORT int nvrtcGetPTXSize(void* handle, size_t* bytes) {
    *bytes = program_of(handle)->image.size();
    return *bytes != 0 ? SUCCESS : INVALID_PROGRAM;
}
EXPORT int nvrtcGetPTX(void* handle, char* image) { return copy_out(program_of(handle)->image, image, false); }

// For tests: so many compilations from now on fail; compilations asked for so far.
EXPORT void tandem_emu_nvrtc_fail_compilations(int count) { failures_wanted = count; }
EXPORT unsigned long long tandem_emu_nvrtc_compilations() { return compilations; }
