// program.cpp: see program.h.
#include "emu/rtc/program.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "emu/image.h"

namespace rtc {
namespace {

std::atomic<int> failures_wanted{0};
std::atomic<unsigned long long> compilation_count{0};

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

}  // namespace

Program& program_of(void* handle) { return *static_cast<Program*>(handle); }

bool has_option(const Options& options, const std::string& start) {
    return std::any_of(options.begin(), options.end(), [&](const std::string& o) { return o.rfind(start, 0) == 0; });
}

int create(void** handle, const char* source, const char* name, int header_count, const char* const* headers,
           const char* const* header_names) {
    if (handle == nullptr || source == nullptr || header_count < 0) return INVALID_INPUT;
    auto* program = new Program;
    program->source = source;
    program->name = name != nullptr ? name : "default_program";
    for (int i = 0; i < header_count; i++) program->headers[header_names[i]] = headers[i];
    *handle = program;
    return SUCCESS;
}

int destroy(void** handle) {
    if (handle == nullptr || *handle == nullptr) return INVALID_PROGRAM;
    delete &program_of(*handle);
    *handle = nullptr;
    return SUCCESS;
}

int compile(void* handle, int count, const char* const* given, std::string (*complaint)(const Options&)) {
    if (handle == nullptr) return INVALID_PROGRAM;
    Program& program = program_of(handle);
    const Options options(given, given + count);
    program.image.clear();
    compilation_count++;
    program.log = complaint(options);
    check_includes(program, program.name, program.source);
    for (const auto& [name, text] : program.headers) check_includes(program, name, text);
    if (failures_wanted > 0 && failures_wanted-- > 0) program.log += program.name + ": error: fails on demand\n";
    if (!program.log.empty()) return COMPILATION;
    program.image = std::string(IMAGE_MAGIC) + " " + program.name;
    for (const std::string& option : options) program.image += " " + option;
    program.image.push_back('\0');
    return SUCCESS;
}

size_t log_bytes(void* handle) { return program_of(handle).log.size() + 1; }
void copy_log(void* handle, char* log) { memcpy(log, program_of(handle).log.c_str(), log_bytes(handle)); }
void copy_image(void* handle, char* image) {
    const std::string& own = program_of(handle).image;
    memcpy(image, own.data(), own.size());
}

void fail_compilations(int count) { failures_wanted = count; }
unsigned long long compilations() { return compilation_count; }

}  // namespace rtc
