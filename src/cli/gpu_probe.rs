//! How fast a GPU runs models: two with random weights, a narrow and a wide one, each on the card alone.
//!
//! A decode row takes a time for each op and one for the bytes that it reads. The narrow model has many ops and few
//! bytes, the wide one few ops and many bytes: two times, two unknowns. A chunk of the wide model gives the rate of
//! prompt products. Times are those of the card's own stamps, in the best of a few samples.
//! Invariant: the models are gone when the measurement ends. Does not know: where rates are kept.

use std::io::BufWriter;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

use super::bench::median;
use super::gpu_rates::Unwatched;
use super::{interrupt, synth};
use crate::device::batch::{Batch, BatchId, BatchRow, PageTables, RowWants};
use crate::device::cuda::card::CudaCard;
use crate::device::cuda::exec::CudaExec;
use crate::device::cuda::kernels::KernelSettings;
use crate::device::cuda::listing::Listing;
use crate::device::{StageExec, StageSettings};
use crate::gguf::File;
use crate::model::arch;
use crate::model::facts::{Activations, CardFacts, KvFormat, PageId, RateSource, StageProgram, StateId};
use crate::model::footprint::{Footprint, LayerFootprint, StageSizes};
use crate::model::synth::{Changes, Geometry};

/// What the planner counts with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct CardSpeed {
    /// As in [`CardFacts`].
    pub(super) decode_bytes_per_s: f64,
    /// As in [`CardFacts`].
    pub(super) decode_op_us: f64,
    /// As in [`CardFacts`].
    pub(super) prompt_macs_per_s: f64,
}

/// Values of a row, and layers.
const NARROW: (usize, usize) = (256, 8);

/// Layers of the wide model: so that one is out of the cache when it is read again.
const WIDE_LAYERS: usize = 2;

/// Widths of a row of the wide model, the widest first, and seconds that its weights may take to be read: a slow card
/// gets a narrower one.
const WIDE_WIDTHS: [usize; 4] = [4096, 2048, 1024, 256];
const READ_SECONDS_MAX: f64 = 1e-3;

/// Rows of a chunk, and seconds that they may take, counted before they are measured.
const CHUNK_ROWS: usize = 512;
const CHUNK_SECONDS_MAX: f64 = 8e-3;

/// The first runs warm up; then there are samples of so many runs, and time for all of them.
const WARM_UP: u32 = 3;
const SAMPLES: u32 = 5;
const RUNS_MIN: usize = 3;
const RUNS_MAX: usize = 15;
const RUNS_TIME: Duration = Duration::from_secs(1);

/// A model on the card.
struct Probe {
    exec: CudaExec,
    tables: PageTables,
    ops: f64,
    read_bytes: f64,
    macs: f64,
    // Its ledger's memory is that of `exec`.
    _card: CudaCard,
}

/// Measures card `number`.
pub(super) fn speed(
    listing: &Listing,
    number: usize,
    settings: &KernelSettings,
) -> anyhow::Result<CardSpeed> {
    let listed = &listing.cards[number];
    let wide_bytes = |width: &usize| bytes_read(*width, WIDE_LAYERS);
    let readable = |width: &usize| wide_bytes(width) <= READ_SECONDS_MAX * listed.decode_bytes_per_s();
    let width = WIDE_WIDTHS.into_iter().find(readable).unwrap_or(NARROW.0);
    let decode =
        |probe: &mut Probe| -> anyhow::Result<_> { Ok([probe.ops, probe.read_bytes, probe.decode_us()?]) };
    let narrow = decode(&mut Probe::open(listing, number, settings, NARROW)?)?;
    let mut probe = Probe::open(listing, number, settings, (width, WIDE_LAYERS))?;
    let wide = decode(&mut probe)?;
    let (decode_op_us, us_per_byte) = unknowns(narrow, wide).unwrap_or_else(|| {
        // Launches so slow that bytes do not show.
        let us_per_byte = 1e6 / listed.decode_bytes_per_s();
        (((narrow[2] - narrow[1] * us_per_byte) / narrow[0]).max(0.0), us_per_byte)
    });
    let rows = (CHUNK_SECONDS_MAX * listed.prompt_macs_per_s() / probe.macs) as usize;
    let prompt_us = probe.prompt_us(rows.clamp(16, CHUNK_ROWS))?;
    Ok(CardSpeed {
        decode_bytes_per_s: 1e6 / us_per_byte,
        decode_op_us,
        prompt_macs_per_s: probe.macs * 1e6 / prompt_us,
    })
}

/// `(x, y)` of two equations `a x + b y = c`, each given as `[a, b, c]`; `x` is at least 0. `None` where `y` is not
/// above 0.
fn unknowns(narrow: [f64; 3], wide: [f64; 3]) -> Option<(f64, f64)> {
    let determinant = narrow[0] * wide[1] - wide[0] * narrow[1];
    let x = ((narrow[2] * wide[1] - wide[2] * narrow[1]) / determinant).max(0.0);
    let y = (wide[2] - wide[0] * x) / wide[1];
    (x.is_finite() && y > 0.0 && y.is_finite()).then_some((x, y))
}

/// Weights that a row reads, about.
fn bytes_read(width: usize, layers: usize) -> f64 {
    let blueprint = Geometry::probe(width, layers).blueprint(&Changes::default());
    blueprint.map_or(f64::MAX, |b| b.tensor_bytes() as f64)
}

impl Probe {
    fn open(
        listing: &Listing,
        number: usize,
        settings: &KernelSettings,
        (width, layers): (usize, usize),
    ) -> anyhow::Result<Probe> {
        let listed = &listing.cards[number];
        let vendor = listing.driver.vendor();
        let card = vendor.card(number);
        let (kind, name) = (card.kind, card.to_string());
        let blueprint = Geometry::probe(width, layers).blueprint(&Changes::default())?;
        let mut made = tempfile::Builder::new().prefix("tandem-probe-").suffix(".gguf").tempfile()?;
        let _made = interrupt::Unfinished::new(made.path());
        synth::write(&blueprint, 1, &mut BufWriter::new(made.as_file_mut()))
            .context("a model to measure with, in the folder for temporary files")?;
        let file = File::open(made.path())?;
        let program = Arc::new(arch::program(&file)?);
        let sizes = StageSizes {
            kv: KvFormat::F16,
            context: CHUNK_ROWS,
            sequences: 1,
            batch_rows_max: CHUNK_ROWS,
            logits_rows_max: 1,
            link_slots: 0,
            link_side_slots: 0,
            link_card_slots: 0,
        };
        let footprint = Footprint::of(&program, Activations::Int8);
        let items = footprint.stage_items(kind, 0..layers, &sizes);
        let facts = CardFacts {
            id: card,
            kind,
            name: name.clone(),
            memory_bytes: items.iter().map(|item| item.bytes).sum(),
            driver_bytes: 0,
            addable_bytes: u64::MAX,
            decode_bytes_per_s: listed.decode_bytes_per_s(),
            decode_op_us: 0.0,
            prompt_macs_per_s: listed.prompt_macs_per_s(),
            rates: RateSource::Typical,
        };
        if let Ok(free) = &listed.usable
            && *free < facts.memory_bytes
        {
            bail!("{name}: {free} B are free, and the measurement needs {} B", facts.memory_bytes);
        }
        let mut card = CudaCard::open(facts, &listed.device, settings)?;
        let stage = StageProgram { program, layers: 0..layers };
        let settings = StageSettings {
            activations: Activations::Int8,
            kv: sizes.kv,
            kv_pages: sizes.kv_pages(),
            batch_rows_max: sizes.batch_rows_max,
            logits_rows_max: sizes.logits_rows_max,
            context: sizes.context,
        };
        let exec = card.stage(&stage, &file, &settings, &Unwatched)?;
        let pages = (0..sizes.kv_pages() as u32).map(PageId).collect();
        let sum = |of: &dyn Fn(&LayerFootprint) -> f64| footprint.layers.iter().map(of).sum();
        Ok(Probe {
            exec,
            tables: PageTables { states: vec![pages] },
            ops: sum(&|layer| layer.ops as f64),
            read_bytes: sum(&|layer| layer.read_bytes_per_row.on(kind) as f64),
            macs: sum(&|layer| layer.macs_per_row as f64),
            _card: card,
        })
    }

    /// Microseconds of a decode row without its head.
    fn decode_us(&mut self) -> anyhow::Result<f64> {
        self.best_us(|run| run..run + 1)
    }

    /// Microseconds of a row of a chunk.
    fn prompt_us(&mut self, rows: usize) -> anyhow::Result<f64> {
        Ok(self.best_us(|_| 0..rows as u32)? / rows as f64)
    }

    /// Microseconds of a run in the best of a few samples, which is the least disturbed.
    fn best_us(&mut self, positions: impl Fn(u32) -> std::ops::Range<u32>) -> anyhow::Result<f64> {
        let mut number = 0;
        let mut run = || {
            number += 1;
            self.run_us(number, positions(number - 1))
        };
        for _ in 0..WARM_UP {
            run()?;
        }
        best(RUNS_TIME, run)
    }

    fn run_us(&mut self, number: u32, positions: std::ops::Range<u32>) -> anyhow::Result<f64> {
        if interrupt::happened() {
            bail!("interrupted");
        }
        let row = |position| BatchRow {
            state: StateId(0),
            position,
            token: position % 512,
            wants: RowWants::Nothing,
        };
        let batch = Batch::new(BatchId(u64::from(number)), positions.map(row).collect());
        let stamp = self.exec.run(&batch, &self.tables, &[], &mut [])?;
        let ns = stamp.card.and_then(|card| card.ended_ns.checked_sub(card.begun_ns));
        let ns = ns.context("the card's stamps do not rise; its rates cannot be measured")?;
        Ok(ns as f64 / 1e3)
    }
}

/// The least of the samples, each the median of its runs; what takes long has fewer runs, then fewer samples.
fn best(time: Duration, mut run: impl FnMut() -> anyhow::Result<f64>) -> anyhow::Result<f64> {
    let (begun, mut best) = (Instant::now(), f64::MAX);
    for sample in 0..SAMPLES {
        let is_late = || begun.elapsed() >= time * (sample + 1) / SAMPLES;
        if sample > 0 && begun.elapsed() >= time {
            break;
        }
        let mut times = Vec::new();
        while times.len() < RUNS_MIN || (times.len() < RUNS_MAX && !is_late()) {
            times.push(run()?);
        }
        best = best.min(median(times.into_iter()));
    }
    Ok(best)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_sample_counts_by_its_median() {
        // Runs of one sample were disturbed, and so was one run of each other sample; one run was too fast to be true.
        let mut runs = 0;
        let quick = best(Duration::from_secs(3600), || {
            runs += 1;
            Ok(match (runs / RUNS_MAX, runs % RUNS_MAX) {
                (0, _) => 90.0,
                (2, 3) => 1.0,
                (_, 7) => 500.0,
                (sample, _) => 50.0 - sample as f64,
            })
        });
        assert_eq!((quick.unwrap(), runs), (46.0, RUNS_MAX * SAMPLES as usize));
        let mut runs = 0;
        let slow = best(Duration::ZERO, || {
            runs += 1;
            Ok(runs as f64)
        });
        assert_eq!((slow.unwrap(), runs), (2.0, RUNS_MIN));
        assert!(best(RUNS_TIME, || bail!("interrupted")).is_err());
    }

    #[test]
    fn two_times_give_the_time_of_an_op_and_of_a_byte() {
        let time = |ops: f64, bytes: f64| [ops, bytes, 1.5 * ops + 0.25 * bytes];
        let (op, byte) = unknowns(time(256.0, 10.0), time(32.0, 4000.0)).unwrap();
        assert!((op - 1.5).abs() < 1e-9 && (byte - 0.25).abs() < 1e-9, "{op} {byte}");
        // Noise makes no op faster than nothing, and no rate from nothing.
        assert_eq!(unknowns([256.0, 10.0, 1.0], [32.0, 4000.0, 1000.0]).unwrap().0, 0.0);
        assert_eq!(unknowns([256.0, 10.0, 400.0], [32.0, 4000.0, 1.0]), None);
    }
}
