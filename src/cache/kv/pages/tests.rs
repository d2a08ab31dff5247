//! The books against a plain model that keeps the contents of every page.
//!
//! The model writes a unique stamp for every row appended and copies whole pages when told to; at each step every
//! state, read through its table, must show exactly the stamps that a plain list of rows would hold.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::{CopyPage, KvPages, SnapshotId};
use crate::cache::kv::KvError;
use crate::model::facts::{CardId, PAGE_POSITIONS, PageId, StateId};

const CARD: CardId = CardId::cpu(1);
const PAGES: usize = 12;
const STATES: u32 = 4;

#[derive(Clone, Debug)]
enum Step {
    Append { state: u32, rows: usize },
    AppendElsewhere { state: u32, ahead: u32 },
    Rollback { state: u32, keep_per_mille: usize },
    RollbackBeyond { state: u32, more: usize },
    Release { state: u32 },
    Snapshot { state: u32 },
    Restore { state: u32, pick: usize },
    Drop { pick: usize },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let state = 0..STATES;
    let step = prop_oneof![
        6 => (state.clone(), prop_oneof![1usize..9, 50usize..80, Just(64), 0usize..300])
            .prop_map(|(state, rows)| Step::Append { state, rows }),
        1 => (state.clone(), 1u32..70).prop_map(|(state, ahead)| Step::AppendElsewhere { state, ahead }),
        3 => (state.clone(), 0usize..1001)
            .prop_map(|(state, keep_per_mille)| Step::Rollback { state, keep_per_mille }),
        1 => (state.clone(), 1usize..100).prop_map(|(state, more)| Step::RollbackBeyond { state, more }),
        1 => state.clone().prop_map(|state| Step::Release { state }),
        2 => state.clone().prop_map(|state| Step::Snapshot { state }),
        2 => (state, 0usize..8).prop_map(|(state, pick)| Step::Restore { state, pick }),
        2 => (0usize..8).prop_map(|pick| Step::Drop { pick }),
    ];
    proptest::collection::vec(step, 0..120)
}

/// What the books should amount to.
#[derive(Default)]
struct Plain {
    states: BTreeMap<u32, Vec<u64>>,
    snapshots: Vec<(SnapshotId, Vec<u64>)>,
    memory: BTreeMap<(PageId, usize), u64>,
    stamps: u64,
}

impl Plain {
    fn rows(&self, state: u32) -> Vec<u64> {
        self.states.get(&state).cloned().unwrap_or_default()
    }

    fn copy(&mut self, copy: CopyPage) {
        for place in 0..PAGE_POSITIONS {
            if let Some(&stamp) = self.memory.get(&(copy.from, place)) {
                self.memory.insert((copy.to, place), stamp);
            }
        }
    }

    fn check(&self, books: &KvPages) {
        books.audit().unwrap();
        for state in 0..STATES {
            let rows = self.rows(state);
            assert_eq!(books.length(StateId(state)), rows.len(), "length of state {state}");
            let table = books.tables().of(StateId(state));
            let seen: Vec<u64> = (0..rows.len())
                .map(|p| self.memory[&(table[p / PAGE_POSITIONS], p % PAGE_POSITIONS)])
                .collect();
            assert_eq!(seen, rows, "rows of state {state} through its pages");
        }
    }

    fn append(&mut self, books: &mut KvPages, state: u32, count: usize) {
        let (before, id) = (self.rows(state), StateId(state));
        let table: Vec<PageId> = books.tables().of(id).to_vec();
        let (free, tables) = (books.free_pages(), books.tables().clone());
        match books.append(id, before.len() as u32, count) {
            Ok(copy) => {
                copy.into_iter().for_each(|copy| self.copy(copy));
                let mut rows = before;
                for p in rows.len()..rows.len() + count {
                    let page = books.tables().of(id)[p / PAGE_POSITIONS];
                    self.memory.insert((page, p % PAGE_POSITIONS), self.stamps);
                    rows.push(self.stamps);
                    self.stamps += 1;
                }
                self.states.insert(state, rows);
            }
            Err(KvError::NoPage { needed, free: said, pages, .. }) => {
                let fresh = (before.len() + count).div_ceil(PAGE_POSITIONS) - table.len();
                assert!(needed == fresh || needed == fresh + 1, "{needed} pages for {fresh} fresh ones");
                assert!(needed > free && said == free && pages == PAGES, "refused though {free} are free");
                assert_eq!(
                    (books.free_pages(), books.tables()),
                    (free, &tables),
                    "a refusal changes nothing"
                );
            }
            Err(other) => panic!("{other}"),
        }
    }

    fn apply(&mut self, books: &mut KvPages, step: &Step) {
        match *step {
            Step::Append { state, rows } => self.append(books, state, rows),
            Step::AppendElsewhere { state, ahead } => {
                let (id, position) = (StateId(state), self.rows(state).len() as u32 + ahead);
                let refused = books.append(id, position, 1);
                let length = self.rows(state).len();
                assert_eq!(refused, Err(KvError::NotNext { card: CARD, state: id, position, length }));
            }
            Step::Rollback { state, keep_per_mille } => {
                let mut rows = self.rows(state);
                rows.truncate(rows.len() * keep_per_mille / 1000);
                books.rollback(StateId(state), rows.len()).unwrap();
                self.states.insert(state, rows);
            }
            Step::RollbackBeyond { state, more } => {
                let length = self.rows(state).len();
                let (state, wanted) = (StateId(state), length + more);
                let refused = books.rollback(state, wanted);
                assert_eq!(refused, Err(KvError::Beyond { card: CARD, state, wanted, length }));
            }
            Step::Release { state } => {
                books.release(StateId(state));
                self.states.remove(&state);
            }
            Step::Snapshot { state } => {
                self.snapshots.push((books.snapshot(StateId(state)), self.rows(state)));
            }
            Step::Restore { state, pick } if pick < self.snapshots.len() => {
                let (id, rows) = self.snapshots[pick].clone();
                books.restore(StateId(state), id).unwrap();
                self.states.insert(state, rows);
            }
            Step::Drop { pick } if pick < self.snapshots.len() => {
                let (id, _) = self.snapshots.remove(pick);
                books.drop_snapshot(id).unwrap();
                let gone = KvError::NoSnapshot { card: CARD, snapshot: id };
                assert_eq!(books.drop_snapshot(id), Err(gone));
                assert_eq!(books.restore(StateId(0), id), Err(gone));
            }
            Step::Restore { .. } | Step::Drop { .. } => {}
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn every_state_reads_its_own_rows_and_all_pages_return(steps in steps()) {
        let (mut books, mut plain) = (KvPages::new(CARD, PAGES), Plain::default());
        for step in &steps {
            plain.apply(&mut books, step);
            plain.check(&books);
        }
        (0..STATES).for_each(|state| books.release(StateId(state)));
        for (snapshot, _) in plain.snapshots.drain(..) {
            books.drop_snapshot(snapshot).unwrap();
        }
        prop_assert_eq!(books.free_pages(), PAGES);
        books.audit().unwrap();
    }
}

#[test]
fn a_shared_last_page_is_copied_once_and_full_pages_never() {
    let mut books = KvPages::new(CARD, 4);
    let (a, rows) = (StateId(0), PAGE_POSITIONS + 6);
    assert_eq!(books.append(a, 0, rows), Ok(None));
    let kept = books.snapshot(a);
    let copy = books.append(a, rows as u32, 1).unwrap();
    assert_eq!(copy, Some(CopyPage { from: PageId(1), to: PageId(2) }));
    assert_eq!(books.append(a, rows as u32 + 1, 1), Ok(None), "the page is the state's own now");
    assert_eq!(books.tables().of(a), [PageId(0), PageId(2)]);
    books.restore(a, kept).unwrap();
    assert_eq!(books.tables().of(a), [PageId(0), PageId(1)]);
    assert_eq!(books.free_pages(), 2);
}

#[test]
fn a_state_alone_with_its_snapshot_dropped_appends_in_place() {
    let mut books = KvPages::new(CARD, 1);
    assert_eq!(books.append(StateId(0), 0, 10), Ok(None));
    let kept = books.snapshot(StateId(0));
    let refused = books.append(StateId(0), 10, 1);
    let (card, state) = (CARD, StateId(0));
    assert_eq!(refused, Err(KvError::NoPage { card, state, needed: 1, free: 0, pages: 1 }));
    books.drop_snapshot(kept).unwrap();
    assert_eq!(books.append(StateId(0), 10, 54), Ok(None));
}

#[test]
fn a_refusal_names_the_card_the_pages_and_what_to_do() {
    let mut books = KvPages::new(CARD, 2);
    let text = books.append(StateId(3), 0, 3 * PAGE_POSITIONS).unwrap_err().to_string();
    let expected = "cpu:1: state 3 needs 3 K/V pages more, 2 of 2 are free; end another sequence, lower --ctx or \
                    --sequences, choose a smaller --kv format, or give the card more with --card-memory";
    assert_eq!(text, expected);
}
