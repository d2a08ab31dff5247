//! The interpreter: a stage's ops one by one, each in its plain form.
//!
//! It is the reference of every card: tests and debugging hold a card's rows against it. It has no budget, no
//! threads and no fused op, and reads weights in file order.
//! Invariants: only functions of `plain` compute; only the rows that want logits go through the tail.
//! Does not know: sequences, links, speed.

mod kept;
mod weights;

use std::collections::BTreeMap;
use std::time::Instant;

use super::plain::NotFinite;
use super::plain::attention::attend;
use super::plain::experts::experts_sum;
use super::plain::functions::swiglu;
use super::plain::norm::rms_norm;
use super::plain::rope::{angles, rotate};
use super::plain::route::{Chosen, choose, normalise};
use crate::device::batch::{Batch, BatchRow, PageTables, RowWants};
use crate::device::best::Chooser;
use crate::device::{CardError, RunStamp, StageExec, StageSettings};
use crate::gguf;
use crate::model::facts::{CardId, KvFormat, PAGE_POSITIONS, PageId, StageProgram};
use crate::model::program::{Op, Product, StateDeclId, StateKind, View};
use kept::{KeptHead, KeptState};
use weights::Weights;

/// The card that errors name: the interpreter is none.
const REFERENCE: CardId = CardId::cpu(0);

/// A stage, ready to be interpreted.
#[derive(Debug)]
pub struct Reference {
    stage: StageProgram,
    weights: Weights,
    kv: KvFormat,
    /// Paged states of the stage's layers.
    states: BTreeMap<usize, KeptState>,
}

/// One row of the batch with every named row of the program.
struct Line {
    place: BatchRow,
    rows: Vec<Vec<f32>>,
    choices: Vec<Chosen>,
    logits: Vec<f32>,
}

impl Line {
    /// The values of a view, piece after piece.
    fn read(&self, view: View) -> Vec<f32> {
        let row = &self.rows[view.row.0];
        let piece = |i: usize| &row[view.offset + i * view.stride..][..view.width];
        (0..view.count).flat_map(piece).copied().collect()
    }

    fn write(&mut self, view: View, values: &[f32]) {
        assert_eq!(values.len(), view.len(), "values of {view:?}");
        let row = &mut self.rows[view.row.0];
        for (i, piece) in values.chunks_exact(view.width).enumerate() {
            row[view.offset + i * view.stride..][..view.width].copy_from_slice(piece);
        }
    }
}

impl Reference {
    /// Copies the stage's weights and makes room for `settings.kv_pages` pages.
    pub fn lower(
        stage: &StageProgram,
        file: &gguf::File,
        settings: &StageSettings,
    ) -> Result<Reference, CardError> {
        let mut states = BTreeMap::new();
        for (id, decl) in stage.program.states.iter().enumerate() {
            let StateKind::Paged { heads, key_width, value_width } = decl.kind else { continue };
            if !stage.layers.contains(&decl.layer) {
                continue;
            }
            if settings.kv == KvFormat::Q8_0 && (key_width % 32 != 0 || value_width % 32 != 0) {
                let what = format!("--kv q8_0 needs heads of whole 32 values, not {key_width}; use --kv f16");
                return Err(CardError::Unsupported { card: REFERENCE, what });
            }
            states.insert(id, KeptState::new(settings.kv_pages, heads, key_width, value_width));
        }
        let weights = Weights::load(stage, file, settings.activations)?;
        Ok(Reference { stage: stage.clone(), weights, kv: settings.kv, states })
    }

    fn run_batch(
        &mut self,
        batch: &Batch,
        pages: &PageTables,
        input: &[f32],
        output: &mut [f32],
    ) -> Result<(), CardError> {
        let program = self.stage.program.clone();
        let residual = program.residual.0;
        let width = program.rows[residual].width;
        let line = |place: &BatchRow| Line {
            place: *place,
            rows: program.rows.iter().map(|r| vec![0.0; r.width]).collect(),
            choices: vec![Chosen::default(); program.choices.len()],
            logits: Vec::new(),
        };
        let mut lines: Vec<Line> = batch.rows.iter().map(line).collect();
        if self.stage.embeds() {
            self.ops(&program.front, self.stage.layers.start, &mut lines, pages)?;
        } else {
            assert_eq!(input.len(), lines.len() * width, "input rows");
            for (line, row) in lines.iter_mut().zip(input.chunks_exact(width)) {
                line.rows[residual].copy_from_slice(row);
            }
        }
        for layer in self.stage.layers.clone() {
            self.ops(&program.layers[layer].ops, layer, &mut lines, pages)?;
        }
        let results: Vec<f32> = if self.stage.heads() {
            lines.retain(|line| line.place.wants.is_some());
            self.ops(&program.tail, self.stage.layers.end.saturating_sub(1), &mut lines, pages)?;
            lines.into_iter().flat_map(|line| wanted(line.place.wants, line.logits)).collect()
        } else {
            lines.iter().flat_map(|line| &line.rows[residual]).copied().collect()
        };
        assert_eq!(output.len(), results.len(), "output rows");
        output.copy_from_slice(&results);
        Ok(())
    }

    fn ops(
        &mut self,
        ops: &[Op],
        layer: usize,
        lines: &mut [Line],
        pages: &PageTables,
    ) -> Result<(), CardError> {
        for op in ops {
            let at = |NotFinite| CardError::NotFinite { card: REFERENCE, op: op.name(), layer };
            self.op(op, lines, pages).map_err(at)?;
        }
        Ok(())
    }

    fn op(&mut self, op: &Op, lines: &mut [Line], pages: &PageTables) -> Result<(), NotFinite> {
        match op {
            Op::Embed { table, out } => {
                for line in lines {
                    line.write(*out, &self.weights.table_row(*table, line.place.token as usize));
                }
            }
            Op::Norm { x, weight, eps, out } => {
                let weight = self.weights.vector(*weight);
                lines.iter_mut().for_each(|line| norm(line, (*x, *out), &weight, *eps));
            }
            Op::Linear { x, product, out } => self.linear(lines, *x, product, *out)?,
            Op::Rope { x, rope } => self.rope(lines, *x, rope.0),
            Op::Append { k, v, state } => self.append(lines, pages, (*k, *v), *state)?,
            Op::Attend { q, state, scale, out } => {
                lines.iter_mut().for_each(|line| self.attend(line, pages, (*q, *out), *state, *scale));
            }
            Op::SwiGlu { gate, up, out } => pairwise(lines, [*gate, *up, *out], swiglu),
            Op::Add { x, y, out } => pairwise(lines, [*x, *y, *out], |x, y| x + y),
            Op::Route { logits, choice } => {
                let used = self.stage.program.choices[choice.0].used;
                for line in lines {
                    let mut chosen = choose(&line.read(*logits), used);
                    normalise(&mut chosen.weights);
                    line.choices[choice.0] = chosen;
                }
            }
            Op::Experts { x, choice, gate, up, down, out, .. } => {
                self.experts(lines, (*x, *out), choice.0, [gate, up, down])?;
            }
            Op::Head { x, weight } => {
                let product = Product { weight: *weight, scale: None, bias: None };
                let inputs: Vec<Vec<f32>> = lines.iter().map(|line| line.read(*x)).collect();
                for (line, logits) in lines.iter_mut().zip(self.weights.product(&product, 0, &inputs)?) {
                    if !logits.iter().all(|l| l.is_finite()) {
                        return Err(NotFinite);
                    }
                    line.logits = logits;
                }
            }
        }
        Ok(())
    }

    fn linear(&self, lines: &mut [Line], x: View, product: &Product, out: View) -> Result<(), NotFinite> {
        let inputs: Vec<Vec<f32>> = lines.iter().map(|line| line.read(x)).collect();
        for (line, result) in lines.iter_mut().zip(self.weights.product(product, 0, &inputs)?) {
            line.write(out, &result);
        }
        Ok(())
    }

    fn rope(&self, lines: &mut [Line], x: View, rope: usize) {
        let rope = &self.stage.program.ropes[rope];
        let divisors = rope.divisors.map(|id| self.weights.vector(id));
        let (mut cos, mut sin) = (vec![0.0; rope.frequencies.len()], vec![0.0; rope.frequencies.len()]);
        for line in lines {
            angles(rope, divisors.as_deref(), line.place.position, &mut cos, &mut sin);
            let mut heads = line.read(x);
            heads.chunks_exact_mut(x.width).for_each(|head| rotate(head, &cos, &sin, rope.pairing));
            line.write(x, &heads);
        }
    }

    fn append(
        &mut self,
        lines: &[Line],
        pages: &PageTables,
        (k, v): (View, View),
        state: StateDeclId,
    ) -> Result<(), NotFinite> {
        let kept = self.states.get_mut(&state.0).expect("invariant: a stage has the states of its layers");
        for line in lines {
            let position = line.place.position as usize;
            let page = pages.of(line.place.state)[position / PAGE_POSITIONS];
            kept.append(self.kv, (page, position % PAGE_POSITIONS), &line.read(k), &line.read(v))?;
        }
        Ok(())
    }

    fn attend(
        &self,
        line: &mut Line,
        pages: &PageTables,
        (q, out): (View, View),
        state: StateDeclId,
        scale: f32,
    ) {
        let state = &self.states[&state.0];
        let positions: Vec<usize> = (0..=line.place.position as usize).collect();
        let queries_per_head = q.count / state.heads;
        let mut attended = vec![0.0; out.len()];
        let queries = line.read(q);
        let heads = queries.chunks_exact(q.width).zip(attended.chunks_exact_mut(out.width));
        for (h, (query, out)) in heads.enumerate() {
            let pages = pages.of(line.place.state);
            let head = KeptHead { state, pages, head: h / queries_per_head };
            attend(query, scale, &positions, &head, state.value_width).finish(out);
        }
        line.write(out, &attended);
    }

    fn experts(
        &self,
        lines: &mut [Line],
        (x, out): (View, View),
        choice: usize,
        [gate, up, down]: [&Product; 3],
    ) -> Result<(), NotFinite> {
        // Lines and ranks of each chosen expert, so that its weights are decoded once.
        let mut chosen: BTreeMap<usize, Vec<(usize, usize)>> = BTreeMap::new();
        for (l, line) in lines.iter().enumerate() {
            for (rank, &id) in line.choices[choice].ids.iter().enumerate() {
                chosen.entry(id).or_default().push((l, rank));
            }
        }
        let width = out.len();
        let mut rows: Vec<Vec<f32>> =
            lines.iter().map(|line| vec![0.0; line.choices[choice].ids.len() * width]).collect();
        for (expert, places) in chosen {
            let inputs: Vec<Vec<f32>> = places.iter().map(|&(l, _)| lines[l].read(x)).collect();
            let gates = self.weights.product(gate, expert, &inputs)?;
            let ups = self.weights.product(up, expert, &inputs)?;
            let inner = gates.iter().zip(&ups);
            let inner: Vec<Vec<f32>> =
                inner.map(|(g, u)| g.iter().zip(u).map(|(&g, &u)| swiglu(g, u)).collect()).collect();
            let downs = self.weights.product(down, expert, &inner)?;
            for (&(l, rank), row) in places.iter().zip(&downs) {
                rows[l][rank * width..][..width].copy_from_slice(row);
            }
        }
        for (line, rows) in lines.iter_mut().zip(&rows) {
            let mut sum = vec![0.0; width];
            experts_sum(&line.choices[choice].weights, rows, &mut sum);
            line.write(out, &sum);
        }
        Ok(())
    }
}

/// RMS norm of each piece; the weight is one for all pieces, or has a part for each.
/// What a row wants, of its logits.
fn wanted(wants: RowWants, logits: Vec<f32>) -> Vec<f32> {
    if wants == RowWants::Logits {
        return logits;
    }
    let mut values = vec![0.0; wants.values(logits.len())];
    Chooser::default().choose(&logits, &mut values);
    values
}

fn norm(line: &mut Line, (x, out): (View, View), weight: &[f32], eps: f32) {
    let values = line.read(x);
    let mut normed = vec![0.0; values.len()];
    for (i, (x, out)) in values.chunks_exact(x.width).zip(normed.chunks_exact_mut(x.width)).enumerate() {
        let weight = if weight.len() == x.len() { weight } else { &weight[i * x.len()..][..x.len()] };
        rms_norm(x, Some(weight), eps, out);
    }
    line.write(out, &normed);
}

fn pairwise(lines: &mut [Line], [x, y, out]: [View; 3], f: impl Fn(f32, f32) -> f32) {
    for line in lines {
        let result: Vec<f32> = line.read(x).iter().zip(&line.read(y)).map(|(&x, &y)| f(x, y)).collect();
        line.write(out, &result);
    }
}

impl StageExec for Reference {
    fn run(
        &mut self,
        batch: &Batch,
        pages: &PageTables,
        input: &[f32],
        output: &mut [f32],
    ) -> Result<RunStamp, CardError> {
        let start = Instant::now();
        self.run_batch(batch, pages, input, output)?;
        Ok(RunStamp { busy_ns: start.elapsed().as_nanos() as u64, card: None, waited_ns: 0 })
    }

    fn copy_page(&mut self, from: PageId, to: PageId) -> Result<(), CardError> {
        self.states.values_mut().for_each(|state| state.copy_page(from, to));
        Ok(())
    }
}
