//! The stored forms of keys and values, f16 and q8_0, written and read over slices.
//!
//! Invariants: the bits of `plain::stored` in every tier; what is not finite in its stored form is refused (what was
//! written by then is of no use). Does not know: pages, heads. Source: `docs/numerics.md`, Attention.

use super::tier::Tier;
use super::vector::{Kernel, Vector, run};
use crate::device::cpu::plain::NotFinite;
use crate::device::cpu::plain::image::{A32_VALUES, AMAX_MIN};
use crate::device::cpu::plain::stored as plain;
use crate::device::cpu::plain::stored::Q8_0_BLOCK_BYTES;
use half::f16;

/// The least value that rounds to infinity in f16: half a step above 65,504, a tie that goes to even.
const F16_OVERFLOW: f32 = 65_520.0;

/// Stores values as f16 bits, nearest even.
pub fn store_f16(tier: Tier, x: &[f32], out: &mut [u16]) -> Result<(), NotFinite> {
    assert_eq!(x.len(), out.len(), "store_f16: rows of one length");
    run(tier, StoreF16 { x, out })
}

struct StoreF16<'a> {
    x: &'a [f32],
    out: &'a mut [u16],
}

impl Kernel for StoreF16<'_> {
    type Output = Result<(), NotFinite>;

    fn plain(self) -> Self::Output {
        plain::store_f16(self.x, self.out)
    }

    #[inline(always)]
    fn vectors<V: Vector>(self, w: V::Witness) -> Self::Output {
        let (limit, one) = (V::splat(w, F16_OVERFLOW), V::splat(w, 1.0));
        let mut bad = V::splat(w, 0.0);
        let whole = self.x.len() / V::LANES * V::LANES;
        let (x, x_rest) = self.x.split_at(whole);
        let (out, out_rest) = self.out.split_at_mut(whole);
        for (x, out) in x.chunks_exact(V::LANES).zip(out.chunks_exact_mut(V::LANES)) {
            let x = V::load(w, x);
            bad = x.abs().where_less(limit, bad, one);
            x.store_f16(out);
        }
        if bad.largest() > 0.0 { Err(NotFinite) } else { plain::store_f16(x_rest, out_rest) }
    }
}

/// Reads f16 bits.
pub fn load_f16(tier: Tier, row: &[u16], out: &mut [f32]) {
    assert_eq!(row.len(), out.len(), "load_f16: rows of one length");
    run(tier, LoadF16 { row, out });
}

struct LoadF16<'a> {
    row: &'a [u16],
    out: &'a mut [f32],
}

impl Kernel for LoadF16<'_> {
    type Output = ();

    fn plain(self) {
        plain::load_f16(self.row, self.out);
    }

    #[inline(always)]
    fn vectors<V: Vector>(self, w: V::Witness) {
        let whole = self.row.len() / V::LANES * V::LANES;
        let (row, row_rest) = self.row.split_at(whole);
        let (out, out_rest) = self.out.split_at_mut(whole);
        for (row, out) in row.chunks_exact(V::LANES).zip(out.chunks_exact_mut(V::LANES)) {
            // SAFETY: the piece has `LANES` values.
            unsafe { V::load_f16_at(w, row.as_ptr()) }.store(out);
        }
        plain::load_f16(row_rest, out_rest);
    }
}

/// Stores whole blocks of 32 values as q8_0.
pub fn store_q8_0(tier: Tier, x: &[f32], out: &mut [u8]) -> Result<(), NotFinite> {
    assert_eq!(x.len() % A32_VALUES, 0, "q8_0 has whole blocks");
    assert_eq!(x.len() / A32_VALUES * Q8_0_BLOCK_BYTES, out.len(), "store_q8_0: 34 bytes for 32 values");
    run(tier, StoreQ8 { x, out })
}

struct StoreQ8<'a> {
    x: &'a [f32],
    out: &'a mut [u8],
}

impl Kernel for StoreQ8<'_> {
    type Output = Result<(), NotFinite>;

    fn plain(self) -> Self::Output {
        plain::store_q8_0(self.x, self.out)
    }

    #[inline(always)]
    fn vectors<V: Vector>(self, w: V::Witness) -> Self::Output {
        let (limit, one, zero) = (V::splat(w, f32::INFINITY), V::splat(w, 1.0), V::splat(w, 0.0));
        let mut bad = zero;
        for (x, block) in self.x.chunks_exact(A32_VALUES).zip(self.out.chunks_exact_mut(Q8_0_BLOCK_BYTES)) {
            let mut amax = zero;
            for x in x.chunks_exact(V::LANES) {
                let x = V::load(w, x).abs();
                bad = x.where_less(limit, bad, one);
                amax = x.max(amax);
            }
            let amax = amax.largest();
            let zeros = amax < AMAX_MIN;
            let scale = f16::from_f32(if zeros { 0.0 } else { amax / 127.0 });
            if bad.largest() > 0.0 || !scale.is_finite() {
                return Err(NotFinite);
            }
            let per_unit = V::splat(w, if zeros { 0.0 } else { 127.0 / amax });
            let (head, codes) = block.split_at_mut(2);
            head.copy_from_slice(&scale.to_le_bytes());
            for (x, codes) in x.chunks_exact(V::LANES).zip(codes.chunks_exact_mut(V::LANES)) {
                V::load(w, x).mul(per_unit).round().store_i8(codes);
            }
        }
        Ok(())
    }
}

/// Reads q8_0: scale times code, rounded once.
pub fn load_q8_0(tier: Tier, row: &[u8], out: &mut [f32]) {
    assert_eq!(row.len() / Q8_0_BLOCK_BYTES * A32_VALUES, out.len(), "load_q8_0: 34 bytes for 32 values");
    run(tier, LoadQ8 { row, out });
}

struct LoadQ8<'a> {
    row: &'a [u8],
    out: &'a mut [f32],
}

impl Kernel for LoadQ8<'_> {
    type Output = ();

    fn plain(self) {
        plain::load_q8_0(self.row, self.out);
    }

    #[inline(always)]
    fn vectors<V: Vector>(self, w: V::Witness) {
        for (block, out) in self.row.chunks_exact(Q8_0_BLOCK_BYTES).zip(self.out.chunks_exact_mut(A32_VALUES))
        {
            let scale = V::splat(w, f16::from_le_bytes([block[0], block[1]]).to_f32());
            for (codes, out) in block[2..].chunks_exact(V::LANES).zip(out.chunks_exact_mut(V::LANES)) {
                // SAFETY: the piece has `LANES` bytes.
                unsafe { V::load_i8_at(w, codes.as_ptr().cast()) }.mul(scale).store(out);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::cpu::simd::samples::{assert_bits, small_values, values};

    #[test]
    fn f16_is_written_and_read_as_in_the_plain_form() {
        for tier in Tier::available() {
            for n in (0..70).chain([4000]) {
                let x = small_values(n as u32, n);
                let (mut got, mut want) = (vec![0; n], vec![0; n]);
                plain::store_f16(&x, &mut want).unwrap();
                store_f16(tier, &x, &mut got).unwrap();
                assert_eq!(got, want, "{n} values by {}", tier.name());
                let (mut back, mut plain_back) = (vec![f32::NAN; n], vec![0.0; n]);
                plain::load_f16(&want, &mut plain_back);
                load_f16(tier, &want, &mut back);
                assert_bits(&back, &plain_back, &format!("{n} values by {}", tier.name()));
            }
        }
    }

    #[test]
    fn every_f16_is_read_and_every_rounding_boundary_is_written_as_in_the_plain_form() {
        let all: Vec<u16> = (0..=u16::MAX).collect();
        let mut want = vec![0.0; all.len()];
        plain::load_f16(&all, &mut want);
        // The values, their neighbours, and the ties between finite ones of one sign.
        let finite: Vec<f32> = want.iter().copied().filter(|x| x.is_finite()).collect();
        let mut x: Vec<f32> = finite.iter().flat_map(|x| [*x, x.next_up(), x.next_down()]).collect();
        x.extend(finite.windows(2).filter(|p| p[0].signum() == p[1].signum()).map(|p| (p[0] + p[1]) / 2.0));
        for tier in Tier::available() {
            let mut got = vec![0.0; all.len()];
            load_f16(tier, &all, &mut got);
            assert_bits(&got, &want, tier.name());
            let (mut stored, mut plain_stored) = (vec![0; x.len()], vec![0; x.len()]);
            plain::store_f16(&x, &mut plain_stored).unwrap();
            store_f16(tier, &x, &mut stored).unwrap();
            assert_eq!(stored, plain_stored, "{}", tier.name());
        }
    }

    #[test]
    fn q8_0_is_written_and_read_as_in_the_plain_form() {
        for tier in Tier::available() {
            for seed in 0..50 {
                let mut x = small_values(seed, 32 * 6);
                x[32..64].fill(-0.0);
                x[64..96].iter_mut().for_each(|x| *x *= f32::from_bits(1 << 20));
                let bytes = x.len() / 32 * 34;
                let (mut got, mut want) = (vec![0; bytes], vec![0; bytes]);
                plain::store_q8_0(&x, &mut want).unwrap();
                store_q8_0(tier, &x, &mut got).unwrap();
                assert_eq!(got, want, "seed {seed} by {}", tier.name());
                let (mut back, mut plain_back) = (vec![f32::NAN; x.len()], vec![0.0; x.len()]);
                plain::load_q8_0(&want, &mut plain_back);
                load_q8_0(tier, &want, &mut back);
                assert_bits(&back, &plain_back, &format!("seed {seed} by {}", tier.name()));
            }
        }
    }

    #[test]
    fn what_does_not_stay_finite_is_refused_wherever_it_stands() {
        for tier in Tier::available() {
            for (bad, q8_0_too) in [
                (65_520.0, false),
                (f32::NAN, true),
                (f32::INFINITY, true),
                (f32::NEG_INFINITY, true),
                (1e9, true),
            ] {
                for place in [0, 15, 16, 31, 40, 63] {
                    let mut x = values(1, 64).iter().map(|x| x.clamp(-9.0, 9.0)).collect::<Vec<f32>>();
                    x[place] = bad;
                    assert_eq!(store_f16(tier, &x, &mut [0; 64]), Err(NotFinite), "{bad} at {place}");
                    let stored = store_q8_0(tier, &x, &mut [0; 68]);
                    assert_eq!(stored.is_err(), q8_0_too, "{bad} at {place} by {}", tier.name());
                }
            }
        }
    }
}
