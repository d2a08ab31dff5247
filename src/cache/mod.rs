//! What a stage keeps between batches: K/V pages.

pub mod kv;
