//! A panel: one group of 256 columns of a tile, unpacked to one byte a code and plain scales.
//!
//! Every format becomes one of two forms, which the kernels of all tiers read: [`Step`]s of 32 columns with float
//! scales (formats with A32 images), or a [`Super`] block with integer scales (A256). Codes of vector `v` are, for
//! row `r` of the tile, values `4 v .. 4 v + 3` at `4 r .. 4 r + 3`. Signed codes are stored plus a power of two.
//! Invariant: [`Form::of`] and the unpacking agree (tested against `oracle/dots.json`). Does not know: activations.

use crate::gguf::TensorType;
use crate::gguf::formats::ImageKind;

/// What a format's panels hold and how its products use them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Steps of 32 columns.
    Steps {
        /// What `Step::e` is.
        extra: Extra,
        /// How codes are stored.
        stored: Stored,
    },
    /// A block of 256 columns with integer scales.
    Super {
        /// Columns that share an integer scale.
        scale_cols: ScaleCols,
        /// What `Super::pairs` holds, and so how the sums of activation codes enter.
        pairs: Pairs,
    },
}

/// How the codes of a step are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    /// As they are.
    Plain,
    /// Plus 8.
    Plus8,
    /// Plus 128.
    Plus128,
}

/// The second float of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extra {
    /// None.
    Nothing,
    /// An offset of every value, times the sum of the activation codes.
    Offset,
    /// The scale of the second 16 columns; `d` is that of the first.
    SecondHalf,
}

/// Columns that share an integer scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScaleCols {
    /// 16.
    C16,
    /// 32.
    C32,
}

/// The integers that meet the sums of activation codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pairs {
    /// Scales of minima, with the float factor `dmin`.
    Minima,
    /// The scales once more: the codes are stored plus `2^shift`.
    Scales {
        /// See above.
        shift: u32,
    },
}

impl Form {
    /// The form of a type's panels, `None` for types that are not quantised.
    pub fn of(ty: TensorType) -> Option<Form> {
        use TensorType as T;
        let steps = |extra, stored| Form::Steps { extra, stored };
        let minima = |scale_cols| Form::Super { scale_cols, pairs: Pairs::Minima };
        let signed = |scale_cols, shift| Form::Super { scale_cols, pairs: Pairs::Scales { shift } };
        Some(match ty {
            T::Q4_0 => steps(Extra::Nothing, Stored::Plus8),
            T::Q5_0 | T::Q8_0 | T::IQ4_NL | T::MXFP4 | T::Q1_0 | T::Q2_0 => {
                steps(Extra::Nothing, Stored::Plus128)
            }
            T::Q4_1 | T::Q5_1 => steps(Extra::Offset, Stored::Plain),
            T::NVFP4 => steps(Extra::SecondHalf, Stored::Plus128),
            T::Q4_K | T::Q5_K => minima(ScaleCols::C32),
            T::Q2_K => minima(ScaleCols::C16),
            T::Q3_K | T::Q6_K => signed(ScaleCols::C16, 5),
            T::IQ4_XS => signed(ScaleCols::C32, 7),
            T::TQ2_0 => signed(ScaleCols::C32, 5),
            T::TQ1_0 | T::IQ2_XXS | T::IQ2_XS | T::IQ2_S | T::IQ3_XXS | T::IQ3_S | T::IQ1_S | T::IQ1_M => {
                signed(ScaleCols::C16, 7)
            }
            _ => return None,
        })
    }

    /// The activation image that the form meets.
    pub fn image(self) -> ImageKind {
        match self {
            Form::Steps { .. } => ImageKind::A32,
            Form::Super { .. } => ImageKind::A256,
        }
    }
}

/// 32 columns of a tile.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub struct Step {
    /// Codes of eight quads.
    pub codes: [[u8; 64]; 8],
    /// Scale of each row.
    pub d: [f32; 16],
    /// See [`Extra`].
    pub e: [f32; 16],
}

/// 256 columns of a tile with integer scales.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub struct Super {
    /// Codes of 64 quads.
    pub codes: [[u8; 64]; 64],
    /// Integer scales: of 16 or of 8 runs of columns.
    pub scales: [[i32; 16]; 16],
    /// For two neighbouring runs and each row, two integers (see [`Pairs`]): of 8 or of 4 pairs of runs.
    pub pairs: [[[i16; 2]; 16]; 8],
    /// Scale of each row.
    pub d: [f32; 16],
    /// Scale of each row's minima.
    pub dmin: [f32; 16],
}

/// One group of a tile.
#[repr(C, align(64))]
pub struct Panel {
    /// Of formats with A32 images; the last group of a row may have fewer.
    pub steps: [Step; 8],
    /// Of formats with A256 images.
    pub block: Super,
}

impl Panel {
    /// An empty panel, to be filled group after group.
    pub fn new() -> Panel {
        let step = Step { codes: [[0; 64]; 8], d: [0.0; 16], e: [0.0; 16] };
        let block = Super {
            codes: [[0; 64]; 64],
            scales: [[0; 16]; 16],
            pairs: [[[0; 2]; 16]; 8],
            d: [0.0; 16],
            dmin: [0.0; 16],
        };
        Panel { steps: [step; 8], block }
    }
}
