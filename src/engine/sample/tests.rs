//! The sampler against the plainest form of its definition.

use super::*;
use crate::device::best::Chooser;

fn logits(count: usize, seed: u64) -> Vec<f32> {
    (0..count).map(|i| (uniform(seed, i as u32) * 20.0 - 10.0) as f32).collect()
}

fn sample(options: &SamplingOptions, history: &[u32], position: u32, logits: &[f32]) -> u32 {
    let mut copy = logits.to_vec();
    let token = Sampler::default().sample(options, history, position, &mut copy).unwrap();
    assert!(copy.iter().zip(logits).all(|(a, b)| a.to_bits() == b.to_bits()), "logits come back unchanged");
    if let RowWants::Best(count) = options.wants(logits.len()) {
        let mut values = vec![0.0; 2 * count];
        Chooser::default().choose(logits, &mut values);
        assert_eq!(Sampler::default().sample_best(options, position, &values), Ok(token), "the best {count}");
    }
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
                        logit_bias: if seed % 5 == 0 { vec![(3, 4.5), (3, 0.25), (9, -9.0)] } else { vec![] },
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
fn the_best_tokens_are_asked_for_where_they_decide() {
    let good = SamplingOptions::default;
    let draws = |top_k| SamplingOptions { temperature: 1.0, top_k, ..good() };
    let cases = [
        (good(), RowWants::Best(1)),
        (SamplingOptions { top_k: 40, ..good() }, RowWants::Best(1)),
        (SamplingOptions { penalty_window: 0, repeat_penalty: 1.3, ..good() }, RowWants::Best(1)),
        (SamplingOptions { repeat_penalty: 1.3, ..good() }, RowWants::Logits),
        (SamplingOptions { presence_penalty: 0.1, ..draws(5) }, RowWants::Logits),
        (SamplingOptions { logit_bias: vec![(0, 0.0)], ..good() }, RowWants::Logits),
        (draws(0), RowWants::Logits),
        (draws(1), RowWants::Best(1)),
        (draws(64), RowWants::Best(64)),
        (draws(65), RowWants::Logits),
    ];
    for (options, wants) in cases {
        assert_eq!(options.wants(1000), wants, "{options:?}");
    }
    assert_eq!(draws(64).wants(63), RowWants::Logits);
    let nothing = [f32::NAN; 4];
    assert_eq!(Sampler::default().sample_best(&good(), 0, &nothing), Err(NotFinite));
    assert_eq!(Sampler::default().sample_best(&draws(2), 0, &nothing), Err(NotFinite));
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
