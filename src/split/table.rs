//! The plan as people read it: a line a card, then what is predicted.
//!
//! Invariant: columns are aligned and, with card names of up to 12 letters, no line is wider than 100 columns.
//! Does not know: terminals, colours.

use std::fmt;

use crate::model::facts::{LinkKind, RateSource};
use crate::model::footprint::{Item, ItemKind};

use super::budget::{format_bytes, format_count, three_digits};
use super::plan::{Bound, Plan, StagePlan};

const WEIGHTS: [ItemKind; 4] = [ItemKind::Embedding, ItemKind::Dense, ItemKind::Vectors, ItemKind::Head];
const BUFFERS: [ItemKind; 4] = [ItemKind::Rows, ItemKind::Attention, ItemKind::LinkSlots, ItemKind::Logits];
const HEADS: [&str; 9] =
    ["card", "layers", "weights", "experts", "K/V", "buffers", "reserve", "free", "time"];

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rows = vec![HEADS.map(str::to_string).to_vec()];
        rows.extend(self.stages.iter().map(|stage| self.row(stage)));
        write_aligned(f, &rows)?;
        for idle in &self.idle {
            writeln!(f, "{}  idle: {}", idle.name, idle.reason)?;
        }
        let driver_bytes = self.stages.iter().map(|stage| stage.driver_bytes).max().unwrap_or(0);
        if driver_bytes > 0 {
            writeln!(f, "of reserves, {} a GPU are left to its driver", format_bytes(driver_bytes))?;
        }
        let sizes = &self.sizes;
        writeln!(
            f,
            "{} on {}, {} of {} tokens, K/V {}, chunks of up to {}; {} in all",
            format_count(self.layer_count(), "layer"),
            format_count(self.stages.len(), "card"),
            format_count(sizes.sequences, "sequence"),
            sizes.context,
            sizes.kv.name(),
            sizes.batch_rows_max,
            format_bytes(self.used_bytes()),
        )?;
        let predicted = &self.predicted;
        write!(f, "predicted: decode {} tok/s", three_digits(predicted.decode_tok_s))?;
        if sizes.sequences > 1 {
            write!(f, " alone, {} for all {}", three_digits(predicted.decode_tok_s_all), sizes.sequences)?;
        }
        writeln!(f, ", prompt {} tok/s", three_digits(predicted.prompt_tok_s))?;
        let rates = match predicted.rates {
            Some(RateSource::Measured) => "measured rates",
            Some(RateSource::Typical) => "typical rates",
            None => "measured rates of some cards and typical ones of others",
        };
        let position = predicted.decode_position;
        let of = if predicted.float_products {
            " of 8-bit products, which do not hold: --activations f32 is far slower"
        } else {
            ""
        };
        write!(f, "by {rates}{of}; decode at position {position}, prompts without their attention")?;
        if self.stages.len() > 1 {
            let at = |index: usize| &self.stages[index].name;
            let (row, chunk) = (format_bytes(self.handoff_row_bytes), format_bytes(self.handoff_chunk_bytes));
            write!(f, "\nbetween cards: {row} a row, {chunk} a chunk, {}; ", self.links_in_words())?;
            let what = if sizes.sequences > 1 { "prompts and decode" } else { "prompts" };
            match self.predicted.bound {
                Bound::Stage(stage) => write!(f, "{} bounds {what}", at(stage.index()))?,
                Bound::ArrivalAt(stage) => write!(f, "the link to {} bounds {what}", at(stage.index()))?,
                Bound::Turns => write!(f, "the cards take turns on the same threads")?,
            }
        }
        Ok(())
    }
}

impl Plan {
    /// The kinds of links, pair by pair where they differ: `peer`, or `0-1 peer, 1-2 mapped (1.00 MiB of host memory)`.
    fn links_in_words(&self) -> String {
        let kind = |stage: &StagePlan| {
            let name = stage.arrives.map_or("", LinkKind::name);
            match stage.arrives_host_bytes {
                0 => name.to_owned(),
                bytes => format!("{name} ({} of host memory)", format_bytes(bytes)),
            }
        };
        let kinds: Vec<String> = self.stages.iter().skip(1).map(kind).collect();
        match kinds.first() {
            Some(first) if kinds.iter().all(|kind| kind == first) => first.clone(),
            _ => {
                let pairs = kinds.iter().enumerate();
                pairs.map(|(at, kind)| format!("{at}-{} {kind}", at + 1)).collect::<Vec<_>>().join(", ")
            }
        }
    }

    fn row(&self, stage: &StagePlan) -> Vec<String> {
        let bytes = |kinds: &[ItemKind]| match stage.bytes_of(kinds) {
            0 => "-".to_string(),
            bytes => format_bytes(bytes),
        };
        let all_us: f64 = self.stages.iter().map(|s| s.decode_us).sum();
        let share = if all_us > 0.0 { 100.0 * stage.decode_us / all_us } else { 0.0 };
        vec![
            stage.name.clone(),
            format!("{}-{}", stage.layers.start, stage.layers.end - 1),
            bytes(&WEIGHTS),
            bytes(&[ItemKind::Experts]),
            bytes(&[ItemKind::KvPages]),
            bytes(&BUFFERS),
            if stage.reserve_bytes == 0 { "-".to_string() } else { format_bytes(stage.reserve_bytes) },
            format_bytes(stage.free_bytes()),
            format!("{share:.0} %"),
        ]
    }
}

/// Items in words, the largest first: `experts 3.1 GiB, K/V pages 512 MiB`.
pub(super) fn items_in_words(items: &[Item]) -> String {
    let mut items = items.to_vec();
    items.sort_by_key(|i| (std::cmp::Reverse(i.bytes), i.kind));
    items.iter().map(|i| format!("{} {}", i.kind, format_bytes(i.bytes))).collect::<Vec<_>>().join(", ")
}

/// Writes rows under each other: the first two columns to the left, the others to the right.
pub(super) fn write_aligned(f: &mut fmt::Formatter<'_>, rows: &[Vec<String>]) -> fmt::Result {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |at: usize| rows.iter().map(|row| row[at].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    for row in rows {
        let cells = row.iter().zip(&widths).enumerate().map(|(at, (cell, &width))| match at {
            0 | 1 => format!("{cell:<width$}"),
            _ => format!("{cell:>width$}"),
        });
        writeln!(f, "{}", cells.collect::<Vec<_>>().join("  ").trim_end())?;
    }
    Ok(())
}
