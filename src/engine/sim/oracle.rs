//! What a request must answer: the hash model run plainly on one sequence, token by token.
//!
//! Shares the formulas of the hash model and the sampler with the engine, and nothing else: no batches, pages,
//! stages, links, schedules.
//! Invariant: the answer is a function of the request and the context alone.

use super::hash_card::{attend, embed, entry, leave, logit};
use crate::engine::request::{Finish, Request};
use crate::engine::sample::Sampler;

/// The hash model on one sequence.
#[derive(Debug)]
pub struct HashModel {
    vocab: usize,
    /// By layer, then position.
    stored: Vec<Vec<u64>>,
}

impl HashModel {
    /// A model before its first token.
    pub fn new(layers: usize, vocab: usize) -> HashModel {
        HashModel { vocab, stored: vec![Vec::new(); layers] }
    }

    /// The logits behind the next token.
    pub fn next(&mut self, token: u32) -> Vec<f32> {
        let mut x = embed(token, self.stored[0].len() as u32);
        for (layer, stored) in self.stored.iter_mut().enumerate() {
            stored.push(entry(x, layer));
            let sum = stored.iter().fold(0, |sum, &e| attend(sum, e));
            x = leave(x, sum);
        }
        (0..self.vocab).map(|token| logit(x, token)).collect()
    }
}

/// The whole answer to a request.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// Tokens behind the prompt.
    pub tokens: Vec<u32>,
    /// How it ends.
    pub finish: Finish,
    /// Logits of every row that is run, from position 0.
    pub logits: Vec<Vec<f32>>,
}

/// What the request answers on a model of `layers` layers. Its first position must be 0.
pub fn answer(request: &Request, layers: usize, vocab: usize, context: usize) -> Answer {
    let mut model = HashModel::new(layers, vocab);
    let mut history = request.prompt.clone();
    let mut logits: Vec<Vec<f32>> = request.prompt.iter().map(|&token| model.next(token)).collect();
    let mut tokens = Vec::new();
    let mut sampler = Sampler::default();
    let finish = loop {
        if tokens.len() == request.tokens_max {
            break Finish::TokensMax;
        }
        if history.len() == context {
            break Finish::ContextFull;
        }
        let mut last = logits[logits.len() - 1].clone();
        let sampled = sampler.sample(&request.sampling, &history, history.len() as u32, &mut last);
        let sampled = sampled.expect("invariant: logits of the hash model are finite");
        let forced = request.forced.get(tokens.len()).copied();
        if forced.is_none() && request.end_tokens.contains(&sampled) {
            break Finish::EndToken(sampled);
        }
        let token = forced.unwrap_or(sampled);
        tokens.push(token);
        history.push(token);
        if tokens.len() < request.tokens_max && history.len() < context {
            logits.push(model.next(token));
        }
    };
    Answer { tokens, finish, logits }
}
