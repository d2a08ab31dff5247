//! A card's and the host's common memory: where blocks of batches lie, and where results arrive, two of each.
//!
//! Invariants: batches use the two places in turn, the card counts as the host does; a result is read once its turn's
//! number stands there; launches follow the head of `kernels/host.cu`. Does not know: what a block holds, what keys mean.

use std::sync::atomic::{AtomicU32, Ordering};

use super::launch::{int, some};
use crate::device::CardStamps;
use crate::device::cuda::CudaError;
use crate::device::cuda::driver::Argument::I64;
use crate::device::cuda::driver::{Kernel, MappedMemory, Span, Stream};
use crate::device::cuda::kernels::Kernels;

/// Words in front of a result's keys.
const RESULT_HEAD: usize = 8;

/// Words that a block of threads takes at a time; the most blocks.
const TAKEN_WORDS: usize = 4 * 256;
const TAKING_BLOCKS_MAX: usize = 128;

/// The number of a batch on its card, from 0, over and over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Turn(u32);

/// Both sides of the common memory.
#[derive(Debug)]
pub(super) struct HostSide {
    take: Kernel,
    give: Kernel,
    blocks: MappedMemory,
    block_words: usize,
    results: MappedMemory,
    result_words: usize,
    control: Span,
    next: Turn,
}

/// What a batch left beside its keys.
#[derive(Clone, Copy, Debug)]
pub(super) struct Left {
    pub(super) fault: u32,
    pub(super) stamps: CardStamps,
}

impl HostSide {
    /// For blocks of up to `block_bytes` and results of up to `keys` keys; `control` lies on the card.
    pub(super) fn new(
        stream: &Stream,
        kernels: &Kernels,
        control: Span,
        block_bytes: u64,
        keys: usize,
    ) -> Result<HostSide, CudaError> {
        let (block_words, result_words) = (block_bytes as usize / 4, RESULT_HEAD + 2 * keys);
        let memory = |words: usize| MappedMemory::new(stream.context(), 2 * 4 * words as u64);
        stream.zero(control)?;
        stream.wait()?;
        Ok(HostSide {
            take: kernels.plain("take_block")?,
            give: kernels.plain("give_results")?,
            blocks: memory(block_words)?,
            block_words,
            results: memory(result_words)?,
            result_words,
            control,
            next: Turn(0),
        })
    }

    /// The place of the next batch's block.
    pub(super) fn block(&self) -> &[AtomicU32] {
        self.blocks.words(self.next.side() * self.block_words, self.block_words)
    }

    /// Queues bringing the first `words` words of the turn's block to the card, first of all.
    pub(super) fn queue_take(&self, stream: &Stream, block: Span, words: usize) -> Result<(), CudaError> {
        assert!(
            words <= self.block_words && words.is_multiple_of(4),
            "{words} of {} words",
            self.block_words
        );
        let blocks = words.div_ceil(TAKEN_WORDS).clamp(1, TAKING_BLOCKS_MAX);
        let (from, counts) = (self.blocks.span(), [self.block_words, words].map(|n| I64(n as i64)));
        let arguments = [some(from), counts[0], some(self.control), some(block), counts[1]];
        stream.launch(&self.take, [blocks, 1, 1], 256, &arguments)
    }

    /// Queues telling the fault word and `count` keys, last of all.
    pub(super) fn queue_give(
        &self,
        stream: &Stream,
        fault: Span,
        (keys, count): (Span, usize),
    ) -> Result<(), CudaError> {
        assert!(RESULT_HEAD + 2 * count <= self.result_words, "{count} keys in {} words", self.result_words);
        let to = [some(self.results.span()), I64(self.result_words as i64)];
        let arguments = [some(self.control), some(fault), some(keys), int(2 * count), to[0], to[1]];
        stream.launch(&self.give, [1, 1, 1], 256, &arguments)
    }

    /// The batch of the next turn was queued.
    pub(super) fn began(&mut self) -> Turn {
        let turn = self.next;
        self.next = Turn(turn.0.wrapping_add(1));
        turn
    }

    /// Whether the batch of a turn has ended; what it left can be read then, until its place is used again.
    pub(super) fn has_given(&self, turn: Turn) -> bool {
        self.result(turn)[0].load(Ordering::Acquire) == turn.0.wrapping_add(1)
    }

    /// What it left.
    pub(super) fn left(&self, turn: Turn) -> Left {
        let stamps = CardStamps { begun_ns: self.two_words(turn, 2), ended_ns: self.two_words(turn, 4) };
        Left { fault: self.result(turn)[1].load(Ordering::Relaxed), stamps }
    }

    /// One of its keys.
    pub(super) fn key(&self, turn: Turn, index: usize) -> u64 {
        self.two_words(turn, RESULT_HEAD + 2 * index)
    }

    fn two_words(&self, turn: Turn, at: usize) -> u64 {
        let [low, high] = [at, at + 1].map(|i| self.result(turn)[i].load(Ordering::Relaxed));
        u64::from(low) | u64::from(high) << 32
    }

    fn result(&self, turn: Turn) -> &[AtomicU32] {
        self.results.words(turn.side() * self.result_words, self.result_words)
    }
}

impl Turn {
    fn side(self) -> usize {
        (self.0 & 1) as usize
    }
}
