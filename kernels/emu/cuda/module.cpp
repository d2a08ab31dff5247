// module.cpp: modules, functions and launches.
//
// Invariants: an image is one that the stub compiler made, machine code for the very card or text for one of its
// architectures; a program is told by TANDEM_EMU_REFUSE=cubin (or =image: text as well) that the driver is older than that.
// A function is a kernel of this build; a launch copies its
// arguments, and checks shape, shared memory and every pointer before it is posted.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "emu/cuda/driver.h"
#include "emu/grid.h"
#include "emu/image.h"
#include "emu/kernels.h"
#include "emu/memory.h"

namespace emu {

struct Function {
    const Kernel* kernel;
    int card;
    std::atomic<int> dynamic_bytes_max;
};

struct Module {
    int card;
    std::vector<Function*> functions;
};

static Handles<Module> modules;
static Handles<Function> functions;
static std::mutex modules_mutex;  // the functions of modules

static std::atomic<bool> downwards{false};
static std::atomic<uint64_t> launch_count{0};
static std::mutex failure_mutex;
static uint64_t launches_left = 0;
static int failure_status = 0;

constexpr unsigned GRID_YZ_MAX = 65535;
constexpr unsigned GRID_X_MAX = 0x7fffffff;
constexpr int DYNAMIC_BYTES_DEFAULT = 48 * 1024;

// CUfunction_attribute.
enum FunctionAttribute {
    MAX_THREADS_PER_BLOCK = 0,
    SHARED_SIZE_BYTES = 1,
    CONST_SIZE_BYTES = 2,
    LOCAL_SIZE_BYTES = 3,
    NUM_REGS = 4,
    PTX_VERSION = 5,
    BINARY_VERSION = 6,
    MAX_DYNAMIC_SHARED_SIZE_BYTES = 8,
    PREFERRED_SHARED_MEMORY_CARVEOUT = 9,
};

size_t live_modules() { return modules.count(); }
void set_downwards(bool on) { downwards = on; }
uint64_t launches() { return launch_count; }

void fail_launch_after(uint64_t count, int status) {
    std::lock_guard<std::mutex> lock(failure_mutex);
    launches_left = count;
    failure_status = status;
}

Status demanded_failure() {
    std::lock_guard<std::mutex> lock(failure_mutex);
    if (failure_status == SUCCESS || launches_left-- > 0) return SUCCESS;
    const Status status = Status(failure_status);
    failure_status = SUCCESS;
    return status;
}

enum class Beginning { InOrder, Early };

// A launch's arguments, copied when it is posted.
class Arguments {
  public:
    Arguments(const Kernel& kernel, void* const* given) : words_(kernel.argument_count) {
        for (unsigned i = 0; i < kernel.argument_count; i++) {
            memcpy(&words_[i], given[i], kernel.argument_bytes[i]);
            addresses_.push_back(&words_[i]);
        }
    }
    Arguments(const Arguments&) = delete;
    Arguments& operator=(const Arguments&) = delete;
    uint64_t pointer(unsigned i) const { return words_[i]; }
    void* const* addresses() const { return addresses_.data(); }

  private:
    std::vector<uint64_t> words_;
    std::vector<void*> addresses_;
};

// Every pointer that is not null leads into memory that the card may touch.
static Status check_pointers(const Kernel& kernel, int card, const Arguments& arguments) {
    for (unsigned i = 0; i < kernel.argument_count; i++) {
        if (!kernel.argument_is_pointer[i] || arguments.pointer(i) == 0) continue;
        Allocation found;
        const uint64_t address = arguments.pointer(i);
        const std::string argument = std::string(kernel.name) + ": argument " + std::to_string(i) + " points to ";
        if (!find_allocation(address, &found)) {
            return end_context(card, ILLEGAL_ADDRESS, "cuLaunchKernel", argument + describe_address(address));
        }
        if (!reaches(card, found.owner)) {
            const std::string where = describe_address(address) + ", which card " + std::to_string(card);
            return end_context(card, ILLEGAL_ADDRESS, "cuLaunchKernel", argument + where + " has no peer access to");
        }
    }
    return SUCCESS;
}

static void run(const Kernel& kernel, const Arguments& arguments, Launch launch, Beginning beginning) {
    Order order;
    const Turn turn = current_turn();
    begin_launch(order, turn.stream, turn.number, beginning == Beginning::Early);
    launch.arguments = arguments.addresses();
    launch.order = &order;
    launch_count++;
    run_grid(launch);
    end_launch(order, turn.stream);
    if (beginning == Beginning::Early && !order.waited) {
        fprintf(stderr, "emu: kernel %s begins early and none of its threads waits for the kernel before\n", kernel.name);
        abort();
    }
    for (unsigned i = 0; i < kernel.argument_count; i++) {
        if (kernel.argument_is_pointer[i] && arguments.pointer(i) != 0) check_end(arguments.pointer(i), kernel.name);
    }
}

// The number behind `name` in an image's options; 0 where it is not there.
static int number_behind(const std::string& image, const char* name) {
    const size_t at = image.find(name);
    return at == std::string::npos ? 0 : atoi(image.c_str() + at + strlen(name));
}

// The same for an image of AMD's: code of the card's own architecture, whose features it may leave open.
static Status check_code_object(const std::string& image) {
    const std::string name = CARDS[current_card()].gfx, option = "--offload-arch=";
    const size_t at = image.find(option);
    if (at == std::string::npos) return INVALID_IMAGE;
    const size_t start = at + option.size(), end = image.find_first_of(std::string(" \0", 2), start);
    return image.substr(start, end - start) == name.substr(0, name.find(':')) ? SUCCESS : NO_BINARY_FOR_GPU;
}

// What the driver of the current card says to an image of the stub compiler.
static Status check_image(const std::string& image) {
    if (MAKER == Maker::Amd) return check_code_object(image);
    const CardFacts& card = CARDS[current_card()];
    const int own = 10 * card.capability_major + card.capability_minor;
    const int machine_code = number_behind(image, "=sm_"), text = number_behind(image, "=compute_");
    const char* refused = getenv("TANDEM_EMU_REFUSE");
    const std::string refuses = refused != nullptr ? refused : "";
    if (machine_code != 0) {
        if (!refuses.empty()) return INVALID_IMAGE;
        return machine_code == own ? SUCCESS : NO_BINARY_FOR_GPU;
    }
    if (refuses == "image") return UNSUPPORTED_PTX_VERSION;
    return text != 0 && text <= own ? SUCCESS : NO_BINARY_FOR_GPU;
}

static_assert(sizeof(void*) == 8, "an argument is at most eight bytes");

struct Place {
    Dim grid;
    Dim block;
    unsigned shared_bytes;
    void* stream;
};

// Both ways to launch.
static Status launch(const char* call, void* handle, const Place& place, Beginning beginning, void** given, void** extra) {
    const Function* f = functions.find(handle);
    const StreamRef stream = find_stream(place.stream);
    if (f == nullptr || stream == nullptr) return INVALID_HANDLE;
    const int card = f->card;
    if (const Status status = usable(card)) return status;
    const Kernel& kernel = *f->kernel;
    const Dim& grid = place.grid;
    const Dim& block = place.block;
    const std::string name = kernel.name;
    if (card_of(stream) != card) {
        return refuse(INVALID_HANDLE, call, name + ": function and stream are of different cards");
    }
    if (grid.count() == 0 || block.count() == 0 || grid.x > GRID_X_MAX || grid.y > GRID_YZ_MAX || grid.z > GRID_YZ_MAX ||
        block.count() > kernel.threads_max || block.count() > BLOCK_THREADS_MAX) {
        return refuse(INVALID_VALUE, call, name + ": a grid or block that no card takes");
    }
    if (place.shared_bytes > unsigned(f->dynamic_bytes_max)) {
        return refuse(INVALID_VALUE, call, name + ": more shared memory than the function was set to");
    }
    if (extra != nullptr || (given == nullptr && kernel.argument_count > 0)) {
        return refuse(INVALID_VALUE, call, name + ": arguments are given by addresses here");
    }
    if (const Status status = demanded_failure()) return end_context(card, status, call, name + ": fails on demand");
    auto arguments = std::make_shared<Arguments>(kernel, given);
    if (const Status status = check_pointers(kernel, card, *arguments)) return status;
    const Launch launch{kernel.name, kernel.body, nullptr, grid, block, place.shared_bytes, downwards, nullptr};
    if (is_recorded(stream)) {
        // Memory may have been freed when a graph runs.
        post(stream, [kernel, card, arguments, launch, beginning] {
            if (check_pointers(kernel, card, *arguments) == SUCCESS) run(kernel, *arguments, launch, beginning);
        });
    } else {
        post(stream, [kernel, arguments, launch, beginning] { run(kernel, *arguments, launch, beginning); });
    }
    return SUCCESS;
}

// CUlaunchAttribute and CUlaunchConfig.
struct LaunchAttribute {
    int id;
    char padding[4];
    union {
        char bytes[64];
        int number;
    };
};

struct LaunchConfig {
    unsigned grid_x, grid_y, grid_z;
    unsigned block_x, block_y, block_z;
    unsigned shared_bytes;
    void* stream;
    const LaunchAttribute* attributes;
    unsigned attribute_count;
};

static_assert(sizeof(LaunchAttribute) == 72 && sizeof(LaunchConfig) == 56, "layouts of cuda.h");

constexpr int ATTRIBUTE_IGNORE = 0;
constexpr int ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION = 6;

}  // namespace emu

using namespace emu;

EXPORT int cuModuleLoadData(void** module, const void* image) {
    if (const Status status = usable()) return status;
    if (image == nullptr) return INVALID_VALUE;
    if (memcmp(image, IMAGE_MAGIC, IMAGE_MAGIC_BYTES) != 0) {
        return refuse(INVALID_IMAGE, "cuModuleLoadData", "the image was not made by the stub compiler");
    }
    if (const Status status = check_image(static_cast<const char*>(image))) return status;
    *module = modules.add(new Module{current_card(), {}});
    return SUCCESS;
}

EXPORT int cuModuleLoadDataEx(void** module, const void* image, unsigned, int*, void**) {
    return cuModuleLoadData(module, image);
}

EXPORT int cuModuleUnload(void* handle) {
    Module* module = modules.remove(handle);
    if (module == nullptr) return INVALID_HANDLE;
    finish_card(module->card);
    for (Function* f : module->functions) delete functions.remove(f);
    delete module;
    return SUCCESS;
}

EXPORT int cuModuleGetFunction(void** function, void* handle, const char* name) {
    if (const Status status = usable()) return status;
    Module* module = modules.find(handle);
    if (module == nullptr) return INVALID_HANDLE;
    const Kernel* kernel = find_kernel(name);
    if (kernel == nullptr) return NOT_FOUND;
    std::lock_guard<std::mutex> lock(modules_mutex);
    for (Function* f : module->functions) {
        if (f->kernel != kernel) continue;
        *function = f;
        return SUCCESS;
    }
    module->functions.push_back(functions.add(new Function{kernel, module->card, {DYNAMIC_BYTES_DEFAULT}}));
    *function = module->functions.back();
    return SUCCESS;
}

EXPORT int cuFuncGetAttribute(int* value, int attribute, void* handle) {
    Function* f = functions.find(handle);
    if (f == nullptr) return INVALID_HANDLE;
    switch (attribute) {
        case MAX_THREADS_PER_BLOCK: *value = int(f->kernel->threads_max); return SUCCESS;
        case NUM_REGS: *value = 32; return SUCCESS;
        case BINARY_VERSION:
        case PTX_VERSION: *value = CARDS[f->card].capability_major * 10 + CARDS[f->card].capability_minor; return SUCCESS;
        case MAX_DYNAMIC_SHARED_SIZE_BYTES: *value = f->dynamic_bytes_max; return SUCCESS;
        case SHARED_SIZE_BYTES:
        case CONST_SIZE_BYTES:
        case LOCAL_SIZE_BYTES: *value = 0; return SUCCESS;
        default: return INVALID_VALUE;
    }
}

EXPORT int cuFuncSetAttribute(void* handle, int attribute, int value) {
    Function* f = functions.find(handle);
    if (f == nullptr) return INVALID_HANDLE;
    if (attribute == PREFERRED_SHARED_MEMORY_CARVEOUT) return SUCCESS;
    if (attribute != MAX_DYNAMIC_SHARED_SIZE_BYTES || value < 0 || size_t(value) > DYNAMIC_BYTES_MAX) return INVALID_VALUE;
    f->dynamic_bytes_max = value;
    return SUCCESS;
}

// A number to choose grids by.
EXPORT int cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, void* handle, int, size_t) {
    if (functions.find(handle) == nullptr) return INVALID_HANDLE;
    *blocks = 2;
    return SUCCESS;
}

EXPORT int cuFuncSetCacheConfig(void* handle, int) { return functions.find(handle) != nullptr ? SUCCESS : INVALID_HANDLE; }

EXPORT int cuLaunchKernel(void* handle, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                          unsigned block_y, unsigned block_z, unsigned shared_bytes, void* stream_handle, void** given,
                          void** extra) {
    const Place place{{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared_bytes, stream_handle};
    return launch("cuLaunchKernel", handle, place, Beginning::InOrder, given, extra);
}

EXPORT int cuLaunchKernelEx(const void* given_config, void* handle, void** given, void** extra) {
    const auto& c = *static_cast<const LaunchConfig*>(given_config);
    Beginning beginning = Beginning::InOrder;
    for (unsigned i = 0; i < c.attribute_count; i++) {
        const LaunchAttribute& a = c.attributes[i];
        if (a.id == ATTRIBUTE_IGNORE) continue;
        if (a.id != ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION) {
            return refuse(NOT_SUPPORTED, "cuLaunchKernelEx", "attribute " + std::to_string(a.id));
        }
        if (a.number != 0) beginning = Beginning::Early;
    }
    const Place place{{c.grid_x, c.grid_y, c.grid_z}, {c.block_x, c.block_y, c.block_z}, c.shared_bytes, c.stream};
    return launch("cuLaunchKernelEx", handle, place, beginning, given, extra);
}
