//! Every ordered computation of `docs/numerics.md` against `oracle/dots.json`, bit for bit, in its plain form.
//!
//! The file's `note` says how it writes values: hex digits of f32 bits, or a generator. Its section `models` is
//! compared in `models_bits.rs`.

#![allow(clippy::unwrap_used, reason = "a test that cannot read its data has failed")]

mod support;

use std::sync::LazyLock;

use serde_json::Value;
use support::{crc32, json};
use tandem::device::cpu::plain::attention::{Partial, Stored, attend};
use tandem::device::cpu::plain::image::Image;
use tandem::device::cpu::plain::product::{decode, dot, dot_f32, finish, groups, image_values, terms};
use tandem::device::cpu::plain::reduce::{chain_dot, chain_sum, lanes_dot, lanes_sum, row_lanes_dot};
use tandem::device::cpu::plain::rope::{angles, rotate};
use tandem::device::cpu::plain::route::{choose, normalise, softmax};
use tandem::device::cpu::plain::stored::{load_f16, load_q8_0, store_f16, store_q8_0};
use tandem::device::cpu::plain::{conv, delta, experts, functions, norm};
use tandem::gguf::TensorType;
use tandem::gguf::formats::{self, format};
use tandem::model::program::{RopeDecl, RopePairing};

static DOTS: LazyLock<Value> = LazyLock::new(|| json("oracle/dots.json"));

// ---- reading the file --------------------------------------------------------------------------------------

/// The cases of a section: never none.
fn section(name: &str) -> &'static [Value] {
    let cases = DOTS[name].as_array().unwrap_or_else(|| panic!("{name}: no such section"));
    assert!(!cases.is_empty(), "{name}: no cases");
    cases
}

fn text(v: &Value) -> &str {
    v.as_str().unwrap_or_else(|| panic!("{v} is no string"))
}

fn int(v: &Value) -> usize {
    v.as_u64().unwrap_or_else(|| panic!("{v} is no number")) as usize
}

fn ints(v: &Value) -> Vec<i64> {
    v.as_array().unwrap().iter().map(|v| v.as_i64().unwrap()).collect()
}

fn bytes(v: &Value) -> Vec<u8> {
    let digits = text(v);
    (0..digits.len() / 2).map(|i| u8::from_str_radix(&digits[2 * i..2 * i + 2], 16).unwrap()).collect()
}

/// A list of floats: hex digits or a generator.
fn floats(v: &Value) -> Vec<f32> {
    match &v["gen"] {
        Value::Array(g) => {
            let [seed, first, count, shift] = [0, 1, 2, 3].map(|i| g[i].as_i64().unwrap());
            (first..first + count).map(|i| generated(seed as u32, i as u32, shift as i32)).collect()
        }
        _ => bytes(v).chunks(4).map(|b| f32::from_be_bytes(b.try_into().unwrap())).collect(),
    }
}

fn float(v: &Value) -> f32 {
    let v = floats(v);
    assert_eq!(v.len(), 1);
    v[0]
}

fn generated(seed: u32, index: u32, shift: i32) -> f32 {
    let mut z = index.wrapping_mul(0x9e37_79b1).wrapping_add(seed.wrapping_mul(0x85eb_ca77));
    z ^= z >> 16;
    z = z.wrapping_mul(0x21f0_aaad);
    z ^= z >> 15;
    z = z.wrapping_mul(0x735a_2d97);
    z ^= z >> 15;
    ((f64::from(z >> 16) - 32768.0) * f64::from(shift - 14).exp2()) as f32
}

/// A named row of `activations`.
fn activation(name: &Value) -> Vec<f32> {
    let row = section("activations").iter().find(|a| a["name"] == *name);
    floats(&row.unwrap_or_else(|| panic!("{name}: no such activations"))["x"])
}

/// The one comparison: bits.
#[track_caller]
fn check(got: &[f32], expected: &[f32], what: &str) {
    assert!(!expected.is_empty(), "{what}: nothing to compare with");
    let hex = |v: &[f32]| v.iter().map(|x| format!("{:08x}", x.to_bits())).collect::<Vec<_>>();
    assert_eq!(hex(got), hex(expected), "{what}");
}

// ---- the sections ------------------------------------------------------------------------------------------

#[test]
fn the_generator_gives_the_values_that_the_file_shows() {
    check(&floats(&DOTS["gen_check"]), &floats(&DOTS["gen_check"]["values"]), "gen(1, 0..8)");
    let later: Vec<f32> = (5..9).map(|i| generated(70000, i, 0)).collect();
    check(&later, &floats(&DOTS["gen_check"]["seed_70000"]), "gen(70000, 5..9)");
}

#[test]
fn images_have_the_codes_and_scales_of_the_contract() {
    let mut compared = 0;
    for case in section("images") {
        let x = activation(&case["x"]);
        for (key, block_values) in [("a32", 32), ("a256", 256)] {
            let Some(expected) = case.get(key) else { continue };
            let what = format!("{} {key}", case["x"]);
            let image = Image::of(&x, block_values).unwrap();
            let codes: Vec<u8> = image.codes.iter().map(|c| c.cast_unsigned()).collect();
            assert_eq!(codes, bytes(&expected["q"]), "{what}");
            check(&image.scales, &floats(&expected["scale"]), &what);
            compared += 1;
        }
    }
    assert!(compared > section("images").len(), "{compared} images: both kinds are compared");
}

#[test]
fn quantised_rows_have_the_integers_groups_and_results_of_the_contract() {
    let (mut types, mut results, mut integers, mut finished) = (0, 0, 0, 0);
    for doc in section("dots") {
        let ty = TensorType::from_id(int(&doc["id"]) as u32).unwrap();
        assert_eq!(ty.name(), text(&doc["type"]));
        let format = format(ty).unwrap();
        assert_eq!(format!("{:?}", format.image), text(&doc["image"]), "{ty}");
        types += 1;
        for case in doc["cases"].as_array().unwrap() {
            let rows: Vec<Vec<u8>> = case["rows"].as_array().unwrap().iter().map(bytes).collect();
            for result in case["results"].as_array().unwrap() {
                let what = format!("{ty} of {} values with {}", case["K"], result["x"]);
                let x = activation(&result["x"]);
                let image = Image::of(&x, image_values(format)).unwrap();
                let decoded: Vec<_> = rows.iter().map(|row| decode(format, row)).collect();
                let y: Vec<f32> = decoded.iter().map(|row| dot(format, row, &image)).collect();
                let y_f32: Vec<f32> = rows.iter().map(|row| dot_f32(ty, row, &x)).collect();
                check(&y, &floats(&result["y"]), &what);
                check(&y_f32, &floats(&result["y_f32"]), &format!("{what}, float activations"));
                results += 1;
                if let Some(g) = result.get("g") {
                    for (i, row) in decoded.iter().enumerate() {
                        let what = format!("{what}, row {i}");
                        check(&groups(format, row, &image), &floats(&g[i]), &what);
                        let terms = terms(format, row, &image);
                        let codes: Vec<i64> = terms.iter().map(|t| t.codes.into()).collect();
                        assert_eq!(codes, ints(&result["I"][i]), "{what}: I");
                        let offsets: Vec<i64> =
                            terms.iter().filter_map(|t| t.offset).map(|o| o.1.into()).collect();
                        let expected = result.get("M").map_or(Vec::new(), |m| ints(&m[i]));
                        assert_eq!(offsets, expected, "{what}: M");
                        integers += 1;
                    }
                }
                if let Some(f) = result.get("finish") {
                    let (scale, bias) = (float(&f["scale"]), floats(&f["bias"]));
                    let end = |y: &[f32]| -> Vec<f32> {
                        y.iter().zip(&bias).map(|(&y, &b)| finish(y, Some(scale), Some(b))).collect()
                    };
                    check(&end(&y), &floats(&f["y"]), &format!("{what}, finish"));
                    check(&end(&y_f32), &floats(&f["y_f32"]), &format!("{what}, finish of floats"));
                    finished += 1;
                }
            }
        }
    }
    assert_eq!(types, formats::FORMATS.len(), "every block format is compared");
    assert!(results > 0 && integers > 0 && finished > 0, "{results} {integers} {finished}");
}

#[test]
fn lanes_and_chains_sum_in_the_order_of_the_contract() {
    for case in section("lanes") {
        let (a, b) = (floats(&case["a"]), floats(&case["b"]));
        let (sum, dot) = match int(&case["N"]) {
            32 => (lanes_sum::<32>(&a), lanes_dot::<32>(&a, &b)),
            256 => (lanes_sum::<256>(&a), lanes_dot::<256>(&a, &b)),
            n => panic!("{n} lanes"),
        };
        let got = [sum, dot, chain_sum(&a), chain_dot(&a, &b)];
        let expected = ["sum", "dot", "chain_sum", "chain_dot"].map(|k| float(&case[k]));
        check(&got, &expected, &format!("{} lanes over {} values", case["N"], case["n"]));
    }
}

#[test]
fn rms_norms_have_the_bits_of_the_contract() {
    for case in section("rms_norm") {
        let x = floats(&case["x"]);
        let what = format!("norm of {} values, {}", case["n"], case["what"]);
        check(&[row_lanes_dot(&x, &x)], &[float(&case["ss"])], &what);
        let weight = (!case["w"].is_null()).then(|| floats(&case["w"]));
        let mut y = vec![0.0; x.len()];
        norm::rms_norm(&x, weight.as_deref(), float(&case["eps"]), &mut y);
        check(&y, &floats(&case["y"]), &what);
    }
}

#[test]
fn float_rows_multiply_in_32_lanes() {
    for case in section("dot_float") {
        let (ty, row) = stored_row(text(&case["type"]), &floats(&case["w"]));
        let y = dot_f32(ty, &row, &floats(&case["x"]));
        check(&[y], &[float(&case["y"])], &format!("{ty} row of {} values", case["K"]));
    }
}

/// The bytes of a float row in a file.
fn stored_row(ty: &str, w: &[f32]) -> (TensorType, Vec<u8>) {
    match ty {
        "F32" => (TensorType::F32, w.iter().flat_map(|w| w.to_le_bytes()).collect()),
        "F16" => (TensorType::F16, w.iter().flat_map(|&w| half::f16::from_f32(w).to_le_bytes()).collect()),
        "BF16" => (TensorType::BF16, w.iter().flat_map(|&w| half::bf16::from_f32(w).to_le_bytes()).collect()),
        other => panic!("{other}"),
    }
}

#[test]
fn rope_turns_both_pairings_with_the_bits_of_the_contract() {
    for case in section("rope") {
        let pairing = match text(&case["pairing"]) {
            "neox" => RopePairing::Halves,
            "norm" => RopePairing::Neighbours,
            other => panic!("{other}"),
        };
        let mut head = floats(&case["x"]);
        rotate(&mut head, &floats(&case["cos"]), &floats(&case["sin"]), pairing);
        check(&head, &floats(&case["y"]), &format!("{} {} of {}", case["pairing"], case["n_rot"], case["D"]));
    }
}

#[test]
fn rope_angles_round_once_from_f64() {
    for case in section("rope_angles") {
        let (base, rotated) = (case["base"].as_f64().unwrap(), int(&case["n_rot"]));
        let frequency = |j: usize| libm::pow(base, -2.0 * j as f64 / rotated as f64);
        let rope = RopeDecl {
            frequencies: (0..rotated / 2).map(frequency).collect(),
            scale: 1.0,
            keep: Vec::new(),
            factor: case["factor"].as_f64().unwrap(),
            divisors: None,
            pairing: RopePairing::Halves,
        };
        let (mut cos, mut sin) = (vec![0.0; rotated / 2], vec![0.0; rotated / 2]);
        angles(&rope, None, int(&case["pos"]) as u32, &mut cos, &mut sin);
        let listed: Vec<usize> = ints(&case["i"]).into_iter().map(|i| i as usize).collect();
        let pick = |v: &[f32]| listed.iter().map(|&i| v[i]).collect::<Vec<f32>>();
        let what = format!("base {base}, {rotated} values, position {}", case["pos"]);
        check(&pick(&cos), &floats(&case["cos"]), &what);
        check(&pick(&sin), &floats(&case["sin"]), &what);
    }
}

#[test]
fn the_router_ranks_and_weighs_experts_as_the_contract_says() {
    for case in section("router") {
        let what = format!("{} of {} experts, {}", case["k"], case["E"], case["kind"]);
        let logits = floats(&case["logits"]);
        let mut probabilities = logits.clone();
        softmax(&mut probabilities);
        check(&probabilities[..7], &floats(&case["p_first"]), &what);
        assert_eq!(Some(u64::from(crc32(&probabilities))), case["p_crc32"].as_u64(), "{what}");
        let mut chosen = choose(&logits, int(&case["k"]));
        let ids: Vec<i64> = chosen.ids.iter().map(|&id| id as i64).collect();
        assert_eq!(ids, ints(&case["ids"]), "{what}");
        check(&chosen.weights, &floats(&case["w"]), &what);
        normalise(&mut chosen.weights);
        check(&chosen.weights, &floats(&case["w_normalised"]), &what);
    }
}

#[test]
fn experts_are_summed_in_rank_order_before_the_shared_one() {
    for case in section("experts_sum") {
        let what = format!("{} experts of {} values", case["k"], case["n"]);
        let mut sum = vec![0.0; int(&case["n"])];
        experts::experts_sum(&floats(&case["w"]), &floats(&case["e"]), &mut sum);
        check(&sum, &floats(&case["y"]), &what);
        let shared = floats(&case["shared"]);
        for (gate, key) in [(None, "y_shared"), (Some(float(&case["shared_gate"])), "y_gated")] {
            let mut with_shared = sum.clone();
            experts::add_shared(&mut with_shared, &shared, gate);
            check(&with_shared, &floats(&case[key]), &format!("{what}, {key}"));
        }
    }
}

/// Keys and values of one head, read back from their stored form, in neighbouring positions from 0.
struct Rows {
    width: usize,
    keys: Vec<f32>,
    values: Vec<f32>,
}

impl Stored for Rows {
    fn key(&self, position: usize, out: &mut [f32]) {
        out.copy_from_slice(&self.keys[position * self.width..][..self.width]);
    }

    fn value(&self, position: usize, out: &mut [f32]) {
        out.copy_from_slice(&self.values[position * self.width..][..self.width]);
    }
}

/// Values as the cache gives them back.
fn read_back(x: Vec<f32>, kv: &str) -> Vec<f32> {
    let mut out = vec![0.0; x.len()];
    match kv {
        "f32" => out = x,
        "f16" => {
            let mut row = vec![0; x.len()];
            store_f16(&x, &mut row).unwrap();
            load_f16(&row, &mut out);
        }
        "q8_0" => {
            let mut row = vec![0; x.len() / 32 * 34];
            store_q8_0(&x, &mut row).unwrap();
            load_q8_0(&row, &mut out);
        }
        other => panic!("{other}"),
    }
    out
}

#[test]
fn attention_merges_tiles_and_spans_with_the_bits_of_the_contract() {
    let mut selected = 0;
    for case in section("attention") {
        let (width, kv) = (int(&case["D"]), text(&case["kv"]));
        let query = floats(&case["q"]);
        let rows = Rows {
            width,
            keys: read_back(floats(&case["k"]), kv),
            values: read_back(floats(&case["v"]), kv),
        };
        let mut positions: Vec<usize> = (0..int(&case["keys"])).collect();
        if let Some(rule) = case.get("selected") {
            // The rule is prose in the file; a file with another rule needs another line here.
            assert_eq!(
                text(rule),
                "positions p < 3000 with gen(930, p) > 1.2 (as f32) and not 640 <= p < 1100"
            );
            positions.retain(|&p| generated(930, p as u32, 0) > 1.2 && !(640..1100).contains(&p));
            assert_eq!(positions.len(), int(&case["count"]));
            selected += 1;
        }
        let scale = (1.0 / (width as f64).sqrt()) as f32;
        let partial: Partial = attend(&query, scale, &positions, &rows, width);
        let what = format!("{} keys of {width} in {kv}", case["keys"]);
        check(&[partial.max, partial.sum], &[float(&case["m"]), float(&case["l"])], &what);
        let mut y = vec![0.0; width];
        partial.finish(&mut y);
        check(&y, &floats(&case["y"]), &what);
    }
    assert!(selected > 0, "keys are left out in some cases");
}

#[test]
fn a_delta_net_steps_with_the_bits_of_the_contract() {
    for case in section("delta_step") {
        let d = int(&case["d"]);
        let mut state = floats(&case["S"]);
        let steps = case["steps"].as_array().unwrap();
        assert!(!steps.is_empty());
        for (t, step) in steps.iter().enumerate() {
            let what = format!("{d} values, step {t}");
            let [q, k, v] = ["q", "k", "v"].map(|key| floats(&step[key]));
            let mut out = vec![0.0; d];
            delta::delta_step(&mut state, &q, &k, &v, float(&step["g"]), float(&step["beta"]), &mut out);
            check(&out, &floats(&step["o"]), &what);
            check(&state[..d], &floats(&step["S_row0"]), &what);
            check(&state[d * (d - 1)..], &floats(&step["S_last"]), &what);
            assert_eq!(Some(u64::from(crc32(&state))), step["S_crc32"].as_u64(), "{what}");
        }
    }
}

#[test]
fn a_convolution_chains_over_its_taps() {
    for case in section("conv") {
        let mut y = vec![0.0; int(&case["channels"])];
        conv::conv(&floats(&case["taps"]), &floats(&case["window"]), &mut y);
        check(&y, &floats(&case["y"]), "conv");
    }
}

#[test]
fn functions_have_the_bits_of_their_definition() {
    for case in section("functions") {
        let x = floats(&case["x"]);
        let each = |f: fn(f32) -> f32| x.iter().map(|&x| f(x)).collect::<Vec<f32>>();
        let y = match text(&case["name"]) {
            "exp" => each(functions::exp),
            "log1p" => each(functions::log1p),
            "sigmoid" => each(functions::sigmoid),
            "silu" => each(functions::silu),
            "softplus" => each(functions::softplus),
            "tanh" => each(functions::tanh),
            "swiglu" => {
                let up = floats(&case["u"]);
                x.iter().zip(&up).map(|(&g, &u)| functions::swiglu(g, u)).collect()
            }
            other => panic!("{other}: a function without a test"),
        };
        check(&y, &floats(&case["y"]), text(&case["name"]));
    }
}
