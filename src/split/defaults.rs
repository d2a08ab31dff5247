//! Documented rates for cards that were not measured (`tandem devices --measure` replaces them).
//!
//! Virtual cards of one computer are alike, so only two ratios matter for a plan: decode against prompt, and links
//! against both. A link between virtual cards counts as free: they share one memory, and they exist so that a
//! model can be run as on several cards. With free links the planner gives every virtual card layers while there
//! are any, and splits equal cards evenly.
//! Does not know: what this computer really does.

use crate::model::facts::{CardFacts, CardId, CardKind, LinkFacts, LinkRate};

/// Weight bytes that a virtual card reads in a second of decode: one memory channel's order of magnitude.
pub const VIRTUAL_DECODE_BYTES_PER_S: f64 = 10e9;

/// Multiply-adds of a virtual card in a second of prompt: 8-bit products of one wide core.
pub const VIRTUAL_PROMPT_MACS_PER_S: f64 = 100e9;

/// A link between virtual cards: a slot changes its owner. The rate stands for "no copy" and stays a number in JSON.
pub const VIRTUAL_LINK: LinkRate = LinkRate { latency_us: 0.0, bytes_per_s: 1e18 };

/// Facts of the virtual card `cpu:index`.
pub fn virtual_card(index: u32, memory_bytes: u64) -> CardFacts {
    CardFacts {
        id: CardId(index),
        kind: CardKind::Cpu,
        name: format!("cpu:{index}"),
        memory_bytes,
        decode_bytes_per_s: VIRTUAL_DECODE_BYTES_PER_S,
        prompt_macs_per_s: VIRTUAL_PROMPT_MACS_PER_S,
    }
}

/// Links between `cards` virtual cards.
pub fn virtual_links(cards: usize) -> LinkFacts {
    LinkFacts { rates: vec![vec![VIRTUAL_LINK; cards]; cards] }
}
