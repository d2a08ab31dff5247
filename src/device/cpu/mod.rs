//! Virtual cards: shares of this computer, computed by its CPUs.
//!
//! `exec` runs the steps of a lowered stage with a `team` of threads; `plain` is the arithmetic in its
//! simplest form, `simd` the same bits faster. Does not know: sequences, links, the split.

pub mod card;
pub mod columns;
pub mod exec;
pub mod image;
pub mod kv_store;
pub mod machine;
pub mod measure;
pub mod memory;
pub mod pack;
pub mod plain;
pub mod reference;
pub mod simd;
pub mod team;
pub mod weights;
