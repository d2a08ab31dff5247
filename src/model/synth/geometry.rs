//! Geometries of well-known models, and of one that `bench/compare.sh` measures, by name.
//!
//! Invariant: the sizes of well-known models are those of the published files. Does not know: files, tensors' bytes.
//! Sources: the models' published configurations; keys and tensors: arch-llama and arch-qwen3moe, sections 1 and 2.

use super::{Blueprint, Changes, Fill, Planned, SynthError, head_type, matrix_fill, matrix_type};
use crate::gguf::writer::TensorSpec;
use crate::gguf::{Metadata, TensorType, Value};

/// Experts of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Experts {
    count: usize,
    used: usize,
}

/// Sizes of one model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Geometry {
    /// What `--like` calls it.
    pub name: &'static str,
    architecture: &'static str,
    layers: usize,
    embedding: usize,
    heads: usize,
    kv_heads: usize,
    head_width: usize,
    /// Inner width: of the dense layer, or of one expert.
    inner: usize,
    experts: Option<Experts>,
    vocab: usize,
    context: usize,
    rope_base: f32,
    epsilon: f32,
    is_tied: bool,
}

const fn experts(count: usize, used: usize) -> Option<Experts> {
    Some(Experts { count, used })
}

impl Geometry {
    /// Every geometry with a name.
    pub const ALL: [Geometry; 7] = [
        Geometry {
            name: "qwen3-30b-a3b",
            architecture: "qwen3moe",
            layers: 48,
            embedding: 2048,
            heads: 32,
            kv_heads: 4,
            head_width: 128,
            inner: 768,
            experts: experts(128, 8),
            vocab: 151_936,
            context: 40_960,
            rope_base: 1e6,
            epsilon: 1e-6,
            is_tied: false,
        },
        Geometry {
            name: "qwen3-235b-a22b",
            architecture: "qwen3moe",
            layers: 94,
            embedding: 4096,
            heads: 64,
            kv_heads: 4,
            head_width: 128,
            inner: 1536,
            experts: experts(128, 8),
            vocab: 151_936,
            context: 40_960,
            rope_base: 1e6,
            epsilon: 1e-6,
            is_tied: false,
        },
        Geometry {
            name: "mixtral-8x7b",
            architecture: "llama",
            layers: 32,
            embedding: 4096,
            heads: 32,
            kv_heads: 8,
            head_width: 128,
            inner: 14_336,
            experts: experts(8, 2),
            vocab: 32_000,
            context: 32_768,
            rope_base: 1e6,
            epsilon: 1e-5,
            is_tied: false,
        },
        Geometry {
            name: "llama-70b",
            architecture: "llama",
            layers: 80,
            embedding: 8192,
            heads: 64,
            kv_heads: 8,
            head_width: 128,
            inner: 28_672,
            experts: None,
            vocab: 128_256,
            context: 8192,
            rope_base: 5e5,
            epsilon: 1e-5,
            is_tied: false,
        },
        Geometry {
            name: "llama-8b",
            architecture: "llama",
            layers: 32,
            embedding: 4096,
            heads: 32,
            kv_heads: 8,
            head_width: 128,
            inner: 14_336,
            experts: None,
            vocab: 128_256,
            context: 8192,
            rope_base: 5e5,
            epsilon: 1e-5,
            is_tied: false,
        },
        Geometry {
            name: "smollm2-135m",
            architecture: "llama",
            layers: 30,
            embedding: 576,
            heads: 9,
            kv_heads: 3,
            head_width: 64,
            inner: 1536,
            experts: None,
            vocab: 49_152,
            context: 8192,
            rope_base: 1e5,
            epsilon: 1e-5,
            is_tied: true,
        },
        Geometry {
            name: "bench-1024",
            architecture: "llama",
            layers: 12,
            embedding: 1024,
            heads: 16,
            kv_heads: 4,
            head_width: 64,
            inner: 2816,
            experts: None,
            vocab: 512,
            context: 4096,
            rope_base: 1e4,
            epsilon: 1e-5,
            is_tied: false,
        },
    ];

    /// A dense model to measure a card with: `width` values a row, a multiple of 256, and few tokens.
    pub fn probe(width: usize, layers: usize) -> Geometry {
        assert!(width.is_multiple_of(256) && width > 0, "a width of {width}");
        Geometry {
            name: "a probe",
            architecture: "llama",
            layers,
            embedding: width,
            heads: width / 128,
            kv_heads: (width / 512).max(1),
            head_width: 128,
            inner: 4 * width,
            experts: None,
            vocab: 512,
            context: 4096,
            rope_base: 1e5,
            epsilon: 1e-5,
            is_tied: false,
        }
    }

    /// The geometry of this name.
    pub fn named(name: &str) -> Option<Geometry> {
        Geometry::ALL.into_iter().find(|g| g.name == name)
    }

    /// A file of this geometry; matrices are `Q4_K` where nothing else is asked.
    pub fn blueprint(mut self, changes: &Changes) -> Result<Blueprint, SynthError> {
        let quant = changes.quant.unwrap_or(TensorType::Q4_K);
        if let Some(layers) = changes.layers {
            self.layers = layers;
        }
        match (&mut self.experts, changes.experts) {
            (Some(experts), Some(count)) => {
                experts.count = count;
                experts.used = experts.used.min(count);
            }
            (None, Some(_)) => {
                return Err(SynthError(format!("--experts: {} has none; leave it out", self.name)));
            }
            (_, None) => {}
        }
        let vocab = (self.vocab, if self.architecture == "llama" { "llama-bpe" } else { "qwen2" });
        Ok(Blueprint { metadata: self.metadata(), tensors: self.tensors(quant), vocab: Some(vocab) })
    }

    fn metadata(&self) -> Metadata {
        let mut keys = Metadata::default();
        let mut put = |key: &str, value: Value| keys.insert(key.to_owned(), value);
        put("general.architecture", Value::String(self.architecture.into()));
        put("general.name", Value::String(format!("random weights, geometry of {}", self.name)));
        put("general.quantization_version", Value::U32(2));
        let arch = self.architecture;
        let mut number = |key: &str, n: usize| keys.insert(format!("{arch}.{key}"), Value::U32(n as u32));
        number("block_count", self.layers);
        number("context_length", self.context);
        number("embedding_length", self.embedding);
        number("feed_forward_length", self.inner);
        number("attention.head_count", self.heads);
        number("attention.head_count_kv", self.kv_heads);
        number("attention.key_length", self.head_width);
        number("attention.value_length", self.head_width);
        number("rope.dimension_count", self.head_width);
        number("vocab_size", self.vocab);
        if let Some(experts) = self.experts {
            number("expert_count", experts.count);
            number("expert_used_count", experts.used);
            number("expert_feed_forward_length", self.inner);
        }
        keys.insert(format!("{arch}.rope.freq_base"), Value::F32(self.rope_base));
        keys.insert(format!("{arch}.attention.layer_norm_rms_epsilon"), Value::F32(self.epsilon));
        keys
    }

    fn tensors(&self, quant: TensorType) -> Vec<Planned> {
        let (n, q, kv) = (self.embedding, self.heads * self.head_width, self.kv_heads * self.head_width);
        let vector = |name: String, len: usize| Planned {
            spec: TensorSpec { name, ty: TensorType::F32, dims: vec![len as u64] },
            asked: TensorType::F32,
            fill: Fill::Norm,
        };
        let of_type = |name: String, asked: TensorType, dims: &[usize]| {
            let dims: Vec<u64> = dims.iter().map(|&d| d as u64).collect();
            let ty = matrix_type(asked, dims[0]);
            Planned { asked, fill: matrix_fill(dims[0]), spec: TensorSpec { name, ty, dims } }
        };
        let matrix = |name: String, dims: &[usize]| of_type(name, quant, dims);
        let head = head_type(quant);
        let table = if self.is_tied { head } else { quant };
        let mut tensors = vec![of_type("token_embd.weight".into(), table, &[n, self.vocab])];
        // A head's rows keep the size of what they read; a table alone may have any.
        if !self.is_tied {
            tensors[0].fill = Fill::Random(1.0);
        }
        for layer in 0..self.layers {
            let name = |part: &str| format!("blk.{layer}.{part}.weight");
            tensors.push(vector(name("attn_norm"), n));
            tensors.push(matrix(name("attn_q"), &[n, q]));
            tensors.push(matrix(name("attn_k"), &[n, kv]));
            tensors.push(matrix(name("attn_v"), &[n, kv]));
            if self.architecture == "qwen3moe" {
                tensors.push(vector(name("attn_q_norm"), self.head_width));
                tensors.push(vector(name("attn_k_norm"), self.head_width));
            }
            tensors.push(matrix(name("attn_output"), &[q, n]));
            tensors.push(vector(name("ffn_norm"), n));
            match self.experts {
                Some(Experts { count, .. }) => {
                    tensors.push(of_type(name("ffn_gate_inp"), TensorType::F32, &[n, count]));
                    tensors.push(matrix(name("ffn_gate_exps"), &[n, self.inner, count]));
                    tensors.push(matrix(name("ffn_up_exps"), &[n, self.inner, count]));
                    tensors.push(matrix(name("ffn_down_exps"), &[self.inner, n, count]));
                }
                None => {
                    tensors.push(matrix(name("ffn_gate"), &[n, self.inner]));
                    tensors.push(matrix(name("ffn_up"), &[n, self.inner]));
                    tensors.push(matrix(name("ffn_down"), &[self.inner, n]));
                }
            }
        }
        tensors.push(vector("output_norm.weight".into(), n));
        if !self.is_tied {
            tensors.push(of_type("output.weight".into(), head, &[n, self.vocab]));
        }
        tensors
    }
}
