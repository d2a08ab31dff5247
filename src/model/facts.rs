//! Words that several folders share: identities, formats of K/V and activations, facts about cards and links.
//!
//! Invariant: plain data, no behaviour beyond arithmetic on sizes.
//! Does not know: devices, files, threads.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use super::program::Program;

/// The most rows of a window; more rows are a chunk (`docs/numerics.md`).
pub const WINDOW_ROWS_MAX: usize = 8;

/// The most tokens that a row may want as its best ones.
pub const BEST_MAX: usize = 64;

/// Positions in a K/V page, and in an attention tile (`docs/numerics.md`, Attention).
pub const PAGE_POSITIONS: usize = 64;

macro_rules! identity {
    ($(#[$doc:meta])* $name:ident, $word:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub u32);

        impl $name {
            /// The number as an index.
            pub fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($word, " {}"), self.0)
            }
        }
    };
}

identity!(/// A stage: position in the pipeline, 0 embeds.
    StageId, "stage");
identity!(/// A layer of the model, from 0.
    LayerId, "layer");
identity!(/// The state of one sequence on every card: which sequence it is, only the engine knows.
    StateId, "state");
identity!(/// A page of K/V on one card.
    PageId, "page");
identity!(/// A place in a link's ring.
    SlotId, "slot");

/// A device of the plan, as people know it: `cuda:1`, `hip:0`, `cpu:0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CardId {
    /// What it is made of.
    pub kind: CardKind,
    /// Among those of its kind: as its driver counts, or as virtual cards were named.
    pub number: u32,
}

impl CardId {
    /// The virtual card `cpu:number`.
    pub const fn cpu(number: u32) -> CardId {
        CardId { kind: CardKind::Cpu, number }
    }

    /// The CUDA card `cuda:number`.
    pub const fn cuda(number: u32) -> CardId {
        CardId { kind: CardKind::Cuda, number }
    }
}

impl fmt::Display for CardId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.kind.prefix(), self.number)
    }
}

impl serde::Serialize for CardId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// How K and V are kept (`docs/numerics.md`, Attention).
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    serde::Serialize,
    serde::Deserialize,
    clap::ValueEnum,
)]
#[serde(rename_all = "lowercase")]
pub enum KvFormat {
    /// 4 bytes a value.
    F32,
    /// 2 bytes a value, rounded to nearest even.
    F16,
    /// 34 bytes for 32 values of one head: an f16 scale and 32 signed bytes.
    #[serde(rename = "q8_0")]
    #[value(name = "q8_0")]
    Q8_0,
}

impl KvFormat {
    /// Bytes of one head's row of `head_width` values.
    pub fn row_bytes(self, head_width: usize) -> usize {
        match self {
            KvFormat::F32 => 4 * head_width,
            KvFormat::F16 => 2 * head_width,
            KvFormat::Q8_0 => head_width / 32 * 34,
        }
    }

    /// The name in flags and reports.
    pub fn name(self) -> &'static str {
        match self {
            KvFormat::F32 => "f32",
            KvFormat::F16 => "f16",
            KvFormat::Q8_0 => "q8_0",
        }
    }
}

/// How a product with quantised weights sees its input (`docs/numerics.md`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Activations {
    /// 8-bit images, integer dot products, the group order.
    Int8,
    /// Float activations on dequantised weights, `lanes(32)`: the engine's own reference path.
    F32,
}

/// What a card is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CardKind {
    /// A virtual card: a share of this computer's memory, with its CPUs.
    Cpu,
    /// A GPU behind CUDA's driver.
    Cuda,
    /// A GPU behind HIP's run-time library.
    Hip,
}

impl CardKind {
    /// Whether it is a GPU: both kinds keep and compute the same.
    pub fn is_gpu(self) -> bool {
        self != CardKind::Cpu
    }

    /// What stands before a card's number in its name.
    pub fn prefix(self) -> &'static str {
        match self {
            CardKind::Cpu => "cpu",
            CardKind::Cuda => "cuda",
            CardKind::Hip => "hip",
        }
    }
}

/// Where rates come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RateSource {
    /// Documented, of hardware of its kind.
    Typical,
    /// Measured on this computer.
    Measured,
}

/// How fast a card computes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CardRates {
    /// Weight bytes read in a second of decode.
    pub decode_bytes_per_s: f64,
    /// Multiply-adds in a second of prompt.
    pub prompt_macs_per_s: f64,
    /// Where both come from.
    pub source: RateSource,
}

/// What the planner knows about a card.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct CardFacts {
    /// Which card.
    pub id: CardId,
    /// What it is made of.
    pub kind: CardKind,
    /// As shown to people, e.g. `cpu:0`.
    pub name: String,
    /// Bytes that the plan may use, before reserves.
    pub memory_bytes: u64,
    /// Of these, what is left to the card's driver: code, stacks of threads, what allocations are rounded up by.
    pub driver_bytes: u64,
    /// Bytes that `--card-memory` could add to them.
    pub addable_bytes: u64,
    /// Rate at which a decode row reads weights, bytes a second (measured or documented).
    pub decode_bytes_per_s: f64,
    /// What an op of a decode row takes beside the bytes that it reads, microseconds: the wait for the op before, and the
    /// start of a launch. An average over the ops of a layer.
    pub decode_op_us: f64,
    /// Rate of prompt products, multiply-adds a second (measured or documented).
    pub prompt_macs_per_s: f64,
    /// Where these rates come from.
    pub rates: RateSource,
}

/// How rows travel from stage to stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LinkKind {
    /// Both cards see one memory: the producer writes where the consumer reads.
    Local,
    /// Through slots in host memory: one copy in, one copy out.
    Staged,
    /// Through slots in host memory that both cards reach themselves.
    Mapped,
    /// Through slots in the receiving card's memory, which the sending card reaches itself.
    Peer,
}

impl LinkKind {
    /// The kinds whose slots stages reach as host memory, for tests and tables.
    pub const OF_HOST: [LinkKind; 2] = [LinkKind::Local, LinkKind::Staged];

    /// The kinds whose slots only cards reach.
    pub const OF_CARDS: [LinkKind; 2] = [LinkKind::Peer, LinkKind::Mapped];

    /// Slots on each side beside the ring: a copying link is written to and read from outside it.
    pub fn side_slots(self) -> usize {
        match self {
            LinkKind::Staged => 1,
            LinkKind::Local | LinkKind::Mapped | LinkKind::Peer => 0,
        }
    }

    /// The name in flags and reports.
    pub fn name(self) -> &'static str {
        match self {
            LinkKind::Local => "local",
            LinkKind::Staged => "staged",
            LinkKind::Mapped => "mapped",
            LinkKind::Peer => "peer",
        }
    }
}

/// One directed connection between two cards.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct LinkRate {
    /// Time for an empty hand-off, microseconds.
    pub latency_us: f64,
    /// Bytes a second.
    pub bytes_per_s: f64,
}

/// The links between all cards, measured or documented; `rates[from][to]`.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct LinkFacts {
    /// Rate for each ordered pair of cards, by position in the list of cards.
    pub rates: Vec<Vec<LinkRate>>,
    /// How rows travel between each ordered pair, in the same places.
    pub kinds: Vec<Vec<LinkKind>>,
}

/// The piece of a program that one stage runs.
#[derive(Clone, Debug)]
pub struct StageProgram {
    /// The whole model.
    pub program: Arc<Program>,
    /// The layers that this stage runs.
    pub layers: Range<usize>,
}

impl StageProgram {
    /// True where the stage turns token ids into rows.
    pub fn embeds(&self) -> bool {
        self.layers.start == 0
    }

    /// True where the stage turns rows into logits.
    pub fn heads(&self) -> bool {
        self.layers.end == self.program.layers.len()
    }
}
