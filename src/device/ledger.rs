//! The account of a card's memory: every allocation under the name of the plan's item it belongs to.
//!
//! Invariant: the sum of the entries is the memory in use; it never exceeds the budget.

use std::collections::BTreeMap;

use super::CardError;
use crate::model::facts::CardId;
use crate::model::footprint::ItemKind;

/// Bytes by item.
#[derive(Clone, Debug)]
pub struct Ledger {
    card: CardId,
    budget_bytes: u64,
    entries: BTreeMap<ItemKind, u64>,
}

impl Ledger {
    /// An empty account over `budget_bytes`.
    pub fn new(card: CardId, budget_bytes: u64) -> Ledger {
        Ledger { card, budget_bytes, entries: BTreeMap::new() }
    }

    /// Books an allocation before it is made.
    pub fn book(&mut self, item: ItemKind, bytes: u64) -> Result<(), CardError> {
        let free_bytes = self.budget_bytes - self.used_bytes();
        if bytes > free_bytes {
            return Err(CardError::OutOfMemory {
                card: self.card,
                item: item.to_string(),
                needed_bytes: bytes,
                free_bytes,
                budget_bytes: self.budget_bytes,
            });
        }
        *self.entries.entry(item).or_insert(0) += bytes;
        Ok(())
    }

    /// Takes back a booking whose allocation is gone.
    pub fn give_back(&mut self, item: ItemKind, bytes: u64) {
        let entry = self.entries.get_mut(&item).filter(|booked| **booked >= bytes);
        *entry.expect("invariant: only what was booked is given back") -= bytes;
    }

    /// All bytes booked.
    pub fn used_bytes(&self) -> u64 {
        self.entries.values().sum()
    }

    /// What the card may use.
    pub fn budget_bytes(&self) -> u64 {
        self.budget_bytes
    }

    /// Bytes of each item that has any.
    pub fn entries(&self) -> &BTreeMap<ItemKind, u64> {
        &self.entries
    }
}
