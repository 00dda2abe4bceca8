//! `stetfs mkfs`.

use std::path::PathBuf;

use clap::{Args, ValueHint};

use super::part::PartArgs;
use crate::archive::Which;
use crate::identity::Uuid;
use crate::owners::Owners;
use crate::size::Size;

/// Make an ext4 volume
///
/// Makes the volume that mke2fs makes by default, but with what suits full data journaling: 4 KiB
/// blocks and 256-byte inodes also on small volumes, and a journal of a sixteenth of the volume (4
/// MiB to 256 MiB). An image file is made sparse. Existing content is overwritten only with
/// --force, and never while IMAGE is mounted or open elsewhere. With arguments for mke2fs, mke2fs
/// makes the volume.
///
/// The variable SOURCE_DATE_EPOCH (seconds since 1970) says when the volume is made. Then the same
/// arguments make the same bytes if --uuid and --hash-seed are among them; and the same content of
/// --from makes the same bytes without these too: they are made from names and attributes of the
/// files, and no file is younger than SOURCE_DATE_EPOCH.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  stetfs mkfs disk.img --size 1G
  stetfs mkfs /dev/sdb1 --label backup
  stetfs mkfs old.img --size 64M --type ext3
  stetfs mkfs flash.nand               on a part that `stetfs nand create` made
  stetfs mkfs disk.img --size 1G --scheme stet   mounted with that scheme unless another is named
  stetfs mkfs root.img --from rootfs --free 200M   with the content of a directory
  stetfs mkfs root.img --from rootfs.tar.zst       or of an archive
  stetfs mkfs disk.img --partition 2 --from rootfs   in a partition of a disk image
  podman save alpine | stetfs mkfs root.img --from -   or of a container image
  stetfs mkfs disk.img --size 1G -- -N 1000000 -m 0    more options for mke2fs")]
pub(crate) struct Mkfs {
    /// File (made if missing), block device or NAND part
    #[arg(value_hint = ValueHint::FilePath)]
    pub(crate) image: PathBuf,
    /// Size of the volume: 512M, 1G, 1.5T (powers of 1024); needed if IMAGE is new or empty
    /// [default: the size of IMAGE]
    #[arg(short, long)]
    pub(crate) size: Option<Size>,
    /// Name of the volume, at most 16 bytes
    #[arg(short = 'L', long)]
    pub(crate) label: Option<String>,
    /// Size of the journal, rounded up to whole MiB [default: a sixteenth of the volume, at least
    /// 1024 blocks, at most 256M]
    #[arg(short, long, value_name = "SIZE")]
    pub(crate) journal_size: Option<Size>,
    /// Block size: 1K, 2K or 4K
    #[arg(short, long, value_name = "SIZE", default_value = "4K")]
    pub(crate) block_size: Size,
    /// ext4, or ext3: indirect blocks, no checksums
    #[arg(
        short,
        long = "type",
        value_name = "TYPE",
        value_parser = ["ext4", "ext3"],
        default_value = "ext4",
    )]
    pub(crate) kind: String,
    /// Journaling scheme of mounts that name none, see `stetfs schemes` [default: jbd2]. The volume
    /// carries it among its default mount options; the kernel still mounts the volume
    #[arg(long, value_name = "NAME")]
    pub(crate) scheme: Option<String>,
    /// Fill the volume with what is in this directory, tar archive or container image, with owners,
    /// times, attributes and hard links; without --size a file becomes as large as that needs. An
    /// archive may be compressed (gzip, xz, zstd), and `-` is the standard input. A container image
    /// is a directory or an archive, as `podman save`, `docker save` or `skopeo copy` makes it
    #[arg(
        long,
        value_name = "DIR|TAR|CONTAINER",
        value_hint = ValueHint::AnyPath,
        conflicts_with = "extra",
    )]
    pub(crate) from: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) which: Which,
    #[command(flatten)]
    pub(crate) owners: Owners,
    /// Leave this much free in a volume that --from sizes
    #[arg(long, value_name = "SIZE", requires = "from", conflicts_with = "size")]
    pub(crate) free: Option<Size>,
    /// UUID of the volume [default: random]
    #[arg(short = 'U', long, value_name = "UUID")]
    pub(crate) uuid: Option<Uuid>,
    /// Seed by which directories hash names, as a UUID [default: random]
    #[arg(long, value_name = "UUID")]
    pub(crate) hash_seed: Option<Uuid>,
    /// Show no progress bar
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// Overwrite IMAGE even if it holds something, which is lost
    #[arg(short, long)]
    pub(crate) force: bool,
    /// Print what was made as JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) part: PartArgs,
    /// Further arguments for mke2fs
    #[arg(last = true, value_name = "MKE2FS-ARGUMENTS")]
    pub(crate) extra: Vec<String>,
}
