//! The keys and values of one K/V head of one state, where a stage's store keeps them.
//!
//! Invariant: page p of the state holds its positions 64 p .. 64 p + 63. Does not know: queries, forms of rows.

use super::HeadPages;
use crate::device::cpu::kv_store::{KvStore, Side};
use crate::model::facts::{KvFormat, PageId};

/// A K/V head in the store.
#[derive(Clone, Copy, Debug)]
pub struct StoredHead<'a> {
    /// Where the pages are.
    pub store: &'a KvStore,
    /// The state's pages, in position order.
    pub pages: &'a [PageId],
    /// Number of the paged state in the store.
    pub state: usize,
    /// Which K/V head.
    pub kv_head: usize,
}

impl HeadPages for StoredHead<'_> {
    fn format(&self) -> KvFormat {
        self.store.format()
    }

    fn keys(&self, page: usize) -> &[u8] {
        self.store.rows(self.pages[page], self.state, self.kv_head, Side::Keys)
    }

    fn values(&self, page: usize) -> &[u8] {
        self.store.rows(self.pages[page], self.state, self.kv_head, Side::Values)
    }
}
