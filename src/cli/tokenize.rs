//! `tandem tokenize`: text to token ids.
//!
//! Invariant: the ids are those that `generate` reads for the same text and the same choices.

use std::io::{BufWriter, Write as _};

use anyhow::Context as _;

use super::args::TokenizeArgs;
use super::streams::output;
use crate::gguf::File;
use crate::text::{AddSpecial, ParseSpecial, SpecialText, Tokenizer, Vocab};

/// Runs the command.
pub(super) fn run(args: &TokenizeArgs) -> anyhow::Result<()> {
    let file = File::open(args.model.path()?)?;
    let place = || file.path().display().to_string();
    let vocab = Vocab::from_metadata(file.metadata()).with_context(place)?;
    let parse = if args.parse_special { ParseSpecial::AsTokens } else { ParseSpecial::AsText };
    let add = if args.add_special { AddSpecial::Always } else { AddSpecial::No };
    let tokenizer = Tokenizer::new(&vocab).with_context(place)?;
    let ids = tokenizer.encode(&args.text, parse, add).with_context(place)?;
    let mut out = BufWriter::new(output());
    if args.json {
        writeln!(out, "{}", serde_json::to_string(&ids)?)?;
    } else {
        for id in ids {
            let bytes = vocab.token_bytes(id, SpecialText::Shown)?;
            writeln!(out, "{id:>8}  {:?}", String::from_utf8_lossy(&bytes))?;
        }
    }
    Ok(out.flush()?)
}
