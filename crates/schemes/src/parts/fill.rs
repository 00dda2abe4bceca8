//! The option `fill=`: how much of a log is in use before a checkpoint is due.

use stetfs_scheme::{About, OptionAbout, Result, SchemeOptions};

pub(crate) static FILL: OptionAbout = OptionAbout {
    name: "fill",
    syntax: "auto|PERCENT",
    default: "auto",
    what: "how much of the log is filled before a checkpoint in the background; auto: 50, of \
        memory beside the volume 90",
};

/// Returns the value of `fill=` in percent; `usual` for `auto`.
pub(crate) fn filled(about: &'static About, options: &SchemeOptions, usual: u64) -> Result<u64> {
    match options.value(&FILL) {
        "auto" => Ok(usual),
        _ => options.percent(about, &FILL),
    }
}
