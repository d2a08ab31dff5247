//! `tandem logits`: the logits of given tokens, all rows, as a .npy file.
//!
//! Invariant: rows are written as they come; a run that ends early leaves no file.

use anyhow::{Context as _, bail};

use super::args::LogitsArgs;
use super::interrupt;
use super::load::{Prepared, Wanted};
use super::npy::NpyWriter;
use crate::engine::request::{Finish, LogitsWanted, Request, RequestEvent};
use crate::model::facts::KvFormat;

/// Runs the command.
pub(super) fn run(args: &LogitsArgs) -> anyhow::Result<()> {
    let wanted = Wanted {
        sequences: 1,
        kv: Some(KvFormat::F32),
        all_logits: true,
        window: args.window,
        context_min: args.tokens.len(),
    };
    let prepared = Prepared::with(&args.split, wanted)?;
    let request = Request { prompt: args.tokens.clone(), logits: LogitsWanted::All, ..Request::default() };
    request.check(&prepared.options).context("--tokens")?;
    let plan = prepared.plan()?;
    let vocab = prepared.model.program.facts.vocab;
    // Before a large model is loaded for nothing.
    let (inputs, shape) = (prepared.model.file.paths(), [args.tokens.len(), vocab]);
    let mut out = NpyWriter::create(&args.out, inputs, args.force.models(), shape).context("--out")?;
    let opened = prepared.open(plan)?;
    let mut handle = opened.engine.submit(request)?;
    let _watched = interrupt::cancels(handle.canceller());
    while let Some(event) = handle.next_event() {
        match event {
            RequestEvent::Logits { values, .. } => out.write(&values)?,
            RequestEvent::Finished { finish: Finish::Failed(error), .. } => return Err(error.into()),
            RequestEvent::Finished { finish: Finish::Cancelled, .. } => bail!("interrupted"),
            RequestEvent::Finished { .. } | RequestEvent::Prompt { .. } | RequestEvent::Token { .. } => {}
        }
    }
    out.finish()?;
    prepared.end(opened.engine)
}
