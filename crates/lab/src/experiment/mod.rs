//! The papers' experiments, and one of this project: systems, media and workloads side by side,
//! with the paper's figures, or our aims, beside what we measure.
//!
//! An experiment is a file here: what it compares, what the paper says of it
//! ([`Check`](report::Check)), and how its [`Report`](report::Report) shows it. [`EXPERIMENTS`] is
//! the one list of them.

mod dj_deltas;
mod dj_fig1;
mod ftl_wear;
pub mod kind;
mod log_contents;
pub mod report;
pub mod setting;
mod shortcut_example;
pub mod stored;

use std::sync::LazyLock;

use crate::figure;
use kind::Experiment;

/// Every experiment.
pub static EXPERIMENTS: LazyLock<Vec<Experiment>> = LazyLock::new(|| {
    let figures = figure::all().iter().map(Experiment::of);
    OWN.into_iter().chain(figures).collect()
});

/// The experiments that are not made of cells.
const OWN: [Experiment; 5] = [
    shortcut_example::EXPERIMENT,
    ftl_wear::EXPERIMENT,
    dj_deltas::SIZES,
    dj_deltas::TIMES,
    dj_fig1::EXPERIMENT,
];

/// The experiment of that name.
pub fn find(id: &str) -> Option<&'static Experiment> {
    EXPERIMENTS.iter().find(|e| e.id == id)
}
