//! A model as data: its program, its sizes, and the families that write programs.
//!
//! Invariant: nothing here allocates weights, opens files or knows a device.

pub mod facts;
pub mod footprint;
pub mod program;
