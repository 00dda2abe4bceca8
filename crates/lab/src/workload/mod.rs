//! Workloads that behave as the benchmarks of the papers do, driven through the library on any
//! scheme and medium.
//!
//! A [`Workload`] makes calls through a [`Session`], which decides when writes become durable,
//! counts calls, and tells the progress. The same workload with the same seed makes the same calls
//! on every system. (The crash explorer's workloads are in `crash/workload.rs`.)

mod beside;
pub mod bonnie;
pub mod calls;
mod content;
mod contract;
mod dice;
pub mod filebench;
pub mod fio;
pub mod iozone;
pub mod overwrite;
pub mod postmark;
mod session;
pub mod single;
pub mod sqlite;
pub mod tpcc;
pub mod updates;

pub use beside::Background;
pub use bonnie::Bonnie;
pub use content::Content;
pub use contract::Workload;
pub use filebench::{Filebench, Personality};
pub use fio::Fio;
pub use iozone::Iozone;
pub use overwrite::Overwrite;
pub use postmark::Postmark;
pub use session::{Counts, Durable, Session, Spent, Tell, Time};
pub use single::Single;
pub use sqlite::Updates;
pub use tpcc::Tpcc;
