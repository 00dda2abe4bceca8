//! The arguments of `stetfs nand export` and `stetfs below`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{ArgGroup, Args, ValueHint};
use stetfs_export::nbd::Address;

use super::part::PartArgs;

/// Offer the logical device of a part to other programs: as a file, a loop device, to NBD clients,
/// or as the disk of a virtual machine
///
/// --as says how: see there. The server goes to the background when the device is there.
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

  stetfs nand export flash.nand --as nbd:/run/flash.sock
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

/// How a device appears to other programs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// As a file in this directory.
    File(PathBuf),
    /// As a loop device on such a file.
    Loop,
    /// To NBD clients.
    Nbd(Address),
    /// To a virtual machine, at this socket.
    VhostUser(PathBuf),
    /// As a device of the kernel's driver ublk.
    Ublk,
}

impl Way {
    fn parse(word: &OsStr) -> Result<Self, String> {
        let bytes = word.as_bytes();
        let after = |prefix: &str| {
            let rest = bytes.strip_prefix(prefix.as_bytes())?;
            (!rest.is_empty()).then(|| OsStr::from_bytes(rest))
        };
        if bytes == b"loop" {
            Ok(Self::Loop)
        } else if bytes == b"ublk" {
            Ok(Self::Ublk)
        } else if let Some(dir) = after("file:") {
            Ok(Self::File(dir.into()))
        } else if let Some(address) = after("nbd:") {
            Ok(Self::Nbd(Address::parse(address)))
        } else if let Some(socket) = after("vhost-user:") {
            Ok(Self::VhostUser(socket.into()))
        } else {
            Err("file:DIR, loop, ublk, nbd:SOCKET, nbd:HOST:PORT or vhost-user:SOCKET".to_owned())
        }
    }

    /// The word that it is read from.
    pub(crate) fn word(&self) -> OsString {
        let joined = |prefix: &str, rest: &OsStr| {
            let mut word = OsString::from(prefix);
            word.push(rest);
            word
        };
        match self {
            Self::File(dir) => joined("file:", dir.as_os_str()),
            Self::Loop => "loop".into(),
            Self::Ublk => "ublk".into(),
            Self::Nbd(Address::Tcp(host)) => joined("nbd:", host.as_ref()),
            // A path that looks like a host must still be read as a path.
            Self::Nbd(Address::Unix(path)) if path.parent() == Some("".as_ref()) => {
                joined("nbd:./", path.as_os_str())
            }
            Self::Nbd(Address::Unix(path)) => joined("nbd:", path.as_os_str()),
            Self::VhostUser(path) => joined("vhost-user:", path.as_os_str()),
        }
    }
}

/// The ways to say where the device appears, of which one is needed.
const PLACE: &str = "place";

/// How a device is offered to other programs.
#[derive(Debug, Args)]
#[command(group(ArgGroup::new(PLACE).required(true)))]
pub(crate) struct ExportArgs {
    /// The same as --as file:DIR
    #[arg(value_hint = ValueHint::DirPath, group = PLACE)]
    pub(crate) dir: Option<PathBuf>,
    /// How the device appears: `file:DIR`, `loop`, `ublk`, `nbd:SOCKET`, `nbd:HOST:PORT` or
    /// `vhost-user:SOCKET`
    ///
    /// file:DIR: DIR gets one file, `device`, as large as the device. Flush is fsync, discard is a
    /// punched hole. `stetfs umount DIR` ends the server. So do SIGTERM and SIGINT; while the file
    /// is in use they only take the mount away, and the server goes on until the last user has
    /// closed the file (a second signal cuts it off).
    ///
    /// loop (root): a loop device on such a file, whose path is printed. `losetup -d` ends the
    /// server when nobody uses the device any more.
    ///
    /// ublk (root, Linux 6.9 with the module ublk_drv): a device `/dev/ublkbN`, whose path is
    /// printed. It needs neither FUSE nor a loop device. A signal ends the server: at once if
    /// nobody has mounted the device; otherwise when it is unmounted, or at the second signal.
    ///
    /// nbd:SOCKET, nbd:HOST:PORT: a server for NBD clients such as QEMU, on a unix socket, or on a
    /// port of this machine. It needs neither FUSE nor root. A signal ends it: what is under way is
    /// finished.
    ///
    /// vhost-user:SOCKET: the disk of a virtual machine that shares its memory with the server
    /// (vhost-user-blk): QEMU, Cloud Hypervisor and others. One machine at a time. It needs neither
    /// FUSE nor root. A signal ends it, as above; end the machine first.
    #[arg(long = "as", value_name = "HOW", group = PLACE,
        value_parser = OsStringValueParser::new().try_map(|word| Way::parse(&word)))]
    pub(crate) way: Option<Way>,
    /// The same as --as nbd:SOCKET
    #[arg(long, value_name = "SOCKET", group = PLACE, value_hint = ValueHint::FilePath)]
    pub(crate) nbd: Option<PathBuf>,
    /// Let nbd:HOST:PORT be an address that other machines reach: NBD has no passwords, whoever
    /// connects reads and writes the device
    #[arg(long)]
    pub(crate) listen_anywhere: bool,
    /// Where there is no DIR for `stetfs stats`: write the statistics to this file, as JSON, at
    /// SIGUSR1 and at the end
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) stats: Option<PathBuf>,
    /// Give the file up when a request has been stuck for this many seconds; 0: never. At a socket:
    /// say so in the log
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

impl ExportArgs {
    /// How the device appears. The parser has seen to it that this was said, and once.
    pub(crate) fn way(&self) -> Way {
        if let Some(way) = &self.way {
            return way.clone();
        }
        let socket = self.nbd.clone().map(|path| Way::Nbd(Address::Unix(path)));
        socket.unwrap_or_else(|| Way::File(self.dir.clone().unwrap_or_default()))
    }
}

/// Offer an ext4 volume as a block device that commits by a journaling scheme
///
/// The user of the device, such as the kernel's ext4 on a loop device or a virtual machine, finds
/// an ordinary ext4 volume on it, whose own journal works as usual. What that journal commits, the
/// scheme commits. `stetfs mount -o front=kernel` does all of it in one
/// command.
///
/// --as says how the device appears. The server goes to the background when it is there; when it
/// ends, it leaves a plain ext4 image.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  loop=$(stetfs below -o scheme=stet disk.img --as loop)
  mount -o data=journal $loop /mnt
  umount /mnt && losetup -d $loop

  stetfs below disk.img --as nbd:/run/disk.sock
  qemu-system-x86_64 -drive file=nbd+unix:///?socket=/run/disk.sock,format=raw,if=virtio ...

  stetfs below disk.img --as vhost-user:/run/disk.sock
  qemu-system-x86_64 -m 2G -object memory-backend-memfd,id=mem,size=2G,share=on \
    -machine memory-backend=mem -chardev socket,id=disk,path=/run/disk.sock \
    -device vhost-user-blk-pci,chardev=disk ...

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
    #[command(flatten)]
    pub(crate) part: PartArgs,
    /// Makes each flush of the image take this many microseconds longer, for measurements.
    #[arg(long, value_name = "US", default_value_t = 0, hide = true)]
    pub(crate) flush_us: u32,
    #[command(flatten)]
    pub(crate) how: ExportArgs,
}
