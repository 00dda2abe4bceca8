//! The options that say which part of an image holds the volume.

use clap::Args;

use crate::size::Size;

/// The part of an image in which the volume is.
#[derive(Debug, Default, Args)]
pub(crate) struct PartArgs {
    /// The volume is in this partition of IMAGE, as the partition table (GPT or MBR) counts
    #[arg(
        long,
        value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..),
        conflicts_with = "offset",
    )]
    pub(crate) partition: Option<u32>,
    /// The volume begins at this byte of IMAGE: 1048576, 1M
    #[arg(long, value_name = "BYTES")]
    pub(crate) offset: Option<Size>,
}
