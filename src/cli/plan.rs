//! `tandem plan`: which card would run which layers, with every byte, without loading.
//!
//! Invariant: no tensor is read.

use std::io::{BufWriter, Write as _};

use anyhow::bail;
use serde_json::json;

use super::args::PlanArgs;
use super::load::Prepared;
use super::streams::{output, tell};
use crate::engine::open::{self, OpenError};
use crate::split::SplitError;

/// Runs the command. A refusal shows its items and the nearest plan that fits before the one line that sums it up.
pub(super) fn run(args: &PlanArgs) -> anyhow::Result<()> {
    let p = Prepared::new(&args.split, args.sequences.sequences)?;
    match open::plan(&p.model, &p.choice, &p.split, &p.options) {
        Ok(plan) => {
            p.meets_a_stage(&plan)?;
            let mut out = BufWriter::new(output());
            if args.json {
                writeln!(out, "{}", serde_json::to_string_pretty(&plan)?)?;
            } else {
                writeln!(out, "{}", plan.to_string().trim_end())?;
            }
            out.flush()?;
            p.warn_of_context();
            p.fault_was_met()
        }
        Err(OpenError::Split(SplitError::NoFit(refusal))) => {
            if args.json {
                writeln!(output(), "{}", serde_json::to_string_pretty(&json!({ "refused": &refusal }))?)?;
            } else {
                tell(refusal.itemised().to_string().trim_end());
            }
            bail!("{}", refusal.summary())
        }
        Err(error) => Err(error.into()),
    }
}
