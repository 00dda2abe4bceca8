//! The arguments of `stetfs nand export` and `stetfs below`.

use std::path::PathBuf;

use clap::{Args, ValueHint};

/// Offer the logical device of a part to other programs: as a file, or to NBD clients
///
/// DIR gets one file, `device`, as large as the device. A loop device works on it: a flush is an
/// fsync, a discard punches a hole. The server goes to the background when the file is there.
/// `stetfs umount DIR`, SIGTERM or SIGINT ends it. While the file is in use, a signal only takes
/// the mount away, and the server goes on until the last user has closed the file; a second signal
/// cuts that user off.
///
/// With --nbd there is no DIR, but a socket for NBD clients such as QEMU, which nbdkit serves. A
/// signal ends the server.
///
/// Every confirmed write survives in the part's file when the server is killed. It survives a crash
/// of the machine only with --synchronous.
#[derive(Debug, Args)]
#[command(after_help = "\
RISK: a file system on a loop device on this file can hang when memory is short: the kernel waits \
for memory until dirty pages are written, and writing them needs this server. A hang blocks every \
sync on the machine. The server takes its memory at the start, locks it (as root), and never waits \
for its own device; with --resident that holds for FILE's pages too. If it hangs all the same, \
--watchdog gives the device up: its users get I/O errors, flushed data is safe. Do not use the \
device for swap or for the root file system, and do not put the server into the memory cgroup of \
the writers.

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
    #[command(flatten)]
    pub(crate) how: ExportArgs,
    /// Follow the journal of the ext4 volume on the device, and remap logged blocks home instead of
    /// programming them again
    #[arg(short, long)]
    pub(crate) snoop: bool,
    /// Number of the journal's blocks that --snoop remembers; each takes 64 bytes of memory
    #[arg(long, value_name = "BLOCKS", default_value_t = stetfs_below::TABLE_BLOCKS,
        value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    pub(crate) snoop_table: u32,
    /// Wait with each write until it is on the medium below FILE, so that it survives a power cut
    /// of this machine
    #[arg(long)]
    pub(crate) synchronous: bool,
}

/// How a device is offered to other programs.
#[derive(Debug, Args)]
pub(crate) struct ExportArgs {
    /// Directory in which the file appears
    #[arg(value_hint = ValueHint::DirPath, required_unless_present = "nbd")]
    pub(crate) dir: Option<PathBuf>,
    /// Serve NBD clients on this unix socket, which must not exist yet (needs nbdkit)
    #[arg(long, value_name = "SOCKET", conflicts_with = "dir", value_hint = ValueHint::FilePath)]
    pub(crate) nbd: Option<PathBuf>,
    /// Give the device up when a request has been stuck for this many seconds; 0: never
    #[arg(short, long, value_name = "SECONDS", default_value_t = 30)]
    pub(crate) watchdog: u32,
    /// Keep all of FILE in memory and allocate all its space now, so that a write to it needs no
    /// more memory and no more space
    #[arg(long)]
    pub(crate) resident: bool,
    /// Stay in the foreground; interrupt (Ctrl-C) ends the server
    #[arg(short, long)]
    pub(crate) foreground: bool,
    /// Append the server's messages to this file
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) log: Option<PathBuf>,
    /// Set for the server process that goes to the background.
    #[arg(long, hide = true)]
    pub(crate) server: bool,
    /// Set if the server must end as soon as nobody has the file open.
    #[arg(long, hide = true)]
    pub(crate) until_closed: bool,
}

/// Offer an ext4 volume as a block device that commits by a journaling scheme
///
/// The user of the device, such as the kernel's ext4 on a loop device or a virtual machine, finds
/// an ordinary ext4 volume on it, whose own journal works as usual. What that journal commits, the
/// scheme commits. `stetfs mount -o front=kernel` does all of it in one
/// command.
///
/// DIR gets one file, `device`, as large as the volume. `stetfs umount DIR` ends the server when
/// nobody uses the file any more, and leaves a plain ext4 image.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  mkdir dev && stetfs below -o scheme=stet disk.img dev
  loop=$(losetup --show --find --direct-io=on dev/device)
  mount -o data=journal $loop /mnt
  umount /mnt && losetup -d $loop && stetfs umount dev

  stetfs below --nbd /run/disk.sock disk.img
  qemu-system-x86_64 -drive file=nbd+unix:///?socket=/run/disk.sock,format=raw ...

RISK: see `stetfs nand export --help`.")]
pub(crate) struct BelowArgs {
    /// File or block device with an ext4 volume that is not in use
    #[arg(value_hint = ValueHint::FilePath)]
    pub(crate) image: PathBuf,
    /// Scheme and its options: scheme=, nvm=, memory=, and those that `stetfs schemes` lists
    /// [default: scheme=stet]
    #[arg(short, value_name = "OPTIONS", value_delimiter = ',')]
    pub(crate) options: Vec<String>,
    /// Make each write durable before it is answered, so that the device needs no flushes: for a
    /// file system that journals everything (data=journal)
    #[arg(long)]
    pub(crate) write_through: bool,
    /// Makes each flush of the image take this many microseconds longer, for measurements.
    #[arg(long, value_name = "US", default_value_t = 0, hide = true)]
    pub(crate) flush_us: u32,
    #[command(flatten)]
    pub(crate) how: ExportArgs,
}
