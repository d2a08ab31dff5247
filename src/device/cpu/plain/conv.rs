//! Causal convolution of short windows, one channel a chain.
//!
//! Invariant: a chain of fma over the taps, oldest first. Does not know: activations after it, histories.
//! Source: `docs/numerics.md`, Delta net.

use super::reduce::chain_dot;

/// `out[channel] = chain of taps[channel][t] * window[channel][t]`, channel after channel.
pub fn conv(taps: &[f32], window: &[f32], out: &mut [f32]) {
    assert_eq!(taps.len(), window.len(), "conv: a value for each tap");
    assert!(!out.is_empty() && taps.len().is_multiple_of(out.len()), "conv: the same taps for each channel");
    let width = taps.len() / out.len();
    for ((taps, window), out) in taps.chunks_exact(width).zip(window.chunks_exact(width)).zip(out) {
        *out = chain_dot(taps, window);
    }
}
