//! A batch taken apart: all its launches are found, with the bytes that they have to read.
//!
//! Without a CUDA card, real or emulated, the test says that it was skipped.
#![allow(clippy::unwrap_used, reason = "a test that cannot read its data has failed")]

mod support;

use std::path::Path;
use std::sync::Arc;

use support::{Quiet, Setup, in_repository, rows};
use tandem::device::batch::{Batch, BatchId, PageTables};
use tandem::device::cuda::card::CudaCard;
use tandem::device::cuda::exec::profile::BatchProfile;
use tandem::device::cuda::kernels::KernelSettings;
use tandem::device::cuda::listing;
use tandem::device::cuda::vendor::Vendor;
use tandem::gguf::File;
use tandem::model::arch;
use tandem::model::facts::{CardFacts, CardId, CardKind, KvFormat, PAGE_POSITIONS, PageId};
use tandem::model::facts::{RateSource, StageProgram, StateId};
use tandem::model::program::{StateKind, WeightUse};

/// Launches and bytes of the kinds.
fn of_kinds(profile: &BatchProfile, kinds: &[&str]) -> (usize, u64) {
    let of = profile.kinds.iter().filter(|kind| kinds.contains(&kind.kind));
    of.fold((0, 0), |(launches, bytes), kind| (launches + kind.launches, bytes + kind.read_bytes))
}

#[test]
fn a_batch_is_taken_apart_into_all_its_launches_and_the_bytes_that_they_read() {
    let listing = match listing::list(Vendor::Cuda, None, None) {
        Ok(listing) if listing.cards.iter().any(|c| c.usable.is_ok()) => listing,
        other => return eprintln!("SKIPPED no CUDA card: {:?}", other.map(|l| l.cards)),
    };
    let file = File::open(&in_repository("models/rand-qwen3moe.gguf")).unwrap();
    let program = Arc::new(arch::program(&file).unwrap());
    let (setup, layers) =
        (Setup { kv: KvFormat::F16, rows_max: 9, ..Setup::new(128) }, 1..program.layers.len());
    let device = &listing.cards.iter().find(|c| c.usable.is_ok()).unwrap().device;
    let facts = CardFacts {
        id: CardId::cuda(0),
        kind: CardKind::Cuda,
        name: "cuda:0".to_owned(),
        memory_bytes: 256 << 20,
        driver_bytes: 0,
        addable_bytes: u64::MAX,
        decode_bytes_per_s: 1e10,
        decode_op_us: 0.0,
        prompt_macs_per_s: 1e11,
        rates: RateSource::Typical,
    };
    let cache = Some(Path::new(env!("CARGO_TARGET_TMPDIR")).join("kernels"));
    let settings = KernelSettings { cache, ..KernelSettings::default() };
    let mut card = CudaCard::open(facts, device, &settings).unwrap();
    let stage = StageProgram { program: program.clone(), layers: layers.clone() };
    let mut exec = card.stage(&stage, &file, &setup.settings(), &Quiet).unwrap();
    let pages = setup.context.div_ceil(PAGE_POSITIONS) as u32;
    let tables = PageTables { states: vec![(0..pages).map(PageId).collect()] };
    let batch = |first: u32, tokens: &[u32]| Batch::new(BatchId(0), rows(StateId(0), first, tokens));

    // A stage behind another one: rows are made up, and the table is that of the stage before.
    let chunk = exec.profile(&batch(0, &(0..9).collect::<Vec<u32>>()), &tables).unwrap();
    let window = exec.profile(&batch(9, &[7]), &tables).unwrap();
    assert_eq!((chunk.rows, chunk.position, window.rows, window.position), (9, 8, 1, 9));

    let own = |usage: WeightUse| {
        program.weights.iter().filter(move |w| w.usage == usage && w.layer.is_none_or(|l| l >= 1))
    };
    let matrices: u64 = own(WeightUse::Matrix).map(|w| w.file_bytes()).sum();
    let vectors: u64 = own(WeightUse::Vector).map(|w| 4 * w.cols as u64).sum();
    let used = program.choices[0].used as u64;
    let asked: u64 = own(WeightUse::Experts).map(|w| w.file_bytes() / w.experts as u64 * used).sum();
    let all: u64 = own(WeightUse::Experts).map(|w| w.file_bytes()).sum();
    let StateKind::Paged { heads, key_width, value_width } = program.states[1].kind else { panic!("no K/V") };
    let position_bytes = (2 * heads * (key_width + value_width) * layers.len()) as u64;
    for (profile, positions) in [(&chunk, 9), (&window, 10)] {
        // Vectors are read beside matrices, beside keys and values, or by launches of their own.
        let read: u64 = profile.kinds.iter().map(|kind| kind.read_bytes).sum();
        let (experts, stored) = (of_kinds(profile, &["experts"]).1, positions * position_bytes);
        assert_eq!(read - experts, matrices + vectors + stored, "{profile:?}");
        assert!(of_kinds(profile, &["products", "router", "head"]).1 >= matrices, "{profile:?}");
        let attention = of_kinds(profile, &["attention"]);
        assert_eq!(attention.0, layers.len(), "{profile:?}");
        assert!((stored..=stored + vectors).contains(&attention.1), "{profile:?}");
        assert_eq!(of_kinds(profile, &["other", "embedding"]).0, 0, "{profile:?}");
        assert!(profile.whole_ns > 0.0 && profile.kinds.iter().any(|kind| kind.ns > 0.0), "{profile:?}");
    }
    assert_eq!(of_kinds(&window, &["experts"]).1, asked);
    let many = of_kinds(&chunk, &["experts"]).1;
    assert!(asked < many && many <= all, "{many} of {all} bytes");
    let router = window.kinds.iter().find(|kind| kind.kind == "router" && kind.read_bytes > 0).unwrap();
    assert_eq!(router.tensors, "ffn_gate_inp");
}
