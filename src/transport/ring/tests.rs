//! The ring against a plain model: four queues of slots.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::{Claim, CloseCause, Ring, RingFault, SlotState, Take};
use crate::device::batch::BatchId;
use crate::model::facts::SlotId;

/// A step of either side of a ring; slots and numbers may be wrong.
#[derive(Clone, Debug)]
enum Step {
    Claim,
    /// Which of the slots, counted from the one whose turn it is; how far above the last number.
    Post(u32, i64),
    Abandon(u32),
    /// How far off the next number.
    Take(i64),
    Release(u32),
    Close(CloseCause),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let off = || prop_oneof![8 => Just(0u32), 1 => 1u32..5];
    let step = prop_oneof![
        24 => Just(Step::Claim),
        24 => (off(), prop_oneof![8 => 1i64..4, 1 => -2i64..1]).prop_map(|(s, n)| Step::Post(s, n)),
        3 => off().prop_map(Step::Abandon),
        24 => prop_oneof![8 => Just(0i64), 1 => -2i64..3].prop_map(Step::Take),
        24 => off().prop_map(Step::Release),
        1 => prop_oneof![
            Just(CloseCause::Ended),
            Just(CloseCause::Cancelled),
            Just(CloseCause::Failed("dead".into()))
        ]
        .prop_map(Step::Close),
    ];
    proptest::collection::vec(step, 0..300)
}

/// A ring as four queues of slots.
struct Plain {
    free: VecDeque<SlotId>,
    filling: VecDeque<SlotId>,
    ready: VecDeque<(SlotId, BatchId)>,
    reading: VecDeque<SlotId>,
    last: Option<BatchId>,
    closed: Option<CloseCause>,
}

impl Plain {
    fn new(slots: usize) -> Plain {
        Plain {
            free: (0..slots as u32).map(SlotId).collect(),
            filling: VecDeque::new(),
            ready: VecDeque::new(),
            reading: VecDeque::new(),
            last: None,
            closed: None,
        }
    }

    fn state(&self, slot: SlotId) -> SlotState {
        let owners = [
            (SlotState::Free, self.free.contains(&slot)),
            (SlotState::Filling, self.filling.contains(&slot)),
            (SlotState::Ready, self.ready.iter().any(|r| r.0 == slot)),
            (SlotState::Reading, self.reading.contains(&slot)),
        ];
        let mut owners = owners.into_iter().filter(|o| o.1);
        let (state, _) = owners.next().unwrap();
        assert!(owners.next().is_none(), "{slot} has two owners");
        state
    }

    /// A slot for a step: `off` behind the one whose turn it is, or any where it is nobody's turn.
    fn pick(&self, turn: Option<&SlotId>, off: u32) -> SlotId {
        let slots = self.free.len() + self.filling.len() + self.ready.len() + self.reading.len();
        SlotId((turn.map_or(0, |s| s.0) + off) % slots as u32)
    }

    fn check(&mut self, ring: &mut Ring, step: &Step) {
        let shut = self.closed.clone().map(RingFault::Closed);
        match *step {
            Step::Claim => {
                let answer = match (shut, self.free.front()) {
                    (Some(fault), _) => Err(fault),
                    (None, None) => Ok(Claim::Full),
                    (None, Some(&slot)) => {
                        self.free.pop_front();
                        self.filling.push_back(slot);
                        Ok(Claim::Slot(slot))
                    }
                };
                assert_eq!(ring.claim(), answer);
            }
            Step::Post(off, above) => {
                let slot = self.pick(self.filling.front(), off);
                let got = BatchId(self.last.map_or(0, |l| l.0).saturating_add_signed(above));
                let answer = match self.last {
                    _ if shut.is_some() => Err(shut.unwrap()),
                    _ if self.filling.front() != Some(&slot) => {
                        Err(RingFault::NotFilling { slot, state: self.state(slot) })
                    }
                    Some(last) if got <= last => Err(RingFault::NotRising { last, got }),
                    _ => {
                        self.filling.pop_front();
                        self.ready.push_back((slot, got));
                        self.last = Some(got);
                        Ok(())
                    }
                };
                assert_eq!(ring.post(slot, got), answer);
            }
            Step::Abandon(off) => {
                let slot = self.pick(self.filling.back(), off);
                let answer = if self.filling.back() == Some(&slot) {
                    self.filling.pop_back();
                    self.free.push_front(slot);
                    Ok(())
                } else {
                    Err(RingFault::NotFilling { slot, state: self.state(slot) })
                };
                assert_eq!(ring.abandon(slot), answer);
            }
            Step::Take(off) => {
                let next = self.ready.front().copied();
                let expected = BatchId(next.map_or(0, |n| n.1.0).saturating_add_signed(off));
                let delivers = matches!(self.closed, None | Some(CloseCause::Ended));
                let answer = match next {
                    Some((slot, got)) if delivers && got == expected => {
                        self.ready.pop_front();
                        self.reading.push_back(slot);
                        Ok(Take::Slot(slot))
                    }
                    Some((_, got)) if delivers => Err(RingFault::WrongBatch { expected, got }),
                    _ => shut.map_or(Ok(Take::Empty), Err),
                };
                assert_eq!(ring.take(expected), answer);
            }
            Step::Release(off) => {
                let slot = self.pick(self.reading.front(), off);
                let answer = if self.reading.front() == Some(&slot) {
                    self.reading.pop_front();
                    self.free.push_back(slot);
                    Ok(())
                } else {
                    Err(RingFault::NotReading { slot, state: self.state(slot) })
                };
                assert_eq!(ring.release(slot), answer);
            }
            Step::Close(ref cause) => {
                assert_eq!(ring.close(cause.clone()), self.closed.is_none());
                self.closed.get_or_insert(cause.clone());
            }
        }
        assert_eq!(ring.closed(), self.closed.as_ref());
        for slot in (0..ring.slots() as u32).map(SlotId) {
            assert_eq!(ring.slot(slot), self.state(slot), "{slot} after {step:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn a_ring_does_what_four_queues_do(slots in 1usize..6, steps in steps()) {
        let (mut ring, mut plain) = (Ring::new(slots), Plain::new(slots));
        for step in &steps {
            plain.check(&mut ring, step);
        }
    }
}
