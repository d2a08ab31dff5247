//! Which instructions this computer's CPUs have, as witnesses.
//!
//! Invariant: a value of [`Avx2`] or [`Avx512`] exists only where `detect` saw all the features that its
//! documentation lists, so a function that takes one may call code compiled for them. Detection happens once, at
//! start; the tier is passed down. Does not know: kernels.

/// Witness of AVX2, FMA, F16C (and what they imply).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Avx2(());

/// Witness of AVX-512 F, BW, VL, DQ, VBMI and VNNI, and of everything of [`Avx2`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Avx512(());

impl Avx2 {
    /// The witness, where this CPU has the features.
    #[cfg(target_arch = "x86_64")]
    pub fn detect() -> Option<Avx2> {
        let seen = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c");
        seen.then_some(Avx2(()))
    }

    /// None: another architecture.
    #[cfg(not(target_arch = "x86_64"))]
    pub fn detect() -> Option<Avx2> {
        None
    }
}

impl Avx512 {
    /// The witness, where this CPU has the features.
    #[cfg(target_arch = "x86_64")]
    pub fn detect() -> Option<Avx512> {
        let seen = Avx2::detect().is_some()
            && is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vbmi")
            && is_x86_feature_detected!("avx512vnni");
        seen.then_some(Avx512(()))
    }

    /// None: another architecture.
    #[cfg(not(target_arch = "x86_64"))]
    pub fn detect() -> Option<Avx512> {
        None
    }
}

/// The instructions that kernels use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tier {
    /// Whatever the compiler takes for granted.
    Plain,
    /// 256-bit vectors.
    Avx2(Avx2),
    /// 512-bit vectors with byte dot products.
    Avx512(Avx512),
}

impl Tier {
    /// The names that [`Tier::named`] knows, lowest first.
    pub const NAMES: &'static [&'static str] = &["plain", "avx2", "avx512"];

    /// The best tier of this CPU.
    pub fn detect() -> Tier {
        match (Avx512::detect(), Avx2::detect()) {
            (Some(witness), _) => Tier::Avx512(witness),
            (None, Some(witness)) => Tier::Avx2(witness),
            (None, None) => Tier::Plain,
        }
    }

    /// The tier of this name (one of [`Tier::NAMES`]), if there is one and this CPU has it.
    pub fn named(name: &str) -> Option<Tier> {
        match name {
            "plain" => Some(Tier::Plain),
            "avx2" => Avx2::detect().map(Tier::Avx2),
            "avx512" => Avx512::detect().map(Tier::Avx512),
            _ => None,
        }
    }

    /// All tiers of this CPU, lowest first.
    pub fn available() -> Vec<Tier> {
        Tier::NAMES.iter().filter_map(|name| Tier::named(name)).collect()
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Tier::Plain => "plain",
            Tier::Avx2(_) => "avx2",
            Tier::Avx512(_) => "avx512",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Tier;

    #[test]
    fn every_available_tier_is_found_by_its_name_and_the_best_is_detected() {
        let all = Tier::available();
        for &tier in &all {
            assert_eq!(Tier::named(tier.name()), Some(tier));
        }
        assert_eq!(all.last(), Some(&Tier::detect()));
        assert_eq!(Tier::named("sse"), None);
    }
}
