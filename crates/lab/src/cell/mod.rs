//! A question to the lab, all of it text: a system on a machine with a workload and a seed. The
//! answer is the numbers of that run.
//!
//! `stetfs lab run` asks many at once: a [`Grid`] is every combination of systems, of settings that
//! have several values, and of seeds.

mod grid;
mod load;
mod machine;
mod run;
mod store;

pub use grid::{Answer, Axis, Grid, Hear, Mean, Point, chart, csv, number, spread};
pub(crate) use grid::{run_all, run_each};
pub use load::{LOADS, Load};
pub use machine::{Atime, Commit, Device, Format, Machine, Speed};
pub use run::{Cell, system};
pub(crate) use store::SOURCES;
pub use store::Store;
