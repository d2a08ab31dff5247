//! `tandem detokenize`: token ids to the bytes of their text.
//!
//! Invariant: bytes go out as they are, also where they are no whole characters; a new line ends them unless `--raw`.

use std::io::{BufWriter, Write as _};

use anyhow::Context as _;

use super::args::DetokenizeArgs;
use super::streams::output;
use crate::gguf::File;
use crate::text::{SpecialText, Vocab};

/// Runs the command.
pub(super) fn run(args: &DetokenizeArgs) -> anyhow::Result<()> {
    let file = File::open(args.model.path()?)?;
    let place = || file.path().display().to_string();
    let vocab = Vocab::from_metadata(file.metadata()).with_context(place)?;
    let special = if args.special { SpecialText::Shown } else { SpecialText::Hidden };
    let bytes = vocab.detokenize(&args.tokens, special).context("--tokens")?;
    let mut out = BufWriter::new(output());
    out.write_all(&bytes)?;
    if !args.raw {
        out.write_all(b"\n")?;
    }
    Ok(out.flush()?)
}
