//! A running request: its tokens, what of them has been posted, and what a batch's logits mean for it.
//!
//! Invariants: tokens change only by the verdict on a batch; a row is posted once its token is known, or guessed;
//! after [`Sequence::end`] no event is made. Does not know: other sequences, stages, time beyond stamps.

use super::error::EngineError;
use super::options::EngineOptions;
use super::request::{Counters, Finish, LogitsWanted, Request, RequestEvent, RequestId};
use super::sample::Sampler;
use crate::device::batch::{Batch, BatchId, BatchRow, Interest, RowWants};
use crate::model::facts::StateId;

/// The rows of one sequence in a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    /// Whose rows.
    pub state: StateId,
    /// First row in the batch.
    pub first_row: usize,
    /// How many.
    pub rows: usize,
    /// Index in the sequence of the first row's token.
    pub index: usize,
}

/// What a batch's result means.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Verdict {
    /// The request ends.
    pub finish: Option<Finish>,
    /// Guesses were wrong: this many positions stay.
    pub rollback: Option<u32>,
}

/// A request that owns a state.
#[derive(Debug)]
pub(super) struct Sequence {
    pub id: RequestId,
    pub state: StateId,
    /// Batches with rows of it.
    pub in_flight: usize,
    /// The batch posted for it last; decides whose turn it is.
    pub last_batch: Option<BatchId>,
    /// Its consumer is slow: nothing more is posted.
    pub is_held: bool,
    pub counters: Counters,
    /// In the batches that are its own; lost at its end.
    pub interest: Interest,
    request: Request,
    /// Tokens of the prompt.
    prompt_len: usize,
    /// Prompt, then what followed.
    tokens: Vec<u32>,
    /// Of `tokens`, those whose rows have been posted.
    posted: usize,
    has_ended: bool,
    guesses: Vec<u32>,
    started_ns: u64,
    prompt_done_ns: Option<u64>,
}

impl Sequence {
    pub fn new(id: RequestId, state: StateId, mut request: Request, queued_ns: u64, now_ns: u64) -> Sequence {
        let tokens = std::mem::take(&mut request.prompt);
        let counters = Counters { queued_ns, ..Counters::default() };
        Sequence {
            id,
            state,
            in_flight: 0,
            last_batch: None,
            is_held: false,
            counters,
            interest: Interest::default(),
            request,
            prompt_len: tokens.len(),
            tokens,
            posted: 0,
            has_ended: false,
            guesses: Vec::new(),
            started_ns: now_ns,
            prompt_done_ns: None,
        }
    }

    /// Position of the first token.
    pub fn first_position(&self) -> u32 {
        self.request.first_position
    }

    pub fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Whether prompt rows are left to post.
    pub fn is_reading(&self) -> bool {
        !self.has_ended && !self.is_held && self.posted < self.prompt_len
    }

    /// Whether all prompt rows are posted and tokens follow.
    pub fn is_decoding(&self) -> bool {
        !self.has_ended && !self.is_held && self.posted >= self.prompt_len
    }

    /// Whether the next decode row is known and may be posted.
    pub fn is_ready(&self) -> bool {
        self.is_decoding() && self.in_flight == 0 && self.posted < self.tokens.len()
    }

    /// Appends the next prompt rows: up to the next cut, a multiple of the chunk from position 0.
    pub fn post_prompt(&mut self, options: &EngineOptions, rows: &mut Vec<BatchRow>) -> Part {
        let (first, total) = (self.request.first_position as usize, self.prompt_len);
        let (index, cut) = (self.posted, options.prompt_rows_max());
        let next_cut = ((first + index) / cut + 1) * cut;
        let end = (next_cut - first).min(total);
        let part = Part { state: self.state, first_row: rows.len(), rows: end - index, index };
        let reads_on = self.request.tokens_max > 0 || self.request.logits == LogitsWanted::Last;
        let (all, last) = (self.request.logits == LogitsWanted::All, self.last_wants(options));
        rows.extend((index..end).map(|i| BatchRow {
            state: self.state,
            position: (first + i) as u32,
            token: self.tokens[i],
            wants: match reads_on && i + 1 == total {
                _ if all => RowWants::Logits,
                true => last,
                false => RowWants::Nothing,
            },
        }));
        self.posted = end;
        self.in_flight += 1;
        part
    }

    /// What the prompt's last row wants.
    fn last_wants(&self, options: &EngineOptions) -> RowWants {
        match self.request.logits {
            LogitsWanted::None => self.request.sampling.wants(options.vocab),
            LogitsWanted::Last | LogitsWanted::All => RowWants::Logits,
        }
    }

    /// Appends the next decode row and at most `guesses_max` guessed rows behind it.
    pub fn post_decode(
        &mut self,
        options: &EngineOptions,
        guesses_max: usize,
        rows: &mut Vec<BatchRow>,
    ) -> Part {
        let index = self.posted;
        let position = self.request.first_position as usize + index;
        // A guess is worth a row only where its verdict can become a token inside context and request.
        let tokens_left = self.request.tokens_max - self.counters.generated_tokens;
        let room = (options.context - position - 1).min(tokens_left.saturating_sub(1)).min(guesses_max);
        self.guesses.clear();
        if let Some(drafts) = self.request.drafts.as_mut().filter(|_| room > 0) {
            drafts.draft(&self.tokens, room, &mut self.guesses);
            self.guesses.truncate(room);
            let known = self.guesses.iter().take_while(|&&t| (t as usize) < options.vocab).count();
            self.guesses.truncate(known);
        }
        let part = Part { state: self.state, first_row: rows.len(), rows: 1 + self.guesses.len(), index };
        let wants = match self.request.logits {
            LogitsWanted::All => RowWants::Logits,
            LogitsWanted::None | LogitsWanted::Last => self.request.sampling.wants(options.vocab),
        };
        let state = self.state;
        let row = |i: usize, token| BatchRow { state, position: (position + i) as u32, token, wants };
        rows.push(row(0, self.tokens[index]));
        rows.extend(self.guesses.iter().enumerate().map(|(i, &token)| row(1 + i, token)));
        self.counters.drafted_tokens += self.guesses.len();
        self.posted += 1;
        self.in_flight += 1;
        part
    }

    /// What the batch says about its part: tokens, the end, guesses to be taken back. `values` are what all rows of the
    /// batch wanted; they are moved out where the part is all of it and its logits are wanted.
    pub fn absorb(
        &mut self,
        part: &Part,
        batch: &Batch,
        values: &mut Vec<f32>,
        tools: &mut Absorb<'_>,
    ) -> Verdict {
        let vocab = tools.options.vocab;
        let offset = batch.rows[..part.first_row].iter().map(|row| row.wants.values(vocab)).sum();
        match part.index < self.prompt_len {
            true => self.absorb_prompt(part, batch, values, offset, tools),
            false => self.absorb_decode(part, batch, &mut values[offset..], tools),
        }
    }

    fn absorb_prompt(
        &mut self,
        part: &Part,
        batch: &Batch,
        values: &mut Vec<f32>,
        offset: usize,
        tools: &mut Absorb<'_>,
    ) -> Verdict {
        let (vocab, total, read) = (tools.options.vocab, self.prompt_len, part.index + part.rows);
        let rows = &batch.rows[part.first_row..][..part.rows];
        let wanted = rows.iter().filter(|row| row.wants.is_some()).count();
        let end = offset + rows.iter().map(|row| row.wants.values(vocab)).sum::<usize>();
        let last = rows[part.rows - 1].wants;
        let full = self.request.prompt_is_context(total, tools.options);
        let samples = read == total && self.request.tokens_max > 0 && !full;
        // The first token is drawn before the logits are moved out, and told after them.
        let sampled = samples.then(|| self.sample(last, &mut values[end - last.values(vocab)..end], tools));
        if self.request.logits != LogitsWanted::None && wanted > 0 {
            let position = rows[part.rows - wanted].position;
            let whole = end - offset == values.len();
            let values = if whole { std::mem::take(values) } else { values[offset..end].to_vec() };
            tools.events.push(RequestEvent::Logits { position, rows: wanted, values });
        }
        tools.events.push(RequestEvent::Prompt { read, total });
        self.counters.prompt_tokens = read;
        if read < total {
            return Verdict::default();
        }
        self.prompt_done_ns = Some(tools.now_ns);
        let finish = match sampled {
            Some(Ok(token)) => self.accept(token, tools),
            Some(Err(error)) => Some(Finish::Failed(error)),
            None if self.request.tokens_max == 0 => Some(Finish::TokensMax),
            None => Some(Finish::ContextFull),
        };
        Verdict { finish, rollback: None }
    }

    fn absorb_decode(
        &mut self,
        part: &Part,
        batch: &Batch,
        mut rest: &mut [f32],
        tools: &mut Absorb<'_>,
    ) -> Verdict {
        let rows = &batch.rows[part.first_row..][..part.rows];
        let mut kept = 0;
        for row in rows {
            let (values, behind) = rest.split_at_mut(row.wants.values(tools.options.vocab));
            rest = behind;
            if kept > 0 && self.tokens[part.index + kept] != row.token {
                break;
            }
            kept += 1;
            let sampled = match self.sample(row.wants, values, tools) {
                Ok(token) => token,
                Err(error) => return Verdict { finish: Some(Finish::Failed(error)), rollback: None },
            };
            if self.request.logits == LogitsWanted::All {
                let (position, values) = (row.position, values.to_vec());
                tools.events.push(RequestEvent::Logits { position, rows: 1, values });
            }
            self.counters.accepted_tokens += usize::from(kept > 1);
            if let Some(finish) = self.accept(sampled, tools) {
                return Verdict { finish: Some(finish), rollback: None };
            }
        }
        self.posted = part.index + kept;
        let length = self.request.first_position + self.posted as u32;
        Verdict { finish: None, rollback: (kept < part.rows).then_some(length) }
    }

    fn sample(
        &self,
        wanted: RowWants,
        values: &mut [f32],
        tools: &mut Absorb<'_>,
    ) -> Result<u32, EngineError> {
        let (options, position) =
            (&self.request.sampling, self.request.first_position + self.tokens.len() as u32);
        let sampled = match wanted {
            RowWants::Best(_) => tools.sampler.sample_best(options, position, values),
            RowWants::Logits | RowWants::Nothing => {
                tools.sampler.sample(options, &self.tokens, position, values)
            }
        };
        sampled.map_err(|_| EngineError::NotFinite { position: position - 1 })
    }

    /// Appends the next token, and says whether it is the last.
    fn accept(&mut self, sampled: u32, tools: &mut Absorb<'_>) -> Option<Finish> {
        let forced = self.request.forced.get(self.counters.generated_tokens).copied();
        if forced.is_none() && self.request.end_tokens.contains(&sampled) {
            return Some(Finish::EndToken(sampled));
        }
        let id = forced.unwrap_or(sampled);
        let position = self.request.first_position + self.tokens.len() as u32;
        self.tokens.push(id);
        self.counters.generated_tokens += 1;
        tools.events.push(RequestEvent::Token { position, id, sampled, at_ns: tools.now_ns });
        if self.counters.generated_tokens == self.request.tokens_max {
            Some(Finish::TokensMax)
        } else if position as usize + 1 >= tools.options.context {
            Some(Finish::ContextFull)
        } else {
            None
        }
    }

    /// The last event. Rows in flight still come back, and mean nothing.
    pub fn end(&mut self, finish: Finish, now_ns: u64) -> RequestEvent {
        self.has_ended = true;
        self.interest.lose();
        let prompt_done_ns = self.prompt_done_ns.unwrap_or(now_ns);
        self.counters.prompt_ns = prompt_done_ns.saturating_sub(self.started_ns);
        self.counters.decode_ns = now_ns.saturating_sub(prompt_done_ns);
        RequestEvent::Finished { finish, counters: self.counters }
    }
}

/// What a verdict needs beside the batch.
pub(super) struct Absorb<'a> {
    pub options: &'a EngineOptions,
    pub sampler: &'a mut Sampler,
    pub events: &'a mut Vec<RequestEvent>,
    pub now_ns: u64,
}

impl Request {
    /// Whether a prompt of `total` tokens leaves no position for a token.
    fn prompt_is_context(&self, total: usize, options: &EngineOptions) -> bool {
        self.first_position as usize + total >= options.context
    }
}
