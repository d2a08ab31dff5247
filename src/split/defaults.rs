//! Facts of virtual cards, with documented rates for those that were not measured.
//!
//! Virtual cards of one computer are alike, so only two ratios matter for a plan: decode against prompt, and links
//! against both. A link between virtual cards counts as free: they share one memory, and they exist so that a
//! model can be run as on several cards. With free links the planner gives every virtual card layers while there
//! are any, and splits equal cards evenly.
//! GPUs hand rows on through pinned memory of the computer, at the rate of a PCIe 4.0 x16 slot's usual share.
//! Does not know: what this computer really does.

use crate::model::facts::{CardFacts, CardId, CardKind, CardRates, LinkFacts, LinkKind, LinkRate};

/// A link between virtual cards: a slot changes its owner. The rate stands for "no copy" and stays a number in JSON.
pub const VIRTUAL_LINK: LinkRate = LinkRate { latency_us: 0.0, bytes_per_s: 1e18 };

/// A link that has a GPU at one end: a copy to the computer's memory and one from it.
pub const STAGED_LINK: LinkRate = LinkRate { latency_us: 20.0, bytes_per_s: 10e9 };

/// A link through host memory that both GPUs reach.
pub const MAPPED_LINK: LinkRate = LinkRate { latency_us: 10.0, bytes_per_s: 10e9 };

/// A link into the next GPU's memory.
pub const PEER_LINK: LinkRate = LinkRate { latency_us: 5.0, bytes_per_s: 20e9 };

/// Facts of the virtual card `cpu:index`.
pub fn virtual_card(index: u32, memory_bytes: u64, rates: CardRates) -> CardFacts {
    CardFacts {
        id: CardId::cpu(index),
        kind: CardKind::Cpu,
        name: CardId::cpu(index).to_string(),
        memory_bytes,
        driver_bytes: 0,
        addable_bytes: u64::MAX,
        decode_bytes_per_s: rates.decode_bytes_per_s,
        // In the rate, which was measured with whole passes over weights.
        decode_op_us: 0.0,
        prompt_macs_per_s: rates.prompt_macs_per_s,
        rates: rates.source,
    }
}

/// The typical rate of a kind.
pub fn link_rate(kind: LinkKind) -> LinkRate {
    match kind {
        LinkKind::Local => VIRTUAL_LINK,
        LinkKind::Staged => STAGED_LINK,
        LinkKind::Mapped => MAPPED_LINK,
        LinkKind::Peer => PEER_LINK,
    }
}

/// Links between `cards` virtual cards.
pub fn virtual_links(cards: usize) -> LinkFacts {
    links(&vec![CardKind::Cpu; cards])
}

/// Links between cards of these kinds, through host memory.
pub fn links(kinds: &[CardKind]) -> LinkFacts {
    let kind = |from: &CardKind, to: &CardKind| match (from, to) {
        (CardKind::Cpu, CardKind::Cpu) => LinkKind::Local,
        _ => LinkKind::Staged,
    };
    let kinds: Vec<Vec<LinkKind>> =
        kinds.iter().map(|from| kinds.iter().map(|to| kind(from, to)).collect()).collect();
    let rates = kinds.iter().map(|row| row.iter().map(|&kind| link_rate(kind)).collect()).collect();
    LinkFacts { rates, kinds }
}
