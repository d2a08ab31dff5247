//! Products of every tier against `oracle/dots.json` and against the plain tier.

use super::*;
use crate::device::cpu::columns::ColumnsMut;
use crate::device::cpu::image::{Finite, quantise_row};
use crate::device::cpu::pack::{pack_tile, packed_bytes, tile_bytes};

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
        if Layout::of(ty) == Layout::FileOrder {
            continue;
        }
        for case in entry["cases"].as_array().unwrap() {
            let cols = case["K"].as_u64().unwrap() as usize;
            let rows: Vec<_> = case["rows"].as_array().unwrap().iter().collect();
            let file: Vec<u8> = rows.iter().flat_map(|row| bytes_of(row.as_str().unwrap())).collect();
            let packed = pack(ty, rows.len(), cols, &file);
            let matrix = Matrix::new(ty, rows.len(), cols, &packed);
            let shape = ImageShape::new(image_of(ty).unwrap(), cols);
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
    assert!(seen > 700, "the oracle has values: {seen}");
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
            if x.len() % values != 0 || want.get(key).is_none_or(|v| v.is_null()) {
                continue;
            }
            let shape = ImageShape::new(kind, x.len());
            let image = images(tier, shape, std::slice::from_ref(&x));
            let codes = bytes_of(want[key]["q"].as_str().unwrap());
            assert_eq!(&image[..x.len()], codes, "{} codes of {}", key, want["x"]);
            let scales = &image[shape.scales_at()..shape.sums32_at()];
            let scales: Vec<u32> =
                scales.chunks_exact(4).map(|b| u32::from_le_bytes(b.try_into().unwrap())).collect();
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
