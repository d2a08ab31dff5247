//! Attention of every tier against the plain twin, and against the values of `oracle/dots.json`.

use super::*;
use crate::device::cpu::columns::ColumnsMut;
use crate::device::cpu::simd::samples::{assert_bits, small_values};
use half::f16;

/// Pages of one K/V head in shuffled places, as a store would keep them.
struct Shuffled {
    format: KvFormat,
    places: Vec<usize>,
    keys: Vec<Vec<u8>>,
    values: Vec<Vec<u8>>,
}

impl HeadPages for Shuffled {
    fn format(&self) -> KvFormat {
        self.format
    }
    fn keys(&self, page: usize) -> &[u8] {
        &self.keys[self.places[page]]
    }
    fn values(&self, page: usize) -> &[u8] {
        &self.values[self.places[page]]
    }
}

/// Rows in stored form.
fn stored(format: KvFormat, x: &[f32]) -> Vec<u8> {
    match format {
        KvFormat::F32 => x.iter().flat_map(|x| x.to_ne_bytes()).collect(),
        KvFormat::F16 => x.iter().flat_map(|&x| f16::from_f32(x).to_ne_bytes()).collect(),
        KvFormat::Q8_0 => {
            let mut out = vec![0; x.len() / 32 * 34];
            crate::device::cpu::plain::stored::store_q8_0(x, &mut out).unwrap();
            out
        }
    }
}

impl Shuffled {
    /// `keys` and `values` of positions 0, 1, ...; places behind them hold NaN, which nobody may use.
    fn new(format: KvFormat, keys: &[f32], key_width: usize, values: &[f32], value_width: usize) -> Shuffled {
        let count = (keys.len() / key_width).div_ceil(PAGE_POSITIONS);
        // A multiplication by 5 visits all places of a prime number of pages.
        let prime = [2, 3, 7, 11, 17, 23, 29, 37, 41].into_iter().find(|&p| p >= count).unwrap();
        let places: Vec<usize> = (0..count).map(|page| (page * 5 + 1) % prime).collect();
        let rows = |x: &[f32], width: usize| {
            let row_bytes = format.row_bytes(width);
            let mut pages = vec![vec![0xff; PAGE_POSITIONS * row_bytes]; prime];
            for (page, x) in x.chunks(PAGE_POSITIONS * width).enumerate() {
                let bytes = stored(format, x);
                pages[places[page]][..bytes.len()].copy_from_slice(&bytes);
            }
            pages
        };
        Shuffled { format, keys: rows(keys, key_width), values: rows(values, value_width), places }
    }
}

struct Case<'a> {
    format: KvFormat,
    key_width: usize,
    value_width: usize,
    group: usize,
    positions: &'a [u32],
}

/// Compares every tier, in one part and cut into spans, with the plain twin; the head is the second of two.
fn check(case: &Case<'_>) {
    let &Case { format, key_width, value_width, group, positions } = case;
    let keys = positions[positions.len() - 1] as usize + 1;
    let (heads, kv_head) = (2 * group, 1);
    let pages = Shuffled::new(
        format,
        &small_values(1, keys * key_width),
        key_width,
        &small_values(2, keys * value_width),
        value_width,
    );
    let q = small_values(3, positions.len() * heads * key_width);
    let queries = Queries {
        values: &q,
        stride: heads * key_width,
        positions,
        kv_head,
        group,
        key_width,
        value_width,
        scale: 1.0 / (key_width as f32).sqrt(),
    };
    let rows = positions.len();
    let width = heads * value_width;
    let mut want = vec![0.0; rows * width];
    for i in 0..queries.count() {
        let places: Vec<usize> = (0..queries.keys(i)).collect();
        let one_by_one = OneByOne { pages: &pages };
        let out = &mut want[i / group * width..][queries.output_columns(i)];
        plain::attend(queries.query(i), queries.scale, &places, &one_by_one, value_width).finish(out);
    }
    for tier in Tier::available() {
        let what = format!(
            "{}, {key_width}/{value_width} wide, {group} heads, rows {positions:?} by {}",
            format.name(),
            tier.name()
        );
        let mut got = vec![0.0; rows * width];
        let mut scratch = vec![f32::NAN; scratch_values(rows, group, key_width, value_width)];
        let matrix = ColumnsMut::new(&mut got, width, 1);
        attend(tier, &queries, &pages, 0, &mut matrix.claim(0), &mut scratch);
        assert_bits(&got, &want, &what);

        let mut got = vec![0.0; rows * width];
        let count = partial_values(queries.count(), value_width);
        let mut partials = vec![f32::NAN; count * span_count(&queries)];
        let mut scratch = vec![f32::NAN; span_scratch_values(queries.count(), key_width, value_width)];
        for (span, partial) in partials.chunks_exact_mut(count).enumerate() {
            attend_span(tier, &queries, &pages, span, partial, &mut scratch);
        }
        let matrix = ColumnsMut::new(&mut got, width, 1);
        finish_spans(tier, &queries, &mut partials, 0, &mut matrix.claim(0));
        assert_bits(&got, &want, &format!("by spans: {what}"));
    }
}

const FORMATS: [KvFormat; 3] = [KvFormat::F32, KvFormat::F16, KvFormat::Q8_0];

#[test]
fn every_tier_gives_the_plain_bits_in_every_format_and_width() {
    for format in FORMATS {
        for width in [32, 40, 48, 64, 80, 96, 112, 128, 256] {
            if format == KvFormat::Q8_0 && width % 32 != 0 {
                continue;
            }
            for positions in [&[0][..], &[5], &[100], &[30, 31, 32, 33, 34]] {
                check(&Case { format, key_width: width, value_width: width, group: 3, positions });
            }
        }
        check(&Case { format, key_width: 64, value_width: 96, group: 2, positions: &[70, 71] });
        check(&Case { format, key_width: 128, value_width: 32, group: 9, positions: &[70] });
    }
}

#[test]
fn widths_that_are_no_whole_vectors_are_computed_too() {
    for format in [KvFormat::F32, KvFormat::F16] {
        for width in [8, 24, 33, 50] {
            check(&Case { format, key_width: width, value_width: width, group: 2, positions: &[3, 66] });
        }
    }
}

#[test]
fn every_tier_gives_the_plain_bits_around_the_edges_of_tiles_and_spans() {
    for position in [0, 1, 15, 16, 62, 63, 64, 65, 127, 1022, 1023, 1024, 1025, 2200] {
        check(&Case {
            format: KvFormat::F16,
            key_width: 64,
            value_width: 64,
            group: 3,
            positions: &[position],
        });
    }
    let scattered = [0, 1, 63, 64, 65, 1023, 1024, 1025, 2200];
    check(&Case { format: KvFormat::F16, key_width: 64, value_width: 64, group: 1, positions: &scattered });
    check(&Case { format: KvFormat::Q8_0, key_width: 32, value_width: 32, group: 2, positions: &scattered });
}

#[test]
fn every_window_and_a_chunk_give_the_plain_bits_for_every_ratio_of_heads() {
    for group in [1, 2, 3, 4, 8] {
        for rows in 1..=8 {
            let positions: Vec<u32> = (60..60 + rows).collect();
            check(&Case {
                format: KvFormat::F16,
                key_width: 32,
                value_width: 32,
                group,
                positions: &positions,
            });
        }
        let positions: Vec<u32> = (1000..1040).collect();
        check(&Case { format: KvFormat::F16, key_width: 32, value_width: 32, group, positions: &positions });
    }
    let positions: Vec<u32> = (0..40).collect();
    check(&Case { format: KvFormat::F32, key_width: 64, value_width: 64, group: 3, positions: &positions });
}

/// The generator of `oracle/dots.json`.
fn generated(seed: u32, first: u32, count: usize, shift: i32) -> Vec<f32> {
    (0..count as u32)
        .map(|i| {
            let mut z = (first + i).wrapping_mul(0x9e37_79b1).wrapping_add(seed.wrapping_mul(0x85eb_ca77));
            z ^= z >> 16;
            z = z.wrapping_mul(0x21f0_aaad);
            z ^= z >> 15;
            z = z.wrapping_mul(0x735a_2d97);
            z ^= z >> 15;
            ((f64::from(z >> 16) - 32768.0) * 2f64.powi(shift - 14)) as f32
        })
        .collect()
}

#[test]
fn every_tier_gives_the_bits_of_the_oracle() {
    let text = std::fs::read_to_string("oracle/dots.json").unwrap();
    let oracle: serde_json::Value = serde_json::from_str(&text).unwrap();
    let values = |v: &serde_json::Value| {
        let gen_arguments: Vec<i64> =
            v["gen"].as_array().unwrap().iter().map(|v| v.as_i64().unwrap()).collect();
        let [seed, first, count, shift] = gen_arguments.try_into().unwrap();
        generated(seed as u32, first as u32, count as usize, shift as i32)
    };
    let bits = |v: &serde_json::Value| {
        let hex = v.as_str().unwrap();
        let word = |i: usize| f32::from_bits(u32::from_str_radix(&hex[i..i + 8], 16).unwrap());
        (0..hex.len()).step_by(8).map(word).collect::<Vec<f32>>()
    };
    let mut compared = 0;
    for case in oracle["attention"].as_array().unwrap() {
        if case.get("selected").is_some() {
            // Sparse attention has an entry of its own.
            continue;
        }
        let (width, keys) = (case["D"].as_u64().unwrap() as usize, case["keys"].as_u64().unwrap() as u32);
        let format = FORMATS.into_iter().find(|f| f.name() == case["kv"]).unwrap();
        let (q, k, v) = (values(&case["q"]), values(&case["k"]), values(&case["v"]));
        let pages = Shuffled::new(format, &k, width, &v, width);
        let queries = Queries {
            values: &q,
            stride: width,
            positions: &[keys - 1],
            kv_head: 0,
            group: 1,
            key_width: width,
            value_width: width,
            scale: (1.0 / (width as f64).sqrt()) as f32,
        };
        for tier in Tier::available() {
            let mut got = vec![0.0; width];
            let mut scratch = vec![0.0; scratch_values(1, 1, width, width)];
            let matrix = ColumnsMut::new(&mut got, width, 1);
            attend(tier, &queries, &pages, 0, &mut matrix.claim(0), &mut scratch);
            let what = format!("{}, {width} wide, {keys} keys by {}", format.name(), tier.name());
            assert_bits(&got, &bits(&case["y"]), &what);
            compared += 1;
        }
    }
    assert_eq!(compared, 42 * Tier::available().len(), "cases of the oracle");
}
