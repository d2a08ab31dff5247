//! The one place that makes coordinators and stage machines: the engine and the simulation both get theirs here.
//!
//! Invariant: machines that exist fit together; a test holds that nothing else calls their constructors.
//! Does not know: threads, devices, virtual time.

use super::coordinator::Coordinator;
use super::error::EngineError;
use super::options::EngineOptions;
use super::schedule::in_flight_max;
use super::stage::{StageMachine, StagePlace};
use crate::model::facts::{CardId, StageId};
use crate::model::footprint::LOGITS_BUFFERS;
use crate::transport::ring::Ring;
use crate::transport::{LinkEnds, LinkSpec};

/// What the engine must know of a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StageSpec {
    /// Whose card.
    pub card: CardId,
    /// Pages of K/V on it.
    pub kv_pages: usize,
}

/// Machines of one pipeline, and the sizes of what joins them.
#[derive(Debug)]
pub struct Machines {
    /// Admits and schedules.
    pub coordinator: Coordinator,
    /// In pipeline order.
    pub stages: Vec<StageMachine>,
    /// Between neighbours.
    pub links: Vec<LinkSpec>,
    /// The most commands that wait at a stage.
    pub commands_max: usize,
    /// Buffers for logits that go round between the last stage and the coordinator.
    pub logits_buffers: usize,
}

/// Makes the machines of a pipeline.
pub fn machines(specs: &[StageSpec], options: &EngineOptions) -> Result<Machines, EngineError> {
    options.check()?;
    let stage_count = specs.len();
    if stage_count == 0 {
        let range = "1 or more".to_owned();
        return Err(EngineError::Option { option: "the number of stages", value: 0, range });
    }
    let (needed, sequences, context) = (options.kv_pages(), options.sequences, options.context);
    if let Some(&StageSpec { card, kv_pages: pages }) = specs.iter().find(|s| s.kv_pages < needed) {
        return Err(EngineError::TooFewPages { card, pages, sequences, context, needed });
    }
    let place =
        |stage: usize| StagePlace { stage: StageId(stage as u32), stage_count, card: specs[stage].card };
    let stages = (0..stage_count).map(|s| StageMachine::new(place(s), specs[s].kv_pages)).collect();
    let links = (1..stage_count as u32).map(|to| link_into(StageId(to), options));
    Ok(Machines {
        coordinator: Coordinator::new(options.clone(), stage_count),
        stages,
        links: links.collect(),
        commands_max: commands_max(stage_count, sequences),
        logits_buffers: LOGITS_BUFFERS,
    })
}

/// The link that brings rows to stage `to`, which is not the first.
pub fn link_into(to: StageId, options: &EngineOptions) -> LinkSpec {
    LinkSpec {
        kind: options.link,
        ends: LinkEnds { from: StageId(to.0 - 1), to },
        slots: options.link_slots,
        values_per_row: options.residual_width,
        rows_max: options.batch_rows_max(),
    }
}

/// The core of a link, for whoever drives it without a link's memory.
pub fn ring(link: &LinkSpec) -> Ring {
    Ring::new(link.slots)
}

/// A stage has read every command before the last batch that came back. Behind that batch there are the batches in
/// flight, and for each state at most one skip, one rollback and one release: each of them follows a batch of
/// the state that came back or precedes one that did not. One stop ends it all.
fn commands_max(stage_count: usize, sequences: usize) -> usize {
    in_flight_max(stage_count) + 3 * sequences + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_with_too_few_pages_is_named() {
        let options = EngineOptions { sequences: 3, ..EngineOptions::new(32, 4, 130) };
        let spec = |card, kv_pages| StageSpec { card: CardId::cpu(card), kv_pages };
        assert!(machines(&[spec(0, 9), spec(1, 9)], &options).is_ok());
        let error = machines(&[spec(0, 9), spec(7, 8)], &options).unwrap_err();
        assert!(error.to_string().starts_with("cpu:7: 8 K/V pages"), "{error}");
        assert!(machines(&[], &options).is_err());
    }
}
