//! The kernels that a stage runs, found once when it is lowered.
//!
//! Invariant: a weight has the kernels of its type and use, and no others. Does not know: batches.

use super::fuse::Launches;
use super::prompt;
use super::prompt_attention::PromptAttention;
use super::tile_attention::TileAttention;
use super::window::{Room, Window};
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
    /// With rows of floats.
    pub(super) product: Option<Kernel>,
    /// As a router, with the norm before.
    pub(super) norm_router: Option<Kernel>,
    /// With images of a window's rows.
    pub(super) window: Option<Window>,
    /// With the images of a chunk's rows.
    pub(super) prompt: Option<Kernel>,
}

/// All kernels of a stage.
#[derive(Debug)]
pub(super) struct StageKernels {
    pub(super) rms_norm: Kernel,
    pub(super) norm_images: Kernel,
    quantise: [Kernel; 2],
    pub(super) rope: Kernel,
    pub(super) add: Kernel,
    pub(super) swiglu: Kernel,
    pub(super) gather: Kernel,
    pub(super) route: Kernel,
    pub(super) combine: Kernel,
    pub(super) append: Kernel,
    pub(super) place_heads: Kernel,
    pub(super) tiles: TileAttention,
    pub(super) merge_images: Kernel,
    pub(super) attend_span: Kernel,
    pub(super) attend_merge: Kernel,
    pub(super) prompt_attention: PromptAttention,
    pub(super) copy_page: Kernel,
    pub(super) group_pairs: Kernel,
    pub(super) best_of_logits: Kernel,
    pub(super) best_of_keys: Kernel,
    weights: Vec<OfWeight>,
}

impl StageKernels {
    /// The kernels of the stage's weights, formats and ops, for a card with so much room.
    pub(super) fn new(
        all: &Kernels,
        stage: &StageProgram,
        activations: Activations,
        kv: KvFormat,
        room: Room,
        launches: &Launches,
    ) -> Result<StageKernels, CudaError> {
        let routers = launches.routers();
        let routes = |id: usize| routers.contains(&WeightId(id));
        let of_weight = |(id, decl): (usize, &WeightDecl)| -> Result<OfWeight, CudaError> {
            if footprint::item_of(stage, WeightId(id), decl).is_none() {
                return Ok(OfWeight::default());
            }
            let embed = || all.for_type("embed_", decl.ty).map(Some);
            let products = || -> Result<OfWeight, CudaError> {
                if let Some(kind) = image_of(decl.ty, activations) {
                    let prompt = all.for_type("prompt_product_", decl.ty)?;
                    let prompt = prompt.with_shared(prompt::shared_bytes(kind))?;
                    let window = Some(Window::new(all, decl.ty, room)?);
                    return Ok(OfWeight { window, prompt: Some(prompt), ..OfWeight::default() });
                }
                let experts = decl.usage == WeightUse::Experts;
                let family = if experts { "expert_product_float_" } else { "product_float_" };
                let norm_router = || all.for_type("norm_router_", decl.ty)?.with_shared(4 * decl.cols);
                Ok(OfWeight {
                    product: Some(all.for_type(family, decl.ty)?),
                    norm_router: if routes(id) { Some(norm_router()?) } else { None },
                    ..OfWeight::default()
                })
            };
            let (embeds, multiplies) = match decl.usage {
                WeightUse::Vector => (false, false),
                WeightUse::Table => (true, false),
                WeightUse::Matrix | WeightUse::Experts => (false, true),
                WeightUse::TiedTable => (stage.embeds(), stage.heads()),
            };
            Ok(OfWeight {
                embed: if embeds { embed()? } else { None },
                ..if multiplies { products()? } else { OfWeight::default() }
            })
        };
        let weights = stage.program.weights.iter().enumerate().map(of_weight);
        Ok(StageKernels {
            rms_norm: all.plain("rms_norm")?,
            norm_images: all.plain("norm_images")?,
            quantise: [all.quantise(ImageKind::A32)?, all.quantise(ImageKind::A256)?],
            rope: all.plain("rope")?,
            add: all.plain("add")?,
            swiglu: all.plain("swiglu")?,
            gather: all.plain("gather")?,
            route: all.plain("route")?,
            combine: all.plain("combine")?,
            append: all.for_kv("append_", kv)?,
            place_heads: all.for_kv("place_heads_", kv)?,
            tiles: TileAttention::new(all, stage, kv, room)?,
            merge_images: all.plain("merge_images")?,
            attend_span: all.for_kv("attend_span_", kv)?,
            attend_merge: all.plain("attend_merge")?,
            prompt_attention: PromptAttention::new(all, stage, activations, kv, room.shared_bytes_max)?,
            copy_page: all.plain("copy_page")?,
            group_pairs: all.plain("group_pairs")?,
            best_of_logits: all.plain("best_of_logits")?,
            best_of_keys: all.plain("best_of_keys")?,
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

    /// Multiplies a matrix with the images of a window's rows.
    pub(super) fn window(&self, id: WeightId) -> &Window {
        let window = self.weights[id.0].window.as_ref();
        window.expect("invariant: an op multiplies with matrices of its stage only")
    }

    /// Multiplies a matrix with floats.
    pub(super) fn product(&self, id: WeightId) -> &Kernel {
        self.weights[id.0]
            .product
            .as_ref()
            .expect("invariant: an op multiplies with matrices of its stage only")
    }

    /// Norms a row and multiplies a router with it.
    pub(super) fn norm_router(&self, id: WeightId) -> &Kernel {
        let kernel = self.weights[id.0].norm_router.as_ref();
        kernel.expect("invariant: a launch names the routers of its stage only")
    }

    /// Multiplies a matrix with the images of a chunk's rows.
    pub(super) fn prompt(&self, id: WeightId) -> &Kernel {
        let prompt = self.weights[id.0].prompt.as_ref();
        prompt.expect("invariant: an op multiplies with matrices of its stage only")
    }
}
