// program.h: what the stubs of NVIDIA's and AMD's run-time compilers share: programs, their checks, their images.
//
// Nothing is compiled: the stub drivers bring the kernels. What is checked is what a caller can get wrong: every include
// must be among the given headers, and the options must be those that a compiler's own check asks for. The image names
// source and options, so that a driver, or a cache of images, can tell right from wrong.
// Invariant: numbers are those of nvrtc.h and hiprtc.h, which agree. Does not know: kernels, options of a vendor.
#pragma once
#include <cstddef>
#include <map>
#include <string>
#include <vector>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace rtc {

// nvrtcResult, hiprtcResult.
enum Status {
    SUCCESS = 0,
    INVALID_INPUT = 3,
    INVALID_PROGRAM = 4,
    INVALID_OPTION = 5,
    COMPILATION = 6,
};

using Options = std::vector<std::string>;

struct Program {
    std::string source;
    std::string name;
    std::map<std::string, std::string> headers;
    std::string log;
    std::string image;
};

// The program behind a handle.
Program& program_of(void* handle);
bool has_option(const Options& options, const std::string& start);

int create(void** handle, const char* source, const char* name, int header_count, const char* const* headers,
           const char* const* header_names);
int destroy(void** handle);
// `complaint` says what is wrong with the options, a line each.
int compile(void* handle, int count, const char* const* given, std::string (*complaint)(const Options&));

size_t log_bytes(void* handle);
void copy_log(void* handle, char* log);
void copy_image(void* handle, char* image);

// So many compilations from now on fail; compilations asked for so far.
void fail_compilations(int count);
unsigned long long compilations();

}  // namespace rtc
