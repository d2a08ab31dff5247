//! The nearest sizes that fit: what a user may give up, the least of it first.
//!
//! One change is nearer than two. Among as many: a shorter context, then a smaller K/V format, then fewer sequences,
//! then a smaller chunk. Of the things given up each is given back as far as it fits, in the same order.
//!
//! Invariant: smaller sizes never need more bytes, so each search is a bisection. Does not know: cards, layers.

use crate::model::facts::{KvFormat, WINDOW_ROWS_MAX};
use crate::model::footprint::StageSizes;

/// Contexts that are offered are multiples of this.
const CONTEXT_STEP: usize = 256;

const GIVE_UP: [Give; 4] = [Give::Context, Give::Kv, Give::Sequences, Give::Chunk];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Give {
    Context,
    Kv,
    Sequences,
    Chunk,
}

impl Give {
    /// Smaller values than `asked` has, the largest first.
    fn smaller(self, asked: &StageSizes, q8_0: bool) -> Vec<StageSizes> {
        let steps = |count: usize, set: &dyn Fn(&mut StageSizes, usize)| {
            let sizes = (0..count).map(|step| {
                let mut sizes = *asked;
                set(&mut sizes, step);
                sizes
            });
            sizes.collect()
        };
        match self {
            Give::Context => {
                let count = (asked.context - 1) / CONTEXT_STEP;
                steps(count, &|sizes, step| sizes.context = CONTEXT_STEP * (count - step))
            }
            Give::Kv => {
                let formats = match asked.kv {
                    KvFormat::F32 => &[KvFormat::F16, KvFormat::Q8_0][..],
                    KvFormat::F16 => &[KvFormat::Q8_0][..],
                    KvFormat::Q8_0 => &[],
                };
                let count = formats.iter().filter(|&&f| q8_0 || f != KvFormat::Q8_0).count();
                steps(count, &|sizes, step| sizes.kv = formats[step])
            }
            Give::Sequences => {
                steps(asked.sequences - 1, &|sizes, step| sizes.sequences = asked.sequences - 1 - step)
            }
            Give::Chunk => {
                // Halves, down to what a window needs anyway.
                let halves = |step: usize| asked.batch_rows_max >> (step + 1);
                let count =
                    (0..usize::BITS as usize - 1).take_while(|&s| halves(s) >= WINDOW_ROWS_MAX).count();
                steps(count, &|sizes, step| {
                    sizes.batch_rows_max = halves(step);
                    sizes.logits_rows_max = asked.logits_rows_max.min(sizes.batch_rows_max);
                })
            }
        }
    }

    /// Takes this one value from `from`.
    fn copy(self, to: &mut StageSizes, from: &StageSizes) {
        match self {
            Give::Context => to.context = from.context,
            Give::Kv => to.kv = from.kv,
            Give::Sequences => to.sequences = from.sequences,
            Give::Chunk => {
                to.batch_rows_max = from.batch_rows_max;
                to.logits_rows_max = from.logits_rows_max;
            }
        }
    }
}

/// The nearest sizes to `asked`, which do not fit, that do; `q8_0` tells whether the heads allow that format.
pub(super) fn nearest(
    asked: &StageSizes,
    q8_0: bool,
    fits: impl Fn(&StageSizes) -> bool,
) -> Option<StageSizes> {
    let choices: Vec<Vec<StageSizes>> = GIVE_UP.iter().map(|give| give.smaller(asked, q8_0)).collect();
    let mut sets: Vec<Vec<usize>> = (1u32..1 << GIVE_UP.len())
        .map(|set| (0..GIVE_UP.len()).filter(|&g| set >> g & 1 == 1).collect())
        .collect();
    sets.sort_by_key(|set| (set.len(), set.clone()));
    for set in sets {
        let mut sizes = *asked;
        for &give in &set {
            match choices[give].last() {
                Some(least) => GIVE_UP[give].copy(&mut sizes, least),
                None => break,
            }
        }
        if set.iter().any(|&give| choices[give].is_empty()) || !fits(&sizes) {
            continue;
        }
        for &give in &set {
            let with = |choice: &StageSizes| {
                let mut with = sizes;
                GIVE_UP[give].copy(&mut with, choice);
                with
            };
            // The last choice fits, so the first that fits is there.
            let at = choices[give].partition_point(|choice| !fits(&with(choice)));
            sizes = with(&choices[give][at]);
        }
        return Some(sizes);
    }
    None
}

/// The flags that turn `asked` into `sizes`.
pub(super) fn flags(asked: &StageSizes, sizes: &StageSizes) -> String {
    let number = |flag: &str, before: usize, now: usize| (before != now).then(|| format!("{flag} {now}"));
    let changed = [
        number("--ctx", asked.context, sizes.context),
        (asked.kv != sizes.kv).then(|| format!("--kv {}", sizes.kv.name())),
        number("--sequences", asked.sequences, sizes.sequences),
        number("--chunk", asked.batch_rows_max, sizes.batch_rows_max),
    ];
    changed.into_iter().flatten().collect::<Vec<_>>().join(" ")
}
