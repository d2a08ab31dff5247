//! The best tokens of a row of logits, for those who need no others (`docs/numerics.md`, Sampling).
//!
//! Logits are compared as numbers, -0 like +0; among equals the lower id is better. Each token is one key whose order is
//! that of the choice, so that a card can look for the largest.
//! Invariants: the first `k` of more are the best `k`; a row with a logit that is not finite has no best tokens.
//! Does not know: options of sampling, cards.

/// The key of a row with a logit that is not finite; no token has it.
pub const NOT_FINITE: u64 = u64::MAX;

/// A logit that is NaN or infinite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotFinite;

/// A token and its logit; -0 is told as +0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scored {
    /// Which token.
    pub id: u32,
    /// Its logit.
    pub logit: f32,
}

impl Scored {
    /// The better of two tokens has the higher key; no logit here is NaN.
    pub fn key(self) -> u64 {
        // -0 + 0 is +0; whatever else stays.
        let bits = (self.logit + 0.0).to_bits();
        let rising = if bits >> 31 != 0 { !bits } else { bits | 1 << 31 };
        u64::from(rising) << 32 | u64::from(!self.id)
    }

    /// The token of a key.
    pub fn of_key(key: u64) -> Result<Scored, NotFinite> {
        if key == NOT_FINITE {
            return Err(NotFinite);
        }
        let rising = (key >> 32) as u32;
        let bits = if rising >> 31 != 0 { rising & !(1 << 31) } else { !rising };
        Ok(Scored { id: !(key as u32), logit: f32::from_bits(bits) })
    }
}

/// Writes tokens with falling keys as a row's values: a logit, then the bits of its id. Where there are no best tokens
/// all are NaN.
pub fn write(keys: impl IntoIterator<Item = u64>, values: &mut [f32]) {
    for (pair, key) in values.chunks_exact_mut(2).zip(keys) {
        match Scored::of_key(key) {
            Ok(Scored { id, logit }) => pair.copy_from_slice(&[logit, f32::from_bits(id)]),
            Err(NotFinite) => return values.fill(f32::NAN),
        }
    }
}

/// Reads a row's values, best first.
pub fn read(values: &[f32]) -> Result<impl Iterator<Item = Scored>, NotFinite> {
    if values.first().is_some_and(|logit| logit.is_nan()) {
        return Err(NotFinite);
    }
    Ok(values.chunks_exact(2).map(|pair| Scored { id: pair[1].to_bits(), logit: pair[0] }))
}

/// Chooses from logits; keeps its buffer between rows.
#[derive(Debug, Default)]
pub struct Chooser {
    kept: Vec<u64>,
}

impl Chooser {
    /// Writes the best tokens of a row as its values; there are at least as many logits as pairs of values.
    pub fn choose(&mut self, logits: &[f32], values: &mut [f32]) {
        let count = values.len() / 2;
        assert!(count <= logits.len(), "the best {count} of {} tokens", logits.len());
        if !all_finite(logits) {
            return write([NOT_FINITE], values);
        }
        let scored = |id: usize| Scored { id: id as u32, logit: logits[id] };
        if count == 1 {
            return write([scored(argmax(logits) as usize).key()], values);
        }
        // Falling keys. Most logits fail one comparison; ids rise, so an equal one that comes later is worse.
        self.kept.clear();
        let mut least = f32::NEG_INFINITY;
        for (id, &logit) in logits.iter().enumerate() {
            if logit > least {
                let key = scored(id).key();
                let at = self.kept.partition_point(|&kept| kept > key);
                self.kept.truncate(count - usize::from(self.kept.len() == count));
                self.kept.insert(at.min(self.kept.len()), key);
                if self.kept.len() == count {
                    least = Scored::of_key(self.kept[count - 1]).map_or(least, |last| last.logit);
                }
            }
        }
        write(self.kept.iter().copied(), values);
    }
}

/// True where every value is a number; bitwise, so that the loop vectorises.
pub fn all_finite(values: &[f32]) -> bool {
    const EXPONENT: u32 = 0x7f80_0000;
    // The exponent's bits are all ones for NaN and infinity only: adding the lowest one carries into the sign.
    let carry = values.iter().fold(0u32, |acc, v| acc | ((v.to_bits() & EXPONENT) + 0x0080_0000));
    carry & 0x8000_0000 == 0
}

/// The highest value's index; the lowest index among equals; 0 for nothing.
pub fn argmax(values: &[f32]) -> u32 {
    // Only the block that holds the highest value is searched for its place.
    const BLOCK: usize = 1024;
    let (mut most, mut at) = (f32::NEG_INFINITY, 0);
    for (number, block) in values.chunks(BLOCK).enumerate() {
        let highest = highest(block);
        if highest > most {
            (most, at) = (highest, number * BLOCK);
        }
    }
    let place = values[at..].iter().position(|&v| v == most);
    place.map_or(0, |place| (at + place) as u32)
}

/// The highest value, in lanes that the compiler makes vectors of; -inf for nothing.
fn highest(values: &[f32]) -> f32 {
    const LANES: usize = 32;
    let higher = |a: f32, b: f32| if b > a { b } else { a };
    let mut best = [f32::NEG_INFINITY; LANES];
    let chunks = values.chunks_exact(LANES);
    let rest = chunks.remainder();
    for chunk in chunks {
        for (b, &v) in best.iter_mut().zip(chunk) {
            *b = higher(*b, v);
        }
    }
    best.iter().chain(rest).fold(f32::NEG_INFINITY, |m, &v| higher(m, v))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The definition: sort everything.
    fn plain(logits: &[f32], count: usize) -> Vec<(u32, u32)> {
        let mut order: Vec<usize> = (0..logits.len()).collect();
        order.sort_by(|&a, &b| logits[b].partial_cmp(&logits[a]).unwrap().then(a.cmp(&b)));
        order[..count].iter().map(|&id| (id as u32, (logits[id] + 0.0).to_bits())).collect()
    }

    fn check(logits: &[f32]) {
        let mut chooser = Chooser::default();
        for count in [1, 2, 3, 5, 64].into_iter().filter(|&count| count <= logits.len()) {
            let mut values = vec![7.0; 2 * count];
            chooser.choose(logits, &mut values);
            let got: Vec<(u32, u32)> = read(&values).unwrap().map(|s| (s.id, s.logit.to_bits())).collect();
            assert_eq!(got, plain(logits, count), "the best {count} of {}", logits.len());
        }
    }

    #[test]
    fn the_best_are_those_of_a_sorted_list() {
        check(&[0.0]);
        check(&[-0.0, 0.0, -1.0, 0.0]);
        check(&[f32::MIN, f32::MAX, f32::from_bits(1), -f32::from_bits(1), f32::MIN]);
        let mut seed = 1u32;
        for length in [2, 63, 64, 65, 1023, 1025, 5000] {
            // Few different values, so that many are equal.
            for values in [2, 17, 100_000] {
                let mut next = || {
                    seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    ((seed >> 8) % values) as f32 - values as f32 / 2.0
                };
                check(&(0..length).map(|_| next()).collect::<Vec<f32>>());
            }
        }
        check(&(0..3000).map(|i| i as f32).collect::<Vec<f32>>());
    }

    #[test]
    fn a_row_with_a_logit_that_is_not_finite_has_no_best_tokens() {
        for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for place in [0, 31, 1500, 2999] {
                let mut logits = vec![1.0; 3000];
                logits[place] = bad;
                for count in [1, 4] {
                    let mut values = vec![7.0; 2 * count];
                    Chooser::default().choose(&logits, &mut values);
                    assert_eq!(read(&values).err(), Some(NotFinite), "{bad} at {place}");
                }
            }
        }
    }

    #[test]
    fn a_key_is_its_token() {
        for logit in [0.0, 1.5, -1.5, f32::MAX, f32::MIN, f32::from_bits(1)] {
            for id in [0, 1, 151_935, u32::MAX - 1] {
                let scored = Scored { id, logit };
                assert_eq!(Scored::of_key(scored.key()), Ok(scored));
                assert!(Scored { id: id + 1, logit }.key() < scored.key());
            }
        }
        assert_eq!(Scored { id: 3, logit: -0.0 }.key(), Scored { id: 3, logit: 0.0 }.key());
    }
}
