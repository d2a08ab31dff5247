//! `tandem tokenize`: text to token ids.
//!
//! Invariant: the ids are those that `generate` reads for the same text and the same choices.

use std::io::Write as _;

use super::args::TokenizeArgs;
use crate::gguf::File;
use crate::text::{AddSpecial, ParseSpecial, SpecialText, Tokenizer, Vocab};

/// Runs the command.
pub(super) fn run(args: &TokenizeArgs) -> anyhow::Result<()> {
    let file = File::open(&args.model.model)?;
    let vocab = Vocab::from_metadata(file.metadata())?;
    let parse = if args.parse_special { ParseSpecial::AsTokens } else { ParseSpecial::AsText };
    let add = if args.add_special { AddSpecial::Always } else { AddSpecial::No };
    let ids = Tokenizer::new(&vocab)?.encode(&args.text, parse, add)?;
    let mut out = std::io::stdout().lock();
    if args.json {
        writeln!(out, "{}", serde_json::to_string(&ids)?)?;
        return Ok(());
    }
    for id in ids {
        let bytes = vocab.token_bytes(id, SpecialText::Shown)?;
        writeln!(out, "{id:>8}  {:?}", String::from_utf8_lossy(&bytes))?;
    }
    Ok(())
}
