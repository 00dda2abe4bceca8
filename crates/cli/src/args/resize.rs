//! `stetfs grow` and `stetfs shrink`.

use std::path::PathBuf;

use clap::{Args, ValueHint};

use super::part::PartArgs;
use crate::size::Size;

/// Make a volume larger
///
/// Recovers the journal, checks the volume (e2fsck), makes an image file longer, lets resize2fs
/// make the volume as large, and checks it again. The volume is not mounted. A block device or a
/// partition must have the new size already: without --size the volume fills it.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  stetfs grow disk.img --size 4G
  stetfs grow disk.img --size +512M
  stetfs grow /dev/sdb1                 to all of the device
  stetfs grow --partition 2 disk.img    to all of the partition")]
pub(crate) struct Grow {
    /// File or block device that is not mounted
    #[arg(value_hint = ValueHint::FilePath)]
    pub(crate) image: PathBuf,
    /// New size, or +SIZE for so much more; needed for a file
    #[arg(short, long, value_name = "[+]SIZE")]
    pub(crate) size: Option<NewSize>,
    #[command(flatten)]
    pub(crate) how: How,
}

/// Make a volume smaller
///
/// Recovers the journal, checks the volume (e2fsck), lets resize2fs move everything to its
/// beginning and make it as small as it can be, makes an image file as short, and checks the volume
/// again. The volume is not mounted. This moves files: if the power fails meanwhile, the volume may
/// be beyond repair, so have a copy.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  stetfs shrink disk.img                as small as it can be
  stetfs shrink disk.img --free 100M    with some room
  stetfs shrink disk.img --size 1G")]
pub(crate) struct Shrink {
    /// File or block device that is not mounted
    #[arg(value_hint = ValueHint::FilePath)]
    pub(crate) image: PathBuf,
    /// New size [default: the least]
    #[arg(short, long, conflicts_with = "free")]
    pub(crate) size: Option<Size>,
    /// Leave about this much free
    #[arg(long, value_name = "SIZE")]
    pub(crate) free: Option<Size>,
    #[command(flatten)]
    pub(crate) how: How,
}

/// What both have.
#[derive(Debug, Args)]
pub(crate) struct How {
    /// File of the memory beside the volume [default: where the volume had it last]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) nvm: Option<PathBuf>,
    /// Show no progress
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// Print what the volume is now as JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) part: PartArgs,
}

/// A size, or how much more than now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NewSize {
    Is(u64),
    More(u64),
}

impl std::str::FromStr for NewSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_prefix('+') {
            Some(more) => more.parse().map(|Size(more)| Self::More(more)),
            None => text.parse().map(|Size(size)| Self::Is(size)),
        }
    }
}
