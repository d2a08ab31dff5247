//! `tandem devices`: the cards of this computer, and their measured rates for the planner.
//!
//! Invariant: the file of rates is replaced whole or not at all; one that cannot be read is as good as none.

use std::fs;
use std::io::{BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use serde::{Deserialize, Serialize};

use super::args::DevicesArgs;
use super::bench::median;
use super::gpu_rates::{self, GpuRates};
use super::interrupt;
use super::out_file::{Models, OutFile};
use super::streams::{output, tell};
use crate::device::batch::BatchId;
use crate::device::cpu::simd::tier::Tier;
use crate::device::cpu::{machine, measure};
use crate::device::cuda::CudaError;
use crate::device::cuda::listing::{self, Listed, Listing};
use crate::device::cuda::vendor::{Architecture, Vendor};
use crate::device::threads;
use crate::model::facts::{CardRates, LinkKind, RateSource, StageId};
use crate::split::budget::format_bytes;
use crate::transport::wait::{Cancel, Patience, Wait};
use crate::transport::{LinkEnds, LinkError, LinkSpec};

/// Of the file of rates; other versions are ignored.
const VERSION: u64 = 5;

/// Rates of a file that are believed: bytes, multiply-adds or microseconds.
const RATE_MIN: f64 = 1e-6;
const RATE_MAX: f64 = 1e18;

/// Bytes of such a file, at most, read and written: 16 cards of each maker, every one linked to all others of its maker in
/// three ways, take 0.4 MB.
const FILE_MAX: usize = 1 << 20;

/// Samples of each measurement, of which the median is kept.
const SAMPLES: usize = 5;

/// The largest sample above the smallest, from which on the computer is taken for busy.
const SPREAD_MAX: f64 = 1.5;

/// Hand-offs of a sample of the latency measurement, there and back.
const HAND_OFFS: u64 = 4_000;

/// Batches of a sample of the bandwidth measurement: of a prompt chunk's rows.
const CHUNKS: u64 = 40;

/// Rows of such a batch.
const CHUNK_ROWS: usize = 512;

/// Values of a row, as in a small model.
const ROW_VALUES: usize = 576;

/// What `--measure` found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Rates {
    version: u64,
    cpu: String,
    tier: String,
    copy_bytes_per_s: f64,
    /// Of one thread.
    decode_bytes_per_s: f64,
    /// Of all CPUs at once.
    decode_bytes_per_s_all: f64,
    /// Of one thread.
    prompt_macs_per_s: f64,
    /// Of a local link between two threads, for a row of 2,304 bytes. Shown only: the planner counts links between
    /// virtual cards as free.
    link_latency_us: f64,
    /// Of the same link for the rows of a prompt chunk, written by one thread and read by the other. Shown only.
    link_bytes_per_s: f64,
    /// Of CUDA cards and of the links between them.
    gpus: GpuRates,
    /// Of AMD cards and of the links between them.
    hip: GpuRates,
}

impl Rates {
    /// From the text of a file. `Ok(None)`: of another version, or of another processor.
    fn parse(text: &str, cpu: &str) -> Result<Option<Rates>, String> {
        let document: serde_json::Value = serde_json::from_str(text).map_err(|e| e.to_string())?;
        let version = document.get("version").and_then(serde_json::Value::as_u64);
        match version {
            None => return Err("it names no version".to_owned()),
            Some(version) if version != VERSION => return Ok(None),
            Some(_) => {}
        }
        let rates: Rates = serde_json::from_value(document).map_err(|e| e.to_string())?;
        if !rates.are_possible() {
            return Err("a rate in it is not one that a computer has".to_owned());
        }
        Ok((rates.cpu == cpu).then_some(rates))
    }

    /// Whether a computer can have them. The planner divides by all but the times of ops.
    fn are_possible(&self) -> bool {
        let all = [
            self.copy_bytes_per_s,
            self.decode_bytes_per_s,
            self.decode_bytes_per_s_all,
            self.prompt_macs_per_s,
            self.link_latency_us,
            self.link_bytes_per_s,
        ];
        let mut divided_by = all.into_iter().chain(self.gpus.numbers()).chain(self.hip.numbers());
        let mut added = self.gpus.op_times().chain(self.hip.op_times());
        divided_by.all(|rate| (RATE_MIN..RATE_MAX).contains(&rate))
            && added.all(|us| (0.0..RATE_MAX).contains(&us))
    }
}

/// Where the program keeps what it can make again.
pub(super) fn cache_folder() -> Option<PathBuf> {
    let home = std::env::home_dir().filter(|home| home.is_absolute());
    home.map(|home| home.join(".cache").join("tandem"))
}

fn rates_path() -> Option<PathBuf> {
    cache_folder().map(|folder| folder.join("devices.json"))
}

/// Rates of a virtual card that computes on `threads` CPUs (a part of one where several cards share it) with these
/// instructions: measured on this processor, or typical ones.
pub(super) fn card_rates(tier: Tier, threads: f64) -> CardRates {
    let measured = measured_rates().filter(|rates| rates.tier == tier.name());
    let (one, memory_bytes_per_s) = match measured {
        Some(Rates { decode_bytes_per_s, decode_bytes_per_s_all, prompt_macs_per_s, .. }) => {
            let source = RateSource::Measured;
            (CardRates { decode_bytes_per_s, prompt_macs_per_s, source }, decode_bytes_per_s_all)
        }
        None => (measure::typical(tier), measure::TYPICAL_MEMORY_BYTES_PER_S),
    };
    CardRates {
        decode_bytes_per_s: (one.decode_bytes_per_s * threads).min(memory_bytes_per_s),
        prompt_macs_per_s: one.prompt_macs_per_s * threads,
        source: one.source,
    }
}

/// Rates of a maker's cards and their links, measured earlier.
pub(super) fn gpu_rates(vendor: Vendor) -> GpuRates {
    measured_rates().map(|rates| vendor.one_of(rates.gpus, rates.hip)).unwrap_or_default()
}

/// Rates measured earlier on this processor. The file is read, and complained about, once.
fn measured_rates() -> Option<Rates> {
    static READ: OnceLock<Option<Rates>> = OnceLock::new();
    let read = || {
        let path = rates_path()?;
        read_rates(&path, &machine::cpu_name()).unwrap_or_else(|what| {
            tracing::warn!(
                "{}: {what}; rates are ignored, run `tandem devices --measure` again",
                path.display()
            );
            None
        })
    };
    READ.get_or_init(read).clone()
}

fn read_rates(path: &Path, cpu: &str) -> Result<Option<Rates>, String> {
    // Not a pipe that nobody writes to, and nothing large.
    let text = match fs::metadata(path) {
        Ok(found) if !found.is_file() || found.len() > FILE_MAX as u64 => Err(ErrorKind::InvalidData.into()),
        Ok(_) => fs::read_to_string(path),
        Err(error) => Err(error),
    };
    match text {
        Ok(text) => Rates::parse(&text, cpu),
        // A home that is no folder holds no file either.
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
        Err(error) => Err(error.to_string()),
    }
}

/// Runs the command. Rates that cannot be kept are shown before the error says so.
pub(super) fn run(args: &DevicesArgs) -> anyhow::Result<()> {
    args.compilers.check()?;
    let listings = Vendor::ALL.map(|v| (v, listing::list(v, args.compilers.of(v), None)));
    let (rates, kept) = if args.measure {
        let mut rates = measure_all()?;
        for (vendor, listing) in &listings {
            let Ok(listing) = listing else { continue };
            let _watched = interrupt::looks();
            let measured = gpu_rates::measure(listing, &args.compilers.kernel_settings());
            *vendor.one_of(&mut rates.gpus, &mut rates.hip) =
                measured.with_context(|| format!("the rates of {}", vendor.cards()))?;
        }
        let kept = rates_path().context("no home folder to keep the rates in; set one for this user");
        let kept = kept.and_then(|path| keep(&path, &rates));
        (Some(rates), kept)
    } else {
        (measured_rates(), Ok(()))
    };
    let mut out = BufWriter::new(output());
    report(&mut out, args.json, rates.as_ref(), &listings)?;
    out.flush()?;
    kept
}

fn report(
    out: &mut dyn Write,
    is_json: bool,
    rates: Option<&Rates>,
    listings: &[(Vendor, Result<Listing, CudaError>)],
) -> anyhow::Result<()> {
    let (cpu, cpus, memory) = (machine::cpu_name(), machine::allowed_cpus(), machine::available_bytes());
    let tiers: Vec<&str> = Tier::available().iter().map(|t| t.name()).collect();
    if is_json {
        let mut report = serde_json::json!({
            "cpu": { "name": cpu, "cpus": cpus, "available_bytes": memory, "tiers": tiers, "usable": true },
        });
        for (vendor, listing) in listings {
            report[vendor.prefix()] = gpus_json(*vendor, listing);
        }
        report["rates"] = serde_json::json!(rates);
        writeln!(out, "{report}")?;
        return Ok(());
    }
    writeln!(out, "cpu:N  virtual cards: {cpu}, {cpus} CPUs, {} available", format_bytes(memory))?;
    writeln!(out, "       instructions: {} (best last)", tiers.join(", "))?;
    match rates {
        Some(r) => {
            writeln!(
                out,
                "       measured ({}, one thread): copy {:.1} GB/s, decode {:.1} GB/s (all CPUs {:.1}), prompt {:.0} G \
                 multiply-adds/s",
                r.tier,
                r.copy_bytes_per_s / 1e9,
                r.decode_bytes_per_s / 1e9,
                r.decode_bytes_per_s_all / 1e9,
                r.prompt_macs_per_s / 1e9,
            )?;
            let (us, rate) = (r.link_latency_us, r.link_bytes_per_s / 1e9);
            writeln!(
                out,
                "       measured between two threads: hand-off {us:.2} us, {rate:.1} GB/s (plans count these links as free)"
            )?;
        }
        None => {
            writeln!(out, "       not measured: `tandem devices --measure` gives the planner real rates")?;
        }
    }
    listings.iter().try_for_each(|(vendor, listing)| {
        let rates = rates.map(|rates| vendor.one_of(&rates.gpus, &rates.hip));
        gpus_text(out, *vendor, listing, rates)
    })
}

/// Why no card of a maker's can be used; `None` where one can.
fn no_gpu(vendor: Vendor, listing: &Result<Listing, CudaError>) -> Option<String> {
    match listing {
        Err(error) => Some(error.to_string()),
        Ok(listing) if listing.cards.iter().any(|card| card.usable.is_ok()) => None,
        Ok(listing) => match listing.cards.first().map(|card| &card.usable) {
            Some(Err(reason)) => Some(reason.clone()),
            _ => Some(format!("the driver shows no card; check {}", vendor.looks())),
        },
    }
}

fn pci((domain, bus, device): (i32, i32, i32)) -> String {
    format!("{domain:04x}:{bus:02x}:{device:02x}")
}

fn gpus_json(vendor: Vendor, listing: &Result<Listing, CudaError>) -> serde_json::Value {
    let reason = no_gpu(vendor, listing);
    let mut json = serde_json::json!({ "usable": reason.is_none() });
    if let Some(reason) = reason {
        json["reason"] = reason.into();
    }
    let Ok(listing) = listing else { return json };
    let version = |(major, minor): (i32, i32)| format!("{major}.{minor}");
    json["driver"] = version(listing.driver.version()).into();
    json["library"] = listing.driver.place().into();
    json[vendor.compiler().to_ascii_lowercase()] = match &listing.compiler {
        Ok((found, place)) => serde_json::json!({ "version": version(*found), "file": place }),
        Err(error) => serde_json::json!({ "reason": error.to_string() }),
    };
    let card = |(number, card): (usize, &Listed)| {
        let mut json = serde_json::json!({
            "number": number,
            "name": card.device.name,
            "pci": pci(card.device.pci),
            "memory_bytes": card.device.memory_bytes,
            "usable": card.usable.is_ok(),
        });
        match &card.device.architecture {
            Ok(Architecture::Capability(major, minor)) => {
                json["compute_capability"] = version((*major, *minor)).into();
            }
            Ok(Architecture::Gfx(gfx)) => {
                json["architecture"] = gfx.to_string().into();
                json["what_runs"] = gfx.what_runs().into();
            }
            Err(_) => {}
        }
        match &card.usable {
            Ok(free_bytes) => json["free_bytes"] = (*free_bytes).into(),
            Err(reason) => json["reason"] = reason.clone().into(),
        }
        json
    };
    json["cards"] = listing.cards.iter().enumerate().map(card).collect();
    json
}

fn gpus_text(
    out: &mut dyn Write,
    vendor: Vendor,
    listing: &Result<Listing, CudaError>,
    rates: Option<&GpuRates>,
) -> anyhow::Result<()> {
    let prefix = vendor.prefix();
    let Some(listing) = listing.as_ref().ok().filter(|l| !l.cards.is_empty()) else {
        writeln!(out, "{prefix:6} not usable: {}", no_gpu(vendor, listing).unwrap_or_default())?;
        return Ok(());
    };
    for (number, card) in listing.cards.iter().enumerate() {
        let device = &card.device;
        let architecture =
            device.architecture.as_ref().map_or("unknown architecture".to_owned(), |a| a.to_string());
        writeln!(
            out,
            "{:6} {}, {architecture}, {}, PCI {}",
            vendor.card(number).to_string(),
            device.name,
            format_bytes(device.memory_bytes),
            pci(device.pci)
        )?;
        match &card.usable {
            Ok(free_bytes) => writeln!(
                out,
                "       {} free; use it with --gpus {}",
                format_bytes(*free_bytes),
                vendor.flag(number)
            )?,
            Err(reason) => writeln!(out, "       not usable: {reason}")?,
        }
        if let (Ok(Architecture::Gfx(gfx)), Ok(_)) = (&device.architecture, &card.usable) {
            writeln!(out, "       {}", gfx.what_runs())?;
        }
        rates.map_or(Ok(()), |rates| rates.write_card(out, listing, number))?;
    }
    rates.map_or(Ok(()), |rates| rates.write_links(out, vendor))?;
    let (major, minor) = listing.driver.version();
    let (maker, compiler) = (vendor.one_of("CUDA", "HIP"), vendor.compiler());
    let driver = format!("driver for {maker} {major}.{minor} ({})", listing.driver.place());
    match &listing.compiler {
        Ok(((a, b), place)) => writeln!(out, "       {driver}, {compiler} {a}.{b} ({place})")?,
        Err(_) => writeln!(out, "       {driver}, no {compiler}")?,
    }
    Ok(())
}

/// Says what it measures on the error stream; Ctrl-C ends it between two measurements.
fn measure_all() -> anyhow::Result<Rates> {
    let _watched = interrupt::looks();
    let tier = Tier::detect();
    let (mut number, mut wide) = (0, Vec::new());
    let mut measured = |what: &str, (unit, scale): (&str, f64), sample: &dyn Fn() -> anyhow::Result<f64>| {
        number += 1;
        tell(format_args!("measuring {number} of 6: {what}"));
        let mut samples = Vec::new();
        for _ in 0..SAMPLES {
            if interrupt::happened() {
                bail!("interrupted");
            }
            samples.push(sample()?);
        }
        wide.extend(
            spread(&samples)
                .map(|(low, high)| format!("{what} {:.2} to {:.2} {unit}", low / scale, high / scale)),
        );
        anyhow::Ok(median(samples.into_iter()))
    };
    let (gb, gmacs, us) = (("GB/s", 1e9), ("G multiply-adds/s", 1e9), ("us", 1.0));
    let copy_bytes_per_s = measured("memory copy", gb, &|| Ok(measure::copy_bytes_per_s()))?;
    let decode_bytes_per_s = measured("decode", gb, &|| Ok(measure::decode_bytes_per_s(tier)))?;
    let cpus = machine::allowed_cpus();
    let all = measured("decode on all CPUs", gb, &|| Ok(measure::decode_bytes_per_s_of(tier, cpus)?))?;
    // Noise must not make all CPUs slower than one.
    let decode_bytes_per_s_all = all.max(decode_bytes_per_s);
    let prompt_macs_per_s = measured("prompt", gmacs, &|| Ok(measure::prompt_macs_per_s(tier)))?;
    let link_latency_us = measured("hand-off between two threads", us, &|| link_latency_us(HAND_OFFS))?;
    let link_bytes_per_s = measured("rows between two threads", gb, &|| link_bytes_per_s(CHUNKS))?;
    if !wide.is_empty() {
        tracing::warn!(
            "measured on a busy computer: {}; medians are kept, measure again while nothing else runs",
            wide.join(", ")
        );
    }
    Ok(Rates {
        version: VERSION,
        cpu: machine::cpu_name(),
        tier: tier.name().to_owned(),
        copy_bytes_per_s,
        decode_bytes_per_s,
        decode_bytes_per_s_all,
        prompt_macs_per_s,
        link_latency_us,
        link_bytes_per_s,
        gpus: GpuRates::default(),
        hip: GpuRates::default(),
    })
}

/// The smallest and the largest, where they are far apart.
fn spread(samples: &[f64]) -> Option<(f64, f64)> {
    let low = samples.iter().copied().fold(f64::MAX, f64::min);
    let high = samples.iter().copied().fold(0.0, f64::max);
    (high > SPREAD_MAX * low).then_some((low, high))
}

/// A reader sees the old rates or the new ones.
fn keep(path: &Path, rates: &Rates) -> anyhow::Result<()> {
    let folder = path.parent().context("the file of rates has no folder")?;
    let advice = "the rates are not kept; make its folder writable";
    fs::create_dir_all(folder).with_context(|| format!("{}: {advice}", path.display()))?;
    let text = serde_json::to_string_pretty(rates)?;
    if text.len() > FILE_MAX {
        bail!(
            "the rates of so many cards take {} B, and a file of {FILE_MAX} B is read; hide some",
            text.len()
        );
    }
    let mut out = OutFile::create(path, &[], Models::Kept).context(advice)?;
    out.write_all(text.as_bytes()).context(advice)?;
    out.finish().context(advice)
}

fn local_link(from: u32, to: u32, rows_max: usize) -> LinkSpec {
    LinkSpec {
        kind: LinkKind::Local,
        ends: LinkEnds { from: StageId(from), to: StageId(to) },
        slots: 2,
        values_per_row: ROW_VALUES,
        rows_max,
    }
}

/// The longest that one hand-off may take before the measurement fails.
const HAND_OFF_LIMIT: Duration = Duration::from_secs(30);

/// Half a round trip of one row between two threads.
fn link_latency_us(hand_offs: u64) -> anyhow::Result<f64> {
    let (mut there, mut there_end) = crate::transport::open(&local_link(0, 1, 1))?;
    let (mut back, mut back_end) = crate::transport::open(&local_link(1, 0, 1))?;
    let cancel = Cancel::new();
    let patience = Patience::for_threads(2, machine::allowed_cpus());
    let wait = || Wait::within(HAND_OFF_LIMIT, patience, &cancel);
    std::thread::scope(|scope| {
        // Each side owns its ends: where one fails, dropping them wakes the other.
        let echo = threads::start(scope, move || -> Result<(), LinkError> {
            for i in 0..hand_offs {
                let values = there_end.take(BatchId(i), &wait())?.host();
                back.slot(&wait())?.host().copy_from_slice(values);
                there_end.release()?;
                back.post(BatchId(i), ROW_VALUES)?;
            }
            Ok(())
        })?;
        let turn = move || -> Result<f64, LinkError> {
            let start = Instant::now();
            for i in 0..hand_offs {
                there.slot(&wait())?.host().fill(i as f32);
                there.post(BatchId(i), ROW_VALUES)?;
                back_end.take(BatchId(i), &wait())?;
                back_end.release()?;
            }
            let us = start.elapsed().as_secs_f64() * 1e6 / (2 * hand_offs) as f64;
            // This takes the ends into the closure's one call, so that a failed call drops them too.
            drop((there, back_end));
            Ok(us)
        };
        let us = turn();
        echo.join().map_err(|_| anyhow::anyhow!("the echoing thread ended early"))??;
        Ok(us?)
    })
}

/// Bytes of rows a second from one thread's memory through a link to another thread that reads them all.
fn link_bytes_per_s(chunks: u64) -> anyhow::Result<f64> {
    let spec = local_link(0, 1, CHUNK_ROWS);
    let (mut sender, mut receiver) = crate::transport::open(&spec)?;
    let rows = vec![1.0f32; spec.slot_values()];
    let cancel = Cancel::new();
    let patience = Patience::for_threads(2, machine::allowed_cpus());
    let wait = || Wait::within(HAND_OFF_LIMIT, patience, &cancel);
    std::thread::scope(|scope| {
        let reader = threads::start(scope, move || -> Result<(), LinkError> {
            let mut own = vec![0.0f32; spec.slot_values()];
            for i in 0..chunks {
                own.copy_from_slice(receiver.take(BatchId(i), &wait())?.host());
                std::hint::black_box(&mut own);
                receiver.release()?;
            }
            Ok(())
        })?;
        let start = Instant::now();
        let write = move || -> Result<(), LinkError> {
            for i in 0..chunks {
                sender.slot(&wait())?.host().copy_from_slice(&rows);
                sender.post(BatchId(i), rows.len())?;
            }
            // As above; an ended link still delivers what was posted.
            drop(sender);
            Ok(())
        };
        let written = write();
        reader.join().map_err(|_| anyhow::anyhow!("the reading thread ended early"))??;
        let seconds = start.elapsed().as_secs_f64();
        written?;
        Ok((chunks * spec.slot_bytes()) as f64 / seconds.max(1e-9))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rates() -> Rates {
        Rates {
            version: VERSION,
            cpu: "a processor".to_owned(),
            tier: "plain".to_owned(),
            copy_bytes_per_s: 1e10,
            decode_bytes_per_s: 2e10,
            decode_bytes_per_s_all: 3e10,
            prompt_macs_per_s: 3e11,
            link_latency_us: 0.25,
            link_bytes_per_s: 4e9,
            gpus: GpuRates::default(),
            hip: GpuRates::default(),
        }
    }

    fn text(change: impl FnOnce(&mut serde_json::Value)) -> String {
        let mut document = serde_json::to_value(rates()).unwrap();
        change(&mut document);
        document.to_string()
    }

    #[test]
    fn rates_are_read_as_they_were_written() {
        assert_eq!(Rates::parse(&text(|_| ()), "a processor"), Ok(Some(rates())));
    }

    #[test]
    fn rates_of_another_version_or_processor_are_ignored() {
        assert_eq!(Rates::parse(&text(|_| ()), "another"), Ok(None));
        assert_eq!(Rates::parse(r#"{"version": 1, "cpu": "a processor"}"#, "a processor"), Ok(None));
    }

    #[test]
    fn damaged_rates_are_errors() {
        let damaged = [
            String::new(),
            "[]".to_owned(),
            text(|d| _ = d.as_object_mut().unwrap().remove("version")),
            text(|d| _ = d.as_object_mut().unwrap().remove("link_bytes_per_s")),
            text(|d| d["decode_bytes_per_s"] = 0.into()),
            text(|d| d["prompt_macs_per_s"] = (-1).into()),
            text(|d| d["copy_bytes_per_s"] = "fast".into()),
        ];
        for text in damaged {
            assert!(Rates::parse(&text, "a processor").is_err(), "{text:?}");
        }
    }

    #[test]
    fn the_time_of_an_op_may_be_nothing_and_not_less() {
        let with = |us: serde_json::Value| {
            let card = serde_json::json!({
                "number": 0, "name": "a card", "copy_bytes_per_s": 1e12, "upload_bytes_per_s": 1e10,
                "decode_bytes_per_s": 1e12, "decode_op_us": us, "prompt_macs_per_s": 1e14,
            });
            let text = text(|d| d["hip"]["cards"] = serde_json::json!([card]));
            Rates::parse(&text, "a processor").map(|rates| rates.is_some())
        };
        for us in [0.0, 0.5] {
            assert_eq!(with(us.into()), Ok(true), "{us} us");
        }
        // A number that is none is written as null.
        for us in [(-0.5).into(), f64::NAN.into(), f64::INFINITY.into(), 1e20.into()] {
            let error = with(us).unwrap_err();
            assert_eq!(error.lines().count(), 1, "{error}");
        }
    }

    #[test]
    fn kept_rates_replace_older_ones_and_leave_nothing_beside_them() {
        let folder = std::env::temp_dir().join(format!("tandem-rates-{}", std::process::id()));
        let path = folder.join("deep").join("devices.json");
        for copy_bytes_per_s in [1e9, 2e9] {
            let expected = Rates { copy_bytes_per_s, ..rates() };
            keep(&path, &expected).unwrap();
            let read = Rates::parse(&fs::read_to_string(&path).unwrap(), "a processor");
            assert_eq!(read, Ok(Some(expected)));
            assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
        }
        // A folder stands where the file belongs.
        let blocked = folder.join("blocked.json");
        fs::create_dir_all(blocked.join("inner")).unwrap();
        assert!(format!("{:#}", keep(&blocked, &rates()).unwrap_err()).contains("blocked.json"));
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 2);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn samples_that_lie_far_apart_are_named() {
        assert_eq!(spread(&[1.0, 1.4, 1.2]), None);
        assert_eq!(spread(&[2.0, 155.0, 1.36]), Some((1.36, 155.0)));
    }

    #[test]
    fn the_rates_of_16_linked_cards_of_each_maker_are_kept_and_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("devices.json");
        let (gpus, hip) = (GpuRates::linked(16), GpuRates::linked(16));
        let expected = Rates { gpus, hip, ..rates() };
        keep(&path, &expected).unwrap();
        assert_eq!(read_rates(&path, "a processor"), Ok(Some(expected)));
        let more = Rates { gpus: GpuRates::linked(80), ..rates() };
        assert!(keep(&path, &more).unwrap_err().to_string().contains("so many cards"));
        fs::write(&path, vec![b' '; FILE_MAX + 1]).unwrap();
        assert!(read_rates(&path, "a processor").is_err());
    }

    #[test]
    fn links_between_two_threads_are_measured() {
        let (us, rate) = (link_latency_us(50).unwrap(), link_bytes_per_s(5).unwrap());
        assert!(us.is_finite() && us > 0.0, "{us} us");
        assert!(rate.is_finite() && rate > 1e6, "{rate} B/s");
    }
}
