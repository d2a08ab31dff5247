//! What a user hears when there is no plan: one line that says what, where, what to do.
//!
//! Invariant: each text names the flag that mends it. Does not know: how a plan is found.

use super::refusal::NoFit;

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SplitError {
    /// The model is larger than the cards.
    #[error(transparent)]
    NoFit(#[from] Box<NoFit>),
    /// Nothing to plan on.
    #[error("no card is named; name at least one with --gpus, e.g. --gpus cpu:2")]
    NoCards,
    /// More cards than the planner counts.
    #[error("--gpus names {cards} cards; a plan has at most {max}, name fewer")]
    TooManyCards {
        /// Named.
        cards: usize,
        /// Possible.
        max: usize,
    },
    /// Nothing to split.
    #[error("the model has no layers; check the file's block_count")]
    NoLayers,
    /// A size that no plan can have.
    #[error("{flag} {value} is out of range; give a number from {min} to {max}")]
    Size {
        /// Which flag.
        flag: &'static str,
        /// Given.
        value: usize,
        /// Smallest.
        min: usize,
        /// Largest.
        max: usize,
    },
    /// K/V as q8_0 needs whole blocks in every head.
    #[error("--kv q8_0 needs head widths that are multiples of 32, layer {layer} has {width}; use --kv f16")]
    KvWidth {
        /// Which layer.
        layer: usize,
        /// Its width.
        width: usize,
    },
    /// `--layer-split` of a wrong length.
    #[error(
        "--layer-split has {values} numbers, {cards} cards need {needed}: the first layer of each card after the \
         first; give {needed}, or name another count of cards with --gpus"
    )]
    LayerSplitCount {
        /// Given.
        values: usize,
        /// Cards named.
        cards: usize,
        /// Wanted.
        needed: usize,
    },
    /// `--layer-split` with a layer that cannot start a card.
    #[error(
        "--layer-split {value}: later cards start at a layer from 1 to {max}; the model has {layers} layers"
    )]
    LayerSplitRange {
        /// Given.
        value: usize,
        /// Largest.
        max: usize,
        /// Of the model.
        layers: usize,
    },
    /// `--layer-split` on a model that cannot be cut that often.
    #[error(
        "--layer-split: {cards} cards cannot share {layers} layers; name at most {layers} cards with --gpus"
    )]
    LayerSplitCards {
        /// Cards named.
        cards: usize,
        /// Of the model.
        layers: usize,
    },
    /// `--layer-split` that does not rise.
    #[error(
        "--layer-split {before},{value}: the numbers must rise; each names the first layer of the next card"
    )]
    LayerSplitOrder {
        /// The one before.
        before: usize,
        /// Not larger than it.
        value: usize,
    },
    /// `--gpu-order` with an unknown card.
    #[error("--gpu-order names position {card}; the cards of --gpus have positions 0 to {last}")]
    OrderUnknown {
        /// Given.
        card: usize,
        /// Largest.
        last: usize,
    },
    /// `--gpu-order` with a card twice.
    #[error("--gpu-order names position {card} twice; name each card of --gpus once")]
    OrderTwice {
        /// Given.
        card: usize,
    },
    /// `--gpu-order` without a card.
    #[error("--gpu-order leaves out position {card}; name each card once, or leave that one out of --gpus")]
    OrderMissing {
        /// Left out.
        card: usize,
    },
    /// A size in words that does not read.
    #[error(
        "{flag}: {text:?} is not a size; write bytes, or a number with KiB, MiB, GiB or TiB: 8GiB, 512MiB, 1.5G"
    )]
    Bytes {
        /// Which flag.
        flag: &'static str,
        /// Given.
        text: String,
    },
    /// A measured or documented rate that is no rate.
    #[error("{what} is {value}, a rate must be above 0; measure again with tandem devices --measure")]
    Rate {
        /// Which.
        what: String,
        /// Given.
        value: f64,
    },
    /// Facts about links of other cards.
    #[error("link facts cover {rows} cards, {cards} are named; measure again with tandem devices --measure")]
    Links {
        /// Known.
        rows: usize,
        /// Named.
        cards: usize,
    },
}
