//! Every format against the oracles: values of blocks, and integers and products of rows, bit for bit.

use std::ops::Range;

use serde_json::Value;

use super::{Codes, FORMATS, ImageKind, dequantize_row, format};
use crate::gguf::TensorType;

fn oracle(name: &str) -> Value {
    let path = format!("{}/oracle/{name}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
    serde_json::from_str(&text).unwrap()
}

fn type_of(name: &Value) -> TensorType {
    *TensorType::ALL.iter().find(|t| t.name() == name.as_str().unwrap()).unwrap()
}

fn bytes(hex: &Value) -> Vec<u8> {
    let hex = hex.as_str().unwrap();
    (0..hex.len()).step_by(2).map(|i| u8::from_str_radix(&hex[i..i + 2], 16).unwrap()).collect()
}

fn bits(hex: &Value) -> Vec<u32> {
    bytes(hex).as_chunks::<4>().0.iter().map(|b| u32::from_be_bytes(*b)).collect()
}

/// A list of floats, or the generator that stands for it (the note of dots.json).
fn floats(value: &Value) -> Vec<f32> {
    let Some(generator) = value.get("gen") else {
        return bits(value).into_iter().map(f32::from_bits).collect();
    };
    let of = |i: usize| generator[i].as_i64().unwrap();
    let (seed, first, count, shift) = (of(0) as u32, of(1) as u32, of(2) as u32, of(3) as i32);
    let value = |i: u32| {
        let mut z = i.wrapping_mul(0x9e37_79b1).wrapping_add(seed.wrapping_mul(0x85eb_ca77));
        z = (z ^ (z >> 16)).wrapping_mul(0x21f0_aaad);
        z = (z ^ (z >> 15)).wrapping_mul(0x735a_2d97);
        z ^= z >> 15;
        ((z >> 16) as i32 - 32768) as f32 * 2f32.powi(shift - 14)
    };
    (first..first + count).map(value).collect()
}

fn f32_bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

/// Seeded bytes (splitmix64).
fn random_bytes(seed: u64, count: usize) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) as u8
    };
    (0..count).map(|_| next()).collect()
}

fn codes_of(ty: TensorType, row: &[u8]) -> Vec<Codes> {
    let codes = |block| {
        // Another block's contents first: `codes` must set every field.
        let mut out =
            Codes { steps: 3, d: [7.0; 4], m: [7.0; 4], scale: [7; 16], min: [7; 16], ..Codes::default() };
        (out.has_min, out.code) = (true, [7; 256]);
        (format(ty).unwrap().codes)(block, &mut out);
        out
    };
    row.chunks(ty.block_bytes()).map(codes).collect()
}

#[test]
fn every_block_of_the_oracle_has_its_values_bit_for_bit() {
    let blocks = oracle("blocks.json");
    let types = blocks["types"].as_array().unwrap();
    assert_eq!(types.len(), FORMATS.len() + 3, "all block types and the three plain ones");
    for (entry, case) in types.iter().flat_map(|t| t["cases"].as_array().unwrap().iter().map(move |c| (t, c)))
    {
        let ty = type_of(&entry["type"]);
        let expected: Vec<f32> =
            case["values"].as_array().unwrap().iter().map(|v| v.as_f64().unwrap() as f32).collect();
        let mut found = vec![f32::NAN; expected.len()];
        dequantize_row(ty, &bytes(&case["hex"]), &mut found);
        assert_eq!(f32_bits(&found), f32_bits(&expected), "{ty}: {}", case["hex"]);
    }
}

#[test]
fn codes_and_scales_give_the_values_of_every_format_within_one_rounding_of_each_operation() {
    for format in FORMATS {
        let (ty, n) = (format.ty, format.ty.block_values());
        let row = random_bytes(ty.id().into(), 200 * ty.block_bytes());
        let mut values = vec![0.0; 200 * n];
        dequantize_row(ty, &row, &mut values);
        for (c, values) in codes_of(ty, &row).iter().zip(values.chunks(n)) {
            for (i, &y) in values.iter().enumerate() {
                let step = i / (n / c.steps);
                let product = f64::from(c.d[step]) * f64::from(c.scale[i / 16]) * f64::from(c.code[i]);
                let offset = match (c.has_min, format.image) {
                    (false, _) => 0.0,
                    (true, ImageKind::A32) => f64::from(c.m[step]),
                    (true, ImageKind::A256) => -f64::from(c.m[0]) * f64::from(c.min[i / 16]),
                };
                let exact = product + offset;
                let bound = 2f64.powi(-22) * (product.abs() + offset.abs()) + 2f64.powi(-140);
                let too_large = exact.is_nan() || exact.abs() > f64::from(f32::MAX);
                let both_odd = too_large && !y.is_finite();
                assert!(both_odd || (f64::from(y) - exact).abs() <= bound, "{ty} value {i}: {y} and {exact}");
            }
        }
    }
}

#[test]
fn any_bytes_decode_without_leaving_a_table() {
    for format in FORMATS {
        let mut out = vec![0.0; format.ty.block_values()];
        for fill in [0x00, 0xff, 0x7f, 0x80, 0x55, 0xaa] {
            dequantize_row(format.ty, &vec![fill; format.ty.block_bytes()], &mut out);
        }
        for seed in 0..500 {
            dequantize_row(format.ty, &random_bytes(seed, format.ty.block_bytes()), &mut out);
        }
    }
}

#[test]
fn integer_scales_and_minimums_stay_at_their_neutral_values_where_a_format_has_none() {
    for format in FORMATS {
        let mins = matches!(format.ty, TensorType::Q2_K | TensorType::Q4_K | TensorType::Q5_K);
        let offset = matches!(format.ty, TensorType::Q4_1 | TensorType::Q5_1);
        let scales =
            format.image == ImageKind::A256 && !matches!(format.ty, TensorType::TQ1_0 | TensorType::TQ2_0);
        let c = &codes_of(format.ty, &random_bytes(5, format.ty.block_bytes()))[0];
        assert_eq!(c.has_min, mins || offset, "{}", format.ty);
        assert_eq!(c.min != [0; 16], mins, "{}", format.ty);
        assert_eq!(c.scale != [1; 16], scales, "{}", format.ty);
    }
}

/// An activation image, as `docs/numerics.md` has it: codes, and a scale for each `per` values.
fn image(x: &[f32], per: usize) -> (Vec<i32>, Vec<f32>) {
    let (mut q, mut a) = (Vec::new(), Vec::new());
    for part in x.chunks(per) {
        let amax = part.iter().fold(0f32, |m, v| m.max(v.abs()));
        let small = amax < 2f32.powi(-120);
        a.push(if small { 0.0 } else { amax / 127.0 });
        let factor = 127.0 / amax;
        q.extend(part.iter().map(|v| if small { 0 } else { (v * factor).round_ties_even() as i32 }));
    }
    (q, a)
}

/// The integers and group values of one row.
#[derive(Default)]
struct Sums {
    i: Vec<i64>,
    m: Vec<i64>,
    g: Vec<f32>,
}

fn a256_sums(blocks: &[Codes], x: &[f32]) -> Sums {
    let (q, a) = image(x, 256);
    let mut sums = Sums::default();
    for (b, c) in blocks.iter().enumerate() {
        let sum = |f: &dyn Fn(usize) -> i32| (0..256).map(|i| i64::from(f(i) * q[256 * b + i])).sum::<i64>();
        let i = sum(&|i| i32::from(c.scale[i / 16]) * i32::from(c.code[i]));
        sums.i.push(i);
        if c.has_min {
            let m = sum(&|i| i32::from(c.min[i / 16]));
            sums.m.push(m);
            sums.g.push((c.d[0] * a[b]).mul_add(i as f32, -((c.m[0] * a[b]) * m as f32)));
        } else {
            sums.g.push((c.d[0] * a[b]) * i as f32);
        }
    }
    sums
}

fn a32_sums(blocks: &[Codes], block_values: usize, x: &[f32]) -> Sums {
    let (q, a) = image(x, 32);
    let mut sums = Sums::default();
    let step_values = block_values / blocks[0].steps;
    for at in (0..x.len()).step_by(step_values) {
        let (c, inside) = (&blocks[at / block_values], at % block_values);
        let step = inside / step_values;
        let places: Range<usize> = 0..step_values;
        let i: i64 = places.clone().map(|j| i64::from(i32::from(c.code[inside + j]) * q[at + j])).sum();
        let s: i64 = places.map(|j| i64::from(q[at + j])).sum();
        if at % 256 == 0 {
            sums.g.push(0.0);
        }
        let g = sums.g.last_mut().unwrap();
        *g = (c.d[step] * a[at / 32]).mul_add(i as f32, *g);
        sums.i.push(i);
        if c.has_min {
            *g = (c.m[step] * a[at / 32]).mul_add(s as f32, *g);
            sums.m.push(s);
        }
    }
    sums
}

fn lanes_32(w: &[f32], x: &[f32]) -> f32 {
    let mut lane = [0f32; 32];
    for (i, (w, x)) in w.iter().zip(x).enumerate() {
        lane[i % 32] = w.mul_add(*x, lane[i % 32]);
    }
    let mut width = 16;
    while width > 0 {
        (0..width).for_each(|l| lane[l] += lane[l + width]);
        width /= 2;
    }
    lane[0]
}

fn check_integers(expected: Option<&Value>, row: usize, found: &[i64], what: &str) -> usize {
    let Some(expected) = expected else { return 0 };
    let expected: Vec<i64> = expected[row].as_array().unwrap().iter().map(|v| v.as_i64().unwrap()).collect();
    assert_eq!(found, expected, "{what}");
    1
}

#[test]
fn integers_group_values_and_products_of_rows_are_those_of_the_oracle() {
    let dots = oracle("dots.json");
    let x_of = |name: &Value| {
        let all = dots["activations"].as_array().unwrap();
        floats(&all.iter().find(|a| a["name"] == *name).unwrap()["x"])
    };
    let (mut types, mut integers) = (0, 0);
    for entry in dots["dots"].as_array().unwrap() {
        let ty = type_of(&entry["type"]);
        let image = format(ty).unwrap().image;
        types += 1;
        let cases = entry["cases"].as_array().unwrap().iter();
        for (case, result) in cases.flat_map(|c| c["results"].as_array().unwrap().iter().map(move |r| (c, r)))
        {
            let x = x_of(&result["x"]);
            for (row, hex) in case["rows"].as_array().unwrap().iter().enumerate() {
                let what = format!("{ty} K {} x {} row {row}", case["K"], result["x"]);
                let row_bytes = bytes(hex);
                let blocks = codes_of(ty, &row_bytes);
                let sums = match image {
                    ImageKind::A256 => a256_sums(&blocks, &x),
                    ImageKind::A32 => a32_sums(&blocks, ty.block_values(), &x),
                };
                integers += check_integers(result.get("I"), row, &sums.i, &what);
                integers += check_integers(result.get("M"), row, &sums.m, &what);
                if let Some(g) = result.get("g") {
                    assert_eq!(f32_bits(&sums.g), bits(&g[row]), "{what}: group values");
                }
                let y = sums.g.iter().fold(0f32, |r, g| r + g);
                assert_eq!(y.to_bits(), bits(&result["y"])[row], "{what}: product");
                let mut values = vec![0.0; x.len()];
                dequantize_row(ty, &row_bytes, &mut values);
                assert_eq!(
                    lanes_32(&values, &x).to_bits(),
                    bits(&result["y_f32"])[row],
                    "{what}: f32 product"
                );
            }
        }
    }
    assert_eq!(types, FORMATS.len());
    assert!(integers > 100, "{integers} lists of integers were compared");
}

#[test]
fn rows_of_integer_types_and_of_wrong_lengths_are_refused() {
    for (ty, bytes, values) in [(TensorType::I32, 4, 1), (TensorType::Q4_0, 17, 32), (TensorType::F16, 4, 1)]
    {
        let refused =
            std::panic::catch_unwind(|| dequantize_row(ty, &vec![0; bytes], &mut vec![0.0; values]));
        assert!(refused.is_err(), "{ty}: {bytes} B, {values} values");
    }
}
