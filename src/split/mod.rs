//! The split: which card runs which layers, with every byte named, decided before anything is loaded.
//!
//! [`planner::plan`] is a pure function from sizes (`model::footprint`) and facts (`model::facts`) to a
//! [`plan::Plan`], or to a refusal that names the nearest plan that fits.
//! Invariants: same input, same plan; no card of a plan is over its budget; every layer lies on exactly one card.
//! Does not know: devices, files, threads, clocks.

pub mod budget;
pub mod cost;
pub mod defaults;
mod error;
mod fit;
mod miss;
mod nearest;
pub mod options;
mod orders;
pub mod plan;
pub mod planner;
pub mod refusal;
mod search;
mod sums;
mod table;

pub use error::SplitError;
pub use sums::CARDS_MAX;
