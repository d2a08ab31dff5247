//! Products.

pub(in crate::device::cpu) mod quantise;
