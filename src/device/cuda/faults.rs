//! Faults on demand: what a driver, its compiler or a card can do wrong, so that what follows can be seen.
//!
//! Invariants: nothing is forced that was not asked for by name; a fault is met before the call in whose place it
//! stands, so that nothing is half done, but behind a wait, since memory must not be freed under a card that works; a
//! card that has failed goes on failing, as does a link. Faults of links are met where rows are handed on.
//! Does not know: handles, batches.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::driver::api::{Status, status};

/// Launches before a card fails in the middle of its work.
const LAUNCHES_BEFORE: u64 = 8;

/// Batches whose rows leave by a link before it stops: more than one prompt chunk and a window.
const POSTS_BEFORE: u64 = 4;

/// Allocations before memory ends.
const ALLOCATIONS_BEFORE: u64 = 1;

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// The second allocation on the card is refused.
    OutOfMemory,
    /// Every call fails after some launches.
    LostCard,
    /// A wait after some launches tells of an access outside memory, as do all calls after it.
    Kernel,
    /// The run-time compiler is missing.
    NoNvrtc,
    /// The driver takes nothing that the run-time compiler makes.
    OldDriver,
    /// What crosses a peer link, to the card or from it, arrives otherwise than it was sent.
    PeerTest,
    /// After some batches no rows leave the card by its link.
    LinkStop,
}

impl FaultKind {
    /// All, by name.
    pub const ALL: [(&'static str, FaultKind); 7] = [
        ("out-of-memory", FaultKind::OutOfMemory),
        ("lost-card", FaultKind::LostCard),
        ("kernel", FaultKind::Kernel),
        ("no-nvrtc", FaultKind::NoNvrtc),
        ("old-driver", FaultKind::OldDriver),
        ("peer-test", FaultKind::PeerTest),
        ("link-stop", FaultKind::LinkStop),
    ];
}

/// A fault and where: `lost-card:1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForcedFault {
    /// What.
    pub kind: FaultKind,
    /// The number of the card; every card without one.
    pub card: Option<usize>,
}

impl ForcedFault {
    /// What this card is to do.
    pub fn of_card(self, number: usize) -> Option<FaultKind> {
        self.card.is_none_or(|card| card == number).then_some(self.kind)
    }
}

impl FromStr for ForcedFault {
    type Err = String;

    fn from_str(text: &str) -> Result<ForcedFault, String> {
        let (name, card) = match text.split_once(':') {
            Some((name, card)) => (name, Some(card)),
            None => (text, None),
        };
        let names = || FaultKind::ALL.map(|(name, _)| name).join(", ");
        let kind = FaultKind::ALL.iter().find(|(known, _)| *known == name);
        let (_, kind) = kind.ok_or_else(|| format!("`{name}` is no fault; there are {}", names()))?;
        let card = card
            .map(|c| c.parse().map_err(|_| format!("`{c}` is no number of a card; write {name}:1")))
            .transpose()?;
        Ok(ForcedFault { kind: *kind, card })
    }
}

impl fmt::Display for ForcedFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = FaultKind::ALL.iter().find(|(_, kind)| *kind == self.kind);
        f.write_str(named.map_or("", |(name, _)| name))?;
        self.card.map_or(Ok(()), |card| write!(f, ":{card}"))
    }
}

/// What a device was told to do wrong, and whether it has; clones are of the same device.
#[derive(Clone, Debug)]
pub struct Told {
    kind: FaultKind,
    is_met: Arc<AtomicBool>,
}

impl Told {
    /// To fail so, later.
    pub fn new(kind: FaultKind) -> Told {
        Told { kind, is_met: Arc::default() }
    }

    /// How.
    pub fn kind(&self) -> FaultKind {
        self.kind
    }

    /// Whether anything has met the fault.
    pub fn is_met(&self) -> bool {
        self.is_met.load(Ordering::Relaxed)
    }

    /// Whether the fault is of this kind and comes `now`, which is remembered.
    fn meets(&self, kind: FaultKind, now: impl FnOnce() -> bool) -> bool {
        let is_met = self.kind == kind && now();
        self.is_met.fetch_or(is_met, Ordering::Relaxed);
        is_met
    }
}

/// A call that can be made to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Met {
    /// Memory of the card is taken.
    Allocation,
    /// Code is loaded.
    Module,
    /// Work is queued.
    Launch,
    /// The host waits for work.
    Wait,
}

/// What one card was told, and how far it has come.
#[derive(Debug, Default)]
pub struct Faults {
    told: Option<Told>,
    allocations: AtomicU64,
    launches: AtomicU64,
    posts: AtomicU64,
    failed: AtomicU64,
}

impl Faults {
    /// `None` for a card that does what it can.
    pub fn new(told: Option<Told>) -> Faults {
        Faults { told, ..Faults::default() }
    }

    fn meets(&self, kind: FaultKind, now: impl FnOnce() -> bool) -> bool {
        self.told.as_ref().is_some_and(|told| told.meets(kind, now))
    }

    /// Whether rows that cross a peer link are changed.
    pub fn spoil_peers(&self) -> bool {
        self.meets(FaultKind::PeerTest, || true)
    }

    /// Whether the rows of the next batch that leaves by a link stay where they are.
    pub fn stop_link(&self) -> bool {
        self.meets(FaultKind::LinkStop, || self.posts.fetch_add(1, Ordering::Relaxed) >= POSTS_BEFORE)
    }

    /// The status that stands in place of this call's.
    pub(in crate::device) fn instead_of(&self, met: Met) -> Option<Status> {
        let told = self.told.as_ref()?;
        let count =
            |counter: &AtomicU64, wanted: Met| counter.fetch_add(u64::from(met == wanted), Ordering::Relaxed);
        let (allocations, launches) =
            (count(&self.allocations, Met::Allocation), count(&self.launches, Met::Launch));
        let (failure, now) = match told.kind {
            FaultKind::OutOfMemory => {
                (status::OUT_OF_MEMORY, met == Met::Allocation && allocations >= ALLOCATIONS_BEFORE)
            }
            FaultKind::LostCard => (status::UNKNOWN, launches >= LAUNCHES_BEFORE),
            FaultKind::Kernel => {
                let first = met == Met::Wait && launches >= LAUNCHES_BEFORE;
                let failed = self.failed.fetch_add(u64::from(first), Ordering::Relaxed) > 0;
                (status::ILLEGAL_ADDRESS, first || failed)
            }
            FaultKind::OldDriver => (status::NO_BINARY_FOR_GPU, met == Met::Module),
            // Met where the compiler is looked for, and by links.
            FaultKind::NoNvrtc | FaultKind::PeerTest | FaultKind::LinkStop => return None,
        };
        told.meets(told.kind, || now).then_some(failure)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_named_with_or_without_a_card() {
        for (name, kind) in FaultKind::ALL {
            assert_eq!(name.parse(), Ok(ForcedFault { kind, card: None }));
            assert_eq!(format!("{name}:1").parse(), Ok(ForcedFault { kind, card: Some(1) }));
            for fault in [ForcedFault { kind, card: None }, ForcedFault { kind, card: Some(1) }] {
                assert_eq!(fault.to_string().parse(), Ok(fault));
            }
        }
        for text in ["", "fire", "kernel:", "kernel:x", "kernel:1:2"] {
            assert!(text.parse::<ForcedFault>().is_err(), "{text}");
        }
        let second: ForcedFault = "kernel:1".parse().unwrap();
        assert_eq!([0, 1].map(|card| second.of_card(card)), [None, Some(FaultKind::Kernel)]);
    }

    #[test]
    fn a_card_fails_when_it_was_told_and_goes_on_failing() {
        let statuses = |kind: Option<FaultKind>, calls: &[Met]| -> Vec<bool> {
            let faults = Faults::new(kind.map(Told::new));
            calls.iter().map(|&met| faults.instead_of(met).is_some()).collect()
        };
        let some = |kind, calls: &[Met]| statuses(Some(kind), calls);
        use Met::{Allocation, Launch, Module, Wait};
        assert_eq!(
            some(FaultKind::OutOfMemory, &[Allocation, Launch, Allocation, Wait]),
            [false, false, true, false]
        );
        assert_eq!(some(FaultKind::OldDriver, &[Allocation, Module, Module]), [false, true, true]);
        let mut work = vec![Wait];
        work.extend([Launch; LAUNCHES_BEFORE as usize]);
        work.extend([Launch, Wait, Launch, Module]);
        let at = work.len() - 4;
        let lost = some(FaultKind::LostCard, &work);
        assert!(lost[..at].iter().all(|f| !f) && lost[at..].iter().all(|f| *f), "{lost:?}");
        let kernel = some(FaultKind::Kernel, &work);
        assert!(kernel[..=at].iter().all(|f| !f) && kernel[at + 1..].iter().all(|f| *f), "{kernel:?}");
        assert!(statuses(None, &work).iter().all(|f| !f));
    }

    #[test]
    fn a_link_stops_after_some_batches_and_stays_so() {
        let told = Told::new(FaultKind::LinkStop);
        let faults = Faults::new(Some(told.clone()));
        let stopped: Vec<bool> = (0..POSTS_BEFORE + 3).map(|_| faults.stop_link()).collect();
        assert!(stopped.iter().enumerate().all(|(post, stops)| *stops == (post as u64 >= POSTS_BEFORE)));
        for kind in [None, Some(FaultKind::PeerTest), Some(FaultKind::LostCard)] {
            let faults = Faults::new(kind.map(Told::new));
            assert!((0..POSTS_BEFORE + 3).all(|_| !faults.stop_link()));
            assert_eq!(faults.spoil_peers(), kind == Some(FaultKind::PeerTest));
        }
        assert!(told.is_met());
    }

    #[test]
    fn what_a_run_has_not_met_is_known() {
        for (_, kind) in FaultKind::ALL {
            let told = Told::new(kind);
            // Two contexts of one device: the one that looked at its memory, and the one that works.
            let [looked, works] = [(); 2].map(|()| Faults::new(Some(told.clone())));
            let short = (0..POSTS_BEFORE).any(|_| works.stop_link())
                || [Met::Allocation, Met::Launch, Met::Wait]
                    .iter()
                    .any(|&met| works.instead_of(met).is_some());
            assert!(!short && !told.is_met(), "{kind:?}");
            let calls = [Met::Allocation, Met::Module].into_iter().chain([Met::Launch; 8]).chain([Met::Wait]);
            let failed = calls.filter(|&met| works.instead_of(met).is_some()).count() > 0;
            let met = failed || works.stop_link() || works.spoil_peers();
            assert!(met == told.is_met() && (met || kind == FaultKind::NoNvrtc), "{kind:?}");
            assert!(looked.instead_of(Met::Wait).is_none());
        }
    }
}
