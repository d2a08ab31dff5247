//! The engine: coordinator, stages, sequences, sampling.
