//! What a request hears, held against what it must hear.
//!
//! Invariant: knows the plain answer and the faults of the schedule; knows nothing of the machines.

use super::fault::Fault;
use super::oracle::Answer;
use super::scenario::VOCAB;
use crate::engine::request::{Finish, RequestEvent};
use crate::model::facts::CardId;

/// One request's listener.
#[derive(Debug)]
pub(super) struct Listener {
    answer: Answer,
    prompt_tokens: usize,
    /// Rows between the cuts of a prompt.
    cut_rows: usize,
    heard_tokens: usize,
    read: usize,
    cancelled: bool,
    finish: Option<Finish>,
    pub violations: Vec<String>,
}

impl Listener {
    pub fn new(answer: Answer, prompt_tokens: usize, cut_rows: usize) -> Listener {
        Listener {
            answer,
            prompt_tokens,
            cut_rows,
            heard_tokens: 0,
            read: 0,
            cancelled: false,
            finish: None,
            violations: Vec::new(),
        }
    }

    pub fn finish(&self) -> Option<&Finish> {
        self.finish.as_ref()
    }

    pub fn heard_tokens(&self) -> usize {
        self.heard_tokens
    }

    /// From now on it may end as cancelled.
    pub fn cancel(&mut self) {
        self.cancelled = true;
    }

    pub fn hear(&mut self, event: &RequestEvent, faults: &[Fault], faulty: CardId) {
        if self.finish.is_some() {
            self.violations.push(format!("heard {event:?} after its end"));
        }
        match event {
            RequestEvent::Prompt { read, total } => self.hear_prompt(*read, *total),
            RequestEvent::Logits { position, rows, values } => self.hear_logits(*position, *rows, values),
            RequestEvent::Token { position, id, .. } => self.hear_token(*position, *id),
            RequestEvent::Finished { finish, .. } => {
                self.hear_finish(finish, faults, faulty);
                self.finish = Some(finish.clone());
            }
        }
    }

    fn hear_prompt(&mut self, read: usize, total: usize) {
        let cut_well = read == total || read.is_multiple_of(self.cut_rows);
        let step = read.wrapping_sub(self.read);
        if total != self.prompt_tokens || read > total || !(1..=self.cut_rows).contains(&step) || !cut_well {
            self.violations.push(format!("read {read} of {total} behind {}", self.read));
        }
        self.read = read;
    }

    fn hear_logits(&mut self, position: u32, rows: usize, values: &[f32]) {
        let expected = self.answer.logits.iter().skip(position as usize).take(rows);
        let same = values.len() == rows * VOCAB
            && expected.clone().count() == rows
            && expected.flatten().zip(values).all(|(a, b)| a.to_bits() == b.to_bits());
        if !same {
            self.violations.push(format!("wrong logits for {rows} rows from position {position}"));
        }
    }

    fn hear_token(&mut self, position: u32, id: u32) {
        let expected = self.answer.tokens.get(self.heard_tokens).copied();
        let place = self.prompt_tokens + self.heard_tokens;
        if expected != Some(id) || position as usize != place || self.read != self.prompt_tokens {
            let heard = self.heard_tokens;
            self.violations.push(format!("token {heard} is {id} at {position}, not {expected:?} at {place}"));
        }
        self.heard_tokens += 1;
    }

    fn hear_finish(&mut self, finish: &Finish, faults: &[Fault], faulty: CardId) {
        let whole = self.read == self.prompt_tokens
            && self.heard_tokens == self.answer.tokens.len()
            && *finish == self.answer.finish;
        let explained = faults.iter().any(|fault| fault.explains(finish, faulty));
        if !whole && (!explained || (*finish == Finish::Cancelled && !self.cancelled)) {
            let (heard, all) = (self.heard_tokens, self.answer.tokens.len());
            self.violations.push(format!("ended by {finish:?} after {heard} of {all} tokens"));
        }
    }
}
