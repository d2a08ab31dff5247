//! `tandem detokenize`: token ids to the bytes of their text.
//!
//! Invariant: bytes go out as they are, also where they are no whole characters.

use std::io::Write as _;

use super::args::DetokenizeArgs;
use crate::gguf::File;
use crate::text::{SpecialText, Vocab};

/// Runs the command.
pub(super) fn run(args: &DetokenizeArgs) -> anyhow::Result<()> {
    let file = File::open(&args.model.model)?;
    let vocab = Vocab::from_metadata(file.metadata())?;
    let special = if args.special { SpecialText::Shown } else { SpecialText::Hidden };
    let mut out = std::io::stdout().lock();
    out.write_all(&vocab.detokenize(&args.tokens, special)?)?;
    out.flush()?;
    Ok(())
}
