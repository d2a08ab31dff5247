//! Times of the float kernels on this machine, one thread: attention, exponentials, norms.
//!
//! `cargo bench --bench attention [-- PART]`: all lines of attention, or those whose name holds PART. Each line is the best of some runs, with what it means against the peak of the
//! tier's multiply-adds where that is the bound.

use std::hint::black_box;
use std::time::Instant;

use tandem::device::cpu::columns::ColumnsMut;
use tandem::device::cpu::simd::attention::{HeadPages, Queries, attend, scratch_values};
use tandem::device::cpu::simd::tier::Tier;
use tandem::device::cpu::simd::{elementwise, functions, norm};
use tandem::model::facts::{KvFormat, PAGE_POSITIONS};

/// Pages of one K/V head, all of one content.
struct Pages {
    format: KvFormat,
    keys: Vec<Vec<u8>>,
    values: Vec<Vec<u8>>,
}

impl HeadPages for Pages {
    fn format(&self) -> KvFormat {
        self.format
    }
    fn keys(&self, page: usize) -> &[u8] {
        &self.keys[page]
    }
    fn values(&self, page: usize) -> &[u8] {
        &self.values[page]
    }
}

fn numbers(count: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * 7919 % 4096) as f32 / 2048.0 - 1.0) * 0.7).collect()
}

fn pages(format: KvFormat, positions: usize, width: usize) -> Pages {
    let page = || {
        let x = numbers(PAGE_POSITIONS * width);
        match format {
            KvFormat::F32 => x.iter().flat_map(|x| x.to_ne_bytes()).collect(),
            KvFormat::F16 => x.iter().flat_map(|&x| half::f16::from_f32(x).to_ne_bytes()).collect(),
            KvFormat::Q8_0 => {
                let mut out = vec![0; format.row_bytes(width) * PAGE_POSITIONS];
                tandem::device::cpu::plain::stored::store_q8_0(&x, &mut out).expect("finite");
                out
            }
        }
    };
    let count = positions.div_ceil(PAGE_POSITIONS);
    Pages { format, keys: (0..count).map(|_| page()).collect(), values: (0..count).map(|_| page()).collect() }
}

/// Nanoseconds of the fastest of some runs.
fn best(runs: usize, mut work: impl FnMut()) -> f64 {
    (0..runs)
        .map(|_| {
            let start = Instant::now();
            work();
            start.elapsed().as_nanos() as f64
        })
        .fold(f64::INFINITY, f64::min)
}

/// All K/V heads of a layer, one after another, as one thread computes them.
fn attention(
    tier: Tier,
    name: &str,
    format: KvFormat,
    heads: [usize; 2],
    width: usize,
    positions: &[u32],
    runs: usize,
) {
    if !std::env::args().skip(1).filter(|a| a != "--bench").all(|part| name.contains(&part)) {
        return;
    }
    let [query_heads, kv_heads] = heads;
    let group = query_heads / kv_heads;
    let keys = positions[positions.len() - 1] as usize + 1;
    let stores: Vec<Pages> = (0..kv_heads).map(|_| pages(format, keys, width)).collect();
    let q = numbers(positions.len() * query_heads * width);
    let mut out = vec![0.0; q.len()];
    let mut scratch = vec![0.0; scratch_values(positions.len(), group, width, width)];
    let ns = best(runs, || {
        let matrix = ColumnsMut::new(&mut out, query_heads * width, 1);
        let mut columns = matrix.claim(0);
        for (kv_head, store) in stores.iter().enumerate() {
            let queries = Queries {
                values: &q,
                stride: query_heads * width,
                positions,
                kv_head,
                group,
                key_width: width,
                value_width: width,
                scale: 1.0 / (width as f32).sqrt(),
            };
            attend(tier, &queries, store, 0, &mut columns, &mut scratch);
        }
    });
    let macs = positions.iter().map(|&p| f64::from(p + 1)).sum::<f64>() * (2 * query_heads * width) as f64;
    println!("{:<7} {name:<48} {:>10.1} us  {:>6.2} multiply-adds/ns", tier.name(), ns / 1e3, macs / ns);
}

fn main() {
    for tier in Tier::available().into_iter().skip(1) {
        let row: Vec<u32> = vec![1023];
        let window: Vec<u32> = (1016..1024).collect();
        let chunk: Vec<u32> = (0..512).collect();
        let later: Vec<u32> = (1536..2048).collect();
        for format in [KvFormat::F16, KvFormat::F32, KvFormat::Q8_0] {
            let f = format.name();
            attention(tier, &format!("1 row, 1024 keys, 9/3 x 64, {f}"), format, [9, 3], 64, &row, 400);
            attention(tier, &format!("8 rows, 1024 keys, 9/3 x 64, {f}"), format, [9, 3], 64, &window, 100);
            attention(tier, &format!("512 rows from 0, 9/3 x 64, {f}"), format, [9, 3], 64, &chunk, 12);
        }
        let f16 = KvFormat::F16;
        attention(tier, "1 row, 1024 keys, 8/2 x 64, f16", f16, [8, 2], 64, &row, 400);
        attention(tier, "512 rows from 1536, 8/2 x 64, f16", f16, [8, 2], 64, &later, 5);
        attention(tier, "1 row, 1024 keys, 32/4 x 128, f16", f16, [32, 4], 128, &row, 100);
        attention(tier, "512 rows from 0, 8/2 x 128, f16", f16, [8, 2], 128, &chunk, 8);

        let x: Vec<f32> = numbers(8192).iter().map(|x| x * 20.0 - 16.0).collect();
        type Map = fn(Tier, &mut [f32]);
        let maps: [(&str, Map); 4] = [
            ("exp", functions::exp),
            ("exp of x <= 0", functions::exp_nonpositive),
            ("sigmoid", functions::sigmoid),
            ("silu", functions::silu),
        ];
        let mut y = x.clone();
        for (name, map) in maps {
            let copy = best(400, || black_box(&mut y).copy_from_slice(black_box(&x)));
            let ns = best(400, || {
                y.copy_from_slice(&x);
                map(tier, black_box(&mut y));
            });
            println!("{:<7} {name:<48} {:>10.3} ns a value", tier.name(), (ns - copy) / x.len() as f64);
        }
        for n in [576, 1024] {
            let (x, w, mut y) = (numbers(n), numbers(n), numbers(n));
            let ns = best(2000, || norm::rms_norm(tier, black_box(&x), n, &w, 1e-5, black_box(&mut y)));
            println!("{:<7} {:<48} {ns:>10.1} ns", tier.name(), format!("rms_norm of {n}"));
        }
        let (gate, up, mut y) = (numbers(1536), numbers(1536), numbers(1536));
        let ns = best(2000, || elementwise::swiglu(tier, black_box(&gate), &up, black_box(&mut y)));
        println!("{:<7} {:<48} {ns:>10.1} ns", tier.name(), "swiglu of 1536");
    }
}
