//! Links between the cards of a plan: tries the planned kind, and where it does not pass its test the next one.
//!
//! Invariants: a ring that is used has passed its test; where a kind was asked for by name, nothing else is used; what
//! runs otherwise than planned says why. Does not know: batches, how a card waits.

use std::sync::Arc;
use std::time::Duration;

use super::open::OpenError;
use crate::device::cuda::card::CudaCard;
use crate::device::cuda::driver::Device;
use crate::device::cuda::exec::CudaExec;
use crate::device::cuda::links::pattern;
use crate::device::cuda::links::ring::{RingSize, SlotRing};
use crate::device::{Card, CardError, CardRing};
use crate::model::facts::{CardId, LinkKind};

/// How rows are to travel between cards (`--link`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LinkChoice {
    /// The fastest that passes its test.
    #[default]
    Auto,
    /// Into the next card's memory.
    Peer,
    /// Through host memory that both cards reach.
    Mapped,
    /// Through host memory, with copies.
    Staged,
}

impl LinkChoice {
    /// What is planned between two GPUs; with `Auto` what the driver says is possible. Cards behind two drivers share
    /// nothing but the host.
    pub fn between(
        self,
        (from, from_device): (CardId, &Device),
        (to, to_device): (CardId, &Device),
    ) -> Result<LinkKind, OpenError> {
        let is_shared = from_device.vendor() == to_device.vendor();
        let reaches =
            || from_device.can_reach(to_device).map_err(|error| OpenError::Link { from, to, error });
        if let LinkChoice::Peer | LinkChoice::Mapped = self
            && !is_shared
        {
            let what = format!(
                "--link peer and --link mapped join cards of one maker, not {from} and {to}; use --link auto"
            );
            return Err(OpenError::NoLink { what });
        }
        Ok(match self {
            LinkChoice::Auto if !is_shared => LinkKind::Staged,
            LinkChoice::Auto if reaches()? => LinkKind::Peer,
            LinkChoice::Auto | LinkChoice::Mapped => LinkKind::Mapped,
            LinkChoice::Peer => LinkKind::Peer,
            LinkChoice::Staged => LinkKind::Staged,
        })
    }
}

/// A stage on a GPU.
pub(super) struct CudaStage {
    pub card: CudaCard,
    pub exec: CudaExec,
}

/// What joins two stages.
pub(super) struct Linked {
    /// `None`: host memory.
    pub ring: Option<Arc<dyn CardRing>>,
    pub kind: LinkKind,
    /// Why it is no faster kind.
    pub why: Option<String>,
}

/// Links two neighbouring stages by the planned kind, or, where the choice is free, by the next one that passes.
pub(super) fn link(
    from: &mut CudaStage,
    to: &mut CudaStage,
    planned: LinkKind,
    choice: LinkChoice,
    (size, limit): (RingSize, Duration),
) -> Result<Linked, OpenError> {
    let name = |stage: &CudaStage| stage.card.facts().name.clone();
    let (from_name, to_name) = (name(from), name(to));
    let mut whys = Vec::new();
    if choice == LinkChoice::Auto && planned == LinkKind::Mapped {
        whys.push(format!("no peer link: {from_name} does not reach the memory of {to_name}"));
    }
    for kind in [LinkKind::Peer, LinkKind::Mapped].into_iter().skip_while(|kind| *kind != planned) {
        match ring(from, to, kind, size)? {
            Ok(ring) => {
                let ring = Arc::new(ring);
                from.exec.leave_by(ring.clone());
                to.exec.arrive_by(ring.clone(), from.card.facts().id, limit);
                return Ok(Linked { ring: Some(ring), kind, why: joined(&whys) });
            }
            Err(what) if choice == LinkChoice::Auto => {
                whys.push(format!("no {} link: {what}", kind.name()));
            }
            Err(what) => {
                let flag = format!("--link {}", kind.name());
                let what = format!("{flag}, {from_name} to {to_name}: {what}; use --link auto");
                return Err(OpenError::NoLink { what });
            }
        }
    }
    Ok(Linked { ring: None, kind: LinkKind::Staged, why: joined(&whys) })
}

fn joined(whys: &[String]) -> Option<String> {
    (!whys.is_empty()).then(|| whys.join("; "))
}

/// A ring of that kind that has passed its test; `Ok(Err(..))`: why there is none between cards that are well.
fn ring(
    from: &CudaStage,
    to: &mut CudaStage,
    kind: LinkKind,
    size: RingSize,
) -> Result<Result<SlotRing, String>, CardError> {
    let card = to.card.facts().id;
    if kind == LinkKind::Mapped {
        let ring = SlotRing::mapped(to.card.context(), size).map_err(|e| e.on(card))?;
        return tested(ring, from, to);
    }
    if let Err(error) = from.card.context().reach(to.card.context()) {
        return Ok(Err(error.to_string()));
    }
    let memory = to.card.link_slots(size)?;
    let ring = SlotRing::peer(to.exec.side().stream, memory, size).map_err(|e| e.on(card))?;
    let tested = tested(ring, from, to)?;
    if tested.is_err() {
        to.card.give_back_link_slots(size);
    }
    Ok(tested)
}

fn tested(ring: SlotRing, from: &CudaStage, to: &CudaStage) -> Result<Result<SlotRing, String>, CardError> {
    Ok(pattern::check(&ring, &from.exec.side(), &to.exec.side())?.map(|()| ring))
}
