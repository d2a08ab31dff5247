//! Facts of virtual cards, with documented rates for those that were not measured.
//!
//! Virtual cards of one computer are alike, so only two ratios matter for a plan: decode against prompt, and links
//! against both. A link between virtual cards counts as free: they share one memory, and they exist so that a
//! model can be run as on several cards. With free links the planner gives every virtual card layers while there
//! are any, and splits equal cards evenly.
//! GPUs hand rows on through pinned memory of the computer, at the rate of a PCIe 4.0 x16 slot's usual share.
//! Does not know: what this computer really does.

use crate::model::facts::{CardFacts, CardId, CardKind, CardRates, LinkFacts, LinkRate};

/// A link between virtual cards: a slot changes its owner. The rate stands for "no copy" and stays a number in JSON.
pub const VIRTUAL_LINK: LinkRate = LinkRate { latency_us: 0.0, bytes_per_s: 1e18 };

/// A link that has a GPU at one end: a copy to the computer's memory and one from it.
pub const STAGED_LINK: LinkRate = LinkRate { latency_us: 20.0, bytes_per_s: 10e9 };

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
    links(&vec![CardKind::Cpu; cards])
}

/// Links between cards of these kinds.
pub fn links(kinds: &[CardKind]) -> LinkFacts {
    let rate = |from: &CardKind, to: &CardKind| match (from, to) {
        (CardKind::Cpu, CardKind::Cpu) => VIRTUAL_LINK,
        _ => STAGED_LINK,
    };
    LinkFacts { rates: kinds.iter().map(|from| kinds.iter().map(|to| rate(from, to)).collect()).collect() }
}
