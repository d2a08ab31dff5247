//! The planner: sizes and facts in, a plan or a refusal out; a pure function.
//!
//! Up to eight different cards (more, where some are alike) every order and every split is searched. Beyond that,
//! the best split of each of a few orders: as named, its reverse, by decode rate both ways, largest budget first.
//! Any card of an order may stay idle. Nearness and refusals follow the same orders.
//!
//! Invariants: same input, same plan; a refusal means that no split over the searched orders fits.
//! Does not know: devices, files, clocks.

use std::ops::Range;

use crate::model::facts::{CardFacts, CardKind, LinkFacts, LinkKind, StageId};
use crate::model::footprint::gpu::slot_bytes;
use crate::model::footprint::{Footprint, StageSizes};

use super::budget::{Budget, sum_bytes};
use super::cost::{Assignment, TimeModel, decode_position, us};
use super::error::SplitError;
use super::fit::{RangeBytes, Reach};
use super::miss;
use super::nearest;
use super::options::{Computing, SplitOptions, width_against_q8_0};
use super::orders::Orders;
use super::plan::{Bound, IdleCard, Plan, Predicted, StagePlan};
use super::refusal::{CardNeed, Nearest, NoFit};
use super::search::Search;

/// Splits the model over the cards in the least predicted time, or says why that cannot be.
pub fn plan(
    footprint: &Footprint,
    cards: &[CardFacts],
    links: &LinkFacts,
    options: &SplitOptions,
) -> Result<Plan, SplitError> {
    options.check(footprint, cards)?;
    let budgets = options.budgets(cards);
    let order = options.order(cards);
    let model = TimeModel::new(footprint, cards, links, &options.sizes, options.prompt_rows_per_token)?;
    let first_card = order.as_ref().map_or(0, |order| order[0]);
    let layout = match (&options.layer_split, order) {
        (Some(starts), Some(order)) => Layout::Given(given_stages(starts, &order, footprint.layers.len())),
        (_, Some(order)) => Layout::Orders(vec![Orders::fixed(&order)]),
        (_, None) => Layout::Orders(search_orders(cards, &budgets, links)),
    };
    let planner = Planner { footprint, cards, links, options, budgets, layout, first_card };
    planner.plan(&options.sizes, &model)
}

/// Where layers may go.
enum Layout {
    /// `--layer-split`.
    Given(Vec<Assignment>),
    /// The best over all of these.
    Orders(Vec<Orders>),
}

struct Planner<'a> {
    footprint: &'a Footprint,
    cards: &'a [CardFacts],
    links: &'a LinkFacts,
    options: &'a SplitOptions,
    budgets: Vec<Budget>,
    layout: Layout,
    first_card: usize,
}

impl Planner<'_> {
    fn plan(&self, sizes: &StageSizes, model: &TimeModel) -> Result<Plan, SplitError> {
        match self.best(sizes, model) {
            Some(stages) => Ok(self.describe(&stages, sizes, model)),
            None => Err(SplitError::NoFit(Box::new(self.refuse(sizes, model)?))),
        }
    }

    fn best(&self, sizes: &StageSizes, model: &TimeModel) -> Option<Vec<Assignment>> {
        if self.first_alone(sizes) {
            return Some(vec![(self.first_card, 0..self.footprint.layers.len())]);
        }
        let orders = match &self.layout {
            Layout::Given(stages) => return Some(stages.clone()).filter(|s| self.holds(s, sizes)),
            Layout::Orders(orders) => orders,
        };
        let reach = self.reach(sizes);
        let found = orders.iter().filter_map(|orders| Search::new(orders, model, &reach).best());
        found.min_by_key(|stages| {
            let cost = model.cost(stages);
            (cost.total_ps(), cost.busy_ps_max, usize::MAX - stages.len())
        })
    }

    fn fits(&self, sizes: &StageSizes, model: &TimeModel) -> bool {
        self.first_alone(sizes)
            || match &self.layout {
                Layout::Given(stages) => self.holds(stages, sizes),
                Layout::Orders(orders) => {
                    let reach = self.reach(sizes);
                    orders.iter().any(|orders| Search::new(orders, model, &reach).fits(u64::MAX))
                }
            }
    }

    /// True where `--skip-split-if-fits` applies.
    fn first_alone(&self, sizes: &StageSizes) -> bool {
        self.options.skip_split_if_fits
            && self.holds(&[(self.first_card, 0..self.footprint.layers.len())], sizes)
    }

    fn holds(&self, stages: &[Assignment], sizes: &StageSizes) -> bool {
        stages.iter().all(|(card, layers)| {
            let items = self.footprint.stage_items(self.cards[*card].kind, layers.clone(), sizes);
            self.budgets[*card].holds(&items)
        })
    }

    /// What fits on each card.
    fn reach(&self, sizes: &StageSizes) -> Vec<Reach> {
        let sums = self.sums_of_kinds(sizes);
        let of_card = |(card, budget): (&CardFacts, &Budget)| of_kind(&sums, card.kind).reach(budget);
        self.cards.iter().zip(&self.budgets).map(of_card).collect()
    }

    /// Bytes of all ranges, once for each kind of card.
    fn sums_of_kinds(&self, sizes: &StageSizes) -> Vec<(CardKind, RangeBytes)> {
        let mut sums: Vec<(CardKind, RangeBytes)> = Vec::new();
        for card in self.cards {
            if !sums.iter().any(|(kind, _)| *kind == card.kind) {
                sums.push((card.kind, RangeBytes::new(self.footprint, card.kind, sizes)));
            }
        }
        sums
    }

    fn refuse(&self, sizes: &StageSizes, model: &TimeModel) -> Result<NoFit, SplitError> {
        let stages = match &self.layout {
            Layout::Given(stages) => stages.clone(),
            Layout::Orders(orders) => {
                let sums = self.sums_of_kinds(sizes);
                let of_card: Vec<&RangeBytes> = self.cards.iter().map(|c| of_kind(&sums, c.kind)).collect();
                let misses = orders.iter().map(|orders| miss::closest(orders, &of_card, &self.budgets));
                misses.min_by_key(|miss| miss.0).map(|miss| miss.1).unwrap_or_default()
            }
        };
        let needs: Vec<CardNeed> =
            stages.iter().map(|(card, layers)| self.need(*card, layers, sizes)).collect();
        let unused = self.unused(&stages);
        let idle = unused.into_iter().map(|card| self.need(card, &(0..0), sizes)).collect();
        let q8_0 = width_against_q8_0(self.footprint).is_none();
        let nearest = match nearest::nearest(sizes, q8_0, |sizes| self.fits(sizes, model)) {
            None => None,
            Some(sizes) => {
                let weight = self.options.prompt_rows_per_token;
                let model = TimeModel::new(self.footprint, self.cards, self.links, &sizes, weight)?;
                let stages = self.best(&sizes, &model).expect("invariant: the nearest sizes fit");
                let plan = self.describe(&stages, &sizes, &model);
                Some(Box::new(Nearest { sizes, flags: nearest::flags(&self.options.sizes, &sizes), plan }))
            }
        };
        Ok(NoFit {
            needed_bytes: needs.iter().map(|n| n.needed_bytes).sum(),
            available_bytes: self.budgets.iter().fold(0, |sum, b| b.budget_bytes().saturating_add(sum)),
            missing_bytes: needs.iter().fold(0, |sum, n| n.missing_bytes.saturating_add(sum)),
            cards: needs,
            idle,
            nearest,
            layers_given: matches!(self.layout, Layout::Given(_)),
        })
    }

    fn need(&self, card: usize, layers: &Range<usize>, sizes: &StageSizes) -> CardNeed {
        let (facts, budget) = (&self.cards[card], &self.budgets[card]);
        let items = match layers.is_empty() {
            true => Vec::new(),
            false => self.footprint.stage_items(facts.kind, layers.clone(), sizes),
        };
        CardNeed {
            card: facts.id,
            name: facts.name.clone(),
            layers: layers.clone(),
            needed_bytes: sum_bytes(&items),
            budget_bytes: budget.budget_bytes(),
            reserve_bytes: budget.kept_bytes(),
            driver_bytes: budget.driver_bytes,
            addable_bytes: facts.addable_bytes,
            missing_bytes: budget.missing_bytes(&items),
            items,
        }
    }

    fn describe(&self, stages: &[Assignment], sizes: &StageSizes, model: &TimeModel) -> Plan {
        let stage_plans = stages.iter().enumerate().map(|(at, (card, layers))| {
            let arrives = (at > 0).then(|| self.links.kinds[stages[at - 1].0][*card]);
            let need = self.need(*card, layers, &arriving(sizes, arrives));
            let arrival = |time: fn(&TimeModel, usize, usize) -> u64| {
                if at == 0 { 0.0 } else { us(time(model, stages[at - 1].0, *card)) }
            };
            StagePlan {
                stage: StageId(at as u32),
                card: need.card,
                name: need.name,
                layers: need.layers,
                items: need.items,
                memory_bytes: self.budgets[*card].memory_bytes,
                reserve_bytes: need.reserve_bytes,
                driver_bytes: need.driver_bytes,
                budget_bytes: need.budget_bytes,
                used_bytes: need.needed_bytes,
                decode_us: us(model.decode_ps(*card, layers.clone())),
                prompt_us_per_row: us(model.prompt_ps(*card, layers.clone())),
                arrives,
                arrives_host_bytes: self.arrives_host_bytes(*card, arrives, sizes),
                arrival_us: arrival(TimeModel::link_decode_ps),
                arrival_us_per_row: arrival(TimeModel::link_prompt_ps),
            }
        });
        let row_bytes = 4 * self.footprint.residual_width as u64;
        let stage_plans: Vec<StagePlan> = stage_plans.collect();
        Plan {
            predicted: self.predict(&stage_plans, stages, sizes, model),
            stages: stage_plans,
            idle: self.idle(stages, sizes),
            sizes: *sizes,
            handoff_row_bytes: row_bytes,
            handoff_chunk_bytes: row_bytes * sizes.batch_rows_max as u64,
            cost: model.cost(stages),
        }
    }

    fn predict(
        &self,
        plans: &[StagePlan],
        stages: &[Assignment],
        sizes: &StageSizes,
        model: &TimeModel,
    ) -> Predicted {
        let cost = model.cost(stages);
        let decode_us = us(cost.decode_ps);
        let longest = |time: fn(&StagePlan) -> f64| plans.iter().map(time).fold(0.0, f64::max);
        let sequences = sizes.sequences as f64;
        let in_turn = self.options.computing == Computing::InTurn && plans.len() > 1;
        let (prompt_us, round_us) = if in_turn {
            let prompt_us: f64 = plans.iter().map(|s| s.prompt_us_per_row + s.arrival_us_per_row).sum();
            (prompt_us, sequences * decode_us)
        } else {
            let slowest_us = longest(|s| s.decode_us).max(longest(|s| s.arrival_us));
            let prompt_us = longest(|s| s.prompt_us_per_row).max(longest(|s| s.arrival_us_per_row));
            // Sequences follow each other: a round is the way of one, or all of them through the slowest part.
            (prompt_us, decode_us.max(sequences * slowest_us))
        };
        let busiest =
            stages.iter().position(|(card, layers)| model.busy_ps(*card, layers.clone()) == cost.busy_ps_max);
        let arrival = (1..stages.len())
            .find(|&at| model.link_busy_ps(stages[at - 1].0, stages[at].0) == cost.busy_ps_max)
            .map(|at| Bound::ArrivalAt(StageId(at as u32)));
        let stage = busiest.map(|at| Bound::Stage(StageId(at as u32)));
        let slowest = stage.or(arrival).expect("invariant: a maximum is reached by one of its terms");
        let per_s = |time_us: f64| if time_us > 0.0 { 1e6 / time_us } else { 0.0 };
        let mut rates = stages.iter().map(|(card, _)| self.cards[*card].rates);
        let first = rates.next();
        Predicted {
            rates: first.filter(|first| rates.all(|other| other == *first)),
            float_products: self.footprint.float_products,
            decode_position: decode_position(sizes),
            decode_us,
            decode_tok_s: per_s(decode_us),
            decode_tok_s_all: sequences * per_s(round_us),
            prompt_us_per_row: prompt_us,
            prompt_tok_s: per_s(prompt_us),
            bound: if in_turn { Bound::Turns } else { slowest },
        }
    }

    /// Slots of a GPU's rows that lie in the computer's memory.
    fn arrives_host_bytes(&self, card: usize, arrives: Option<LinkKind>, sizes: &StageSizes) -> u64 {
        let values = self.footprint.residual_width * sizes.batch_rows_max;
        let slot_bytes = match (self.cards[card].kind.is_gpu(), arrives) {
            (true, Some(LinkKind::Mapped)) => slot_bytes(values),
            (true, Some(LinkKind::Staged | LinkKind::Local)) => 4 * values as u64,
            _ => 0,
        };
        sizes.link_slots as u64 * slot_bytes
    }

    /// Cards without a stage.
    fn unused(&self, stages: &[Assignment]) -> Vec<usize> {
        let used = |at: usize| stages.iter().any(|(card, _)| *card == at);
        (0..self.cards.len()).filter(|&at| !used(at)).collect()
    }

    fn idle(&self, stages: &[Assignment], sizes: &StageSizes) -> Vec<IdleCard> {
        let unused = self.unused(stages);
        if unused.is_empty() {
            return Vec::new();
        }
        let (reach, layers) = (self.reach(sizes), self.footprint.layers.len());
        let reason = |at: usize| {
            if self.first_alone(sizes) {
                format!("{} holds everything (--skip-split-if-fits)", self.cards[self.first_card].name)
            } else if !reach[at].holds_any() {
                "its memory holds no layer (--card-memory, --vram-reserve)".to_string()
            } else if stages.len() == layers {
                format!("no layer is left, the model has {layers}")
            } else {
                "the model runs no faster with it (--layer-split uses it)".to_string()
            }
        };
        let idle = |&at: &usize| IdleCard {
            card: self.cards[at].id,
            name: self.cards[at].name.clone(),
            reason: reason(at),
        };
        unused.iter().map(idle).collect()
    }
}

/// The sizes of a stage that rows reach this way. The search counts slots on every GPU that could have them; here the
/// stage before is known.
fn arriving(sizes: &StageSizes, arrives: Option<LinkKind>) -> StageSizes {
    let on_card = arrives == Some(LinkKind::Peer);
    StageSizes { link_card_slots: if on_card { sizes.link_card_slots } else { 0 }, ..*sizes }
}

fn of_kind(sums: &[(CardKind, RangeBytes)], kind: CardKind) -> &RangeBytes {
    let found = sums.iter().find(|(of, _)| *of == kind);
    &found.expect("invariant: the kinds of all cards are summed").1
}

fn given_stages(starts: &[usize], order: &[usize], layers: usize) -> Vec<Assignment> {
    let firsts = std::iter::once(0).chain(starts.iter().copied());
    let ends = starts.iter().copied().chain([layers]);
    order.iter().zip(firsts.zip(ends)).map(|(&card, (first, end))| (card, first..end)).collect()
}

/// All orders where they are few enough, a choice of them otherwise.
fn search_orders(cards: &[CardFacts], budgets: &[Budget], links: &LinkFacts) -> Vec<Orders> {
    if let Some(all) = Orders::all(cards, budgets, links) {
        return vec![all];
    }
    let given: Vec<usize> = (0..cards.len()).collect();
    let sorted = |by: &dyn Fn(&usize, &usize) -> std::cmp::Ordering| {
        let mut order = given.clone();
        order.sort_by(|a, b| by(a, b));
        order
    };
    let rate = |at: &usize| cards[*at].decode_bytes_per_s;
    let orders = [
        given.clone(),
        given.iter().rev().copied().collect(),
        sorted(&|a, b| rate(a).total_cmp(&rate(b))),
        sorted(&|a, b| rate(b).total_cmp(&rate(a))),
        sorted(&|a, b| budgets[*b].budget_bytes().cmp(&budgets[*a].budget_bytes())),
    ];
    orders.iter().map(|order| Orders::fixed(order)).collect()
}
