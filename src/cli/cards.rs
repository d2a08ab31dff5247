//! The cards that `--gpus` names, with their memory, rates and links.
//!
//! Invariants: cards stand in the order named; a card that cannot be used is refused with the reason, and only
//! cards that nobody named are left out silently.

use anyhow::{Context as _, bail};

use super::args::SplitArgs;
use super::devices::{card_rates, gpu_rates};
use super::gpu_probe::CardSpeed;
use crate::device::cpu::machine;
use crate::device::cpu::simd::tier::Tier;
use crate::device::cuda::driver::Device;
use crate::device::cuda::faults::ForcedFault;
use crate::device::cuda::listing::{self, DECODE_OP_US, Listing};
use crate::device::cuda::vendor::{Architecture, Vendor};
use crate::engine::linking::LinkChoice;
use crate::engine::open::{CardChoice, CpuThreads, CudaChoice};
use crate::model::facts::{CardFacts, CardKind, LinkFacts, LinkKind, RateSource};
use crate::split::CARDS_MAX;
use crate::split::budget::{format_bytes, parse_bytes};
use crate::split::defaults::{self, virtual_card};

/// Without CUDA cards and without `--gpus`.
const VIRTUAL_DEFAULT: usize = 2;

/// Memory of a GPU that the plan leaves to the driver: code, stacks of threads, what allocations are rounded up by.
const DRIVER_BYTES: u64 = 256 << 20;

/// Less is a size without its unit.
const MEMORY_MIN_BYTES: u64 = 1 << 20;

/// One card as named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Named {
    Virtual,
    /// By its number among its maker's.
    Gpu(Vendor, usize),
}

impl Named {
    fn vendor(self) -> Option<Vendor> {
        match self {
            Named::Virtual => None,
            Named::Gpu(vendor, _) => Some(vendor),
        }
    }
}

/// Reads `--gpus`: numbers of CUDA cards, `hip:0` and `cpu:N`, separated by commas.
fn named(text: &str) -> anyhow::Result<Vec<Named>> {
    let mut all = Vec::new();
    for part in text.split(',').map(str::trim) {
        let virtual_count = part.strip_prefix("cpu:").map(|n| n.parse::<usize>().ok().filter(|n| *n > 0));
        let gpu = match part.strip_prefix("hip:") {
            Some(number) => number.parse().map(|number| Named::Gpu(Vendor::Hip, number)),
            None => part.parse().map(|number| Named::Gpu(Vendor::Cuda, number)),
        };
        match (virtual_count, gpu) {
            (Some(Some(count)), _) if count <= CARDS_MAX => all.extend(vec![Named::Virtual; count]),
            (Some(Some(_)), _) => bail!("--gpus {part}: at most {CARDS_MAX} virtual cards; give fewer"),
            (Some(None), _) if part == "cpu:0" => bail!("--gpus cpu:0: no card at all; write cpu:1 for one"),
            (None, Ok(card)) if all.contains(&card) => {
                bail!("--gpus {text}: card {part} is named twice; name it once")
            }
            (None, Ok(card)) => all.push(card),
            _ => bail!(
                "--gpus {text}: `{part}` is no card; write numbers as nvidia-smi shows them (0,1), hip:0 for an AMD \
                 card, or cpu:N for virtual cards (cpu:2)"
            ),
        }
    }
    Ok(all)
}

/// The GPUs of this computer, of each maker that was looked for.
#[derive(Clone, Debug, Default)]
struct Listings(Vec<Listing>);

impl Listings {
    fn of(&self, vendor: Vendor) -> &Listing {
        let listing = self.0.iter().find(|listing| listing.driver.vendor() == vendor);
        listing.expect("invariant: GPUs are named with their maker's listing")
    }
}

/// What `--gpus` means on this computer, with the listings of the GPUs that it names.
fn chosen(args: &SplitArgs) -> anyhow::Result<(Vec<Named>, Listings)> {
    let list = |vendor| listing::list(vendor, args.compilers.of(vendor), args.force_fault);
    if let Some(text) = &args.gpus {
        let all = named(text)?;
        let vendors = Vendor::ALL.into_iter().filter(|v| all.iter().any(|n| n.vendor() == Some(*v)));
        let listings = vendors.map(list).collect::<Result<_, _>>();
        return Ok((all, Listings(listings.with_context(|| format!("--gpus {text}"))?)));
    }
    // Without a driver or a device there are no GPUs, which is no reason to warn. AMD cards are used where they are named.
    let listing = list(Vendor::Cuda);
    if let Err(error) = &listing
        && !error.is_absence()
    {
        tracing::warn!("no CUDA card is used: {error}");
    }
    let listing = listing.ok();
    let cards = listing.iter().flat_map(|l| l.cards.iter().enumerate());
    let usable = cards.filter(|(_, card)| card.usable.is_ok());
    let usable: Vec<Named> = usable.map(|(number, _)| Named::Gpu(Vendor::Cuda, number)).collect();
    if !usable.is_empty() {
        return Ok((usable, Listings(listing.into_iter().collect())));
    }
    for (number, card) in listing.iter().flat_map(|l| l.cards.iter().enumerate()) {
        if let Err(reason) = &card.usable {
            tracing::warn!("CUDA card {number} ({}) is not used: {reason}", card.device.name);
        }
    }
    Ok((vec![Named::Virtual; VIRTUAL_DEFAULT], Listings::default()))
}

/// The cards that the flags name.
pub(super) fn cards(args: &SplitArgs) -> anyhow::Result<CardChoice> {
    args.compilers.check()?;
    let (all, listings) = chosen(args)?;
    if let Some(fault) = args.force_fault {
        meets_a_card(fault, &all)?;
    }
    if all.len() > CARDS_MAX {
        bail!("--gpus names {} cards; a plan has at most {CARDS_MAX}, name fewer", all.len());
    }
    let tier = match args.cpu_tier.as_deref() {
        None => Tier::detect(),
        Some(name) => Tier::named(name).with_context(|| {
            let all: Vec<&str> = Tier::available().iter().map(|t| t.name()).collect();
            format!("--cpu-tier {name}: this CPU has {}", all.join(", "))
        })?,
    };
    let threads = threads(args)?;
    let virtual_count = all.iter().filter(|n| **n == Named::Virtual).count().max(1);
    let virtual_bytes = machine::available_bytes() / virtual_count as u64;
    let cpus = machine::allowed_cpus() as f64;
    let rates = card_rates(
        tier,
        match threads {
            CpuThreads::Shared(n) => cpus.min(n as f64),
            CpuThreads::PerCard(n) => (cpus / virtual_count as f64).min(n as f64),
        },
    );
    let (mut facts, mut devices, mut gpus, mut virtual_index) = (Vec::new(), Vec::new(), Vec::new(), 0);
    for (place, card) in all.iter().enumerate() {
        facts.push(match *card {
            Named::Virtual => {
                let card = virtual_card(virtual_index, virtual_bytes, rates);
                virtual_index += 1;
                card
            }
            Named::Gpu(vendor, number) => {
                let listing = listings.of(vendor);
                let facts = gpu_card(listing, number)?;
                devices.push((facts.id, listing.cards[number].device.clone()));
                gpus.push((place, vendor, number));
                facts
            }
        });
    }
    if let Some(text) = &args.card_memory {
        for (card, bytes) in facts.iter_mut().zip(card_memory(text, all.len())?) {
            if card.kind.is_gpu() {
                limit_gpu(card, bytes);
            } else {
                card.memory_bytes = bytes;
            }
        }
        let host = facts.iter().filter(|card| !card.kind.is_gpu());
        let all_bytes = host.fold(0u64, |sum, card| sum.saturating_add(card.memory_bytes));
        let available_bytes = machine::available_bytes();
        if all_bytes > available_bytes {
            tracing::warn!(
                "the virtual cards of --card-memory have {} together, this computer has {} available",
                format_bytes(all_bytes),
                format_bytes(available_bytes)
            );
        }
    }
    warn_of_untried(devices.iter().map(|(_, device)| device));
    let kinds: Vec<CardKind> = facts.iter().map(|f| f.kind).collect();
    let kernels = args.compilers.kernel_settings();
    let links = links(&kinds, &listings, &gpus, args.link)?;
    Ok(CardChoice {
        cards: facts,
        links,
        link: args.link,
        threads,
        tier,
        cuda: (!devices.is_empty()).then_some(CudaChoice { devices, kernels }),
    })
}

/// Refuses a forced fault that no card could have, or two cards where one is meant.
fn meets_a_card(fault: ForcedFault, all: &[Named]) -> anyhow::Result<()> {
    let numbers: Vec<usize> = all
        .iter()
        .filter_map(|card| match card {
            Named::Virtual => None,
            Named::Gpu(_, number) => Some(*number),
        })
        .collect();
    if numbers.is_empty() {
        bail!("--force-fault: there is no GPU that could fail; name one with --gpus 0");
    }
    let Some(number) = fault.card else { return Ok(()) };
    match numbers.iter().filter(|other| **other == number).count() {
        0 => bail!("--force-fault: there is no GPU {number} that could fail; name it with --gpus {number}"),
        1 => Ok(()),
        _ => bail!(
            "--force-fault: {number} fits two GPUs of --gpus; name one of them with --gpus, or no number"
        ),
    }
}

/// Says once of each of AMD's architectures that nobody has tried it.
fn warn_of_untried<'a>(devices: impl Iterator<Item = &'a Device>) {
    let mut said = Vec::new();
    for device in devices {
        if let Ok(Architecture::Gfx(gfx)) = device.architecture
            && !said.contains(&gfx)
        {
            tracing::warn!("{}", gfx.notice());
            said.push(gfx);
        }
    }
}

/// Links between all cards, as they are to be tried; each GPU comes with its place among the cards.
fn links(
    kinds: &[CardKind],
    listings: &Listings,
    gpus: &[(usize, Vendor, usize)],
    link: LinkChoice,
) -> anyhow::Result<LinkFacts> {
    let mut facts = defaults::links(kinds);
    if gpus.is_empty() {
        if link == LinkChoice::Staged {
            facts.kinds.iter_mut().flatten().for_each(|kind| *kind = LinkKind::Staged);
        }
        return Ok(facts);
    }
    let device =
        |vendor: Vendor, number: usize| (vendor.card(number), &listings.of(vendor).cards[number].device);
    for &(from, maker, from_number) in gpus {
        let measured = gpu_rates(maker);
        for &(to, other, to_number) in gpus.iter().filter(|(to, _, _)| *to != from) {
            let kind = link.between(device(maker, from_number), device(other, to_number))?;
            let numbers = Some((from_number, to_number)).filter(|_| maker == other);
            let rate = numbers.and_then(|numbers| measured.link(listings.of(maker), numbers, kind));
            facts.kinds[from][to] = kind;
            facts.rates[from][to] = rate.unwrap_or_else(|| defaults::link_rate(kind));
        }
    }
    Ok(facts)
}

/// What the planner knows of a maker's card `number`.
fn gpu_card(listing: &Listing, number: usize) -> anyhow::Result<CardFacts> {
    let (count, vendor) = (listing.cards.len(), listing.driver.vendor());
    let (flag, cards) = (vendor.flag(number), vendor.cards());
    let Some(card) = listing.cards.get(number) else {
        bail!("--gpus {flag}: the driver shows {count} {cards}, numbered from 0; see `tandem devices`");
    };
    match &card.usable {
        Err(reason) => bail!("--gpus {flag} ({}): {reason}", card.device.name),
        Ok(free_bytes) => {
            let typical = CardSpeed {
                decode_bytes_per_s: card.decode_bytes_per_s(),
                decode_op_us: DECODE_OP_US,
                prompt_macs_per_s: card.prompt_macs_per_s(),
            };
            let measured = gpu_rates(vendor).speed(listing, number);
            let rates = if measured.is_some() { RateSource::Measured } else { RateSource::Typical };
            let CardSpeed { decode_bytes_per_s, decode_op_us, prompt_macs_per_s } =
                measured.unwrap_or(typical);
            let id = vendor.card(number);
            Ok(CardFacts {
                id,
                kind: id.kind,
                name: id.to_string(),
                memory_bytes: *free_bytes,
                driver_bytes: DRIVER_BYTES.min(card.device.memory_bytes / 16),
                addable_bytes: 0,
                decode_bytes_per_s,
                decode_op_us,
                prompt_macs_per_s,
                rates,
            })
        }
    }
}

/// Gives the plan `bytes` of a GPU, and warns where the driver or others have some of these.
fn limit_gpu(card: &mut CardFacts, bytes: u64) {
    let most_bytes = card.memory_bytes.saturating_sub(card.driver_bytes);
    if bytes > most_bytes {
        tracing::warn!(
            "--card-memory {} for {}: {} are free, of which its driver may take {}; loading may run out of memory",
            format_bytes(bytes),
            card.name,
            format_bytes(card.memory_bytes),
            format_bytes(card.driver_bytes)
        );
    }
    card.addable_bytes = most_bytes.saturating_sub(bytes);
    (card.memory_bytes, card.driver_bytes) = (bytes, 0);
}

/// One size for each card.
fn card_memory(text: &str, count: usize) -> anyhow::Result<Vec<u64>> {
    let list: Result<Vec<u64>, _> = text.split(',').map(|t| parse_bytes("--card-memory", t)).collect();
    let list = list?;
    if let Some(bytes) = list.iter().find(|bytes| **bytes < MEMORY_MIN_BYTES) {
        bail!("--card-memory {text}: {bytes} B hold no model; write a unit, as in 8GiB,4GiB");
    }
    match list.as_slice() {
        [one] => Ok(vec![*one; count]),
        list if list.len() == count => Ok(list.to_vec()),
        list => bail!(
            "--card-memory has {} sizes for {count} cards; give one for all, or one for each",
            list.len()
        ),
    }
}

fn threads(args: &SplitArgs) -> anyhow::Result<CpuThreads> {
    Ok(match (args.threads, args.card_threads) {
        (Some(0), _) => bail!("--threads 0 computes nothing; give at least 1"),
        (_, Some(0)) => bail!("--card-threads 0 computes nothing; give at least 1"),
        (Some(n), _) if n > 1024 => bail!("--threads {n} is more than 1024; give fewer"),
        (_, Some(n)) if n > 1024 => bail!("--card-threads {n} is more than 1024; give fewer"),
        (_, Some(n)) => CpuThreads::PerCard(n),
        (Some(n), None) => CpuThreads::Shared(n),
        (None, None) => CpuThreads::Shared(machine::allowed_cpus()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cards_are_named_by_number_and_by_count() {
        use Named::Virtual;
        let [cuda, hip] = Vendor::ALL.map(|vendor| move |number| Named::Gpu(vendor, number));
        for (text, expected) in [
            ("cpu:2", vec![Virtual, Virtual]),
            ("0", vec![cuda(0)]),
            ("1,0", vec![cuda(1), cuda(0)]),
            ("0, cpu:1", vec![cuda(0), Virtual]),
            ("hip:0", vec![hip(0)]),
            ("hip:1,1,hip:0", vec![hip(1), cuda(1), hip(0)]),
        ] {
            assert_eq!(named(text).unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn a_fault_is_refused_where_no_card_or_more_than_one_could_have_it() {
        let check = |fault: &str, cards: &str| {
            let checked = meets_a_card(fault.parse().unwrap(), &named(cards).unwrap());
            checked.map_err(|error| error.to_string())
        };
        for (fault, cards) in [("lost-card", "0"), ("lost-card:1", "cpu:1,1"), ("kernel", "0,hip:0")] {
            assert_eq!(check(fault, cards), Ok(()), "{fault} {cards}");
        }
        for (fault, cards, word) in [
            ("lost-card", "cpu:2", "no GPU that could fail"),
            ("lost-card:7", "0", "no GPU 7 that could fail"),
            ("out-of-memory:1", "0,cpu:1", "no GPU 1 that could fail"),
            ("kernel:0", "hip:0,0", "0 fits two GPUs"),
        ] {
            let error = check(fault, cards).unwrap_err();
            assert!(error.starts_with("--force-fault: ") && error.contains(word), "{error}");
        }
    }

    #[test]
    fn what_is_no_card_is_told_with_what_is() {
        for text in
            ["", "gpu:2", "0,", "cpu:0", "cpu:x", "-1", "0,0", "cpu:64", "hip:", "hip:-1", "hip:0,hip:0"]
        {
            let error = named(text).unwrap_err().to_string();
            assert!(error.starts_with("--gpus "), "{text:?}: {error}");
        }
    }
}
