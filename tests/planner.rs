//! Properties of the planner on random models and cards, against brute force where that is possible.
//!
//! Every property uses only the public face: `planner::plan`, the cost function, and the items of a stage.

use std::ops::Range;

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{RngSeed, TestRunner};
use tandem::model::facts::{
    CardFacts, CardId, CardKind, CardRates, KvFormat, LinkFacts, LinkKind, LinkRate, RateSource,
};
use tandem::model::footprint::gpu::GpuSizes;
use tandem::model::footprint::{ByKind, Footprint, ItemKind, LayerFootprint, StageSizes};
use tandem::split::SplitError;
use tandem::split::cost::{Assignment, Cost, TimeModel};
use tandem::split::defaults::{virtual_card, virtual_links};
use tandem::split::options::{GpuOrder, SplitOptions};
use tandem::split::plan::{Bound, Plan};
use tandem::split::planner;
use tandem::split::refusal::NoFit;

/// Everything that `plan` gets.
#[derive(Clone, Debug)]
struct Case {
    footprint: Footprint,
    cards: Vec<CardFacts>,
    links: LinkFacts,
    options: SplitOptions,
}

impl Case {
    fn plan(&self) -> Result<Plan, SplitError> {
        planner::plan(&self.footprint, &self.cards, &self.links, &self.options)
    }

    fn model(&self) -> TimeModel {
        let weight = self.options.prompt_rows_per_token;
        TimeModel::new(&self.footprint, &self.cards, &self.links, &self.options.sizes, weight)
            .expect("the rates of a case are rates")
    }

    fn needed_bytes(&self, card: usize, layers: Range<usize>) -> u64 {
        let items = self.footprint.stage_items(self.cards[card].kind, layers, &self.options.sizes);
        items.iter().map(|i| i.bytes).sum()
    }

    fn reserve_bytes(&self, card: usize) -> u64 {
        match self.options.vram_reserve_later_bytes {
            Some(later) if card > 0 => later,
            _ => self.options.vram_reserve_bytes,
        }
    }

    fn budget_bytes(&self, card: usize) -> u64 {
        self.cards[card].memory_bytes.saturating_sub(self.reserve_bytes(card))
    }

    fn fits(&self, stages: &[Assignment]) -> bool {
        stages
            .iter()
            .all(|(card, layers)| self.needed_bytes(*card, layers.clone()) <= self.budget_bytes(*card))
    }

    /// Every contiguous split over every order of every choice of cards.
    fn all_splits(&self) -> Vec<Vec<Assignment>> {
        fn grow(case: &Case, stages: &mut Vec<Assignment>, all: &mut Vec<Vec<Assignment>>) {
            let start = stages.last().map_or(0, |s| s.1.end);
            if start == case.footprint.layers.len() {
                all.push(stages.clone());
                return;
            }
            for card in
                (0..case.cards.len()).filter(|c| !stages.iter().any(|s| s.0 == *c)).collect::<Vec<_>>()
            {
                for end in start + 1..=case.footprint.layers.len() {
                    stages.push((card, start..end));
                    grow(case, stages, all);
                    stages.pop();
                }
            }
        }
        let mut all = Vec::new();
        grow(self, &mut Vec::new(), &mut all);
        all
    }
}

/// The stages of a plan as the cost function takes them.
fn stages_of(plan: &Plan) -> Vec<Assignment> {
    plan.stages.iter().map(|s| (s.card.number as usize, s.layers.clone())).collect()
}

/// What the planner minimises, and how it breaks ties.
fn rank(cost: Cost, stages: &[Assignment]) -> (u64, u64, usize, Vec<usize>, Vec<usize>) {
    let order = stages.iter().map(|s| s.0).collect();
    let starts = stages.iter().map(|s| s.1.start).collect();
    (cost.total_ps(), cost.busy_ps_max, 64 - stages.len(), order, starts)
}

fn no_fit(result: Result<Plan, SplitError>) -> Option<Box<NoFit>> {
    match result {
        Ok(_) => None,
        Err(SplitError::NoFit(refusal)) => Some(refusal),
        Err(other) => panic!("not a refusal: {other}"),
    }
}

fn layer() -> impl Strategy<Value = LayerFootprint> {
    let paged = prop::collection::vec(
        (1usize..4, (1usize..5).prop_map(|w| 32 * w), (1usize..5).prop_map(|w| 32 * w)),
        0..3,
    );
    // Few distinct sizes, so that ties occur.
    (1u64..5, prop_oneof![Just(0u64), 1u64..6], 0u64..3, paged, prop_oneof![Just(0u64), 0u64..500]).prop_map(
        |(dense, experts, vectors, paged, fixed_values)| LayerFootprint {
            dense_bytes: ByKind::same(dense * 100_000),
            expert_bytes: ByKind::same(experts * 400_000),
            vector_bytes: vectors * 1_000,
            read_bytes_per_row: ByKind::same(dense * 100_000 + experts * 50_000),
            macs_per_row: dense * 160_000 + experts * 80_000,
            ops: 10 + dense as usize,
            paged,
            fixed_values,
        },
    )
}

fn footprint(layers: impl Into<prop::collection::SizeRange>) -> impl Strategy<Value = Footprint> {
    let one = prop::collection::vec(layer(), layers);
    (one, 0u64..4, 0u64..4, any::<bool>(), 0u64..300, 1usize..100).prop_map(
        |(mut layers, table, head, tied, row_bytes, width)| {
            // Half of the models have equal layers, as real ones have.
            if row_bytes % 2 == 0 {
                let first = layers[0].clone();
                layers.iter_mut().for_each(|l| *l = first.clone());
            }
            Footprint {
                layers,
                embedding_bytes: table * 200_000,
                head_bytes: ByKind::same(head * 200_000),
                tied_bytes: if tied { table * 200_000 } else { 0 },
                tail_vector_bytes: 100,
                head_macs: head * 320_000,
                residual_width: width * 16,
                vocab: 1_000,
                row_bytes: row_bytes * 16,
                gpu: GpuSizes::default(),
                rope_vector_bytes: 0,
                float_products: false,
            }
        },
    )
}

fn cards(count: Range<usize>) -> impl Strategy<Value = (Vec<CardFacts>, LinkFacts)> {
    let rate = || prop_oneof![Just(1e10), Just(2e10), 1e9..1e11];
    // From too small for a layer to large enough for all.
    let memory = prop_oneof![Just(2_000_000u64), Just(8_000_000), 10_000u64..20_000_000];
    let op_us = prop_oneof![Just(0.0), 0.0..5.0];
    let card = (memory, rate(), rate(), op_us);
    let link = || (prop_oneof![Just(0.0), Just(5.0), 0.0..50.0], prop_oneof![Just(1e18), 1e8..1e11]);
    (prop::collection::vec(card, count), prop::collection::vec(link(), 64), any::<bool>()).prop_map(
        |(facts, pairs, alike)| {
            let cards: Vec<CardFacts> = facts
                .iter()
                .enumerate()
                .map(|(at, &(memory_bytes, decode_bytes_per_s, prompt_macs_per_s, decode_op_us))| CardFacts {
                    id: CardId::cpu(at as u32),
                    kind: CardKind::Cpu,
                    name: format!("cpu:{at}"),
                    memory_bytes,
                    driver_bytes: 0,
                    addable_bytes: u64::MAX,
                    decode_bytes_per_s,
                    decode_op_us,
                    prompt_macs_per_s,
                    rates: RateSource::Typical,
                })
                .collect();
            let rate = |from: usize, to: usize| {
                let (latency_us, bytes_per_s) = pairs[if alike { 0 } else { (from * 8 + to) % 64 }];
                LinkRate { latency_us, bytes_per_s }
            };
            let count = cards.len();
            let rates = (0..count).map(|from| (0..count).map(|to| rate(from, to)).collect()).collect();
            let kinds = vec![vec![LinkKind::Local; count]; count];
            (cards, LinkFacts { rates, kinds })
        },
    )
}

fn options() -> impl Strategy<Value = SplitOptions> {
    let kv = prop_oneof![Just(KvFormat::F32), Just(KvFormat::F16), Just(KvFormat::Q8_0)];
    let sizes = (kv, 1usize..4_000, 1usize..6, prop_oneof![Just(512usize), 1usize..600], 1usize..4);
    let reserve = prop_oneof![Just(0u64), 0u64..300_000];
    (sizes, reserve.clone(), prop::option::of(reserve), prop_oneof![Just(1.0), 0.1..8.0]).prop_map(
        |((kv, context, sequences, batch_rows_max, link_slots), first, later, weight)| {
            let sizes = StageSizes {
                kv,
                context,
                sequences,
                batch_rows_max,
                logits_rows_max: batch_rows_max.min(8),
                link_slots,
                link_side_slots: 0,
                link_card_slots: 0,
            };
            SplitOptions {
                vram_reserve_bytes: first,
                vram_reserve_later_bytes: later,
                prompt_rows_per_token: weight,
                ..SplitOptions::new(sizes)
            }
        },
    )
}

fn case(layers: Range<usize>, count: Range<usize>) -> impl Strategy<Value = Case> {
    (footprint(layers), cards(count), options()).prop_map(|(footprint, (cards, links), options)| Case {
        footprint,
        cards,
        links,
        options,
    })
}

/// A split that fits, drawn at random; `None` where the draw does not fit.
fn random_split(case: &Case, draw: &mut impl FnMut(usize) -> usize) -> Option<Vec<Assignment>> {
    let layers = case.footprint.layers.len();
    let mut order: Vec<usize> = (0..case.cards.len()).collect();
    for at in (1..order.len()).rev() {
        order.swap(at, draw(at + 1));
    }
    order.truncate(1 + draw(order.len().min(layers)));
    let mut starts: Vec<usize> = (1..layers).collect();
    for at in (1..starts.len()).rev() {
        starts.swap(at, draw(at + 1));
    }
    starts.truncate(order.len() - 1);
    starts.sort_unstable();
    let ends = starts.iter().copied().chain([layers]).collect::<Vec<_>>();
    let firsts = std::iter::once(0).chain(starts.iter().copied());
    let stages: Vec<Assignment> =
        order.iter().zip(firsts.zip(ends)).map(|(&card, (first, end))| (card, first..end)).collect();
    Some(stages).filter(|s| case.fits(s))
}

fn config(cases: u32) -> ProptestConfig {
    // A fixed seed: the same inputs on every machine. A failure prints the shrunk input.
    ProptestConfig {
        cases,
        rng_seed: RngSeed::Fixed(7),
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(config(1_500))]

    #[test]
    fn the_plan_is_the_first_of_all_splits_by_cost_and_ties_and_a_refusal_means_that_none_fits(
        case in case(1..6, 1..5)
    ) {
        let model = case.model();
        let fitting = case.all_splits().into_iter().filter(|s| case.fits(s));
        let best = fitting.map(|s| rank(model.cost(&s), &s)).min();
        match case.plan() {
            Ok(plan) => {
                let stages = stages_of(&plan);
                prop_assert_eq!(Some(rank(model.cost(&stages), &stages)), best);
                prop_assert_eq!(plan.cost, model.cost(&stages));
            }
            Err(SplitError::NoFit(_)) => prop_assert_eq!(None, best),
            Err(other) => prop_assert!(false, "{}", other),
        }
    }

    #[test]
    fn the_least_missing_bytes_are_those_of_the_closest_split(case in case(1..6, 1..4)) {
        if let Some(refusal) = no_fit(case.plan()) {
            let excess = |stages: &Vec<Assignment>| -> u64 {
                let one = |s: &Assignment| {
                    let needed = case.needed_bytes(s.0, s.1.clone());
                    let with_reserve = needed + case.reserve_bytes(s.0);
                    let fits = needed <= case.budget_bytes(s.0);
                    if fits { 0 } else { with_reserve - case.cards[s.0].memory_bytes }
                };
                stages.iter().map(one).sum()
            };
            prop_assert_eq!(Some(refusal.missing_bytes), case.all_splits().iter().map(excess).min());
            // The same bytes, given to the cards named, are enough.
            let mut larger = case.clone();
            for need in &refusal.cards {
                larger.cards[need.card.number as usize].memory_bytes += need.missing_bytes;
            }
            prop_assert!(larger.plan().is_ok());
        }
    }

    #[test]
    fn every_layer_lies_on_one_card_no_card_is_over_its_budget_and_cards_without_layers_are_named(
        case in case(1..40, 1..9)
    ) {
        if let Ok(plan) = case.plan() {
            let layers: Vec<usize> = plan.stages.iter().flat_map(|s| s.layers.clone()).collect();
            prop_assert_eq!(layers, (0..case.footprint.layers.len()).collect::<Vec<_>>());
            for stage in &plan.stages {
                let card = stage.card.number as usize;
                prop_assert_eq!(&stage.items, &case.footprint.stage_items(
                    case.cards[card].kind, stage.layers.clone(), &case.options.sizes));
                prop_assert_eq!(stage.used_bytes, stage.items.iter().map(|i| i.bytes).sum::<u64>());
                prop_assert_eq!(stage.budget_bytes, case.budget_bytes(card));
                prop_assert!(stage.used_bytes <= stage.budget_bytes);
            }
            let mut named: Vec<u32> = plan.stages.iter().map(|s| s.card.number).chain(plan.idle.iter().map(|i| i.card.number)).collect();
            named.sort_unstable();
            prop_assert_eq!(named, (0..case.cards.len() as u32).collect::<Vec<_>>());
            prop_assert_eq!(plan, case.plan().unwrap(), "same input, same plan");
        }
    }

    #[test]
    fn the_nearest_plan_fits_when_it_is_asked_for(case in case(1..12, 1..5)) {
        if let Some(refusal) = no_fit(case.plan()) {
            if let Some(nearest) = &refusal.nearest {
                let mut again = case.clone();
                again.options.sizes = nearest.sizes;
                prop_assert_eq!(&again.plan().unwrap(), &nearest.plan);
                let (asked, now) = (&case.options.sizes, &nearest.sizes);
                prop_assert!(now.context == asked.context || (now.context % 256 == 0 && now.context < asked.context));
                prop_assert!(!nearest.flags.is_empty() && refusal.to_string().contains(&nearest.flags));
                // One step less given up of the context does not fit.
                if now.context < asked.context {
                    again.options.sizes.context = (now.context + 256).min(asked.context);
                    prop_assert!(again.plan().is_err());
                }
            } else {
                // Nothing that can be given up helps: not even everything at once.
                let mut least = case.clone();
                let sizes = &mut least.options.sizes;
                sizes.sequences = 1;
                sizes.context = if sizes.context > 256 { 256 } else { sizes.context };
                sizes.kv = KvFormat::Q8_0;
                while sizes.batch_rows_max >= 16 {
                    sizes.batch_rows_max /= 2;
                }
                prop_assert!(least.plan().is_err());
            }
            let line = refusal.to_string();
            prop_assert!(!line.contains('\n') && ["--card-memory", "less reserved on"].iter().any(|way| line.contains(way)));
        }
    }

    #[test]
    fn a_given_split_and_order_are_taken_as_they_are(
        case in case(8..20, 2..6), mixed in any::<prop::sample::Index>(), cut in prop::collection::vec(any::<u16>(), 8)
    ) {
        let mut case = case;
        case.cards.iter_mut().for_each(|c| c.memory_bytes = 1 << 40);
        let count = case.cards.len();
        let mut order: Vec<usize> = (0..count).collect();
        order.rotate_left(mixed.index(count));
        let mut starts: Vec<usize> = (1..case.footprint.layers.len()).collect();
        while starts.len() > count - 1 {
            starts.remove(cut[starts.len() % 8] as usize % starts.len());
        }
        case.options.layer_split = Some(starts.clone());
        case.options.gpu_order = Some(GpuOrder::Explicit(order.clone()));
        let plan = case.plan().unwrap();
        let firsts: Vec<usize> = plan.stages.iter().map(|s| s.layers.start).collect();
        prop_assert_eq!(&firsts[1..], &starts[..]);
        prop_assert_eq!(plan.stages.iter().map(|s| s.card.number as usize).collect::<Vec<_>>(), order.clone());
        // An order alone leaves the layers to the planner, and cards may stay idle.
        case.options.layer_split = None;
        let plan = case.plan().unwrap();
        let places: Vec<usize> = plan.stages.iter()
            .map(|s| order.iter().position(|&card| card == s.card.number as usize).unwrap()).collect();
        prop_assert!(places.windows(2).all(|pair| pair[0] < pair[1]));
        case.options.gpu_order = Some(GpuOrder::FastestLast);
        let plan = case.plan().unwrap();
        let rates: Vec<f64> = plan.stages.iter().map(|s| case.cards[s.card.number as usize].decode_bytes_per_s).collect();
        prop_assert!(rates.windows(2).all(|pair| pair[0] <= pair[1]));
        case.options.skip_split_if_fits = true;
        case.options.gpu_order = Some(GpuOrder::Explicit(order.clone()));
        let plan = case.plan().unwrap();
        prop_assert_eq!(stages_of(&plan), vec![(order[0], 0..case.footprint.layers.len())]);
        prop_assert_eq!(plan.idle.len(), count - 1);
    }
}

proptest! {
    #![proptest_config(config(300))]

    #[test]
    fn no_random_plan_that_fits_costs_less(case in case(6..60, 1..9), seed in any::<u64>()) {
        let mut state = seed | 1;
        let mut draw = |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % below.max(1)
        };
        let model = case.model();
        let plan = case.plan();
        let mut found = 0;
        for _ in 0..4_000 {
            let Some(split) = random_split(&case, &mut draw) else { continue };
            let plan = match &plan {
                Ok(plan) => plan,
                Err(error) => panic!("{split:?} fits, but: {error}"),
            };
            prop_assert!(plan.cost.total_ps() <= model.cost(&split).total_ps(), "{:?} is better", split);
            found += 1;
            if found == 200 {
                break;
            }
        }
    }

    #[test]
    fn more_cards_than_are_searched_in_every_order_still_give_a_plan_within_all_budgets(
        case in case(12..30, 9..14)
    ) {
        if let Ok(plan) = case.plan() {
            let stages = stages_of(&plan);
            prop_assert!(case.fits(&stages));
            prop_assert_eq!(plan.cost, case.model().cost(&stages));
            prop_assert_eq!(stages.iter().map(|s| s.1.len()).sum::<usize>(), case.footprint.layers.len());
        }
    }
}

#[test]
fn the_random_cases_hold_plans_refusals_idle_cards_and_offers_of_every_kind() {
    let mut runner = TestRunner::new(config(1));
    let mut counts = std::collections::BTreeMap::new();
    let mut count = |what: &'static str| *counts.entry(what).or_insert(0) += 1;
    for _ in 0..1_000 {
        let case = case(1..12, 1..5).new_tree(&mut runner).unwrap().current();
        match case.plan() {
            Ok(plan) => {
                count(if plan.stages.len() > 1 { "a split" } else { "one stage" });
                plan.idle.iter().for_each(|_| count("an idle card"));
            }
            Err(SplitError::NoFit(refusal)) => match &refusal.nearest {
                None => count("a refusal without an offer"),
                Some(nearest) => {
                    for flag in ["--ctx", "--kv", "--sequences", "--chunk"] {
                        if nearest.flags.contains(flag) {
                            count(flag);
                        }
                    }
                    if nearest.flags.matches("--").count() > 1 {
                        count("an offer of several flags");
                    }
                }
            },
            Err(other) => panic!("{other}"),
        }
    }
    assert_eq!(counts.len(), 9, "{counts:?}");
    assert!(counts.values().all(|&n| n >= 5), "{counts:?}");
}

/// A dense model of `layers` equal layers, with a head as large as eight of them.
fn dense(layers: usize) -> Footprint {
    let layer = LayerFootprint {
        dense_bytes: ByKind::same(2_200_000),
        expert_bytes: ByKind::default(),
        vector_bytes: 4_608,
        read_bytes_per_row: ByKind::same(2_200_000),
        macs_per_row: 3_540_000,
        ops: 16,
        paged: vec![(3, 64, 64)],
        fixed_values: 0,
    };
    Footprint {
        layers: vec![layer; layers],
        embedding_bytes: 17_700_000,
        head_bytes: ByKind::same(17_700_000),
        tied_bytes: 17_700_000,
        tail_vector_bytes: 2_304,
        head_macs: 28_300_000,
        residual_width: 576,
        vocab: 49_152,
        row_bytes: 30_000,
        gpu: GpuSizes::default(),
        rope_vector_bytes: 0,
        float_products: false,
    }
}

fn sizes() -> StageSizes {
    StageSizes {
        kv: KvFormat::F16,
        context: 4_096,
        sequences: 1,
        batch_rows_max: 512,
        logits_rows_max: 8,
        link_slots: 2,
        link_side_slots: 0,
        link_card_slots: 0,
    }
}

fn virtual_case(layers: usize, memory_bytes: &[u64]) -> Case {
    let source = RateSource::Typical;
    let rates = CardRates { decode_bytes_per_s: 10e9, prompt_macs_per_s: 100e9, source };
    Case {
        footprint: dense(layers),
        cards: memory_bytes
            .iter()
            .enumerate()
            .map(|(at, &bytes)| virtual_card(at as u32, bytes, rates))
            .collect(),
        links: virtual_links(memory_bytes.len()),
        options: SplitOptions::new(sizes()),
    }
}

fn starts(plan: &Plan) -> Vec<usize> {
    plan.stages.iter().map(|s| s.layers.start).collect()
}

#[test]
fn equal_virtual_cards_share_the_layers_evenly() {
    for (count, expected) in
        [(1, vec![0]), (2, vec![0, 15]), (3, vec![0, 10, 20]), (5, vec![0, 6, 12, 18, 24])]
    {
        let plan = virtual_case(30, &vec![8 << 30; count]).plan().unwrap();
        assert_eq!(starts(&plan), expected, "{count} cards");
    }
}

#[test]
fn two_equal_cards_are_shared_evenly_over_a_link_of_small_cost_and_not_over_a_slow_one() {
    let mut case = virtual_case(30, &[8 << 30; 2]);
    let all = |latency_us: f64| vec![vec![LinkRate { latency_us, bytes_per_s: 10e9 }; 2]; 2];
    case.links.rates = all(10.0);
    assert_eq!(starts(&case.plan().unwrap()), [0, 15]);
    case.links.rates = all(1_000_000.0);
    let plan = case.plan().unwrap();
    assert_eq!(starts(&plan), [0]);
    assert!(plan.idle[0].reason.contains("no faster"), "{}", plan.idle[0].reason);
}

#[test]
fn several_sequences_move_layers_away_from_the_card_with_the_head() {
    let mut case = virtual_case(30, &[8 << 30; 2]);
    case.options.sizes.sequences = 2;
    let plan = case.plan().unwrap();
    assert!((17..=19).contains(&plan.stages[1].layers.start), "{plan}");
}

#[test]
fn more_cards_than_layers_leave_the_surplus_idle_by_name() {
    let plan = virtual_case(3, &[8 << 30; 5]).plan().unwrap();
    assert_eq!(starts(&plan), [0, 1, 2]);
    let idle: Vec<&str> = plan.idle.iter().map(|i| i.name.as_str()).collect();
    assert_eq!(idle, ["cpu:3", "cpu:4"]);
    assert!(plan.to_string().contains("cpu:4  idle: no layer is left, the model has 3"), "{plan}");
}

#[test]
fn a_card_that_holds_no_layer_is_idle_and_says_so() {
    let plan = virtual_case(30, &[8 << 30, 1 << 20, 8 << 30]).plan().unwrap();
    assert_eq!(plan.stages.iter().map(|s| s.card.number).collect::<Vec<_>>(), [0, 2]);
    assert!(plan.idle[0].reason.contains("holds no layer"), "{}", plan.idle[0].reason);
}

#[test]
fn the_reserve_of_later_cards_is_that_of_the_first_unless_it_is_given() {
    let mut case = virtual_case(30, &[1 << 30; 3]);
    case.options.vram_reserve_bytes = 100 << 20;
    let reserves = |plan: Plan| plan.stages.iter().map(|s| s.reserve_bytes >> 20).collect::<Vec<_>>();
    assert_eq!(reserves(case.plan().unwrap()), [100, 100, 100]);
    case.options.vram_reserve_later_bytes = Some(7 << 20);
    assert_eq!(reserves(case.plan().unwrap()), [100, 7, 7]);
}

#[test]
fn a_refusal_names_the_items_that_did_not_fit_and_what_would() {
    let refusal = no_fit(virtual_case(30, &[64 << 20, 64 << 20]).plan()).unwrap();
    let line = refusal.to_string();
    for part in ["the model does not fit", "cpu:", "tandem plan", "it fits with --ctx", "--card-memory"] {
        assert!(line.contains(part), "{part}: {line}");
    }
    assert!(refusal.cards.iter().all(|c| c.items.iter().any(|i| i.kind == ItemKind::Dense)));
    let table = refusal.itemised().to_string();
    for part in ["dense weights", "K/V pages", "the nearest plan that fits: --ctx"] {
        assert!(table.contains(part), "{part}: {table}");
    }
    let tiny = no_fit(virtual_case(30, &[1 << 20]).plan()).unwrap();
    assert!(tiny.nearest.is_none() && tiny.to_string().contains("no smaller --ctx"), "{tiny}");
}

#[test]
fn a_refusal_advises_what_can_help() {
    // A reserve above the memory: less of it, and both cards are shown.
    let mut case = virtual_case(30, &[2 << 30; 2]);
    case.options.vram_reserve_bytes = 100 << 30;
    let refusal = no_fit(case.plan()).unwrap();
    let line = refusal.to_string();
    assert!(line.contains("less reserved on cpu:") && !line.contains("--card-memory"), "{line}");
    let table = refusal.itemised().to_string();
    assert!(table.contains("cpu:0") && table.contains("cpu:1"), "{table}");
    // A GPU that is used whole: no flag makes it larger.
    let mut case = virtual_case(30, &[64 << 20, 64 << 20]);
    case.cards.iter_mut().for_each(|card| (card.driver_bytes, card.addable_bytes) = (4 << 20, 0));
    let refusal = no_fit(case.plan()).unwrap();
    let line = refusal.to_string();
    assert!(line.contains("more free on cpu:") && !line.contains("(--card-memory"), "{line}");
    assert!(refusal.cards.iter().all(|card| card.budget_bytes == 60 << 20));
}

#[test]
fn what_is_left_to_a_driver_is_part_of_the_reserve_that_is_shown() {
    let mut case = virtual_case(30, &[8 << 30]);
    case.cards[0].driver_bytes = 256 << 20;
    case.options.vram_reserve_bytes = 44 << 20;
    let plan = case.plan().unwrap();
    assert_eq!(plan.stages[0].reserve_bytes, 300 << 20);
    assert_eq!(plan.stages[0].budget_bytes, (8 << 30) - (300 << 20));
    let table = plan.to_string();
    assert!(table.contains("300 MiB") && table.contains("256 MiB a GPU are left to its driver"), "{table}");
}

#[test]
fn flags_out_of_range_give_one_line_that_names_the_flag() {
    type Change = fn(&mut Case);
    let cases: [(&str, Change); 20] = [
        ("--layer-split has 2 numbers, 2 cards need 1", |c| c.options.layer_split = Some(vec![3, 5])),
        ("--layer-split has 0 numbers, 2 cards need 1", |c| c.options.layer_split = Some(vec![])),
        ("--layer-split 30", |c| c.options.layer_split = Some(vec![30])),
        ("--layer-split 0", |c| c.options.layer_split = Some(vec![0])),
        ("--layer-split 9,9", |c| {
            *c = virtual_case(30, &[8 << 30; 3]);
            c.options.layer_split = Some(vec![9, 9]);
        }),
        ("--layer-split: 2 cards cannot share 1 layers", |c| {
            c.footprint = dense(1);
            c.options.layer_split = Some(vec![1]);
        }),
        ("--gpu-order names position 2", |c| c.options.gpu_order = Some(GpuOrder::Explicit(vec![0, 2]))),
        ("--gpu-order names position 1 twice", |c| {
            c.options.gpu_order = Some(GpuOrder::Explicit(vec![1, 1]))
        }),
        ("--gpu-order leaves out position 0", |c| c.options.gpu_order = Some(GpuOrder::Explicit(vec![1]))),
        ("no card is named", |c| c.cards.clear()),
        ("--gpus names 64 cards", |c| *c = virtual_case(30, &[8 << 30; 64])),
        ("no layers", |c| c.footprint.layers.clear()),
        ("--ctx 0", |c| c.options.sizes.context = 0),
        ("--ctx 18446744073709551615", |c| c.options.sizes.context = usize::MAX),
        ("--sequences 0", |c| c.options.sizes.sequences = 0),
        ("--chunk 0", |c| c.options.sizes.batch_rows_max = 0),
        ("--kv q8_0", |c| {
            c.options.sizes.kv = KvFormat::Q8_0;
            c.footprint.layers[4].paged = vec![(1, 48, 32)];
        }),
        ("cpu:1: the decode rate is NaN", |c| c.cards[1].decode_bytes_per_s = f64::NAN),
        ("cpu:1: the time of an op is -1", |c| c.cards[1].decode_op_us = -1.0),
        ("link facts cover 1 cards", |c| c.links = virtual_links(1)),
    ];
    for (text, change) in cases {
        let mut case = virtual_case(30, &[8 << 30; 2]);
        change(&mut case);
        let line = case.plan().unwrap_err().to_string();
        assert!(line.contains(text) && !line.contains('\n'), "{text}: {line}");
    }
}

#[test]
fn card_orders_read_as_people_write_them() {
    assert_eq!("as-given".parse(), Ok(GpuOrder::AsGiven));
    assert_eq!("fastest-last".parse(), Ok(GpuOrder::FastestLast));
    assert_eq!("2,0,1".parse(), Ok(GpuOrder::Explicit(vec![2, 0, 1])));
    for text in ["", "fastest", "1,,2", "-1", "0;1"] {
        assert!(text.parse::<GpuOrder>().unwrap_err().contains("fastest-last"), "{text}");
    }
}

#[test]
fn q8_0_is_not_offered_where_a_head_has_no_whole_blocks() {
    let mut case = virtual_case(8, &[80 << 20]);
    case.options.sizes.context = 256;
    case.options.sizes.sequences = 32;
    case.footprint.layers.iter_mut().for_each(|l| l.paged = vec![(3, 64, 64)]);
    let with = no_fit(case.plan()).and_then(|r| r.nearest).map(|n| n.flags);
    case.footprint.layers.iter_mut().for_each(|l| l.paged = vec![(3, 80, 48)]);
    let without = no_fit(case.plan()).and_then(|r| r.nearest).map(|n| n.flags);
    assert!(with.as_ref().is_some_and(|f| f == "--kv q8_0"), "{with:?}");
    assert!(without.as_ref().is_some_and(|f| f.starts_with("--sequences")), "{without:?}");
}

#[test]
fn the_table_is_aligned_and_at_most_100_columns_wide_from_1_to_8_cards() {
    for count in 1..=8 {
        let mut case = virtual_case(94, &vec![1023 << 30; count]);
        case.footprint.layers.iter_mut().for_each(|l| l.expert_bytes = ByKind::same(1023 << 20));
        case.options.vram_reserve_bytes = 1023 << 20;
        case.options.sizes.sequences = 4;
        let plan = case.plan().unwrap();
        let text = plan.to_string();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), count + if count > 1 { 5 } else { 4 }, "{text}");
        assert!(lines.iter().all(|line| line.chars().count() <= 100), "{text}");
        assert!(lines[..=count].iter().all(|line| line.len() == lines[0].len()), "{text}");
    }
}

#[test]
fn a_plan_says_where_the_rates_of_its_cards_come_from() {
    let rates = |of_cards: &[RateSource]| {
        let mut case = virtual_case(2, &vec![8 << 30; of_cards.len()]);
        case.cards.iter_mut().zip(of_cards).for_each(|(card, rates)| card.rates = *rates);
        case.plan().unwrap().predicted.rates
    };
    let (typical, measured) = (RateSource::Typical, RateSource::Measured);
    assert_eq!(rates(&[typical, typical]), Some(typical));
    assert_eq!(rates(&[measured, measured]), Some(measured));
    assert_eq!(rates(&[measured, typical]), None);
    // Two layers leave the third card idle.
    assert_eq!(rates(&[measured, measured, typical]), Some(measured));
}

#[test]
fn a_plan_is_written_as_json_with_every_item() {
    let plan = virtual_case(30, &[8 << 30; 2]).plan().unwrap();
    let json = serde_json::to_value(&plan).unwrap();
    assert_eq!(json["stages"][1]["layers"]["start"], 15);
    assert_eq!(json["stages"][0]["items"].as_array().unwrap().len(), plan.stages[0].items.len());
    assert_eq!(json["sizes"]["kv"], "f16");
    assert!(json["predicted"]["decode_tok_s"].as_f64().unwrap() > 0.0);
    assert!(matches!(plan.predicted.bound, Bound::Stage(_)));
    let links = serde_json::to_string(&virtual_links(2)).unwrap();
    assert_eq!(serde_json::from_str::<LinkFacts>(&links).unwrap(), virtual_links(2));
}

/// 94 unequal layers on eight different cards with different links.
fn large() -> Case {
    let mut case = virtual_case(94, &[8 << 30; 8]);
    for (at, layer) in case.footprint.layers.iter_mut().enumerate() {
        layer.read_bytes_per_row += ByKind::same((at * at * 7_919 % 1_000_003) as u64);
        layer.macs_per_row += (at * at * 104_729 % 1_000_003) as u64;
    }
    for (at, card) in case.cards.iter_mut().enumerate() {
        card.memory_bytes = (50 + 10 * at as u64) << 20;
        card.decode_bytes_per_s *= 1.0 + 0.13 * at as f64;
        card.prompt_macs_per_s *= 2.0 - 0.17 * at as f64;
    }
    for (from, row) in case.links.rates.iter_mut().enumerate() {
        for (to, rate) in row.iter_mut().enumerate() {
            *rate = LinkRate {
                latency_us: 5.0 + (from * 3 + to * 5) as f64,
                bytes_per_s: 5e9 + 1e9 * (from + to) as f64,
            };
        }
    }
    case.options.sizes.context = 1_024;
    case.options.sizes.batch_rows_max = 64;
    case
}

#[test]
#[ignore = "prints times; run with --release -- --ignored --nocapture"]
fn planning_time_of_94_layers_on_8_different_cards() {
    let time = |name: &str, case: &Case| {
        let start = std::time::Instant::now();
        let result = case.plan();
        let took = start.elapsed();
        match result {
            Ok(plan) => println!("{name}: {took:?}\n{plan}\n"),
            Err(SplitError::NoFit(refusal)) => {
                println!("{name}: {took:?}\n{refusal}\n{}\n", refusal.itemised())
            }
            Err(error) => println!("{name}: {took:?} {error}"),
        }
    };
    let mut case = large();
    time("different cards", &case);
    case.options.sizes.sequences = 2;
    time("two sequences", &case);
    case.cards.iter_mut().for_each(|c| c.memory_bytes = 8 << 30);
    time("much memory", &case);
    case.cards.iter_mut().for_each(|c| c.memory_bytes = 30 << 20);
    time("refusal", &case);
    time("virtual", &virtual_case(94, &[8 << 30; 8]));
    let mut small = virtual_case(30, &[64 << 20, 64 << 20]);
    time("refusal on two cards", &small);
    small.cards[0].memory_bytes = 512 << 20;
    time("two cards", &small);
}
