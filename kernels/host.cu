// host.cu: what a card takes from the host with a batch, and what it gives back.
//
// shapes   blocks and results lie in host memory that the card reaches, two of each, which batches use in turn; control: the
//          turn's number, a word unused, the nanoseconds at which the batch began (two words). Results: the turn's number and
//          1, written last; the fault word; when the batch began and ended (two words each); two words unused; then `words`
//          words of keys
// launch   take_block: grid (blocks), block 256, 16 bytes a thread at a time, first of all; give_results: one block of 256,
//          last of all, which makes the turn the next one's
// order    no sums
// moves    each word once over the bus
// twin     src/device/cuda/exec/host.rs writes the blocks and reads the results
#include "device/vendor.h"

constexpr i32 HOST_BLOCK = 256;
constexpr i32 RESULT_HEAD = 8;

extern "C" __global__ void __launch_bounds__(HOST_BLOCK)
take_block(const u32* blocks, i64 block_words, u32* control, u32* block, i64 words) {
    wait_for_previous();
    const i64 first = (i64) blockIdx.x * HOST_BLOCK + (i64) threadIdx.x;
    if (first == 0) *(i64*) (control + 2) = clock_ns();
    const Words4* from = (const Words4*) (blocks + (control[0] & 1) * block_words);
    const i64 step = (i64) gridDim.x * HOST_BLOCK;
    for (i64 i = first; i < words / 4; i += step) ((Words4*) block)[i] = from[i];
    // Later kernels read the block before they wait, and each lets the next one begin before it waits itself: nothing of
    // the batch may begin before the whole block can be seen.
    fence_system();
    __syncthreads();
    let_next_start();
}

extern "C" __global__ void __launch_bounds__(HOST_BLOCK)
give_results(u32* control, const u32* fault, const u32* keys, i32 words, u32* results, i64 result_words) {
    wait_for_previous();
    let_next_start();
    const u32 turn = control[0];
    u32* to = results + (turn & 1) * result_words;
    for (i32 i = (i32) threadIdx.x; i < words; i += HOST_BLOCK) to[RESULT_HEAD + i] = keys[i];
    __syncthreads();
    if (threadIdx.x != 0) return;
    to[1] = *fault;
    *(i64*) (to + 2) = *(const i64*) (control + 2);
    *(i64*) (to + 4) = clock_ns();
    control[0] = turn + 1;
    fence_system();  // of the whole block's words: the barrier came before
    store_release_system(to, turn + 1);
}
