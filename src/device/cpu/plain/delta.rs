//! One token of one head of a delta net.
//!
//! Invariants: the state is decayed first, then read, then updated, then read again; sums over the key index are
//! `lanes(32)`. Does not know: gates, heads, chunks. Source: `docs/numerics.md`, Delta net.

use super::functions::exp;
use super::reduce::{SHORT_LANES, lanes_dot};

/// Steps `state` (key index by value index, row after row) and writes the output, one value a column. `log_decay`
/// is the logarithm of the decay.
pub fn delta_step(
    state: &mut [f32],
    query: &[f32],
    key: &[f32],
    value: &[f32],
    log_decay: f32,
    beta: f32,
    out: &mut [f32],
) {
    let columns = value.len();
    assert_eq!(state.len(), key.len() * columns, "delta_step: a state of keys by values");
    assert_eq!((query.len(), out.len()), (key.len(), columns), "delta_step: widths of query and output");
    let decay = exp(log_decay);
    state.iter_mut().for_each(|s| *s *= decay);
    for j in 0..columns {
        let column: Vec<f32> = state.iter().skip(j).step_by(columns).copied().collect();
        let kept = lanes_dot::<SHORT_LANES>(key, &column);
        let delta = (value[j] - kept) * beta;
        let column: Vec<f32> = key.iter().zip(&column).map(|(&k, &s)| k.mul_add(delta, s)).collect();
        out[j] = lanes_dot::<SHORT_LANES>(query, &column);
        for (i, s) in column.into_iter().enumerate() {
            state[i * columns + j] = s;
        }
    }
}
