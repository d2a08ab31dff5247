// grid.cpp: see grid.h.
#include "emu/grid.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

namespace emu {
namespace {

// A grid of fewer threads is done sooner than a worker wakes.
constexpr uint64_t SHARED_THREADS_MIN = 4096;

// A grid that is being run.
struct Work {
    const Launch& launch;
    std::atomic<uint64_t> next{0};

    void run() {
        const Dim& grid = launch.grid;
        const uint64_t count = grid.count();
        for (uint64_t taken = next++; taken < count; taken = next++) {
            const uint64_t n = launch.downwards ? count - 1 - taken : taken;
            run_block(launch, Dim{unsigned(n % grid.x), unsigned(n / grid.x % grid.y), unsigned(n / grid.x / grid.y)});
        }
    }
};

// Workers that help one grid at a time. They live as long as the process.
class Team {
  public:
    // False where another grid has the team.
    bool help(Work& work, unsigned helpers) {
        std::unique_lock<std::mutex> owner(owner_, std::try_to_lock);
        if (!owner.owns_lock()) return false;
        while (workers_ < helpers) std::thread(&Team::serve, this, workers_++).detach();
        {
            std::lock_guard<std::mutex> lock(mutex_);
            work_ = &work;
            helpers_ = busy_ = helpers;
            round_++;
        }
        wake_.notify_all();
        work.run();
        std::unique_lock<std::mutex> lock(mutex_);
        done_.wait(lock, [&] { return busy_ == 0; });
        return true;
    }

  private:
    void serve(unsigned number) {
        uint64_t seen = 0;
        for (;;) {
            Work* work = nullptr;
            {
                std::unique_lock<std::mutex> lock(mutex_);
                wake_.wait(lock, [&] { return round_ != seen; });
                seen = round_;
                if (number >= helpers_) continue;
                work = work_;
            }
            work->run();
            std::lock_guard<std::mutex> lock(mutex_);
            if (--busy_ == 0) done_.notify_one();
        }
    }

    std::mutex owner_;
    std::mutex mutex_;
    std::condition_variable wake_;
    std::condition_variable done_;
    Work* work_ = nullptr;
    unsigned workers_ = 0;
    unsigned helpers_ = 0;
    unsigned busy_ = 0;
    uint64_t round_ = 0;
};

std::atomic<unsigned> threads_wanted{0};

}  // namespace

void set_threads(unsigned threads) { threads_wanted = threads; }

void run_grid(const Launch& launch) {
    static Team* const team = new Team;  // never destroyed: workers outlive static objects
    Work work{launch};
    const unsigned wanted = threads_wanted;
    const unsigned threads = wanted != 0 ? wanted : std::max(1u, std::thread::hardware_concurrency());
    const uint64_t blocks = launch.grid.count();
    const bool worth = blocks * launch.block.count() >= SHARED_THREADS_MIN;
    const unsigned helpers = worth ? unsigned(std::min<uint64_t>(threads, blocks)) - 1 : 0;
    if (helpers == 0 || !team->help(work, helpers)) work.run();
}

}  // namespace emu
