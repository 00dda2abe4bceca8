//! `stetfs tar`.

use std::path::PathBuf;

use clap::{ArgGroup, Args, ValueHint};

use super::part::PartArgs;
use crate::archive::Which;
use crate::owners::Owners;
use crate::place::Place;

/// Pack files of an image into a tar archive, or unpack one into it
///
/// The image is not mounted, and root is not needed. Archives have owners (as numbers), times,
/// extended attributes, ACLs, hard links, devices and holes, in the format `pax`; the same files
/// make the same bytes. With -x the archive may be in any format of tar, compressed by gzip, xz or
/// zstd, or a container image, of which all layers are unpacked. What exists is replaced, as by
/// tar(1); a directory, and a symbolic link to one, stays and is filled.
#[derive(Debug, Args)]
#[command(
    group = ArgGroup::new("what").required(true).args(["create", "extract"]),
    after_help = "\
Examples:
  stetfs tar -c disk.img:/etc | zstd > etc.tar.zst     names begin with etc/
  stetfs tar -c disk.img -f root.tar                   everything
  stetfs tar -c -C /srv disk.img:/srv/www > www.tar    names begin with www/
  stetfs tar -x disk.img -f modules.tar.xz
  podman save tools | stetfs tar -x disk.img:/opt --chown 0:0"
)]
pub(crate) struct Tar {
    /// Write an archive of these files and all that is in them
    #[arg(short, long)]
    pub(crate) create: bool,
    /// Unpack an archive into this directory of an image
    #[arg(short = 'x', long)]
    pub(crate) extract: bool,
    /// The archive [default: standard output, or input]
    #[arg(short, long, value_hint = ValueHint::FilePath)]
    pub(crate) file: Option<PathBuf>,
    /// Names in the archive begin below this directory of the image; / if it is not given
    #[arg(short = 'C', long, value_name = "DIR", requires = "create")]
    pub(crate) directory: Option<String>,
    /// IMAGE:/PATH, or IMAGE for all of it
    #[arg(required = true, value_name = "PLACE", value_hint = ValueHint::FilePath)]
    pub(crate) places: Vec<Place>,
    #[command(flatten)]
    pub(crate) which: Which,
    #[command(flatten)]
    pub(crate) owners: Owners,
    /// Show no progress bar
    #[arg(short, long)]
    pub(crate) quiet: bool,
    #[command(flatten)]
    pub(crate) part: PartArgs,
}
