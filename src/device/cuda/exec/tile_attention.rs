//! Attention of windows by tiles: which states it takes, and which of its kernels has how many heads a block.
//!
//! Invariant: neither shows in a bit (`kernels/attention_window.cu`). Does not know: programs, steps.

use super::launch::Pool;
use super::window::Room;
use crate::device::cuda::CudaError;
use crate::device::cuda::driver::Kernel;
use crate::device::cuda::kernels::Kernels;
use crate::model::facts::{KvFormat, PAGE_POSITIONS, StageProgram};
use crate::model::program::StateKind;

/// A kernel of any widths and one of heads of [`WHOLE`]; heads of one K/V head that a block takes.
struct Family {
    names: [&'static str; 2],
    at_once: usize,
    /// Blocks of each multiprocessor up to which so few heads are the fastest (`docs/performance.md`).
    blocks_max: usize,
}

const FAMILIES: [Family; 4] = [
    Family { names: ["attend_tile_1_", "attend_128_1_"], at_once: 1, blocks_max: 1 },
    Family { names: ["attend_tile_2_", "attend_128_2_"], at_once: 2, blocks_max: 1 },
    Family { names: ["attend_tile_4_", "attend_128_4_"], at_once: 4, blocks_max: 2 },
    Family { names: ["attend_tile_8_", "attend_128_8_"], at_once: 8, blocks_max: usize::MAX },
];

/// The width for which the second kernels are made, where rope turns all values of a head or none.
const WHOLE: usize = 128;

/// Shared memory of a block beside its tile, at most: queries and weights.
const OWN_BYTES: usize = 11 << 10;

/// The widest head, and of what widths are multiples.
const WIDTH_MAX: usize = 256;
const WIDTH_STEP: usize = 32;

/// The kernels of a stage.
#[derive(Debug)]
pub(super) struct TileAttention {
    /// Of each family, as [`Family::names`].
    kernels: Vec<[Kernel; 2]>,
    kv: KvFormat,
    tile_bytes_max: usize,
    multiprocessors: usize,
}

impl TileAttention {
    /// For a card with such room.
    pub(super) fn new(
        all: &Kernels,
        stage: &StageProgram,
        kv: KvFormat,
        room: Room,
    ) -> Result<TileAttention, CudaError> {
        let tile_bytes_max = room.shared_bytes_max.saturating_sub(OWN_BYTES);
        let widths = stage.program.states.iter().filter_map(|s| match s.kind {
            StateKind::Paged { key_width, value_width, .. } => Some((key_width, value_width)),
            StateKind::Fixed { .. } => None,
        });
        let taken = widths.map(|widths| tile_bytes(kv, widths)).filter(|&bytes| bytes <= tile_bytes_max);
        let bytes = taken.max().unwrap_or(0);
        let kernel = |name| all.for_kv(name, kv)?.with_shared(bytes);
        let both = |family: &Family| Ok([kernel(family.names[0])?, kernel(family.names[1])?]);
        let kernels = FAMILIES.iter().map(both).collect::<Result<_, CudaError>>()?;
        Ok(TileAttention { kernels, kv, tile_bytes_max, multiprocessors: room.multiprocessors })
    }

    /// Whether it takes a state's heads, of which `heads` ask.
    pub(super) fn takes(&self, pool: &Pool, heads: usize) -> bool {
        let fits = |width: usize| width.is_multiple_of(WIDTH_STEP) && width <= WIDTH_MAX;
        let bytes = tile_bytes(self.kv, (pool.key_width, pool.value_width));
        let is_near = bytes <= self.tile_bytes_max;
        fits(pool.key_width) && fits(pool.value_width) && heads.is_multiple_of(pool.heads) && is_near
    }

    /// The kernel for so many tiles of a state, of whose heads rope turns `pairs` pairs: few heads a block where blocks are
    /// few.
    pub(super) fn kernel(&self, pool: &Pool, heads: usize, pairs: usize, tiles: usize) -> TileKernel<'_> {
        let at = family(pool.heads, heads, tiles, self.multiprocessors);
        let is_whole =
            (pool.key_width, pool.value_width) == (WHOLE, WHOLE) && [0, WHOLE / 2].contains(&pairs);
        TileKernel { kernel: &self.kernels[at][usize::from(is_whole)], at_once: FAMILIES[at].at_once }
    }
}

/// A kernel, and the heads that a block of it takes.
#[derive(Clone, Copy, Debug)]
pub(super) struct TileKernel<'a> {
    pub(super) kernel: &'a Kernel,
    pub(super) at_once: usize,
}

/// The first family whose blocks are not too many, or that takes all heads of a K/V head.
fn family(kv_heads: usize, heads: usize, tiles: usize, multiprocessors: usize) -> usize {
    let group = heads / kv_heads;
    let fits = |&Family { at_once, blocks_max, .. }: &Family| {
        let blocks = tiles * kv_heads * group.div_ceil(at_once);
        at_once >= group || blocks.div_ceil(multiprocessors) <= blocks_max
    };
    FAMILIES.iter().position(fits).expect("invariant: the last takes any number of blocks")
}

/// Shared memory of a tile's keys and values: keys of whole 128 bytes have 64 behind them.
fn tile_bytes(kv: KvFormat, (key_width, value_width): (usize, usize)) -> usize {
    let (key, value) = (kv.row_bytes(key_width), kv.row_bytes(value_width));
    PAGE_POSITIONS * (key + if key.is_multiple_of(128) { 64 } else { 0 } + value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_take_more_heads_where_they_are_many() {
        for (kv_heads, heads, tiles, multiprocessors, at_once) in [
            (4, 32, 4, 132, 1),
            (4, 32, 4, 46, 4),
            (4, 32, 8, 132, 2),
            (4, 32, 8, 46, 4),
            (4, 32, 16, 132, 4),
            (4, 32, 32, 132, 4),
            (4, 32, 32, 46, 8),
            (4, 32, 64, 132, 8),
            (8, 8, 1000, 132, 1),
            (8, 24, 1000, 132, 4),
            (2, 32, 1000, 132, 8),
        ] {
            let found = FAMILIES[family(kv_heads, heads, tiles, multiprocessors)].at_once;
            assert_eq!(
                found, at_once,
                "{heads} on {kv_heads}, {tiles} tiles, {multiprocessors} multiprocessors"
            );
        }
    }

    #[test]
    fn keys_of_whole_128_bytes_have_room_behind_them() {
        assert_eq!(tile_bytes(KvFormat::F16, (128, 128)), 64 * (256 + 64 + 256));
        assert_eq!(tile_bytes(KvFormat::F16, (96, 64)), 64 * (192 + 128));
        assert_eq!(tile_bytes(KvFormat::Q8_0, (128, 128)), 64 * (136 + 136));
    }
}
