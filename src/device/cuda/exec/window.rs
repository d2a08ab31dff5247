//! Products of a window's rows with their images: which kernel, how many blocks, its arguments.
//!
//! Invariants: grids follow the head of `kernels/formats.cu`; kernel and grid never show in a bit.
//! Does not know: programs, steps, where rows lie.

use super::launch::{Experts, Fault, Image, Matrix, Rows, flag, int};
use crate::device::cuda::CudaError;
use crate::device::cuda::driver::Argument::{I32, I64, Pointer, U32};
use crate::device::cuda::driver::{Argument, Context, Kernel, Span, Stream};
use crate::device::cuda::kernels::Kernels;
use crate::gguf::TensorType;

/// Matrices of one launch, at most.
pub(super) const TARGETS: usize = 3;

/// Columns of a group.
const GROUP_VALUES: usize = 256;

/// By lanes: batch rows of each kernel, weight rows of a cell, cells of an item, warps of a block.
const LANE_ROWS: [usize; 3] = [1, 2, 4];
const CELL_ROWS: usize = 8;
const ITEM_CELLS: usize = 4;
const LANE_WARPS: usize = 4;

/// Memory of the items that a block's warps copy ahead, where these are two each.
const AHEAD_BYTES: usize = 40 << 10;

/// Half the blocks that each multiprocessor gets at least, where a matrix is long enough.
const HALF_BLOCKS_MIN: usize = 5;

/// Waves of blocks from which on it does not matter how full the last one is, and cells of a block's height then.
const MANY_WAVES: usize = 4;
const MANY_WAVES_EIGHTS: usize = 4;

/// By tiles: batch rows of each kernel, weight rows of a tile, warps of a block.
const TILE_BATCH_ROWS: [usize; 2] = [2, 8];
const TILE_ROWS: usize = 16;
const TILE_WARPS: usize = 8;

/// Tiles of a matrix from which on a block makes several, because starting a block takes time.
const MANY_TILES: usize = 4096;

/// Bytes of weights up to which two rows are faster by tiles, whose columns for a second row are there anyhow.
const TWO_BY_TILES_BYTES: usize = 16 << 20;

/// No block of a grid.
const NO_BLOCK: i32 = i32::MAX;

type Launched = Result<(), CudaError>;

/// What a card has room for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    pub(super) multiprocessors: usize,
    pub(super) shared_bytes_max: usize,
}

impl Room {
    pub(super) fn of(context: &Context) -> Result<Room, CudaError> {
        let (multiprocessors, shared_bytes_max) = (context.multiprocessors()?, context.shared_bytes_max()?);
        Ok(Room { multiprocessors, shared_bytes_max })
    }
}

/// The kernels that multiply matrices of a type with images.
#[derive(Clone, Debug)]
pub(super) struct Window {
    lanes: [Kernel; 3],
    tiles: [Kernel; 2],
    /// Shared memory of an item by lanes.
    item_bytes: usize,
    multiprocessors: usize,
}

impl Window {
    pub(super) fn new(all: &Kernels, ty: TensorType, room: Room) -> Result<Window, CudaError> {
        let lanes = |family| all.for_type(family, ty)?.with_shared(room.shared_bytes_max);
        let tiles = |family| all.for_type(family, ty);
        Ok(Window {
            lanes: [lanes("window_one_")?, lanes("window_two_")?, lanes("window_four_")?],
            tiles: [tiles("window_narrow_")?, tiles("window_wide_")?],
            item_bytes: item_bytes(ty),
            multiprocessors: room.multiprocessors,
        })
    }
}

/// Groups of 32 rows, each in pieces of 16 bytes, whose number is odd so that rows lie in different banks.
fn item_bytes(ty: TensorType) -> usize {
    const PIECE_BYTES: usize = 16;
    let (block, group) = (ty.block_bytes(), ty.row_bytes(GROUP_VALUES));
    let align = (1 << block.trailing_zeros()).min(PIECE_BYTES);
    32 * PIECE_BYTES * ((group + PIECE_BYTES - align).div_ceil(PIECE_BYTES) | 1)
}

/// A launch of a window's kernels: all arguments, of which most are absent.
struct Call<'a> {
    targets: &'a [(Matrix, Rows)],
    /// The first two targets make one row of the first.
    paired: bool,
    image: Option<Image>,
    add: Option<Rows>,
    experts: Option<&'a Experts>,
    /// Whether the launch before has waited for the ids of experts.
    ids_settled: bool,
    /// Bit k: target k has a scale an expert.
    scales_per_expert: usize,
    floats: Option<(Rows, Fault)>,
}

/// What most launches have none of.
const PLAIN: Call<'static> = Call {
    targets: &[],
    paired: false,
    image: None,
    add: None,
    experts: None,
    ids_settled: false,
    scales_per_expert: 0,
    floats: None,
};

/// Who multiplies: a kernel and the batch rows that it takes, weight rows of a block and how the kernel counts them, items that
/// its warps copy ahead, threads.
struct Shape {
    kernel: Kernel,
    rows: usize,
    block_rows: usize,
    height: usize,
    ahead: usize,
    threads: usize,
}

impl Call<'_> {
    fn matrices(&self) -> usize {
        1 + usize::from(self.paired)
    }

    fn groups(&self) -> usize {
        self.targets[0].0.cols.div_ceil(GROUP_VALUES)
    }

    /// Targets whose blocks follow each other in the grid.
    fn apart(&self) -> &[(Matrix, Rows)] {
        if self.paired { &self.targets[..1] } else { self.targets }
    }

    /// Shared memory of a block by lanes for `rows` batch rows: weights, images with their sums, values of groups.
    fn lane_bytes(&self, k: &Window, rows: usize, eights: usize, ahead: usize) -> usize {
        let image = GROUP_VALUES + 4 * (GROUP_VALUES / 16 + GROUP_VALUES / 32);
        let values = 4 * CELL_ROWS * eights * self.matrices() * (self.groups() | 1);
        LANE_WARPS * ahead * k.item_bytes + rows * (self.groups() * image + values)
    }

    /// By lanes, if a block has room for what it needs: as few weight rows a block as give all blocks a place at once, half of
    /// its warps something to do, and each multiprocessor some blocks.
    fn by_lanes(&self, k: &Window, which: usize, shares: usize) -> Result<Option<Shape>, CudaError> {
        let (kernel, rows, threads) = (&k.lanes[which], LANE_ROWS[which], 32 * LANE_WARPS);
        let cells = self.groups() * self.matrices();
        let all: usize = self.apart().iter().map(|(m, _)| m.rows.div_ceil(CELL_ROWS)).sum::<usize>() * shares;
        let least = (LANE_WARPS * ITEM_CELLS / 2).div_ceil(cells);
        let spread = (2 * all / (HALF_BLOCKS_MIN * k.multiprocessors)).max(least);
        let is_long = 2 * LANE_WARPS * k.item_bytes <= AHEAD_BYTES
            && spread.min(MANY_WAVES_EIGHTS) * cells > 2 * LANE_WARPS * ITEM_CELLS;
        let ahead = 1 + usize::from(is_long);
        let bytes = |eights| self.lane_bytes(k, rows, eights, ahead);
        if bytes(least) > kernel.shared_bytes() {
            return Ok(None);
        }
        let places = k.multiprocessors * kernel.with_less_shared(bytes(least)).resident(threads)?.max(1);
        let is_many = all > MANY_WAVES * least * places;
        let wanted = if is_many { MANY_WAVES_EIGHTS } else { all.div_ceil(places).min(spread) };
        let fits = |&eights: &usize| bytes(eights) <= kernel.shared_bytes();
        let height = (least..=wanted.max(least)).rev().find(fits).unwrap_or(least);
        let kernel = kernel.with_less_shared(bytes(height));
        Ok(Some(Shape { kernel, rows, block_rows: CELL_ROWS * height, height, ahead, threads }))
    }

    /// By tiles: more than one a block where one leaves warps without a group, or where tiles are many.
    fn by_tiles(&self, k: &Window, which: usize) -> Shape {
        let (most, most_many) = if which == 0 { (3, 2) } else { (1, 1) };
        let items = self.groups() * self.matrices();
        let height = if self.targets[0].0.rows / TILE_ROWS >= MANY_TILES {
            most_many
        } else {
            (0..most).find(|log| items << log >= TILE_WARPS).unwrap_or(most)
        };
        Shape {
            kernel: k.tiles[which].clone(),
            rows: TILE_BATCH_ROWS[which],
            block_rows: TILE_ROWS << height,
            height,
            ahead: 0,
            threads: 32 * TILE_WARPS,
        }
    }

    /// The fastest way for `n` batch rows, or pairs of experts.
    fn shape(&self, k: &Window, n: usize) -> Result<Shape, CudaError> {
        let is_single = self.experts.is_some() || self.floats.is_some();
        let rows = if is_single { 1 } else { n };
        let weights =
            self.targets.iter().map(|(m, _)| m.rows).sum::<usize>() * self.groups() * k.item_bytes / 32;
        let lanes = LANE_ROWS.iter().position(|&most| rows <= most);
        let lanes = lanes.filter(|_| rows != 2 || weights > TWO_BY_TILES_BYTES);
        let shares = if is_single { n } else { 1 };
        let shape = lanes.map(|which| self.by_lanes(k, which, shares)).transpose()?.flatten();
        assert!(
            self.floats.is_none() || shape.is_some(),
            "a block has room for an image of {OWN_COLS} columns"
        );
        Ok(shape.unwrap_or_else(|| self.by_tiles(k, usize::from(rows > TILE_BATCH_ROWS[0]))))
    }

    /// `n`: batch rows, or pairs of experts.
    fn launch(&self, s: &Stream, k: &Window, n: usize) -> Launched {
        assert!((1..=TARGETS).contains(&self.targets.len()), "a launch has 1 to {TARGETS} matrices");
        let cols = self.targets[0].0.cols;
        assert!(self.targets.iter().all(|(m, _)| m.cols == cols), "matrices of a launch share their input");
        let shape = self.shape(k, n)?;
        let blocks_of = |m: &Matrix| m.rows.div_ceil(shape.block_rows);
        let (mut first, mut blocks) = ([NO_BLOCK; TARGETS], 0);
        for ((m, _), first) in self.apart().iter().zip(&mut first) {
            *first = i32::try_from(blocks).expect("invariant: blocks of a matrix on a card fit 31 bits");
            blocks += blocks_of(m);
        }
        let shares = match self.experts {
            Some(e) if e.per_pair => [1, n],
            Some(e) => [e.used, n / e.used],
            None if self.floats.is_some() => [n, 1],
            None => [n.div_ceil(shape.rows), 1],
        };
        let of = |f: fn(&(Matrix, Rows)) -> Argument, none: Argument| {
            [0, 1, 2].map(|i| self.targets.get(i).map_or(none, f))
        };
        let none = Pointer(None);
        let image = self.image.map(|i| [i.codes, i.scales]);
        let (floats, fault) = (self.floats.map(|f| f.0), self.floats.map(|f| f.1));
        let arguments = [
            of(|(m, _)| Pointer(Some(m.at)), none),
            of(|(_, out)| Pointer(Some(out.at)), none),
            of(|(_, out)| int(out.stride), int(0)),
            of(|(m, _)| int(m.rows), int(0)),
            of(|(m, _)| Pointer(m.scale), none),
            of(|(m, _)| Pointer(m.bias), none),
        ];
        let others = [
            I32(first[1]),
            I32(first[2]),
            flag(self.paired),
            int(shape.height),
            int(shape.ahead),
            Pointer(image.map(|i| i[0])),
            Pointer(image.map(|i| i[1])),
            int(cols),
            int(n),
            Pointer(self.add.map(|rows| rows.at)),
            int(self.add.map_or(0, |rows| rows.stride)),
            Pointer(self.experts.map(|e| e.ids)),
            I64(self.experts.map_or(0, |e| e.expert_bytes as i64)),
            int(self.scales_per_expert),
            flag(self.ids_settled),
            Pointer(floats.map(|rows| rows.at)),
            int(floats.map_or(0, |rows| rows.stride)),
            Pointer(fault.map(|f| f.word)),
            U32(fault.map_or(0, |f| f.id)),
        ];
        let arguments = [arguments.as_flattened(), &others].concat();
        s.launch(&shape.kernel, [blocks, shares[0], shares[1]], shape.threads, &arguments)
    }
}

/// Products of up to three matrices of one type with one input. `add`: rows that the products are added to, which may be
/// those of the target.
pub(super) fn product_many(
    s: &Stream,
    k: &Window,
    targets: &[(Matrix, Rows)],
    x: Image,
    add: Option<Rows>,
    n: usize,
) -> Launched {
    Call { targets, image: Some(x), add, ..PLAIN }.launch(s, k, n)
}

/// silu(gate x) * (up x).
pub(super) fn gate_up(
    s: &Stream,
    k: &Window,
    [gate, up]: [Matrix; 2],
    x: Image,
    out: Rows,
    n: usize,
) -> Launched {
    let targets = &[(gate, out), (up, out)];
    Call { targets, paired: true, image: Some(x), ..PLAIN }.launch(s, k, n)
}

/// Columns of a row of floats of which a block makes the image itself, at most.
pub(super) const OWN_COLS: usize = 4096;

/// A product with rows of floats, at most `OWN_COLS` wide, whose images are made on the way.
pub(super) fn own_product(
    s: &Stream,
    k: &Window,
    target: (Matrix, Rows),
    x: (Rows, Fault),
    add: Option<Rows>,
    n: usize,
) -> Launched {
    Call { targets: &[target], add, floats: Some(x), ..PLAIN }.launch(s, k, n)
}

/// Every pair's row of `out`, dense.
pub(super) fn expert_product(
    s: &Stream,
    k: &Window,
    e: &Experts,
    x: Image,
    out: Span,
    pairs: usize,
) -> Launched {
    let targets = &[(e.matrix, Rows { at: out, stride: e.matrix.rows })];
    let scales_per_expert = usize::from(e.scale_per_expert);
    Call { targets, image: Some(x), experts: Some(e), scales_per_expert, ..PLAIN }.launch(s, k, pairs)
}

/// silu(gate x) * (up x) of every pair, dense. Gate and up have one type and one shape.
pub(super) fn expert_gate_up(
    s: &Stream,
    k: &Window,
    [gate, up]: [&Experts; 2],
    x: Image,
    out: Span,
    pairs: usize,
) -> Launched {
    let out = Rows { at: out, stride: gate.matrix.rows };
    let targets = &[(gate.matrix, out), (up.matrix, out)];
    let scales_per_expert = usize::from(gate.scale_per_expert) | usize::from(up.scale_per_expert) << 1;
    let call =
        Call { targets, paired: true, image: Some(x), experts: Some(gate), scales_per_expert, ..PLAIN };
    call.launch(s, k, pairs)
}

/// Every pair's product with a row of floats of its own, at most `OWN_COLS` wide, whose image is made on the way.
/// `ids_settled`: what stands before it in the stream is `expert_gate_up` with the same ids, which has waited for them, so
/// weights are brought nearer before that has ended.
pub(super) fn expert_down(
    s: &Stream,
    k: &Window,
    (e, ids_settled): (&Experts, bool),
    x: (Rows, Fault),
    out: Span,
    pairs: usize,
) -> Launched {
    assert!(e.per_pair, "a pair has its own input");
    let targets = &[(e.matrix, Rows { at: out, stride: e.matrix.rows })];
    let scales_per_expert = usize::from(e.scale_per_expert);
    let call = Call { targets, experts: Some(e), ids_settled, scales_per_expert, floats: Some(x), ..PLAIN };
    call.launch(s, k, pairs)
}

#[cfg(test)]
mod tests {
    use super::{CELL_ROWS, LANE_WARPS, TILE_ROWS, TILE_WARPS, item_bytes};
    use crate::device::cuda::source::{FORMATS, HEADERS};
    use crate::gguf::TensorType;

    #[test]
    fn shapes_are_those_of_the_sources() {
        let header = |name: &str| HEADERS.iter().find(|(n, _)| *n == name).unwrap().1;
        let value = |text: &str, name: &str| -> usize {
            let (_, rest) = text.split_once(&format!("constexpr i32 {name} = ")).unwrap();
            rest.split_once(';').unwrap().0.parse().unwrap()
        };
        assert_eq!(value(FORMATS.text, "LANE_WARPS"), LANE_WARPS);
        assert_eq!(value(FORMATS.text, "WINDOW_WARPS"), TILE_WARPS);
        assert_eq!(value(header("formats/lanes.cuh"), "CELL_ROWS"), CELL_ROWS);
        assert_eq!(value(header("formats/tile.cuh"), "TILE_ROWS"), TILE_ROWS);
    }

    #[test]
    fn an_item_has_an_odd_number_of_pieces_a_row() {
        // Bytes of a group, and of those the most before it in its first piece.
        for (ty, group, before) in [
            (TensorType::Q4_K, 144, 0),
            (TensorType::Q6_K, 210, 14),
            (TensorType::Q8_0, 8 * 34, 14),
            (TensorType::MXFP4, 8 * 17, 15),
            (TensorType::IQ1_M, 56, 8),
        ] {
            let pieces = item_bytes(ty) / 32 / 16;
            assert!(pieces % 2 == 1 && 16 * pieces >= group + before, "{ty:?}: {pieces} pieces");
            assert!(16 * pieces < group + before + 32, "{ty:?}: {pieces} pieces");
        }
    }
}
