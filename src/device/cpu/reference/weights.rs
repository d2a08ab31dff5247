//! The weights of the interpreter: the file's bytes, and products with them one weight row at a time.
//!
//! Invariant: bytes stay as the file has them; whatever a product needs is decoded where it is used.
//! Does not know: ops, batches, budgets.

use std::collections::HashMap;

use super::REFERENCE;
use crate::device::CardError;
use crate::device::cpu::plain::NotFinite;
use crate::device::cpu::plain::image::Image;
use crate::device::cpu::plain::product::{decode, dot, dot_float, finish, image_values};
use crate::gguf::formats::{dequantize_row, format};
use crate::gguf::{self, TensorType};
use crate::model::facts::{Activations, StageProgram};
use crate::model::program::{Op, Product, WeightDecl, WeightId};

/// A tensor of the file.
#[derive(Debug)]
struct Weight {
    decl: WeightDecl,
    bytes: Vec<u8>,
}

impl Weight {
    /// The bytes of one row of one expert's matrix.
    fn row(&self, expert: usize, row: usize) -> &[u8] {
        let row_bytes = self.decl.ty.row_bytes(self.decl.cols);
        &self.bytes[(expert * self.decl.rows + row) * row_bytes..][..row_bytes]
    }
}

/// All weights that a stage reads.
#[derive(Debug)]
pub(super) struct Weights {
    kept: HashMap<WeightId, Weight>,
    activations: Activations,
}

impl Weights {
    /// Copies them from the file.
    pub(super) fn load(
        stage: &StageProgram,
        file: &gguf::File,
        activations: Activations,
    ) -> Result<Weights, CardError> {
        let program = &stage.program;
        let layers = program.layers[stage.layers.clone()].iter().flat_map(|l| &l.ops);
        let front = program.front.iter().filter(|_| stage.embeds());
        let tail = program.tail.iter().filter(|_| stage.heads());
        let divisors = program.ropes.iter().filter_map(|r| r.divisors);
        let read = front.chain(layers).chain(tail).flat_map(weights_of).chain(divisors);
        let mut kept = HashMap::new();
        for id in read {
            let decl = program.weight(id).clone();
            let tensor = file.tensor(&decl.name).ok_or_else(|| CardError::File {
                card: REFERENCE,
                what: format!("tensor {} is gone from {}; open it again", decl.name, file.path().display()),
            })?;
            kept.entry(id).or_insert_with(|| Weight { decl, bytes: file.data(tensor).to_vec() });
        }
        Ok(Weights { kept, activations })
    }

    fn weight(&self, id: WeightId) -> &Weight {
        self.kept.get(&id).expect("invariant: ops of a stage read weights of that stage only")
    }

    /// One row of a table as floats.
    pub(super) fn table_row(&self, id: WeightId, row: usize) -> Vec<f32> {
        let weight = self.weight(id);
        assert!(row < weight.decl.rows, "token {row} of a table of {} rows", weight.decl.rows);
        floats(weight.decl.ty, weight.row(0, row), weight.decl.cols)
    }

    /// A vector as floats.
    pub(super) fn vector(&self, id: WeightId) -> Vec<f32> {
        self.table_row(id, 0)
    }

    /// The product with each of the inputs, for one expert (0 where there are none).
    pub(super) fn product(
        &self,
        product: &Product,
        expert: usize,
        inputs: &[Vec<f32>],
    ) -> Result<Vec<Vec<f32>>, NotFinite> {
        let weight = self.weight(product.weight);
        let scale =
            product.scale.map(|id| self.vector(id)).map(|s| if s.len() > 1 { s[expert] } else { s[0] });
        let bias = product.bias.map(|id| self.vector(id));
        let mut results = self.dots(weight, expert, inputs)?;
        for result in &mut results {
            for (row, r) in result.iter_mut().enumerate() {
                *r = finish(*r, scale, bias.as_ref().map(|b| b[row]));
            }
        }
        Ok(results)
    }

    /// Every row of the matrix times each of the inputs.
    fn dots(&self, weight: &Weight, expert: usize, inputs: &[Vec<f32>]) -> Result<Vec<Vec<f32>>, NotFinite> {
        let decl = &weight.decl;
        let mut results = vec![Vec::with_capacity(decl.rows); inputs.len()];
        match (format(decl.ty), self.activations) {
            (Some(format), Activations::Int8) => {
                let image = |x: &Vec<f32>| Image::of(x, image_values(format));
                let images = inputs.iter().map(image).collect::<Result<Vec<Image>, NotFinite>>()?;
                for row in 0..decl.rows {
                    let row = decode(format, weight.row(expert, row));
                    for (result, image) in results.iter_mut().zip(&images) {
                        result.push(dot(format, &row, image));
                    }
                }
            }
            _ => {
                for row in 0..decl.rows {
                    let row = floats(decl.ty, weight.row(expert, row), decl.cols);
                    for (result, x) in results.iter_mut().zip(inputs) {
                        result.push(dot_float(&row, x));
                    }
                }
            }
        }
        Ok(results)
    }
}

fn floats(ty: TensorType, bytes: &[u8], count: usize) -> Vec<f32> {
    let mut values = vec![0.0; count];
    dequantize_row(ty, bytes, &mut values);
    values
}

/// Every weight that an op reads.
fn weights_of(op: &Op) -> Vec<WeightId> {
    let of_product = |p: Product| [Some(p.weight), p.scale, p.bias].into_iter().flatten();
    let mut ids: Vec<WeightId> = op.products().into_iter().flat_map(of_product).collect();
    match op {
        Op::Embed { table, .. } => ids.push(*table),
        Op::Norm { weight, .. } => ids.push(*weight),
        _ => {}
    }
    ids
}
