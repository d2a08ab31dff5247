//! What `devices --measure` finds of CUDA cards and of the links between them, and what the planner takes from it.
//!
//! Invariant: rates belong to the very cards that were measured, by number and name; of other cards none is believed.

use std::collections::BTreeSet;
use std::io::Write;

use anyhow::bail;
use serde::{Deserialize, Serialize};

use super::devices::cache_folder;
use super::interrupt;
use crate::device::cuda::driver::Context;
use crate::device::cuda::kernels::{KernelSettings, Kernels, Machine, Place};
use crate::device::cuda::links::measure::{self, LinkReach, Measured};
use crate::device::cuda::links::side::LinkKernels;
use crate::device::cuda::listing::Listing;
use crate::device::cuda::source::LINKS;
use crate::device::{CardError, LoadProgress};
use crate::model::facts::{CardId, LinkKind, LinkRate};

/// All that was measured of CUDA cards.
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
    /// All numbers that a planner might divide by.
    pub(super) fn numbers(&self) -> impl Iterator<Item = f64> {
        let cards = self.cards.iter().flat_map(|c| [c.copy_bytes_per_s, c.upload_bytes_per_s]);
        cards.chain(self.links.iter().flat_map(|l| [l.latency_us, l.bytes_per_s, l.window_us]))
    }

    /// What a copy inside a card reads and writes, by the name that `--gpus` gives it and its maker's.
    pub(super) fn copy_bytes_per_s(&self, card: &str, device: &str) -> Option<f64> {
        let measured = self.cards.iter().find(|c| format!("cuda:{}", c.number) == card && c.name == device);
        measured.map(|c| c.copy_bytes_per_s)
    }

    /// The rate of a link between cards of these numbers, if they are the cards that were measured.
    pub(super) fn link(
        &self,
        listing: &Listing,
        (from, to): (usize, usize),
        kind: LinkKind,
    ) -> Option<LinkRate> {
        let is_the_same = |number: usize| {
            let measured = self.cards.iter().find(|card| card.number == number);
            measured.is_some_and(|m| listing.cards.get(number).is_some_and(|c| c.device.name == m.name))
        };
        let link = self.links.iter().find(|l| (l.from, l.to, l.kind) == (from, to, kind))?;
        let rate = LinkRate { latency_us: link.latency_us, bytes_per_s: link.bytes_per_s };
        (is_the_same(from) && is_the_same(to)).then_some(rate)
    }

    /// For people.
    pub(super) fn write(&self, out: &mut dyn Write) -> std::io::Result<()> {
        for card in &self.cards {
            writeln!(
                out,
                "       measured (cuda:{}): copy inside the card {:.0} GB/s read and written, from the host {:.1} GB/s",
                card.number,
                card.copy_bytes_per_s / 1e9,
                card.upload_bytes_per_s / 1e9
            )?;
        }
        for link in &self.links {
            writeln!(
                out,
                "       measured (cuda:{} to cuda:{}, {}): hand-off {:.1} us and {:.1} GB/s; 8 rows of 10,240 values {:.1} us",
                link.from,
                link.to,
                link.kind.name(),
                link.latency_us,
                link.bytes_per_s / 1e9,
                link.window_us
            )?;
        }
        Ok(())
    }
}

/// Nobody watches the few kernels of links being compiled.
struct Unwatched;

impl LoadProgress for Unwatched {
    fn compiled(&self, _: CardId, _: usize, _: usize) -> Result<(), CardError> {
        Ok(())
    }

    fn arrived(&self, _: u64) -> Result<(), CardError> {
        Ok(())
    }
}

/// Measures every usable card, and every ordered pair of them over each kind of link.
pub(super) fn measure(listing: &Listing, settings: &KernelSettings) -> anyhow::Result<GpuRates> {
    let mut cards = Vec::new();
    for (number, listed) in listing.cards.iter().enumerate().filter(|(_, card)| card.usable.is_ok()) {
        let card = CardId(number as u32);
        let context = Context::open(&listed.device).map_err(|e| e.on(card))?;
        let machine = Machine { capability: listed.device.capability, driver: listing.driver.version() };
        let place = Place { card, context: &context, machine, progress: &Unwatched };
        let kernels = Kernels::load(place, settings, &[&LINKS], &BTreeSet::new())?;
        let kernels = LinkKernels::new(&kernels).map_err(|e| e.on(card))?;
        cards.push((number, listed.device.name.clone(), Measured { card, context, kernels }));
    }
    let step = |what: String| {
        if interrupt::happened() {
            bail!("interrupted");
        }
        Ok(writeln!(std::io::stderr(), "measuring {what}")?)
    };
    let mut rates = GpuRates::default();
    for (number, name, card) in &cards {
        step(format!("cuda:{number}: copies"))?;
        rates.cards.push(GpuCard {
            number: *number,
            name: name.clone(),
            copy_bytes_per_s: card.copy_bytes_per_s()?,
            upload_bytes_per_s: card.upload_bytes_per_s()?,
        });
    }
    for (from, _, near) in &cards {
        for (to, _, far) in cards.iter().filter(|(to, _, _)| to != from) {
            for kind in [LinkKind::Peer, LinkKind::Mapped, LinkKind::Staged] {
                step(format!("cuda:{from} to cuda:{to}: {}", kind.name()))?;
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
                        tracing::warn!("cuda:{from} to cuda:{to}: no {} link: {what}", kind.name());
                    }
                }
            }
        }
    }
    Ok(rates)
}

/// Where kernels come from for the named compiler.
pub(super) fn kernel_settings(nvrtc: Option<&std::path::Path>) -> KernelSettings {
    KernelSettings {
        nvrtc: nvrtc.map(ToOwned::to_owned),
        cache: cache_folder().map(|folder| folder.join("kernels")),
    }
}
