//! Facts of virtual cards, with documented rates for those that were not measured.
//!
//! Virtual cards of one computer are alike, so only two ratios matter for a plan: decode against prompt, and links
//! against both. A link between virtual cards counts as free: they share one memory, and they exist so that a
//! model can be run as on several cards. With free links the planner gives every virtual card layers while there
//! are any, and splits equal cards evenly.
//! Does not know: what this computer really does.

use crate::model::facts::{CardFacts, CardId, CardKind, CardRates, LinkFacts, LinkRate};

/// A link between virtual cards: a slot changes its owner. The rate stands for "no copy" and stays a number in JSON.
pub const VIRTUAL_LINK: LinkRate = LinkRate { latency_us: 0.0, bytes_per_s: 1e18 };

/// Facts of the virtual card `cpu:index`.
pub fn virtual_card(index: u32, memory_bytes: u64, rates: CardRates) -> CardFacts {
    CardFacts {
        id: CardId(index),
        kind: CardKind::Cpu,
        name: format!("cpu:{index}"),
        memory_bytes,
        decode_bytes_per_s: rates.decode_bytes_per_s,
        prompt_macs_per_s: rates.prompt_macs_per_s,
    }
}

/// Links between `cards` virtual cards.
pub fn virtual_links(cards: usize) -> LinkFacts {
    LinkFacts { rates: vec![vec![VIRTUAL_LINK; cards]; cards] }
}
