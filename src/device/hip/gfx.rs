//! AMD's architectures: their names, which are served, and what runs there in place of units that they lack.
//!
//! Invariant: an architecture is served only where the kernels were compiled for it, or for one with the same
//! instructions, by `scripts/kernels_hip.sh`. Does not know: cards, libraries.
//! Source: LLVM's user guide for the AMDGPU backend.

use std::str::FromStr;

/// `gfx90a` is 0x90a: the last two digits are minor and stepping, those before the major version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gfx(u32);

/// Architectures whose instructions one compilation stands for.
#[derive(Debug, PartialEq)]
struct Family {
    /// The one that the kernels are checked for.
    checked: Gfx,
    /// All of the family.
    members: &'static [Gfx],
    /// For people.
    name: &'static str,
    /// Bits that the memory's clock moves over a wire in one cycle: HBM2 two, GDDR6 sixteen.
    transfers_per_clock: f64,
    /// Lanes of a wave.
    wave: u32,
}

const FAMILIES: [Family; 3] = [
    Family {
        checked: Gfx(0x906),
        members: &[Gfx(0x906)],
        name: "Vega 20",
        transfers_per_clock: 2.0,
        wave: 64,
    },
    Family {
        checked: Gfx(0x1030),
        members: &[Gfx(0x1030), Gfx(0x1031), Gfx(0x1032), Gfx(0x1033), Gfx(0x1034), Gfx(0x1035), Gfx(0x1036)],
        name: "RDNA 2",
        transfers_per_clock: 16.0,
        wave: 32,
    },
    Family {
        checked: Gfx(0x1100),
        members: &[Gfx(0x1100), Gfx(0x1101), Gfx(0x1102), Gfx(0x1103)],
        name: "RDNA 3",
        transfers_per_clock: 16.0,
        wave: 32,
    },
];

impl Gfx {
    fn family(self) -> Option<&'static Family> {
        FAMILIES.iter().find(|family| family.members.contains(&self))
    }

    /// Why no kernel runs there; `None` where they are served.
    pub fn refusal(self) -> Option<String> {
        let checked = || FAMILIES.iter().map(|f| format!("{} ({})", f.checked, f.name)).collect::<Vec<_>>();
        self.family().is_none().then(|| {
            format!("{self}: the kernels are checked for {} alone; use virtual cards", checked().join(", "))
        })
    }

    /// Of the memory's clock.
    pub fn transfers_per_clock(self) -> f64 {
        self.family().map_or(2.0, |family| family.transfers_per_clock)
    }

    /// What is said of it wherever it is used.
    pub fn notice(self) -> String {
        let name = self.family().map_or("unknown", |family| family.name);
        format!(
            "{self} ({name}): no AMD card has run this program yet; docs/cards.md says what differs there"
        )
    }

    /// What runs in place of what CUDA cards have, in one line.
    pub fn what_runs(self) -> String {
        let (name, wave) = self.family().map_or(("unknown", 0), |f| (f.name, f.wave));
        let warps = if wave == 64 { "two warps of 32 share one" } else { "a warp each" };
        format!(
            "{self} ({name}): waves of {wave} lanes, {warps}; 8-bit dot products by instruction; products on tensor \
             cores by exchanges between lanes; kernels begin in order; no AMD card has run this program yet"
        )
    }
}

impl std::fmt::Display for Gfx {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "gfx{:x}", self.0)
    }
}

impl FromStr for Gfx {
    type Err = String;

    /// From the name that HIP gives, whose features (`:sramecc+:xnack-`) code without them serves.
    fn from_str(text: &str) -> Result<Gfx, String> {
        let name = text.split(':').next().unwrap_or_default();
        let digits = name.strip_prefix("gfx").filter(|digits| (3..=5).contains(&digits.len()));
        let number = digits.and_then(|digits| u32::from_str_radix(digits, 16).ok());
        number.map(Gfx).ok_or_else(|| format!("`{text}` is no architecture of AMD's"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_with_and_without_features_and_written_back() {
        for (text, name) in [
            ("gfx906:sramecc+:xnack-", "gfx906"),
            ("gfx90a", "gfx90a"),
            ("gfx1030", "gfx1030"),
            ("gfx1100:", "gfx1100"),
        ] {
            assert_eq!(text.parse::<Gfx>().unwrap().to_string(), name);
        }
        for text in ["", "gfx", "906", "gfx9", "gfxyyy", "gfx123456"] {
            assert!(text.parse::<Gfx>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn what_is_said_of_a_card_that_is_used_is_short() {
        let notice = Gfx(0x1100).notice();
        assert!(notice.starts_with("gfx1100 (RDNA 3): no AMD card has run this"), "{notice}");
        assert!(notice.contains("docs/cards.md") && notice.len() <= 100, "{} B: {notice}", notice.len());
    }

    #[test]
    fn what_ci_compiles_is_what_is_served() {
        let script = include_str!("../../../scripts/kernels_hip.sh");
        let (_, list) = script.split_once("--arch ").unwrap();
        let compiled: Vec<&str> = list.split_whitespace().next().unwrap().split(',').collect();
        assert_eq!(compiled, FAMILIES.map(|f| f.checked.to_string()));
        for family in &FAMILIES {
            assert!(family.members.contains(&family.checked));
            assert!(family.members.iter().all(|gfx| gfx.refusal().is_none()));
        }
        let refusal = Gfx(0x803).refusal().unwrap();
        assert!(refusal.starts_with("gfx803: ") && refusal.contains("gfx906 (Vega 20)"), "{refusal}");
    }
}
