//! What can go wrong in a schedule, and which ends it may cause.
//!
//! Invariant: a fault is either survived (the text is whole) or told (the request fails with an error of its kind).
//! Does not know: how a fault is brought about.

use crate::engine::error::EngineError;
use crate::engine::request::Finish;
use crate::model::facts::CardId;

/// A fault of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// Messages and wakes take long, now and then.
    Late,
    /// Links have one slot, consumers read slowly, few requests may wait.
    Full,
    /// One card takes long for every batch.
    SlowCard,
    /// One link takes long for every hand-off.
    SlowLink,
    /// Requests are cancelled.
    Cancelled,
    /// The engine is shut down in the middle.
    EarlyShutdown,
    /// Rows posted on a link never arrive.
    LostSlot,
    /// A batch's logits never arrive.
    LostAnswer,
    /// A card fails.
    DeadCard,
    /// A card never returns.
    HungCard,
    /// A card finds rows that are not finite.
    BadRows,
    /// Planted: a row is changed on its way. The checkers must see it.
    Corrupt,
    /// Planted: a stage is not told to release a state. The checkers must see it.
    LeakedState,
    /// Planted: a request hears something after its end. The checkers must see it.
    SpeaksAfterEnd,
    /// Planted: a slot is given out twice. The checkers must see it.
    SharedSlot,
    /// Planted: a batch is never run and nothing is told. The checkers must see that requests hang.
    Hang,
}

impl Fault {
    /// Faults that the engine must bear.
    pub const REAL: [Fault; 11] = [
        Fault::Late,
        Fault::Full,
        Fault::SlowCard,
        Fault::SlowLink,
        Fault::Cancelled,
        Fault::EarlyShutdown,
        Fault::LostSlot,
        Fault::LostAnswer,
        Fault::DeadCard,
        Fault::HungCard,
        Fault::BadRows,
    ];

    /// Mistakes that the checkers must find; no schedule has them unless asked.
    pub const PLANTED: [Fault; 5] =
        [Fault::Corrupt, Fault::LeakedState, Fault::SpeaksAfterEnd, Fault::SharedSlot, Fault::Hang];

    /// Whether the fault may end a request this way; `card` is the faulty one.
    pub(super) fn explains(self, finish: &Finish, card: CardId) -> bool {
        let Finish::Failed(error) = finish else {
            return self == Fault::Cancelled && *finish == Finish::Cancelled;
        };
        match self {
            Fault::Full => matches!(error, EngineError::QueueFull { .. }),
            Fault::EarlyShutdown => *error == EngineError::ShuttingDown,
            Fault::DeadCard => matches!(error, EngineError::StageDied { card: c, .. } if *c == card),
            Fault::BadRows => matches!(error, EngineError::Rows { .. }),
            // Whoever misses the rows first says so: the next stage, or the coordinator.
            Fault::LostSlot => matches!(error, EngineError::StageDied { .. } | EngineError::Late { .. }),
            Fault::HungCard => match error {
                EngineError::Late { suspect, .. } => *suspect == Some(card),
                error => matches!(error, EngineError::StageDied { .. }),
            },
            Fault::LostAnswer => {
                matches!(error, EngineError::Internal { .. } | EngineError::Late { suspect: None, .. })
            }
            _ => false,
        }
    }
}
