//! The arguments of `stetfs nand export`.

use std::path::PathBuf;

use clap::{Args, ValueHint};

/// Offer the logical device of a part to other programs: as a file, or to NBD clients
///
/// DIR gets one file, `device`, of the device's size, on which a loop device works: flush is fsync,
/// discard is a punched hole. Goes to the background when the file is there. `stetfs umount DIR`
/// ends it; so do SIGTERM and SIGINT, which while the file is in use only take the mount away and
/// let the server go on until the last user has closed the file (a second signal cuts it off).
///
/// With --nbd there is no DIR, but a socket for NBD clients such as QEMU; nbdkit serves it. A
/// signal ends it.
///
/// Everything that was confirmed is in the part's file, also when the server is killed. When the
/// machine itself goes down, it is only with --synchronous.
#[derive(Debug, Args)]
#[command(after_help = "\
RISK: a file system on a loop device on this file can hang when memory is short: the kernel waits \
for memory until dirty pages are
written, and writing them needs this server. A hang blocks every sync on the machine. The server \
takes its memory at the start,
locks it (as root), and never waits for its own device; with --resident that holds for FILE's \
pages too. What remains is caught by
--watchdog, which gives the device up: its users get I/O errors, what was flushed is safe. Do not \
use it for swap or for the root
file system, and do not put the server into the memory cgroup of those who write.

Examples:
  stetfs nand create flash.nand && mkdir dev
  stetfs nand export --snoop flash.nand dev
  loop=$(losetup --show --find --direct-io=on --sector-size 512 dev/device)
  mkfs.ext4 -b 1024 $loop && mount -o data=journal $loop /mnt
  umount /mnt && losetup -d $loop && stetfs umount dev

  stetfs nand export --nbd /run/flash.sock flash.nand
  qemu-img info nbd+unix:///?socket=/run/flash.sock")]
pub(crate) struct NandExport {
    /// File of a NAND part that is not in use
    #[arg(value_hint = ValueHint::FilePath)]
    pub(crate) file: PathBuf,
    /// Directory that gets the file
    #[arg(value_hint = ValueHint::DirPath, required_unless_present = "nbd")]
    pub(crate) dir: Option<PathBuf>,
    /// Serve NBD clients on this unix socket, which is not there yet (needs nbdkit)
    #[arg(long, value_name = "SOCKET", conflicts_with = "dir", value_hint = ValueHint::FilePath)]
    pub(crate) nbd: Option<PathBuf>,
    /// Read the journal of the ext4 volume on the device as it passes, and remap home what was
    /// logged instead of programming it again
    #[arg(short, long)]
    pub(crate) snoop: bool,
    /// Blocks of the journal that --snoop remembers, in 64 bytes of memory each
    #[arg(long, value_name = "BLOCKS", default_value_t = stetfs_export::TABLE_BLOCKS,
        value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    pub(crate) snoop_table: u32,
    /// Give the device up when a request has been stuck for so many seconds; 0 never does
    #[arg(short, long, value_name = "SECONDS", default_value_t = 30)]
    pub(crate) watchdog: u32,
    /// Wait until each change is on the medium that the file is on, so that it survives this
    /// machine's power cuts
    #[arg(long)]
    pub(crate) synchronous: bool,
    /// Keep all of FILE in memory and give it all its space now, so that writing to it needs
    /// neither
    #[arg(long)]
    pub(crate) resident: bool,
    /// Stay in the foreground; interrupt (Ctrl-C) ends it
    #[arg(short, long)]
    pub(crate) foreground: bool,
    /// Append the server's messages to this file
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) log: Option<PathBuf>,
    /// Set for the server process that is started for the background.
    #[arg(long, hide = true)]
    pub(crate) server: bool,
}
