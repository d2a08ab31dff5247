//! Products of every tier against `oracle/dots.json` and against the plain tier.

use super::*;
use crate::device::cpu::columns::ColumnsMut;
use crate::device::cpu::image::{Finite, quantise_row};
use crate::device::cpu::pack::{pack_tile, packed_bytes, tile_bytes};
use crate::model::facts::Activations;
use crate::model::footprint::image_of;

fn oracle() -> serde_json::Value {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/oracle/dots.json");
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn bytes_of(hex: &str) -> Vec<u8> {
    hex.as_bytes()
        .chunks_exact(2)
        .map(|two| u8::from_str_radix(std::str::from_utf8(two).unwrap(), 16).unwrap())
        .collect()
}

fn bits_of(hex: &str) -> Vec<u32> {
    bytes_of(hex).chunks_exact(4).map(|b| u32::from_be_bytes(b.try_into().unwrap())).collect()
}

fn floats_of(hex: &str) -> Vec<f32> {
    bits_of(hex).into_iter().map(f32::from_bits).collect()
}

/// The values of a generated or written-out list (see the oracle's note).
fn list_of(value: &serde_json::Value) -> Vec<f32> {
    if let Some(hex) = value.as_str() {
        return floats_of(hex);
    }
    let gen_: Vec<i64> = value["gen"].as_array().unwrap().iter().map(|v| v.as_i64().unwrap()).collect();
    let [seed, first, count, shift] = gen_[..] else { panic!("gen has four numbers") };
    (first..first + count).map(|i| generated(seed as u32, i as u32) * 2f32.powi(shift as i32)).collect()
}

fn generated(seed: u32, i: u32) -> f32 {
    let mut z = i.wrapping_mul(0x9e37_79b1).wrapping_add(seed.wrapping_mul(0x85eb_ca77));
    z = (z ^ z >> 16).wrapping_mul(0x21f0_aaad);
    z = (z ^ z >> 15).wrapping_mul(0x735a_2d97);
    z ^= z >> 15;
    ((z >> 16) as f32 - 32768.0) / 16384.0
}

fn type_named(name: &str) -> TensorType {
    *TensorType::ALL.iter().find(|ty| ty.name() == name).unwrap()
}

fn pack(ty: TensorType, rows: usize, cols: usize, file: &[u8]) -> Vec<u8> {
    let tile_file_bytes = TILE_ROWS * ty.row_bytes(cols);
    let mut packed = vec![0; packed_bytes(ty, rows, cols)];
    for (tile, src) in file.chunks(tile_file_bytes).enumerate() {
        pack_tile(ty, cols, src, &mut packed[tile_bytes(ty, rows, cols, tile)]);
    }
    packed
}

fn images(tier: Tier, shape: ImageShape, rows: &[Vec<f32>]) -> Vec<u8> {
    let mut bytes = vec![0; rows.len() * shape.row_bytes()];
    for (x, image) in rows.iter().zip(bytes.chunks_exact_mut(shape.row_bytes())) {
        assert_eq!(quantise_row(tier, shape, x, image), Finite::Yes);
    }
    bytes
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

/// The whole product on one thread in `parts` parts: bits, row after row.
fn whole(
    tier: Tier,
    matrix: &Matrix<'_>,
    image: &Images<'_>,
    rows: &Rows<'_>,
    finish: Finish<'_>,
    parts: usize,
) -> Vec<u32> {
    let mut out = vec![f32::NAN; rows.count() * matrix.rows()];
    let columns = ColumnsMut::new(&mut out, matrix.rows(), parts);
    for part in 0..parts {
        product(tier, matrix, image, rows, finish, &mut columns.claim(part));
    }
    bits(&out)
}

fn check_oracle(tier: &str) {
    let Some(tier) = Tier::named(tier) else {
        println!("SKIPPED this CPU has no {tier}");
        return;
    };
    let oracle = oracle();
    let named = |name: &str| {
        let entry = oracle["activations"].as_array().unwrap().iter().find(|a| a["name"] == name).unwrap();
        list_of(&entry["x"])
    };
    let mut seen = 0;
    for entry in oracle["dots"].as_array().unwrap() {
        let ty = type_named(entry["type"].as_str().unwrap());
        for case in entry["cases"].as_array().unwrap() {
            let cols = case["K"].as_u64().unwrap() as usize;
            let rows: Vec<_> = case["rows"].as_array().unwrap().iter().collect();
            let file: Vec<u8> = rows.iter().flat_map(|row| bytes_of(row.as_str().unwrap())).collect();
            let packed = pack(ty, rows.len(), cols, &file);
            let matrix = Matrix::new(ty, rows.len(), cols, &packed);
            let shape = ImageShape::new(image_of(ty, Activations::Int8).unwrap(), cols);
            let results = case["results"].as_array().unwrap();
            let x: Vec<Vec<f32>> = results.iter().map(|r| named(r["x"].as_str().unwrap())).collect();
            let image = images(tier, shape, &x);
            let image = Images::new(shape, &image);
            let want: Vec<u32> = results.iter().flat_map(|r| bits_of(r["y"].as_str().unwrap())).collect();
            let all = Rows::Range(0..x.len());
            assert_eq!(
                whole(tier, &matrix, &image, &all, Finish::default(), 1),
                want,
                "{ty}, {cols} columns"
            );
            seen += want.len();
        }
    }
    assert!(seen > 1300, "the oracle has values: {seen}");
}

#[test]
fn plain_products_have_the_bits_of_the_oracle() {
    check_oracle("plain");
}

#[test]
fn avx2_products_have_the_bits_of_the_oracle() {
    check_oracle("avx2");
}

#[test]
fn avx512_products_have_the_bits_of_the_oracle() {
    check_oracle("avx512");
}

fn check_images(tier: &str) {
    let Some(tier) = Tier::named(tier) else {
        println!("SKIPPED this CPU has no {tier}");
        return;
    };
    let oracle = oracle();
    for (activation, want) in
        oracle["activations"].as_array().unwrap().iter().zip(oracle["images"].as_array().unwrap())
    {
        assert_eq!(activation["name"], want["x"]);
        let x = list_of(&activation["x"]);
        for (kind, key, values) in [(ImageKind::A32, "a32", 32), (ImageKind::A256, "a256", 256)] {
            if !x.len().is_multiple_of(values) || want.get(key).is_none_or(|v| v.is_null()) {
                continue;
            }
            let shape = ImageShape::new(kind, x.len());
            let image = images(tier, shape, std::slice::from_ref(&x));
            let codes = bytes_of(want[key]["q"].as_str().unwrap());
            assert_eq!(&image[..x.len()], codes, "{} codes of {}", key, want["x"]);
            let stride = if kind == ImageKind::A32 { RECORD_BYTES } else { 4 };
            let scales: Vec<u32> = image[shape.scales_at()..shape.sums32_at()]
                .chunks_exact(stride)
                .map(|b| u32::from_le_bytes(b[..4].try_into().unwrap()))
                .collect();
            assert_eq!(
                scales,
                bits_of(want[key]["scale"].as_str().unwrap()),
                "{} scales of {}",
                key,
                want["x"]
            );
        }
    }
}

#[test]
fn plain_images_have_the_bits_of_the_oracle() {
    check_images("plain");
}

#[test]
fn avx2_images_have_the_bits_of_the_oracle() {
    check_images("avx2");
}

#[test]
fn avx512_images_have_the_bits_of_the_oracle() {
    check_images("avx512");
}

/// Random rows of the file with small finite scales.
fn file_rows(ty: TensorType, rows: usize, cols: usize, seed: u32) -> Vec<u8> {
    let bytes = rows * ty.row_bytes(cols);
    let mut file: Vec<u8> = (0..bytes as u32).map(|i| (generated(seed, i) * 100.0) as i32 as u8).collect();
    for block in file.chunks_exact_mut(ty.block_bytes()) {
        for pair in block.chunks_exact_mut(2) {
            pair[1] &= 0xBF; // no half becomes infinite, wherever the format keeps its halves
        }
    }
    file
}

/// Rows that try the quantiser: usual values, zeros, huge, tiny, ties and a single large value.
fn activations(rows: usize, cols: usize, seed: u32) -> Vec<Vec<f32>> {
    let value = |row: usize, col: usize| {
        let v = generated(seed + row as u32, col as u32);
        match row % 7 {
            0 | 1 => v,
            2 if (col / 32).is_multiple_of(3) => -0.0,
            2 => v * 2f32.powi(90),
            3 => v * 2f32.powi(-121),
            4 => (v * 8.0).round() * 0.5 / 127.0 * 2.0,
            5 if col % 37 == 5 => v * 1e4,
            _ => v * 1e-3,
        }
    };
    (0..rows).map(|row| (0..cols).map(|col| value(row, col)).collect()).collect()
}

fn check_against_plain(tier: &str, row_counts: &[usize], output_rows: &[usize]) {
    let Some(tier) = Tier::named(tier) else {
        println!("SKIPPED this CPU has no {tier}");
        return;
    };
    for &ty in TensorType::ALL.iter().filter(|ty| ty.is_quantised()) {
        for cols in [32, 96, 256, 576, 768, 1088].into_iter().filter(|cols| cols % ty.block_values() == 0) {
            for (seed, &out_rows) in output_rows.iter().enumerate() {
                let file = file_rows(ty, out_rows, cols, 3 + seed as u32);
                let packed = pack(ty, out_rows, cols, &file);
                let matrix = Matrix::new(ty, out_rows, cols, &packed);
                let shape = ImageShape::new(image_of(ty, Activations::Int8).unwrap(), cols);
                let most = row_counts.iter().max().unwrap();
                let x = activations(*most, cols, 50 + seed as u32);
                let bytes = images(tier, shape, &x);
                assert!(bytes == images(Tier::Plain, shape, &x), "images of {cols} columns");
                let image = Images::new(shape, &bytes);
                let bias: Vec<f32> = (0..out_rows as u32).map(|i| generated(9, i)).collect();
                let finish = Finish { scale: Some(0.37), bias: Some(&bias) };
                let want = whole(Tier::Plain, &matrix, &image, &Rows::Range(0..*most), finish, 1);
                for &rows in row_counts {
                    // The last rows, backwards, in two parts; the answer is the plain tier's, all rows together.
                    let picked: Vec<u32> = (0..rows).map(|i| (most - 1 - i) as u32).collect();
                    let want: Vec<u32> = picked
                        .iter()
                        .flat_map(|&row| want[row as usize * out_rows..][..out_rows].iter().copied())
                        .collect();
                    let got = whole(tier, &matrix, &image, &Rows::Picked(&picked), finish, 2);
                    assert!(got == want, "{ty}: {rows} rows, {out_rows} x {cols}");
                }
            }
        }
    }
}

#[test]
fn avx2_products_equal_plain_ones_for_every_type_and_number_of_rows() {
    check_against_plain("avx2", &[1, 2, 3, 4, 5, 6, 7, 8, 9, 17, 40], &[1, 17, 35]);
}

#[test]
fn avx512_products_equal_plain_ones_for_every_type_and_number_of_rows() {
    check_against_plain("avx512", &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 17, 40], &[1, 17, 35]);
}

#[test]
fn plain_products_do_not_depend_on_the_rows_beside_and_more_rows_than_a_pass_are_no_different() {
    check_against_plain("plain", &[1, 3, PASS_ROWS + 5], &[18]);
}

#[test]
fn avx512_products_of_more_rows_than_a_pass_are_no_different() {
    check_against_plain("avx512", &[PASS_ROWS - 1, PASS_ROWS + 1, 2 * PASS_ROWS + 13], &[18]);
}

#[test]
fn the_largest_codes_and_activations_are_exact_in_every_tier() {
    // Every byte 0xFF or 0x80 in the codes and activations at full scale: the widest integers of each format.
    for &ty in TensorType::ALL.iter().filter(|ty| ty.is_quantised()) {
        let cols = 512;
        for byte in [0xFF, 0x80, 0x7F, 0x00] {
            let file = vec![byte; 16 * ty.row_bytes(cols)];
            let packed = pack(ty, 16, cols, &file);
            let matrix = Matrix::new(ty, 16, cols, &packed);
            let shape = ImageShape::new(image_of(ty, Activations::Int8).unwrap(), cols);
            let x = vec![vec![1.0; cols], vec![-1.0; cols]];
            let bytes = images(Tier::Plain, shape, &x);
            let image = Images::new(shape, &bytes);
            let rows = Rows::Range(0..2);
            let not_nan = |bits: Vec<u32>| -> Vec<u32> {
                bits.into_iter().map(|b| if f32::from_bits(b).is_nan() { 0x7FC0_0000 } else { b }).collect()
            };
            let want = not_nan(whole(Tier::Plain, &matrix, &image, &rows, Finish::default(), 1));
            for tier in Tier::available() {
                let got = not_nan(whole(tier, &matrix, &image, &rows, Finish::default(), 1));
                assert_eq!(got, want, "{ty} of {byte:#x} on {}", tier.name());
            }
        }
    }
}

#[test]
fn values_that_are_not_finite_are_seen_by_every_tier() {
    for tier in Tier::available() {
        for kind in [ImageKind::A32, ImageKind::A256] {
            let shape = ImageShape::new(kind, 512);
            let mut image = vec![0; shape.row_bytes()];
            for (place, value) in
                [(0, f32::INFINITY), (511, f32::NEG_INFINITY), (300, f32::NAN), (31, -f32::NAN)]
            {
                let mut x = vec![1.0; 512];
                x[place] = value;
                assert_eq!(
                    quantise_row(tier, shape, &x, &mut image),
                    Finite::No,
                    "{value} on {}",
                    tier.name()
                );
            }
            assert_eq!(quantise_row(tier, shape, &[f32::MAX; 512], &mut image), Finite::Yes);
        }
    }
}
