//! Bytes of a card: what it has, what is kept free, what the items of a stage take; and bytes as people write them.
//!
//! Invariant: `reserve_bytes + driver_bytes + budget_bytes <= memory_bytes`, or the budget is 0.
//! Does not know: layers, time, other cards.

use crate::model::facts::CardFacts;
use crate::model::footprint::Item;

use super::error::SplitError;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const TIB: u64 = 1 << 40;

/// Units that [`parse_bytes`] knows. All are powers of 1,024, as the sizes of memories are.
const UNITS: [(&str, u64); 14] = [
    ("", 1),
    ("b", 1),
    ("k", KIB),
    ("kb", KIB),
    ("kib", KIB),
    ("m", MIB),
    ("mb", MIB),
    ("mib", MIB),
    ("g", GIB),
    ("gb", GIB),
    ("gib", GIB),
    ("t", TIB),
    ("tb", TIB),
    ("tib", TIB),
];

/// Memory of one card as the planner spends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// All that the card may use.
    pub memory_bytes: u64,
    /// Kept free (`--vram-reserve`, `--vram-reserve-later`).
    pub reserve_bytes: u64,
    /// Left to the card's driver.
    pub driver_bytes: u64,
}

impl Budget {
    /// The budget of `card` with `reserve_bytes` kept free.
    pub fn new(card: &CardFacts, reserve_bytes: u64) -> Budget {
        Budget { memory_bytes: card.memory_bytes, reserve_bytes, driver_bytes: card.driver_bytes }
    }

    /// Kept free for the user and for the driver.
    pub fn kept_bytes(&self) -> u64 {
        self.reserve_bytes.saturating_add(self.driver_bytes)
    }

    /// What items may take.
    pub fn budget_bytes(&self) -> u64 {
        self.memory_bytes.saturating_sub(self.kept_bytes())
    }

    /// True where all `items` fit.
    pub fn holds(&self, items: &[Item]) -> bool {
        sum_bytes(items) <= self.budget_bytes()
    }

    /// Bytes that the card needs more to hold `items` beside the reserve; 0 where they fit.
    pub fn missing_bytes(&self, items: &[Item]) -> u64 {
        self.missing_of(sum_bytes(items))
    }

    /// The same of items that take `bytes` together.
    pub(super) fn missing_of(&self, bytes: u64) -> u64 {
        if bytes <= self.budget_bytes() {
            return 0;
        }
        (bytes - self.budget_bytes()).saturating_add(self.deficit_bytes())
    }

    /// What is to be kept free beyond the whole card; it has to be met first.
    pub(super) fn deficit_bytes(&self) -> u64 {
        self.kept_bytes().saturating_sub(self.memory_bytes)
    }
}

/// All items together.
pub fn sum_bytes(items: &[Item]) -> u64 {
    items.iter().map(|i| i.bytes).sum()
}

/// A number with its noun, in the singular for 1: `1 layer`, `2 cards`.
pub fn format_count(number: usize, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

/// Bytes for people, three digits: `7.86 GiB`, `121 MiB`, `512 B`.
pub fn format_bytes(bytes: u64) -> String {
    let units = [(TIB, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")];
    // A value that rounds to 1,024 of one unit is shown as 1 of the next.
    match units.into_iter().find(|&(unit, _)| bytes as f64 >= unit as f64 * 0.9995) {
        None => format!("{bytes} B"),
        Some((unit, name)) => {
            let value = bytes as f64 / unit as f64;
            format!("{} {name}", three_digits(value))
        }
    }
}

/// A number for people, three digits, at most two of them behind the point: `7.86`, `121`, `0.50`.
pub fn three_digits(value: f64) -> String {
    let digits = if value < 9.995 {
        2
    } else if value < 99.95 {
        1
    } else {
        0
    };
    format!("{value:.digits$}")
}

/// The same rounded up: what is asked for is enough.
pub fn format_bytes_up(bytes: u64) -> String {
    let shown = |bytes: u64| {
        let text = format_bytes(bytes);
        let enough = parse_bytes("", &text).is_ok_and(|b| b >= bytes);
        (text, enough)
    };
    match shown(bytes) {
        (text, true) => text,
        // Three digits are off by at most half a unit of the third, 0.5 % of the least value that has three.
        (_, false) => shown(bytes.saturating_add(bytes.div_ceil(200))).0,
    }
}

/// Reads a size as people write it: `8GiB`, `512MiB`, `1.5G`, `4096`; units are powers of 1,024 in any case.
/// `flag` is named in the error.
pub fn parse_bytes(flag: &'static str, text: &str) -> Result<u64, SplitError> {
    let error = || SplitError::Bytes { flag, text: text.to_string() };
    let trimmed = text.trim();
    let end = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
    let (number, unit) = (&trimmed[..end], trimmed[end..].trim().to_ascii_lowercase());
    let (_, unit_bytes) = *UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(error)?;
    let (whole, part) = number.split_once('.').unwrap_or((number, "0"));
    // At most nine digits behind the point keep the arithmetic exact in 128 bits.
    if whole.is_empty() || part.is_empty() || part.len() > 9 || part.contains('.') {
        return Err(error());
    }
    if unit_bytes == 1 && number.contains('.') {
        return Err(error());
    }
    let whole: u64 = whole.parse().map_err(|_| error())?;
    let scale = 10u128.pow(part.len() as u32);
    let part: u128 = part.parse().map_err(|_| error())?;
    let bytes = whole as u128 * unit_bytes as u128 + part * unit_bytes as u128 / scale;
    u64::try_from(bytes).map_err(|_| error())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_as_people_write_them() {
        let cases = [
            ("8GiB", 8 << 30),
            ("512MiB", 512 << 20),
            ("1.5G", 3 << 29),
            (" 2 gb ", 2 << 30),
            ("4096", 4096),
            ("0", 0),
            ("10B", 10),
            ("0.25k", 256),
            ("16777215TiB", 16_777_215 << 40),
        ];
        for (text, bytes) in cases {
            assert_eq!(parse_bytes("--card-memory", text).unwrap(), bytes, "{text}");
        }
    }

    #[test]
    fn a_size_that_does_not_read_names_the_flag_and_what_is_accepted() {
        for text in
            ["", "G", "8 Gib s", "-1", "1..5G", "1.G", ".5G", "1.5", "1e9", "8 bits", "16777216TiB", "٣G"]
        {
            let error = parse_bytes("--vram-reserve", text).unwrap_err().to_string();
            assert!(error.starts_with("--vram-reserve") && error.contains("512MiB"), "{text:?}: {error}");
        }
    }

    #[test]
    fn shown_sizes_have_three_digits() {
        let cases = [
            (0, "0 B"),
            (1023, "1023 B"),
            (1000, "1000 B"),
            (1536, "1.50 KiB"),
            (MIB - 1, "1.00 MiB"),
            (1000 * MIB, "1000 MiB"),
            (121 * MIB + MIB / 3, "121 MiB"),
            (8 * GIB - 150 * MIB, "7.85 GiB"),
            (12 * GIB + GIB / 2, "12.5 GiB"),
        ];
        for (bytes, text) in cases {
            assert_eq!(format_bytes(bytes), text);
        }
    }

    #[test]
    fn sizes_asked_for_are_enough() {
        let mut bytes = 1u64;
        while bytes < 1 << 50 {
            for bytes in [bytes, bytes + 1, bytes + bytes / 3, bytes + bytes / 7] {
                let text = format_bytes_up(bytes);
                let asked = parse_bytes("", &text).unwrap();
                assert!(asked >= bytes && asked <= bytes + bytes / 80, "{bytes} B, {text}");
            }
            bytes += bytes / 5 + 1;
        }
        assert_eq!((format_bytes_up(512), format_bytes_up(MIB)), ("512 B".to_owned(), "1.00 MiB".to_owned()));
        // More than a size can say.
        assert_eq!(format_bytes_up(u64::MAX), format_bytes(u64::MAX));
    }
}
