//! Progress bars on the error stream, where somebody watches.
//!
//! Does not know: what is counted.

use std::io::IsTerminal as _;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// How often a bar shows that time passes.
const TICK: Duration = Duration::from_millis(200);

/// A bar that looks like `style`, over `all` of something.
pub(super) fn bar(style: &str, all: u64) -> ProgressBar {
    let target = if std::io::stderr().is_terminal() {
        ProgressDrawTarget::stderr()
    } else {
        ProgressDrawTarget::hidden()
    };
    let bar = ProgressBar::with_draw_target(None, target);
    restyle(&bar, style, all);
    if !bar.is_hidden() {
        tick(&bar);
    }
    bar
}

/// Draws the bar while it is there and not finished; where the system refuses a thread, it is drawn as its figures change.
fn tick(bar: &ProgressBar) {
    let bar = bar.downgrade();
    let ticks = move || {
        while let Some(bar) = bar.upgrade().filter(|bar| !bar.is_finished()) {
            bar.tick();
            drop(bar);
            std::thread::sleep(TICK);
        }
    };
    let _ = std::thread::Builder::new().spawn(ticks);
}

/// The same bar over something else.
pub(super) fn restyle(bar: &ProgressBar, style: &str, all: u64) {
    if let Ok(style) = ProgressStyle::with_template(style) {
        bar.set_style(style);
    }
    bar.set_length(all);
}
