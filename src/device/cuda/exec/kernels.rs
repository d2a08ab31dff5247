//! The kernels that a stage runs, found once when it is lowered.
//!
//! Invariant: a weight has the kernels of its type and use, and no others. Does not know: batches.

use super::prompt_attention::PromptAttention;
use crate::device::cuda::CudaError;
use crate::device::cuda::driver::Kernel;
use crate::device::cuda::kernels::Kernels;
use crate::gguf::formats::ImageKind;
use crate::model::facts::{Activations, KvFormat, StageProgram};
use crate::model::footprint::{self, image_of};
use crate::model::program::{WeightDecl, WeightId, WeightUse};

/// Kernels of one weight.
#[derive(Clone, Debug, Default)]
pub(super) struct OfWeight {
    pub(super) embed: Option<Kernel>,
    pub(super) product: Option<Kernel>,
}

/// All kernels of a stage.
#[derive(Debug)]
pub(super) struct StageKernels {
    pub(super) rms_norm: Kernel,
    quantise: [Kernel; 2],
    pub(super) rope: Kernel,
    pub(super) add: Kernel,
    pub(super) swiglu: Kernel,
    pub(super) gather: Kernel,
    pub(super) route: Kernel,
    pub(super) combine: Kernel,
    pub(super) append: Kernel,
    pub(super) attend_span: Kernel,
    pub(super) attend_merge: Kernel,
    pub(super) prompt_attention: PromptAttention,
    pub(super) copy_page: Kernel,
    weights: Vec<OfWeight>,
}

impl StageKernels {
    /// The kernels of the stage's weights, formats and ops, for a card whose blocks have so much shared memory.
    pub(super) fn new(
        all: &Kernels,
        stage: &StageProgram,
        activations: Activations,
        kv: KvFormat,
        shared_bytes_max: usize,
    ) -> Result<StageKernels, CudaError> {
        let of_weight = |(id, decl): (usize, &WeightDecl)| -> Result<OfWeight, CudaError> {
            if footprint::item_of(stage, WeightId(id), decl).is_none() {
                return Ok(OfWeight::default());
            }
            let embed = || all.for_type("embed_", decl.ty).map(Some);
            let has_image = image_of(decl.ty, activations).is_some();
            let product = || {
                let family = match (decl.usage, has_image) {
                    (WeightUse::Experts, true) => "expert_product_",
                    (WeightUse::Experts, false) => "expert_product_float_",
                    (_, true) => "product_",
                    (_, false) => "product_float_",
                };
                all.for_type(family, decl.ty).map(Some)
            };
            Ok(match decl.usage {
                WeightUse::Vector => OfWeight::default(),
                WeightUse::Table => OfWeight { embed: embed()?, product: None },
                WeightUse::Matrix | WeightUse::Experts => OfWeight { embed: None, product: product()? },
                WeightUse::TiedTable => OfWeight {
                    embed: if stage.embeds() { embed()? } else { None },
                    product: if stage.heads() { product()? } else { None },
                },
            })
        };
        let weights = stage.program.weights.iter().enumerate().map(of_weight);
        Ok(StageKernels {
            rms_norm: all.plain("rms_norm")?,
            quantise: [all.quantise(ImageKind::A32)?, all.quantise(ImageKind::A256)?],
            rope: all.plain("rope")?,
            add: all.plain("add")?,
            swiglu: all.plain("swiglu")?,
            gather: all.plain("gather")?,
            route: all.plain("route")?,
            combine: all.plain("combine")?,
            append: all.for_kv("append_", kv)?,
            attend_span: all.for_kv("attend_span_", kv)?,
            attend_merge: all.plain("attend_merge")?,
            prompt_attention: PromptAttention::new(all, stage, activations, kv, shared_bytes_max)?,
            copy_page: all.plain("copy_page")?,
            weights: weights.collect::<Result<_, _>>()?,
        })
    }

    /// Makes images of a kind.
    pub(super) fn quantise(&self, kind: ImageKind) -> &Kernel {
        match kind {
            ImageKind::A32 => &self.quantise[0],
            ImageKind::A256 => &self.quantise[1],
        }
    }

    /// Reads rows of a table.
    pub(super) fn embed(&self, id: WeightId) -> &Kernel {
        self.weights[id.0].embed.as_ref().expect("invariant: an op embeds from tables of its stage only")
    }

    /// Multiplies with a matrix.
    pub(super) fn product(&self, id: WeightId) -> &Kernel {
        self.weights[id.0]
            .product
            .as_ref()
            .expect("invariant: an op multiplies with matrices of its stage only")
    }
}
