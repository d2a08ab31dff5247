//! The page books of one card: tables and lengths of its states, snapshots of them, owners of every page.
//!
//! The stage that owns the card keeps one and asks it before every batch; the batch then runs with
//! [`KvPages::tables`]. Snapshots share pages instead of copying them; only a shared page that is about to be
//! written into is copied first.
//! Invariants: a state of `n` positions owns exactly `ceil(n / 64)` pages; a page's owner count is the number of
//! tables and snapshots that hold it; it is free where that is zero; a refused call changes nothing.
//! Does not know: the bytes of a page, batches, what a sequence is.

use std::collections::BTreeMap;
use std::fmt;

use super::KvError;
use crate::device::batch::PageTables;
use crate::model::facts::{CardId, PAGE_POSITIONS, PageId, StateId};

/// A kept picture of a state on one card. Numbers are not used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SnapshotId(pub u64);

impl fmt::Display for SnapshotId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "snapshot {}", self.0)
    }
}

/// A copy that the stage makes on its card before it runs the next batch, in the order in which appends asked for
/// copies; also where a later append of that batch was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the rows before the appended ones are missing until the page is copied"]
pub struct CopyPage {
    /// Keeps its contents and its other owners.
    pub from: PageId,
    /// Belongs to the state alone.
    pub to: PageId,
}

/// A state as it was.
#[derive(Clone, Debug)]
struct Snapshot {
    pages: Vec<PageId>,
    length: usize,
}

/// The pages of one card.
#[derive(Clone, Debug)]
pub struct KvPages {
    card: CardId,
    tables: PageTables,
    /// Positions of each state, beside `tables.states`.
    lengths: Vec<usize>,
    /// Tables and snapshots that hold each page.
    owners: Vec<u32>,
    /// Pages without owners, the next one to be given last.
    free: Vec<PageId>,
    snapshots: BTreeMap<SnapshotId, Snapshot>,
    snapshots_taken: u64,
}

impl KvPages {
    /// `pages` free pages.
    pub fn new(card: CardId, pages: usize) -> KvPages {
        KvPages {
            card,
            tables: PageTables::default(),
            lengths: Vec::new(),
            owners: vec![0; pages],
            free: (0..pages as u32).rev().map(PageId).collect(),
            snapshots: BTreeMap::new(),
            snapshots_taken: 0,
        }
    }

    /// Makes room for `rows` rows of `state` from `position` on, which must be its length. Where they start inside a
    /// page that someone else holds as well, the state gets its own and the copy to be made is returned; there is
    /// never more than one.
    pub fn append(
        &mut self,
        state: StateId,
        position: u32,
        rows: usize,
    ) -> Result<Option<CopyPage>, KvError> {
        let (card, length) = (self.card, self.length(state));
        if position as usize != length {
            return Err(KvError::NotNext { card, state, position, length });
        }
        let shared = self.shared_tail(state, length, rows);
        let owned = self.tables.of(state).len();
        let fresh = (length + rows).div_ceil(PAGE_POSITIONS) - owned;
        let (needed, free, pages) = (fresh + usize::from(shared.is_some()), self.free.len(), self.pages());
        if needed > free {
            return Err(KvError::NoPage { card, state, needed, free, pages });
        }
        self.know(state);
        let copy = shared.map(|from| CopyPage { from, to: self.own_tail(state, from) });
        for _ in 0..fresh {
            let page = self.give();
            self.tables.states[state.index()].push(page);
        }
        self.lengths[state.index()] = length + rows;
        Ok(copy)
    }

    /// Forgets all positions from `length` on, and the pages that only they need.
    pub fn rollback(&mut self, state: StateId, length: usize) -> Result<(), KvError> {
        let before = self.length(state);
        if length > before {
            return Err(KvError::Beyond { card: self.card, state, wanted: length, length: before });
        }
        if length < before {
            let kept = length.div_ceil(PAGE_POSITIONS);
            while self.tables.of(state).len() > kept {
                let page = self.tables.states[state.index()].pop();
                self.give_up(page.expect("invariant: a longer table has a last page"));
            }
            self.lengths[state.index()] = length;
        }
        Ok(())
    }

    /// Forgets the state; its snapshots stay.
    pub fn release(&mut self, state: StateId) {
        self.rollback(state, 0).expect("invariant: no state is shorter than 0 positions");
    }

    /// Keeps the state as it is now. Copies nothing on the card.
    pub fn snapshot(&mut self, state: StateId) -> SnapshotId {
        let id = SnapshotId(self.snapshots_taken);
        self.snapshots_taken += 1;
        let snapshot = Snapshot { pages: self.tables.of(state).to_vec(), length: self.length(state) };
        self.share(&snapshot.pages);
        self.snapshots.insert(id, snapshot);
        id
    }

    /// Makes `state` what the snapshot's state was, whatever `state` is now; it need not be the same state. The
    /// snapshot stays.
    pub fn restore(&mut self, state: StateId, snapshot: SnapshotId) -> Result<(), KvError> {
        let no_snapshot = KvError::NoSnapshot { card: self.card, snapshot };
        let Snapshot { pages, length } = self.snapshots.get(&snapshot).ok_or(no_snapshot)?.clone();
        // Where the two hold the same pages, the snapshot keeps them from becoming free here.
        self.release(state);
        self.share(&pages);
        self.know(state);
        self.tables.states[state.index()].extend_from_slice(&pages);
        self.lengths[state.index()] = length;
        Ok(())
    }

    /// Gives up what the snapshot kept.
    pub fn drop_snapshot(&mut self, snapshot: SnapshotId) -> Result<(), KvError> {
        let no_snapshot = KvError::NoSnapshot { card: self.card, snapshot };
        let dropped = self.snapshots.remove(&snapshot).ok_or(no_snapshot)?;
        // Backwards, as a rollback does, so that pages come back into use in their old order.
        dropped.pages.into_iter().rev().for_each(|page| self.give_up(page));
        Ok(())
    }

    /// The pages of every state, as a batch needs them. Kept up to date by every call, never rebuilt.
    pub fn tables(&self) -> &PageTables {
        &self.tables
    }

    /// Positions of a state; 0 for one never seen.
    pub fn length(&self, state: StateId) -> usize {
        self.lengths.get(state.index()).copied().unwrap_or(0)
    }

    /// Pages of the card.
    pub fn pages(&self) -> usize {
        self.owners.len()
    }

    /// Pages without an owner.
    pub fn free_pages(&self) -> usize {
        self.free.len()
    }

    /// Counts everything anew and says which invariant does not hold, if any. For tests and the simulation.
    pub fn audit(&self) -> Result<(), String> {
        let mut owners = vec![0u32; self.pages()];
        let held = self.tables.states.iter().chain(self.snapshots.values().map(|s| &s.pages));
        held.flatten().for_each(|page| owners[page.index()] += 1);
        if owners != self.owners {
            return Err(format!("owners are {owners:?}, the books say {:?}", self.owners));
        }
        let mut free = vec![0u32; self.pages()];
        self.free.iter().for_each(|page| free[page.index()] += 1);
        if let Some(page) = (0..self.pages()).find(|&p| free[p] != u32::from(owners[p] == 0)) {
            return Err(format!("page {page} has {} owners and is {} times free", owners[page], free[page]));
        }
        let snapshots = self.snapshots.values().map(|s| (s.pages.len(), s.length));
        let tables = self.tables.states.iter().map(Vec::len).zip(self.lengths.iter().copied());
        match tables.chain(snapshots).find(|&(pages, length)| pages != length.div_ceil(PAGE_POSITIONS)) {
            Some((pages, length)) => Err(format!("{pages} pages for {length} positions")),
            None => Ok(()),
        }
    }

    /// The page that new rows would share with another owner.
    fn shared_tail(&self, state: StateId, length: usize, rows: usize) -> Option<PageId> {
        let inside = rows > 0 && !length.is_multiple_of(PAGE_POSITIONS);
        let tail = self.tables.of(state).last().copied().filter(|_| inside)?;
        (self.owners[tail.index()] > 1).then_some(tail)
    }

    /// Puts a free page in the place of the state's last one, and says which.
    fn own_tail(&mut self, state: StateId, shared: PageId) -> PageId {
        let page = self.give();
        self.give_up(shared);
        let table = &mut self.tables.states[state.index()];
        *table.last_mut().expect("invariant: a state that shares its last page has one") = page;
        page
    }

    /// A free page with one owner.
    fn give(&mut self) -> PageId {
        let page = self.free.pop().expect("invariant: append counted the free pages");
        self.owners[page.index()] = 1;
        page
    }

    fn give_up(&mut self, page: PageId) {
        let owners = &mut self.owners[page.index()];
        assert!(*owners > 0, "pages: {page} has no owner to give it up");
        *owners -= 1;
        if *owners == 0 {
            self.free.push(page);
        }
    }

    fn share(&mut self, pages: &[PageId]) {
        pages.iter().for_each(|page| self.owners[page.index()] += 1);
    }

    /// An empty table for a state that is new here.
    fn know(&mut self, state: StateId) {
        let states = self.lengths.len().max(state.index() + 1);
        self.tables.states.resize_with(states, Vec::new);
        self.lengths.resize(states, 0);
    }
}

#[cfg(test)]
mod tests;
