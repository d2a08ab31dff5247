//! What `devices --measure` finds of a maker's GPUs and of the links between them, and what the planner takes from it.
//!
//! Invariant: rates belong to the very cards that were measured, by number and name; of other cards none is believed.

use std::collections::BTreeSet;
use std::io::Write;

use anyhow::bail;
use serde::{Deserialize, Serialize};

use super::gpu_probe::{self, CardSpeed};
use super::interrupt;
use super::streams::tell;
use crate::device::cuda::driver::Context;
use crate::device::cuda::kernels::{KernelSettings, Kernels, Machine, Place};
use crate::device::cuda::links::measure::{self, LinkReach, Measured};
use crate::device::cuda::links::side::LinkKernels;
use crate::device::cuda::listing::Listing;
use crate::device::cuda::source::LINKS;
use crate::device::cuda::vendor::Vendor;
use crate::device::{CardError, LoadProgress};
use crate::model::facts::{CardId, LinkKind, LinkRate};
use crate::split::budget::three_digits;

/// All that was measured of one maker's cards.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct GpuRates {
    cards: Vec<GpuCard>,
    links: Vec<GpuLink>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct GpuCard {
    number: usize,
    name: String,
    /// Read and written by a copy inside its memory.
    copy_bytes_per_s: f64,
    /// From pinned memory.
    upload_bytes_per_s: f64,
    /// As the planner counts, of models.
    decode_bytes_per_s: f64,
    decode_op_us: f64,
    prompt_macs_per_s: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct GpuLink {
    from: usize,
    to: usize,
    kind: LinkKind,
    latency_us: f64,
    bytes_per_s: f64,
    /// A hand-off of a window of 8 rows of 10,240 values.
    window_us: f64,
}

impl GpuRates {
    /// Of so many cards, all linked in every way.
    #[cfg(test)]
    pub(super) fn linked(cards: usize) -> GpuRates {
        let number = |n: usize| (n as f64 + 1.0) * 12_345_678_901.25;
        let card = |n: usize| GpuCard {
            number: n,
            name: "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition".to_owned(),
            copy_bytes_per_s: number(n),
            upload_bytes_per_s: number(n),
            decode_bytes_per_s: number(n),
            decode_op_us: number(n),
            prompt_macs_per_s: number(n),
        };
        let pairs =
            (0..cards).flat_map(|from| (0..cards).filter(move |to| *to != from).map(move |to| (from, to)));
        let link = |(from, to), kind| {
            let (latency_us, bytes_per_s, window_us) = (number(from), number(to), number(from));
            GpuLink { from, to, kind, latency_us, bytes_per_s, window_us }
        };
        let kinds = [LinkKind::Peer, LinkKind::Mapped, LinkKind::Staged];
        GpuRates {
            cards: (0..cards).map(card).collect(),
            links: pairs.flat_map(|pair| kinds.map(|kind| link(pair, kind))).collect(),
        }
    }

    /// All numbers that a planner might divide by.
    pub(super) fn numbers(&self) -> impl Iterator<Item = f64> {
        let rates = |c: &GpuCard| {
            [c.copy_bytes_per_s, c.upload_bytes_per_s, c.decode_bytes_per_s, c.prompt_macs_per_s]
        };
        let cards = self.cards.iter().flat_map(rates);
        cards.chain(self.links.iter().flat_map(|l| [l.latency_us, l.bytes_per_s, l.window_us]))
    }

    /// Microseconds of an op, which may be too short to be measured.
    pub(super) fn op_times(&self) -> impl Iterator<Item = f64> {
        self.cards.iter().map(|card| card.decode_op_us)
    }

    /// What a copy inside a card reads and writes, by its number in `--gpus` and its maker's name.
    pub(super) fn copy_bytes_per_s(&self, number: usize, name: &str) -> Option<f64> {
        let measured = self.cards.iter().find(|c| c.number == number && c.name == name);
        measured.map(|c| c.copy_bytes_per_s)
    }

    /// The rate of a link between cards of these numbers, if they are the cards that were measured.
    pub(super) fn link(
        &self,
        listing: &Listing,
        (from, to): (usize, usize),
        kind: LinkKind,
    ) -> Option<LinkRate> {
        let is_the_same = |number: usize| self.card(listing, number).is_some();
        let link = self.links.iter().find(|l| (l.from, l.to, l.kind) == (from, to, kind))?;
        let rate = LinkRate { latency_us: link.latency_us, bytes_per_s: link.bytes_per_s };
        (is_the_same(from) && is_the_same(to)).then_some(rate)
    }

    /// What was measured of the card of this number, if it is the same card.
    fn card(&self, listing: &Listing, number: usize) -> Option<&GpuCard> {
        let measured = self.cards.iter().find(|card| card.number == number)?;
        (listing.cards.get(number)?.device.name == measured.name).then_some(measured)
    }

    /// What the planner counts with, if it was measured of that card.
    pub(super) fn speed(&self, listing: &Listing, number: usize) -> Option<CardSpeed> {
        let &GpuCard { decode_bytes_per_s, decode_op_us, prompt_macs_per_s, .. } =
            self.card(listing, number)?;
        Some(CardSpeed { decode_bytes_per_s, decode_op_us, prompt_macs_per_s })
    }

    /// What was measured of card `number`, below its own line.
    pub(super) fn write_card(
        &self,
        out: &mut dyn Write,
        listing: &Listing,
        number: usize,
    ) -> std::io::Result<()> {
        if let Some(card) = self.card(listing, number) {
            writeln!(
                out,
                "       measured: copy inside the card {} GB/s read and written, from the host {} GB/s",
                significant(card.copy_bytes_per_s / 1e9),
                significant(card.upload_bytes_per_s / 1e9)
            )?;
            writeln!(
                out,
                "       measured: decode {} GB/s and {} us an op, prompt {} T multiply-adds/s",
                significant(card.decode_bytes_per_s / 1e9),
                significant(card.decode_op_us),
                significant(card.prompt_macs_per_s / 1e12)
            )?;
        }
        Ok(())
    }

    /// What was measured between a maker's cards.
    pub(super) fn write_links(&self, out: &mut dyn Write, vendor: Vendor) -> std::io::Result<()> {
        let card = |number: usize| vendor.card(number);
        for link in &self.links {
            writeln!(
                out,
                "       measured ({} to {}, {}): hand-off {} us and {} GB/s; 8 rows of 10,240 values {} us",
                card(link.from),
                card(link.to),
                link.kind.name(),
                significant(link.latency_us),
                significant(link.bytes_per_s / 1e9),
                significant(link.window_us)
            )?;
        }
        Ok(())
    }
}

/// A rate or a time with three significant digits, also far below 1.
fn significant(value: f64) -> String {
    if value >= 1.0 {
        return three_digits(value);
    }
    let digits = if value > 0.0 { (2.0 - value.log10().floor()).clamp(0.0, 12.0) as usize } else { 0 };
    format!("{value:.digits$}")
}

/// Nobody watches the kernels of a measurement being compiled.
pub(super) struct Unwatched;

impl LoadProgress for Unwatched {
    fn compiled(&self, _: CardId, _: usize, _: usize) -> Result<(), CardError> {
        Ok(())
    }

    fn waits(&self, _: CardId) -> Result<(), CardError> {
        if interrupt::happened() { Err(CardError::Cancelled) } else { Ok(()) }
    }

    fn arrived(&self, _: u64) -> Result<(), CardError> {
        Ok(())
    }
}

/// Measures every usable card, and every ordered pair of them over each kind of link.
pub(super) fn measure(listing: &Listing, settings: &KernelSettings) -> anyhow::Result<GpuRates> {
    let mut cards = Vec::new();
    for (number, listed) in listing.cards.iter().enumerate().filter(|(_, card)| card.usable.is_ok()) {
        let card = listing.driver.vendor().card(number);
        let context = Context::open(&listed.device).map_err(|e| e.on(card))?;
        let machine = Machine::of(&listed.device).map_err(|e| e.on(card))?;
        let place = Place { card, context: &context, machine, progress: &Unwatched };
        let kernels = Kernels::load(place, settings, &[&LINKS], &BTreeSet::new())?;
        let kernels = LinkKernels::new(&kernels).map_err(|e| e.on(card))?;
        cards.push((number, listed.device.name.clone(), Measured { card, context, kernels }));
    }
    let step = |what: String| {
        if interrupt::happened() {
            bail!("interrupted");
        }
        tell(format_args!("measuring {what}"));
        Ok(())
    };
    let (mut rates, vendor) = (GpuRates::default(), listing.driver.vendor());
    for (number, name, card) in &cards {
        let own = vendor.card(*number);
        step(format!("{own}: copies"))?;
        let (copy_bytes_per_s, upload_bytes_per_s) = (card.copy_bytes_per_s()?, card.upload_bytes_per_s()?);
        step(format!("{own}: two small models (the first time, their kernels are compiled)"))?;
        let CardSpeed { decode_bytes_per_s, decode_op_us, prompt_macs_per_s } =
            gpu_probe::speed(listing, *number, settings)?;
        rates.cards.push(GpuCard {
            number: *number,
            name: name.clone(),
            copy_bytes_per_s,
            upload_bytes_per_s,
            decode_bytes_per_s,
            decode_op_us,
            prompt_macs_per_s,
        });
    }
    for (from, _, near) in &cards {
        for (to, _, far) in cards.iter().filter(|(to, _, _)| to != from) {
            let (sender, receiver) = (vendor.card(*from), vendor.card(*to));
            for kind in [LinkKind::Peer, LinkKind::Mapped, LinkKind::Staged] {
                step(format!("{sender} to {receiver}: {}", kind.name()))?;
                match measure::link(near, far, kind)? {
                    Ok(LinkReach { rate, window_us }) => rates.links.push(GpuLink {
                        from: *from,
                        to: *to,
                        kind,
                        latency_us: rate.latency_us,
                        bytes_per_s: rate.bytes_per_s,
                        window_us,
                    }),
                    Err(what) => {
                        tracing::warn!("{sender} to {receiver}: no {} link: {what}", kind.name());
                    }
                }
            }
        }
    }
    Ok(rates)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shown_rates_keep_three_digits() {
        for (value, text) in [
            (0.0, "0"),
            (0.000_123_4, "0.000123"),
            (0.5, "0.500"),
            (1.06, "1.06"),
            (67.2, "67.2"),
            (2430.4, "2430"),
        ] {
            assert_eq!(significant(value), text);
        }
    }
}
