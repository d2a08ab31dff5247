//! Key/value pages of one card.
