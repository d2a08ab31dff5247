//! The families: one file each turns a file's metadata and tensor directory into a [`Program`].
//!
//! Adding a family is a new file and a line of `FAMILIES`. Invariant: no tensor data is read here.
//! Does not know: devices, splits.

mod blocks;
mod llama;
mod qwen3moe;
mod writer;

use super::ModelError;
use super::program::Program;
use crate::gguf::File;
use writer::Writer;

/// Writes a family's program.
type Family = fn(Writer<'_>) -> Result<Program, ModelError>;

/// `general.architecture` and who writes it.
const FAMILIES: &[(&str, Family)] = &[("llama", llama::program), ("qwen3moe", qwen3moe::program)];

/// The program of the model in `file`.
pub fn program(file: &File) -> Result<Program, ModelError> {
    let found = file.architecture();
    match FAMILIES.iter().find(|(name, _)| *name == found) {
        Some((_, family)) => family(Writer::new(file)),
        None => Err(ModelError::Architecture { found: found.to_owned(), supported: supported().join(", ") }),
    }
}

/// Names of all families.
pub fn supported() -> Vec<&'static str> {
    FAMILIES.iter().map(|(name, _)| *name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::facts::Activations;
    use crate::model::footprint::Footprint;
    use std::path::Path;

    fn of(name: &str) -> Program {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("models").join(name);
        program(&File::open(&path).unwrap()).unwrap()
    }

    #[test]
    fn every_model_of_the_repository_is_a_program() {
        for (name, layers, vocab, rows) in [
            ("rand-llama.gguf", 4, 320, 7),
            ("split-rand-llama-00001-of-00004.gguf", 4, 320, 7),
            ("rand-wide.gguf", 2, 288, 7),
            ("rand-qwen3moe.gguf", 4, 352, 6),
            ("rand-qwen3moe-q8.gguf", 4, 331, 6),
            ("rand-lowbit.gguf", 2, 300, 6),
            ("tiny-qwen3moe.gguf", 8, 8192, 6),
        ] {
            let p = of(name);
            assert_eq!((p.facts.vocab, p.rows.len()), (vocab, rows), "{name}");
            assert_eq!(p.layers.len(), layers, "{name}");
        }
    }

    #[test]
    fn a_footprint_counts_every_weight_of_the_file_once() {
        let p = of("tiny-qwen3moe.gguf");
        let f = Footprint::of(&p, Activations::F32);
        let kept: u64 =
            f.layers.iter().map(|l| l.dense_bytes.cpu + l.expert_bytes.cpu + l.vector_bytes).sum();
        let file: u64 = p.weights.iter().map(|w| w.file_bytes()).sum();
        let all = kept + f.embedding_bytes + f.head_bytes.cpu - f.tied_bytes + f.tail_vector_bytes;
        // Every place is whole cache lines.
        assert!((file..file + 64 * p.weights.len() as u64).contains(&all), "{all} of {file} B");
        assert!(f.tied_bytes > 0, "this model's head is its embedding");
    }
}
