//! Bars for long work: on a terminal, and nowhere else.

use std::io::{self, IsTerminal};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Bytes, of so many.
pub(crate) const BYTES_OF: &str =
    "{bytes:>10} of {total_bytes} {bar:30} {bytes_per_sec} {wide_msg}";
/// Bytes, of which nobody knows how many there will be.
pub(crate) const BYTES: &str = "{bytes:>10} {bytes_per_sec} {wide_msg}";

/// Returns a bar of the form `template`, for `len` steps if their number is known. It is hidden if
/// nobody looks, or nobody wants to.
pub(crate) fn bar(template: &str, len: Option<u64>, quiet: bool) -> ProgressBar {
    let is_shown = !quiet && io::stderr().is_terminal();
    let target = if is_shown {
        ProgressDrawTarget::stderr()
    } else {
        ProgressDrawTarget::hidden()
    };
    let bar = ProgressBar::with_draw_target(len, target);
    if is_shown && let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar
}
