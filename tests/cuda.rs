//! CUDA cards give the virtual cards' bits and allocate what is planned.
//!
//! Runs on whatever CUDA cards there are: real ones, or the emulated ones of `scripts/cuda_emu_check.sh`. Without any,
//! each test says that it was skipped.
#![allow(clippy::unwrap_used, reason = "a test that cannot read its data has failed")]

mod support;

use std::path::Path;
use std::sync::Arc;

use support::{Model, Quiet, Setup, in_repository, rows};
use tandem::device::batch::{Batch, BatchId, BatchRow, PageTables, RowWants};
use tandem::device::cuda::card::CudaCard;
use tandem::device::cuda::exec::Queueing;
use tandem::device::cuda::kernels::KernelSettings;
use tandem::device::cuda::listing::{self, Listing};
use tandem::device::cuda::vendor::Vendor;
use tandem::device::{Card, CardError, CardStamps, StageExec};
use tandem::gguf::File;
use tandem::model::arch;
use tandem::model::facts::{Activations, CardFacts, CardId, CardKind, KvFormat, PAGE_POSITIONS, PageId};
use tandem::model::facts::{RateSource, StageProgram, StateId};
use tandem::model::footprint::{Footprint, ItemKind};
use tandem::model::program::Program;

const MODELS: [&str; 5] = ["rand-llama", "rand-wide", "rand-lowbit", "rand-qwen3moe", "rand-qwen3moe-q8"];

/// The cards, where one can be used.
fn cards() -> Option<Listing> {
    let reason = match listing::list(Vendor::Cuda, None, None) {
        Ok(listing) if listing.cards.iter().any(|c| c.usable.is_ok()) => return Some(listing),
        Ok(listing) => listing.cards.iter().find_map(|c| c.usable.clone().err()).unwrap_or_default(),
        Err(error) => error.to_string(),
    };
    eprintln!("SKIPPED no CUDA card: {reason}");
    None
}

/// A model on CUDA cards, one a stage, taken in turn.
struct Gpu {
    program: Arc<Program>,
    cards: Vec<CudaCard>,
    stages: Vec<Box<dyn StageExec>>,
    tables: PageTables,
}

impl Gpu {
    fn open(listing: &Listing, model: &str, setup: &Setup) -> Gpu {
        Gpu::queueing(listing, model, setup, Queueing::Graphs)
    }

    fn queueing(listing: &Listing, model: &str, setup: &Setup, queueing: Queueing) -> Gpu {
        let file = File::open(&in_repository(&format!("models/{model}.gguf"))).unwrap();
        let program = Arc::new(arch::program(&file).unwrap());
        let footprint = Footprint::of(&program, setup.activations);
        let mut edges = vec![0];
        edges.extend(&setup.cuts);
        edges.push(program.layers.len());
        let settings = KernelSettings {
            cache: Some(Path::new(env!("CARGO_TARGET_TMPDIR")).join("kernels")),
            ..KernelSettings::default()
        };
        let usable: Vec<_> = listing.cards.iter().filter(|c| c.usable.is_ok()).collect();
        let (mut cards, mut stages) = (Vec::new(), Vec::new());
        for (i, layers) in edges.windows(2).enumerate() {
            let layers = layers[0]..layers[1];
            let items = footprint.stage_items(CardKind::Cuda, layers.clone(), &setup.sizes());
            let facts = CardFacts {
                id: CardId::cuda(i as u32),
                kind: CardKind::Cuda,
                name: format!("cuda:{i}"),
                memory_bytes: items.iter().map(|i| i.bytes).sum(),
                driver_bytes: 0,
                addable_bytes: u64::MAX,
                decode_bytes_per_s: 1e10,
                decode_op_us: 0.0,
                prompt_macs_per_s: 1e11,
                rates: RateSource::Typical,
            };
            let device = &usable[i % usable.len()].device;
            let mut card = CudaCard::open(facts, device, &settings).unwrap();
            card.set_queueing(queueing);
            let stage = StageProgram { program: program.clone(), layers };
            stages.push(card.lower(&stage, &file, &setup.settings(), &Quiet).unwrap());
            cards.push(card);
        }
        // As `support::Model`: pages of a state lie in no order that positions could betray.
        let (pages, sequences) = (setup.context.div_ceil(PAGE_POSITIONS) as u32, setup.sequences as u32);
        let states = (0..sequences).map(|s| (0..pages).rev().map(|p| PageId(p * sequences + s)).collect());
        Gpu { program, cards, stages, tables: PageTables { states: states.collect() } }
    }

    fn run(&mut self, rows: Vec<BatchRow>) -> Vec<f32> {
        let batch = Batch::new(BatchId(0), rows);
        let (width, vocab) = (self.program.facts.embedding_width, self.program.facts.vocab);
        let (mut rows, last) = (Vec::new(), self.stages.len() - 1);
        for (i, stage) in self.stages.iter_mut().enumerate() {
            let values = if i == last { batch.wanted_values(vocab) } else { batch.rows.len() * width };
            let mut output = vec![f32::NAN; values];
            stage.run(&batch, &self.tables, &rows, &mut output).unwrap();
            rows = output;
        }
        rows
    }

    fn logits(&mut self, tokens: &[u32], step: usize) -> Vec<f32> {
        let chunks = tokens.chunks(step).enumerate();
        chunks.flat_map(|(c, chunk)| self.run(rows(StateId(0), (c * step) as u32, chunk))).collect()
    }
}

fn tokens(seed: u32, count: usize) -> Vec<u32> {
    (0..count as u32).map(|i| (i.wrapping_mul(2_654_435_761).wrapping_add(seed * 977) >> 9) % 280).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

/// The same tokens on virtual and on CUDA cards, `step` rows at a time there.
fn check(listing: &Listing, model: &str, setup: &Setup, count: usize, step: usize) {
    let tokens = tokens(1, count);
    let one_card = Setup { cuts: Vec::new(), ..setup.clone() };
    let expected = bits(&Model::open(&format!("{model}.gguf"), &one_card).logits(&tokens, 40));
    let got = bits(&Gpu::open(listing, model, setup).logits(&tokens, step));
    assert!(got == expected, "{model}: other bits with {setup:?}, {step} rows at a time");
}

#[test]
fn windows_and_chunks_on_one_and_two_cards_give_the_bits_of_virtual_cards() {
    let Some(listing) = cards() else { return };
    for model in MODELS {
        for (kv, cuts, count, step) in [
            (KvFormat::F32, vec![], 10, 1),
            (KvFormat::F16, vec![1], 20, 3),
            (KvFormat::Q8_0, vec![1], 70, 8),
            (KvFormat::F32, vec![], 70, 70),
        ] {
            check(&listing, model, &Setup { kv, cuts, ..Setup::new(70) }, count, step);
        }
        let float = Setup { activations: Activations::F32, cuts: vec![1], ..Setup::new(70) };
        check(&listing, model, &float, 10, 9);
    }
}

/// The largest relative L2 distance of a row.
fn away(got: &[f32], expected: &[f32], width: usize) -> f64 {
    assert_eq!(got.len(), expected.len());
    let square = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>();
    let of_row = |(g, e): (&[f32], &[f32])| {
        let difference = square(&mut g.iter().zip(e).map(|(g, e)| f64::from(*g) - f64::from(*e)));
        (difference / square(&mut e.iter().map(|&e| f64::from(e)))).sqrt()
    };
    let rows = got.chunks(width).zip(expected.chunks(width)).map(of_row);
    // A distance that is no number is the largest.
    rows.fold(0.0, |largest, row| if row <= largest { largest } else { row })
}

#[test]
fn chunks_over_f16_and_q8_0_are_near_virtual_cards_and_one_card_gives_the_bits_of_two() {
    let Some(listing) = cards() else { return };
    for model in ["rand-llama", "rand-qwen3moe"] {
        for kv in [KvFormat::F16, KvFormat::Q8_0] {
            let (setup, tokens) = (Setup { kv, sequences: 2, ..Setup::new(90) }, tokens(1, 90));
            let float = Setup { activations: Activations::F32, ..Setup::new(90) };
            let [exact, cpu] =
                [&float, &setup].map(|s| Model::open(&format!("{model}.gguf"), s).logits(&tokens, 40));
            let mut one = Gpu::open(&listing, model, &setup);
            // 90 rows: chunks of 40, 40 and 10. 8-bit images make steps of 1/127 of a smallest difference, so what
            // tensor cores may change is measured by how far the images lead away.
            let got = one.logits(&tokens, 40);
            let [far, near] = [&got, &cpu].map(|logits| away(logits, &exact, one.program.facts.vocab));
            assert!(far <= 1.5 * near, "{model}, {kv:?}: {far} from the exact answer, a virtual card {near}");
            assert!(bits(&got) != bits(&cpu), "{model}, {kv:?}: not the kernels of chunks");
            let two = Setup { cuts: vec![1], ..setup.clone() };
            let split = Gpu::open(&listing, model, &two).logits(&tokens, 40);
            assert!(bits(&split) == bits(&got), "{model}, {kv:?}: other bits on two cards");
            // The last chunk again, between rows of another state.
            let other = rows(StateId(1), 0, &tokens[..13]);
            let ours = rows(StateId(0), 80, &tokens[80..]);
            let mixed = [&other[..7], &ours[..6], &other[7..], &ours[6..]].concat();
            let (vocab, all) = (one.program.facts.vocab, one.run(mixed));
            let of_ours = [&all[7 * vocab..13 * vocab], &all[19 * vocab..]].concat();
            assert!(bits(&of_ours) == bits(&got[80 * vocab..]), "{model}, {kv:?}: other bits beside others");
        }
    }
}

#[test]
fn spans_of_attention_merge_to_the_bits_of_virtual_cards() {
    let Some(listing) = cards() else { return };
    // More rows than the work of attention has places for at two spans.
    let setup = Setup { rows_max: 512, ..Setup::new(1100) };
    check(&listing, "rand-llama", &setup, 1100, 512);
}

#[test]
fn neighbours_and_rows_without_logits_change_no_bits() {
    let Some(listing) = cards() else { return };
    for model in ["rand-llama", "rand-qwen3moe"] {
        let setup = Setup { sequences: 3, cuts: vec![2], ..Setup::new(70) };
        let (ours, other) = (tokens(1, 20), tokens(2, 20));
        let expected = bits(&Model::open(&format!("{model}.gguf"), &Setup::new(70)).logits(&ours, 1));
        let mut loaded = Gpu::open(&listing, model, &setup);
        let vocab = loaded.program.facts.vocab;
        for at in (0..20).step_by(2) {
            let mut window = rows(StateId(2), at as u32, &other[at..at + 2]);
            window.iter_mut().for_each(|row| row.wants = RowWants::Nothing);
            window.extend(rows(StateId(0), at as u32, &ours[at..at + 2]));
            window.extend(rows(StateId(1), at as u32 / 2, &other[at / 2..at / 2 + 1]));
            let got = bits(&loaded.run(window));
            assert!(got[..2 * vocab] == expected[at * vocab..(at + 2) * vocab], "{model}, position {at}");
        }
    }
}

/// One or two rows of some of the states, each going on where it stands; they want this or that, the last something.
fn random_window(random: &mut impl FnMut(u32) -> u32, next: &mut [u32], context: u32) -> Vec<BatchRow> {
    let mut window: Vec<BatchRow> = Vec::new();
    const WANTS: [RowWants; 5] =
        [RowWants::Nothing, RowWants::Best(1), RowWants::Best(5), RowWants::Best(64), RowWants::Logits];
    let (first, count, same) = (random(next.len() as u32), 1 + random(next.len() as u32), random(3));
    for i in 0..count {
        let state = (first + i) % next.len() as u32;
        let at = &mut next[state as usize];
        let taken = 1 + random(2);
        if *at + taken > context {
            *at = 0;
        }
        let drawn: Vec<u32> = (0..taken).map(|_| random(280)).collect();
        let mut new = rows(StateId(state), *at, &drawn);
        new.iter_mut()
            .for_each(|row| row.wants = WANTS[if same > 0 { 2 * same } else { random(5) } as usize]);
        *at += taken;
        window.extend(new);
    }
    if let Some(last) = window.last_mut() {
        last.wants = WANTS[1 + random(4) as usize];
    }
    window
}

#[test]
fn graphs_of_many_shapes_give_the_bits_of_launches_one_by_one() {
    let Some(listing) = cards() else { return };
    for (model, kv) in [("rand-llama", KvFormat::F16), ("rand-qwen3moe", KvFormat::Q8_0)] {
        // Depths of 1, 2, 4 and 5 pages; neighbours come and go; more shapes than graphs are kept, and most come again.
        let setup = Setup { sequences: 3, cuts: vec![1], rows_max: 64, kv, ..Setup::new(300) };
        let mut graphs = Gpu::open(&listing, model, &setup);
        let mut launches = Gpu::queueing(&listing, model, &setup, Queueing::Launches);
        let mut seed = 1u32;
        let mut random = |below: u32| {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (seed >> 16) % below
        };
        let mut next = [0, 60, 120];
        for (state, &length) in next.iter().enumerate() {
            let prompt = tokens(state as u32, length as usize);
            for at in (0..prompt.len()).step_by(60) {
                let chunk = rows(StateId(state as u32), at as u32, &prompt[at..at + 60]);
                assert!(bits(&graphs.run(chunk.clone())) == bits(&launches.run(chunk)), "{model}: a chunk");
            }
        }
        for window in 0..60 {
            let rows = random_window(&mut random, &mut next, 300);
            let (got, expected) = (graphs.run(rows.clone()), launches.run(rows.clone()));
            assert!(bits(&got) == bits(&expected), "{model}, window {window}: {rows:?}");
        }
    }
}

#[test]
fn a_graph_follows_pages_that_move_and_tables_that_grow() {
    let Some(listing) = cards() else { return };
    for kv in [KvFormat::F16, KvFormat::Q8_0] {
        let setup = Setup { sequences: 2, kv, ..Setup::new(192) };
        let tokens = tokens(7, 140);
        let expected = bits(&Model::open("rand-llama.gguf", &setup).logits(&tokens, 1));
        let mut loaded = Gpu::open(&listing, "rand-llama", &setup);
        let vocab = loaded.program.facts.vocab;
        let all = std::mem::take(&mut loaded.tables.states);
        loaded.tables.states = vec![Vec::new()];
        for at in 0..140 {
            // The next page comes when it is needed; every 16 positions all pages so far move to the other state's.
            let (page, side) = (at / PAGE_POSITIONS, at / 16 % 2);
            if at % PAGE_POSITIONS == 0 {
                loaded.tables.states[0].push(all[1 - side][page]);
            }
            if at % 16 == 0 {
                let Gpu { stages, tables, .. } = &mut loaded;
                for (own, to) in tables.states[0].iter_mut().zip(&all[side]) {
                    stages[0].copy_page(*own, *to).unwrap();
                    *own = *to;
                }
            }
            let got = bits(&loaded.run(rows(StateId(0), at as u32, &tokens[at..at + 1])));
            assert!(got == expected[at * vocab..(at + 1) * vocab], "{kv:?}, position {at}");
        }
    }
}

#[test]
fn a_run_says_how_long_the_card_worked() {
    let Some(listing) = cards() else { return };
    let mut loaded = Gpu::open(&listing, "rand-llama", &Setup::new(64));
    let mut output = vec![0.0; 9 * loaded.program.facts.vocab];
    let mut before_ns = 0;
    for (position, count) in [(0, 9), (9, 1), (10, 1)] {
        let batch = Batch::new(BatchId(0), rows(StateId(0), position, &tokens(1, count)));
        let output = &mut output[..count * loaded.program.facts.vocab];
        let stamp = loaded.stages[0].run(&batch, &loaded.tables, &[], output).unwrap();
        let CardStamps { begun_ns, ended_ns } = stamp.card.unwrap();
        assert!(before_ns < begun_ns && begun_ns < ended_ns, "{stamp:?}");
        assert!(ended_ns - begun_ns <= stamp.busy_ns, "{stamp:?}");
        before_ns = ended_ns;
    }
}

#[test]
fn rows_get_the_best_tokens_of_their_logits_beside_rows_that_want_others() {
    let Some(listing) = cards() else { return };
    for (model, cuts) in [("rand-llama", vec![]), ("rand-qwen3moe", vec![1])] {
        let setup = Setup { cuts, sequences: 2, ..Setup::new(64) };
        let mut virtual_card = Model::open(&format!("{model}.gguf"), &setup);
        let mut loaded = Gpu::open(&listing, model, &setup);
        for (at, wants) in [
            vec![RowWants::Best(1)],
            vec![RowWants::Best(40)],
            vec![
                RowWants::Best(1),
                RowWants::Nothing,
                RowWants::Logits,
                RowWants::Best(64),
                RowWants::Best(3),
            ],
            [RowWants::Best(1); 8].to_vec(),
            [vec![RowWants::Nothing; 20], vec![RowWants::Best(1)]].concat(),
        ]
        .into_iter()
        .enumerate()
        {
            let mut window = rows(StateId(at as u32 % 2), 0, &tokens(at as u32, wants.len()));
            window.iter_mut().zip(&wants).for_each(|(row, &wants)| row.wants = wants);
            let expected = bits(&virtual_card.run(window.clone()));
            assert!(bits(&loaded.run(window)) == expected, "{model}: {wants:?}");
        }
    }
}

#[test]
fn each_cards_ledger_is_the_plans_items() {
    let Some(listing) = cards() else { return };
    for model in MODELS {
        for activations in [Activations::Int8, Activations::F32] {
            let setup = Setup { activations, cuts: vec![1], sequences: 2, rows_max: 100, ..Setup::new(200) };
            let loaded = Gpu::open(&listing, model, &setup);
            let footprint = Footprint::of(&loaded.program, activations);
            let layers = loaded.program.layers.len();
            for (card, range) in loaded.cards.iter().zip([0..1, 1..layers]) {
                let items = footprint.stage_items(CardKind::Cuda, range, &setup.sizes());
                assert!(
                    items.iter().all(|i| i.kind != ItemKind::LinkSlots),
                    "slots lie in the host's memory"
                );
                let mut planned: Vec<_> = items.iter().map(|i| (i.kind, i.bytes)).collect();
                planned.sort();
                let mut booked: Vec<_> = card.ledger().entries().iter().map(|(&k, &b)| (k, b)).collect();
                booked.retain(|(_, bytes)| *bytes > 0);
                assert_eq!(booked, planned, "{model}, {activations:?}, {}", card.facts().name);
            }
        }
    }
}

#[test]
fn a_copied_page_goes_on_as_the_page_it_was_copied_from() {
    let Some(listing) = cards() else { return };
    let tokens = tokens(3, 74);
    let setup = Setup { sequences: 2, kv: KvFormat::Q8_0, ..Setup::new(128) };
    let mut loaded = Gpu::open(&listing, "rand-qwen3moe", &setup);
    loaded.logits(&tokens[..70], 70);
    for page in 0..2 {
        let (from, to) = (loaded.tables.states[0][page], loaded.tables.states[1][page]);
        loaded.stages[0].copy_page(from, to).unwrap();
    }
    let copied = bits(&loaded.run(rows(StateId(1), 70, &tokens[70..])));
    let own = bits(&loaded.run(rows(StateId(0), 70, &tokens[70..])));
    assert!(copied == own, "a copied page reads otherwise");
}

#[test]
fn a_value_that_is_not_finite_names_op_and_layer_and_leaves_the_card_well() {
    let Some(listing) = cards() else { return };
    let setup = Setup { cuts: vec![1], ..Setup::new(64) };
    let mut loaded = Gpu::open(&listing, "rand-llama", &setup);
    let expected = bits(&loaded.logits(&tokens(1, 4), 4));
    let (width, vocab) = (loaded.program.facts.embedding_width, loaded.program.facts.vocab);
    let batch = Batch::new(BatchId(0), rows(StateId(0), 4, &[1]));
    let (input, mut output) = (vec![f32::NAN; width], vec![0.0; vocab]);
    match loaded.stages[1].run(&batch, &loaded.tables, &input, &mut output) {
        Err(CardError::NotFinite { op, layer, .. }) => assert_eq!((op, layer), ("the input of a product", 1)),
        other => panic!("{other:?}"),
    }
    assert!(bits(&loaded.logits(&tokens(1, 4), 4)) == expected, "the card is not well");
}

#[test]
fn a_batch_that_nobody_wants_ends_early_and_well() {
    let Some(listing) = cards() else { return };
    let mut loaded = Gpu::open(&listing, "rand-llama", &Setup::new(128));
    let batch = Batch::new(BatchId(0), rows(StateId(0), 0, &tokens(1, 40)));
    batch.interest.lose();
    let mut output = vec![0.0; 40 * loaded.program.facts.vocab];
    loaded.stages[0].run(&batch, &loaded.tables, &[], &mut output).unwrap();
}
