//! The systems that are compared, and their media.
//!
//! A [`System`] is a scheme with its options on a kind of volume; a [`Medium`] is simulated, so
//! that time is virtual and the same on every machine. A [`Bed`] is a volume of the system,
//! mounted; [`Bed::run`] runs a workload on it.
//!
//! A run is measured from the first call until everything is durable, and then, by unmounting,
//! until everything is home. What only an unmount does (superblock, log header, wiping the log:
//! [`Cause::Control`](stetfs_media::Cause::Control)) is left out.

mod account;
mod bed;
mod block_layer;
mod card;
mod changes;
mod deltas;
mod flash;
mod outcome;
pub(crate) mod processor;
mod systems;
mod volume;

pub use account::{Account, MountCost};
pub use bed::{Bed, Conditions, Measured};
pub use block_layer::BlockLayer;
pub use card::Nvram;
pub use changes::{Changes, changes_of};
pub use deltas::DeltaCount;
pub use flash::{Chip, Flash};
pub(crate) use flash::{JFTL_NAND, MODERN_NAND};
pub use outcome::{Columns, NUMBERS, Number, Outcome};
pub use processor::{Costs, Figure, Processor, Profile, Work};
pub use systems::{
    ADP_S, Access, BLK, BLK_S, CauseBytes, DIFF, DJ_JOURNAL, DJ_ORDERED, EXT3, EXT4_ORDERED,
    Medium, PCM, System,
};
pub use volume::{EXT3_1K, EXT3_4K, Volume};
