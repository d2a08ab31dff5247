//! From a row of logits to a token (`docs/numerics.md`, Sampling).
//!
//! Order: bias, penalties over the last tokens, then greedy (ties: lower id) or temperature, top-k, top-p, min-p and
//! a draw. Sums run in f64 in rising id; only the running sum that top-p cuts at follows falling probability.
//! Invariants: the token is a function of logits, history, options, seed and position alone, never of what else
//! ran; the logits are given back unchanged. Does not know: batches, sequences, text.
//! Source of the generator: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (Philox4x32-10).

use std::cmp::Ordering;

use super::error::EngineError;

/// How tokens are chosen. The default is greedy without penalties.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingOptions {
    /// Logits are divided by it; 0: greedy.
    pub temperature: f32,
    /// Only the best `top_k` tokens; 0: all.
    pub top_k: usize,
    /// Only the fewest tokens whose probabilities reach it; 1: all.
    pub top_p: f32,
    /// Only tokens of at least this share of the best one's probability; 0: all.
    pub min_p: f32,
    /// Logits of recent tokens are divided by it where positive and multiplied where negative; 1: off.
    pub repeat_penalty: f32,
    /// Taken from the logit of each recent token; 0: off.
    pub presence_penalty: f32,
    /// Taken from the logit of each recent token for every time it occurs; 0: off.
    pub frequency_penalty: f32,
    /// How many of the last tokens, prompt included, are recent.
    pub penalty_window: usize,
    /// Added to the logits of the named tokens.
    pub logit_bias: Vec<(u32, f32)>,
    /// Of the generator.
    pub seed: u64,
}

impl Default for SamplingOptions {
    fn default() -> SamplingOptions {
        SamplingOptions {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repeat_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            penalty_window: 64,
            logit_bias: Vec::new(),
            seed: 0,
        }
    }
}

impl SamplingOptions {
    /// Refuses values outside their ranges.
    pub fn check(&self) -> Result<(), EngineError> {
        let finite = f32::MIN..=f32::MAX;
        let rules = [
            ("--temperature", self.temperature, 0.0..=f32::MAX, "0 or more"),
            ("--top-p", self.top_p, f32::MIN_POSITIVE..=1.0, "above 0 and at most 1"),
            ("--min-p", self.min_p, 0.0..=1.0, "from 0 to 1"),
            ("--repeat-penalty", self.repeat_penalty, f32::MIN_POSITIVE..=f32::MAX, "above 0"),
            ("--presence-penalty", self.presence_penalty, finite.clone(), "finite"),
            ("--frequency-penalty", self.frequency_penalty, finite, "finite"),
        ];
        for (option, value, allowed, range) in rules {
            if !allowed.contains(&value) {
                return Err(EngineError::Sampling { option, value: f64::from(value), range });
            }
        }
        match self.logit_bias.iter().find(|(_, bias)| bias.is_nan() || *bias == f32::INFINITY) {
            Some(&(_, bias)) => {
                let (option, range) = ("a logit bias", "finite or -inf");
                Err(EngineError::Sampling { option, value: f64::from(bias), range })
            }
            None => Ok(()),
        }
    }

    /// True where the options read the tokens before the row.
    fn penalises(&self) -> bool {
        self.penalty_window > 0
            && (self.repeat_penalty != 1.0 || self.presence_penalty != 0.0 || self.frequency_penalty != 0.0)
    }
}

/// A logit that is NaN or infinite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotFinite;

/// One token that may be drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Candidate {
    id: u32,
    logit: f32,
    weight: f64,
}

/// Chooses tokens; keeps its buffers between rows.
#[derive(Debug, Default)]
pub struct Sampler {
    candidates: Vec<Candidate>,
    changed: Vec<(u32, f32)>,
    recent: Vec<u32>,
}

impl Sampler {
    /// The token at `position`, from the logits of the row before it. `history` are all tokens of the sequence so
    /// far, prompt included.
    pub fn sample(
        &mut self,
        options: &SamplingOptions,
        history: &[u32],
        position: u32,
        logits: &mut [f32],
    ) -> Result<u32, NotFinite> {
        if !all_finite(logits) {
            return Err(NotFinite);
        }
        self.adjust(options, history, logits);
        let token =
            if options.temperature == 0.0 { argmax(logits) } else { self.draw(options, position, logits) };
        // Backwards: where a token was changed twice, its first value is the model's.
        for &(id, logit) in self.changed.iter().rev() {
            logits[id as usize] = logit;
        }
        Ok(token)
    }

    /// Bias and penalties, in place; `changed` remembers the model's values.
    fn adjust(&mut self, options: &SamplingOptions, history: &[u32], logits: &mut [f32]) {
        self.changed.clear();
        for &(id, bias) in &options.logit_bias {
            if let Some(logit) = logits.get_mut(id as usize) {
                self.changed.push((id, *logit));
                *logit += bias;
            }
        }
        if !options.penalises() {
            return;
        }
        self.recent.clear();
        self.recent.extend_from_slice(&history[history.len().saturating_sub(options.penalty_window)..]);
        self.recent.sort_unstable();
        for run in self.recent.chunk_by(|a, b| a == b) {
            let Some(logit) = logits.get_mut(run[0] as usize) else { continue };
            self.changed.push((run[0], *logit));
            let penalty = options.repeat_penalty;
            *logit = if *logit > 0.0 { *logit / penalty } else { *logit * penalty };
            *logit -= run.len() as f32 * options.frequency_penalty;
            *logit -= options.presence_penalty;
        }
    }

    /// Temperature, top-k, top-p, min-p, and the draw among what is left.
    fn draw(&mut self, options: &SamplingOptions, position: u32, logits: &[f32]) -> u32 {
        let kept = &mut self.candidates;
        select_top(logits, options.top_k, kept);
        let best = kept.iter().fold(f32::NEG_INFINITY, |m, c| m.max(c.logit));
        if best == f32::NEG_INFINITY {
            return argmax(logits);
        }
        let temperature = f64::from(options.temperature);
        let mut total = 0.0f64;
        for c in kept.iter_mut() {
            c.weight = libm::exp((f64::from(c.logit) - f64::from(best)) / temperature);
            total += c.weight;
        }
        if options.top_p < 1.0 {
            keep_nucleus(kept, f64::from(options.top_p) * total);
        }
        // The best weight is exp(0) = 1.
        let floor = f64::from(options.min_p);
        kept.retain(|c| c.weight >= floor && c.weight > 0.0);
        let total: f64 = kept.iter().map(|c| c.weight).sum();
        let target = uniform(options.seed, position) * total;
        let mut reached = 0.0f64;
        for c in kept.iter() {
            reached += c.weight;
            if reached > target {
                return c.id;
            }
        }
        // Rounding can leave `target` at the whole sum.
        kept.last().map_or(0, |c| c.id)
    }
}

/// True where every value is a number; bitwise, so that the loop vectorises.
fn all_finite(values: &[f32]) -> bool {
    const EXPONENT: u32 = 0x7f80_0000;
    // The exponent's bits are all ones for NaN and infinity only: adding the lowest one carries into the sign.
    let carry = values.iter().fold(0u32, |acc, v| acc | ((v.to_bits() & EXPONENT) + 0x0080_0000));
    carry & 0x8000_0000 == 0
}

/// The highest value's index; the lowest index among equals; 0 for nothing.
pub fn argmax(values: &[f32]) -> u32 {
    const LANES: usize = 16;
    let mut best = [f32::NEG_INFINITY; LANES];
    let chunks = values.chunks_exact(LANES);
    let rest = chunks.remainder();
    for chunk in chunks {
        for (b, &v) in best.iter_mut().zip(chunk) {
            *b = if v > *b { v } else { *b };
        }
    }
    let most = best.iter().chain(rest).fold(f32::NEG_INFINITY, |m, &v| if v > m { v } else { m });
    values.iter().position(|&v| v == most).unwrap_or(0) as u32
}

/// The `count` best tokens (all for 0) in rising id; among equals the lower id is better.
fn select_top(logits: &[f32], count: usize, kept: &mut Vec<Candidate>) {
    kept.clear();
    let all = logits.iter().enumerate().map(|(i, &logit)| Candidate { id: i as u32, logit, weight: 0.0 });
    if count == 0 || count >= logits.len() {
        kept.extend(all);
        return;
    }
    // Most values fail one comparison; the buffer is cut back to the best `count` whenever it has doubled.
    let capacity = 2 * count.max(64);
    let mut least = f32::NEG_INFINITY;
    let mut is_cut = false;
    for c in all {
        // Ids rise: an equal value that comes later is worse than all kept ones.
        if c.logit > least || !is_cut {
            kept.push(c);
            if kept.len() == capacity {
                cut_to_best(kept, count);
                least = kept.iter().fold(f32::INFINITY, |m, c| m.min(c.logit));
                is_cut = true;
            }
        }
    }
    if kept.len() > count {
        cut_to_best(kept, count);
    }
    kept.sort_unstable_by_key(|c| c.id);
}

fn cut_to_best(kept: &mut Vec<Candidate>, count: usize) {
    // Not `total_cmp`: -0 and +0 are equal logits, and the lower id wins.
    let falling = |a: &Candidate, b: &Candidate| b.logit.partial_cmp(&a.logit).unwrap_or(Ordering::Equal);
    kept.select_nth_unstable_by(count - 1, |a, b| falling(a, b).then(a.id.cmp(&b.id)));
    kept.truncate(count);
}

/// Keeps the fewest best candidates whose weights reach `enough`, in rising id.
fn keep_nucleus(kept: &mut Vec<Candidate>, enough: f64) {
    // Sorting the whole vocabulary would dominate a step: the nucleus is searched in growing heads of the order.
    let by_weight = |a: &Candidate, b: &Candidate| b.weight.total_cmp(&a.weight).then(a.id.cmp(&b.id));
    let mut head = 256.min(kept.len());
    loop {
        if head < kept.len() {
            kept.select_nth_unstable_by(head - 1, by_weight);
        }
        kept[..head].sort_unstable_by(by_weight);
        let mut reached = 0.0f64;
        let nucleus = kept[..head].iter().position(|c| {
            reached += c.weight;
            reached >= enough
        });
        if let Some(last) = nucleus {
            kept.truncate(last + 1);
            break;
        }
        if head == kept.len() {
            break;
        }
        head = (4 * head).min(kept.len());
    }
    kept.sort_unstable_by_key(|c| c.id);
}

/// A number in [0, 1) that depends on seed and position alone: 53 bits of Philox4x32-10 with the seed as key and the
/// position as counter.
pub fn uniform(seed: u64, position: u32) -> f64 {
    let bits = philox4x32([position, 0, 0, 0], [seed as u32, (seed >> 32) as u32]);
    let wide = u64::from(bits[0]) << 32 | u64::from(bits[1]);
    (wide >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
}

/// Ten rounds of Philox4x32.
fn philox4x32(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for round in 0..10 {
        if round > 0 {
            key = [key[0].wrapping_add(0x9e37_79b9), key[1].wrapping_add(0xbb67_ae85)];
        }
        let a = 0xd251_1f53u64 * u64::from(counter[0]);
        let b = 0xcd9e_8d57u64 * u64::from(counter[2]);
        counter = [
            (b >> 32) as u32 ^ counter[1] ^ key[0],
            b as u32,
            (a >> 32) as u32 ^ counter[3] ^ key[1],
            a as u32,
        ];
    }
    counter
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logits(count: usize, seed: u64) -> Vec<f32> {
        (0..count).map(|i| (uniform(seed, i as u32) * 20.0 - 10.0) as f32).collect()
    }

    fn sample(options: &SamplingOptions, history: &[u32], position: u32, logits: &[f32]) -> u32 {
        let mut copy = logits.to_vec();
        let token = Sampler::default().sample(options, history, position, &mut copy).unwrap();
        assert!(
            copy.iter().zip(logits).all(|(a, b)| a.to_bits() == b.to_bits()),
            "logits come back unchanged"
        );
        token
    }

    /// Chooses as `docs/numerics.md` says, in the plainest way: sort everything, sum everything.
    fn plain(options: &SamplingOptions, history: &[u32], position: u32, logits: &[f32]) -> u32 {
        let mut l = logits.to_vec();
        for &(id, bias) in &options.logit_bias {
            l[id as usize] += bias;
        }
        let recent = &history[history.len().saturating_sub(options.penalty_window)..];
        for (id, l) in l.iter_mut().enumerate() {
            let times = recent.iter().filter(|&&t| t as usize == id).count();
            if times > 0 {
                *l = if *l > 0.0 { *l / options.repeat_penalty } else { *l * options.repeat_penalty };
                *l -= times as f32 * options.frequency_penalty;
                *l -= options.presence_penalty;
            }
        }
        let mut order: Vec<usize> = (0..l.len()).collect();
        order.sort_by(|&a, &b| l[b].partial_cmp(&l[a]).unwrap().then(a.cmp(&b)));
        if options.temperature == 0.0 {
            return order[0] as u32;
        }
        if options.top_k > 0 {
            order.truncate(options.top_k);
        }
        let best = l[order[0]];
        let weight = |i: usize| libm::exp((l[i] as f64 - best as f64) / options.temperature as f64);
        let rising = |order: &[usize]| {
            let mut ids = order.to_vec();
            ids.sort();
            ids
        };
        if options.top_p < 1.0 {
            let total: f64 = rising(&order).iter().map(|&i| weight(i)).sum();
            let mut sum = 0.0;
            let cut = order.iter().position(|&i| {
                sum += weight(i);
                sum >= options.top_p as f64 * total
            });
            order.truncate(cut.map_or(order.len(), |c| c + 1));
        }
        order.retain(|&i| weight(i) >= options.min_p as f64);
        let ids = rising(&order);
        let total: f64 = ids.iter().map(|&i| weight(i)).sum();
        let target = uniform(options.seed, position) * total;
        let mut sum = 0.0;
        for &i in &ids {
            sum += weight(i);
            if sum > target {
                return i as u32;
            }
        }
        ids[ids.len() - 1] as u32
    }

    #[test]
    fn philox_gives_the_known_answers() {
        let cases = [
            ([0; 4], [0; 2], [0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8]),
            ([u32::MAX; 4], [u32::MAX; 2], [0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd]),
            (
                [0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344],
                [0xa4093822, 0x299f31d0],
                [0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1],
            ),
        ];
        for (counter, key, expected) in cases {
            assert_eq!(philox4x32(counter, key), expected);
        }
    }

    #[test]
    fn every_combination_of_options_chooses_what_the_plain_form_chooses() {
        let mut cases = 0;
        for seed in 0..40u64 {
            let mut l = logits(if seed % 2 == 0 { 997 } else { 33 }, seed);
            // Ties, among the best ones as well.
            for i in (0..l.len()).step_by(5) {
                l[i] = (l[i] * 0.5).round() * 2.0;
            }
            let history: Vec<u32> = (0..90).map(|i| (uniform(seed, i) * l.len() as f64) as u32).collect();
            for temperature in [0.0, 0.3, 1.0, 5.0] {
                for top_k in [0, 1, 7, 64, 500] {
                    for (top_p, min_p) in [(1.0, 0.0), (0.9, 0.0), (1.0, 0.05), (0.999, 0.001)] {
                        let (repeat_penalty, presence_penalty, frequency_penalty) =
                            [(1.0, 0.0, 0.0), (1.3, 0.2, 0.1)][(seed % 3 == 0) as usize];
                        let options = SamplingOptions {
                            temperature,
                            top_k,
                            top_p,
                            min_p,
                            repeat_penalty,
                            presence_penalty,
                            frequency_penalty,
                            logit_bias: if seed % 5 == 0 {
                                vec![(3, 4.5), (3, 0.25), (9, -9.0)]
                            } else {
                                vec![]
                            },
                            seed,
                            ..SamplingOptions::default()
                        };
                        let expected = plain(&options, &history, seed as u32, &l);
                        assert_eq!(sample(&options, &history, seed as u32, &l), expected, "{options:?}");
                        cases += 1;
                    }
                }
            }
        }
        assert_eq!(cases, 40 * 4 * 5 * 4);
    }

    #[test]
    fn greedy_takes_the_lowest_id_of_equal_logits() {
        for len in 1..70 {
            for at in 0..len {
                let mut l = vec![-3.0f32; len];
                l[at..].fill(2.0);
                assert_eq!(argmax(&l), at as u32, "{len} values from {at}");
            }
        }
    }

    #[test]
    fn a_logit_that_is_no_number_is_refused_wherever_it_stands() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -f32::NAN] {
            for at in [0, 15, 16, 40] {
                let mut l = logits(41, 1);
                l[at] = bad;
                let result = Sampler::default().sample(&SamplingOptions::default(), &[], 0, &mut l);
                assert_eq!(result, Err(NotFinite));
            }
        }
        let mut largest = vec![f32::MAX, f32::MIN, -0.0, f32::from_bits(1)];
        assert_eq!(Sampler::default().sample(&SamplingOptions::default(), &[], 0, &mut largest), Ok(0));
    }

    #[test]
    fn draws_follow_the_probabilities() {
        let l = [0.0f32, libm::logf(2.0), libm::logf(5.0)];
        let options = SamplingOptions { temperature: 1.0, seed: 11, ..SamplingOptions::default() };
        let mut counts = [0usize; 3];
        for position in 0..8000 {
            counts[sample(&options, &[], position, &l) as usize] += 1;
        }
        for (count, share) in counts.iter().zip([1000, 2000, 5000]) {
            assert!(count.abs_diff(share) < 150, "{counts:?}");
        }
    }

    #[test]
    fn options_outside_their_ranges_are_named() {
        let good = SamplingOptions::default;
        let cases = [
            (SamplingOptions { temperature: -1.0, ..good() }, "--temperature"),
            (SamplingOptions { temperature: f32::NAN, ..good() }, "--temperature"),
            (SamplingOptions { top_p: 0.0, ..good() }, "--top-p"),
            (SamplingOptions { min_p: 1.5, ..good() }, "--min-p"),
            (SamplingOptions { repeat_penalty: 0.0, ..good() }, "--repeat-penalty"),
            (SamplingOptions { presence_penalty: f32::INFINITY, ..good() }, "--presence-penalty"),
            (SamplingOptions { logit_bias: vec![(1, f32::NAN)], ..good() }, "a logit bias"),
        ];
        for (options, name) in cases {
            let error = options.check().unwrap_err().to_string();
            assert!(error.starts_with(name), "{error}");
        }
        assert_eq!(good().check(), Ok(()));
    }
}
