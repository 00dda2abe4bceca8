//! The command line: one definition from which parsing, help, man pages and completions come.
//!
//! Nothing here does anything; `main.rs` hands each parsed command to the module of its name.

#[cfg(feature = "crash")]
pub(crate) mod crash;
mod export;
mod look;
mod mkfs;
mod part;
mod resize;
mod tar;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum, ValueHint};

use crate::failure::EXIT_CODES;
use crate::owners::Owners;
use crate::place::Place;
use crate::size::Size;

#[cfg(feature = "crash")]
use crash::Crash;
pub(crate) use export::{BelowArgs, ExportArgs, NandExport, Way};
pub(crate) use look::{Aspect, Diff, Du, Find};
pub(crate) use mkfs::Mkfs;
pub(crate) use part::PartArgs;
pub(crate) use resize::{Grow, How as ResizeHow, NewSize, Shrink};
pub(crate) use tar::Tar;

const TOUR: &str = "\
Examples:
  stetfs mkfs disk.img --size 1G          make an ext4 volume in a file
  stetfs cp -a ~/photos disk.img:/        copy into it without mounting
  mkdir mnt && stetfs mount disk.img mnt  mount it; goes to the background
  stetfs stats mnt                        the bytes written, by kind and by reason
  stetfs tx mnt -- make -C mnt install    all of a command's changes, or none of them
  stetfs umount mnt                       unmount and wait for the image
  stetfs fsck disk.img                    let e2fsck check it
";

/// A journaling file system in user space, on the ext4 format.
///
/// The volumes are plain ext4: after an unmount, the kernel, e2fsck and every ext4 tool read what
/// stetfs wrote, and stetfs reads what they wrote. IMAGE is a file, a block device or a NAND part.
/// PLACE is a path on this machine, or a path in an image that is not mounted, written
/// image.img:/path. A volume in a partition of a disk is IMAGE with --partition N; where several
/// images are given, each can be written image.img?partition=N. Disks in the format qcow2 are read,
/// not written.
#[derive(Debug, Parser)]
#[command(
    name = "stetfs",
    version,
    before_long_help = None,
    after_help = TOUR,
    after_long_help = format!("{TOUR}\n{EXIT_CODES}\n"),
    disable_help_subcommand = true,
    arg_required_else_help = true,
    max_term_width = 100,
)]
pub(crate) struct Cli {
    /// Say more on standard error: -v informs, -vv debugs, -vvv says everything
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,

    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Mkfs(Mkfs),
    Mount(Mount),
    Umount(Umount),
    Mounts(Mounts),
    Upgrade(Upgrade),
    Freeze(Freeze),
    Drain(Drain),
    Recover(Recover),
    Fsck(Fsck),
    Grow(Grow),
    Shrink(Shrink),
    Info(Info),
    Journal(Journal),
    Stats(Stats),
    Wear(Wear),
    Tx(Tx),
    Ls(Ls),
    Cat(Cat),
    Cp(Cp),
    Tar(Tar),
    Mv(Mv),
    Ln(Ln),
    Rm(Rm),
    Mkdir(Mkdir),
    Find(Find),
    Du(Du),
    Diff(Diff),
    Schemes(Schemes),
    Nand(Nand),
    Below(BelowArgs),
    #[cfg(feature = "crash")]
    Crash(Box<Crash>),
    Lab(Lab),
    #[command(hide = true)]
    Completions(Completions),
    #[command(hide = true)]
    Man(Man),
}

/// Mount a volume (FUSE)
///
/// Recovers the journal first if the volume was not cleanly unmounted. Goes to the background when
/// the volume is mounted; from then on the server logs to the system log, or to the file that --log
/// names.
#[derive(Debug, Args)]
#[command(after_help = "\
Mount options, for -o (name or name=value, separated by commas):
  ro, rw                              read-only: writes nothing, recovers in memory; read-write
  scheme=NAME                         journaling scheme, see `stetfs schemes`; default: the
                                      scheme that left the volume in use, if no other can read its
                                      log; else the volume's own (`stetfs mkfs --scheme`); else jbd2
  data=journal|ordered|writeback      what goes through the journal (schemes jbd2, jftl, dj;
                                      default: the volume's setting, else journal)
  atomic=marked|all|none              files whose writes of up to 1 MiB a crash leaves whole or not
                                      at all: those marked with chattr +j (default; new files take
                                      the mark of their directory), all, or none; their writes
                                      bypass the page cache (docs/ATOMIC.md)
  commit=SECONDS                      how long a change may wait for its commit (default 5; 1 where
                                      sync(2) does not reach the mount)
  dirty_expire=SECONDS                in the modes ordered and writeback, how long new data may wait
                                      for a place in the volume while nobody syncs it (default 30,
                                      as in the kernel; 0 or nodelalloc: until the next commit)
  max_batch_time=MICROSECONDS         how long an fsync may wait to share its commit with others
                                      that are about to come, at most as long as a commit takes on
                                      average (default 15000, as in the kernel; 0: not at all)
  noauto_da_alloc                     also delay the data of a file that is renamed over another, or
                                      that was truncated to nothing and closed
  memory=SIZE                         bound of all caches together (default 256M); the process takes
                                      some 30M more
  errors=remount-ro|continue|panic    what happens on an error (default: the volume's setting)
  noatime, relatime, strictatime      when reading changes access times (default relatime)
  resuid=N, resgid=N                  user and group that may use root's reserved blocks (default:
                                      the volume's setting)
  max_dir_size_kb=KIB                 size at which a directory stops growing (default 0: none)
  minixdf                             df counts the volume's own structures as used space
  discard                             tell the device which blocks are freed
  direct, nodirect                    bypass this machine's page cache (default: on block devices)
  dax                                 treat the volume as persistent memory, written by the byte; a
                                      file may stand for it (scheme stet; always with shortcut)
  journal_async_commit                one flush per commit instead of two, see `stetfs schemes`
  durability=power|process            what a volume in memory, the memory beside a volume, or a NAND
                                      part in a file must survive: a power cut (default), or only
                                      the end of the process
  nvm=FILE                            the memory beside the volume (schemes stet, dj, ubj, tinca,
                                      spindle); made if it is missing or empty; default: where the
                                      volume had it last
  nvm-new                             overwrite the content of that file, unless a volume needs it
  partition=N, offset=BYTES           the volume is a part of IMAGE, as with --partition and
                                      --offset
  noload                              leave the journal alone: a volume that needs recovery must be
                                      mounted with ro, any other is written without a journal
  sb=N                                if the first superblock is damaged, take its copy at block N,
                                      in units of 1 KiB (131072 for block 32768 of 4 KiB); a mount
                                      that writes makes the first one anew
  loop, noloop                        (root) attach a loop device that stands for the image, so that
                                      sync(2) reaches the mount (Linux 6.18); default: if possible,
                                      and not in a container, which may be killed as a whole
  transport=auto|uring|dev            how requests come from the kernel: by io_uring, each served on
                                      the processor of its caller (Linux 6.14, where root has
                                      switched it on), or by /dev/fuse; default: io_uring if
                                      possible
  nowriteback                         no writeback cache: each write(2) goes to the volume by itself
  abort_hung=SECONDS                  give the server up when it has not answered for this long:
                                      calls on the mount fail, sync(1) returns, and unwritten data
                                      is lost (default 0: never; after 30 s the log says so)
  survive[=on|off|N]                  when the server dies, another one goes on with the mount:
                                      programs see a pause and no error, unless N (3) have died
                                      within a minute; requests come by /dev/fuse (Linux 6.9;
                                      default: off)
  allow_other, default_permissions    who may use the mount, and who checks
  fakeroot                            whoever may use the mount is root on it: nobody checks
                                      permissions; device files and set-user-ID bits do not work
  suid, nosuid, dev, nodev            whether set-user-ID bits and device files of the volume work
                                      (default: only when root mounts an image that root owns and
                                      nobody else may write)
  nosymfollow                         (root) follow no symbolic links
All other options of ext4(5) and mount(8) are accepted; the log names those without effect here.

In /etc/fstab:
  /srv/disk.img  /mnt/disk  fuse.stetfs  data=journal,noatime  0  0

Examples:
  stetfs mount disk.img mnt
  stetfs mount -o ro,noatime disk.img mnt
  stetfs mount -o scheme=jftl disk.img mnt   on XFS or Btrfs: logged blocks go home by reflink
  stetfs mount -f -v disk.img mnt            stay in front, say what happens
  stetfs mount --partition 2 sdcard.img mnt  a disk image with a partition table
  mount -t stetfs disk.img mnt               after `make install`")]
pub(crate) struct Mount {
    /// File, block device or NAND part with an ext4 volume
    #[arg(value_hint = ValueHint::FilePath)]
    pub(crate) image: PathBuf,
    /// Where to mount it: an existing directory
    #[arg(value_hint = ValueHint::DirPath)]
    pub(crate) dir: PathBuf,
    /// Mount options
    #[arg(short, value_name = "OPTIONS", value_delimiter = ',')]
    pub(crate) options: Vec<String>,
    /// Stay in the foreground; interrupt (Ctrl-C) unmounts
    #[arg(short, long)]
    pub(crate) foreground: bool,
    /// Append the server's messages to this file
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) log: Option<PathBuf>,
    /// Say nothing when it succeeds
    #[arg(short, long)]
    pub(crate) quiet: bool,
    #[command(flatten)]
    pub(crate) part: PartArgs,
    /// Set for the server process that a background mount starts.
    #[arg(long, hide = true)]
    pub(crate) server: bool,
    /// Set for a server that takes over from another program, which has left it this descriptor.
    #[arg(long, hide = true, value_name = "DESCRIPTOR")]
    pub(crate) takes_over: Option<u32>,
    /// Something of this mount ends with this process: no other program takes over.
    #[arg(skip)]
    pub(crate) is_last: bool,
}

/// Have this program serve a mount that another version of it serves
///
/// Files stay open; programs that use the mount see a pause. The process stays the same: it runs
/// this program's file from then on, with the same mount options. What it needs is committed
/// first, so if the new program fails, the mount ends as by a crash, and nothing is lost.
///
/// It is refused, and the mount goes on as it was, while a transaction is open (`stetfs tx`, F2FS's
/// atomic writes), and for a mount that uses io_uring, has no journal or has multiple-mount
/// protection. Counters begin anew.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  stetfs upgrade mnt                       after a new version of the package was installed
  ./target/release/stetfs upgrade mnt      any other version")]
pub(crate) struct Upgrade {
    /// The mount point
    #[arg(value_hint = ValueHint::DirPath)]
    pub(crate) dir: PathBuf,
}

/// Run a command while a mounted volume stands still, to copy its image
///
/// Everything that was done before is committed, and in the image; whatever programs ask for
/// meanwhile waits. So a copy of the image is what a power cut at this moment would leave: mount
/// it, or recover it by `stetfs recover`. Where the scheme has memory beside the volume (nvm=),
/// copy that too.
///
/// The command must not use the mount: it would wait for itself, until the time is over.
#[derive(Debug, Args)]
#[command(after_help = "\
Exit codes: the command's own; 128 and the signal's number if a signal ended it; and
  125  the volume was not frozen, or not long enough: the reason is on standard error
  126  the command cannot be run
  127  there is no such command

Examples:
  stetfs freeze mnt -- cp --reflink=auto --sparse=always disk.img backup.img
  stetfs freeze --timeout 5 mnt -- btrfs subvolume snapshot -r /srv /srv.backup")]
pub(crate) struct Freeze {
    /// The mount point, or any file below it
    #[arg(value_hint = ValueHint::AnyPath)]
    pub(crate) dir: PathBuf,
    /// Let the mount go on after this many seconds, whatever the command does
    #[arg(short, long, value_name = "SECONDS", default_value_t = 60,
        value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) timeout: u64,
    /// The command, and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(crate) words: Vec<OsString>,
}

/// Unmount, and wait until the image is released and clean
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  stetfs umount mnt
  stetfs umount --lazy mnt     detach now, release when the last file is closed")]
pub(crate) struct Umount {
    /// The mount point
    #[arg(value_hint = ValueHint::DirPath)]
    pub(crate) dir: PathBuf,
    /// Detach the mount now, even if files are open, and do not wait
    #[arg(short, long)]
    pub(crate) lazy: bool,
    /// Give up waiting after this many seconds
    #[arg(short, long, value_name = "SECONDS", default_value_t = 60)]
    pub(crate) timeout: u64,
}

/// List what is mounted: images, mount points, schemes and modes
///
/// The kernel's lists (mount, findmnt, df) show the image as source, but neither scheme nor mode.
/// This list shows them to root and to the user who mounted the volume; others see "?".
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  stetfs mounts
  stetfs mounts --check /srv/a || systemctl restart stetfs@a
  stetfs mounts --json | jq -r '.mounts[] | [.image, .options] | @tsv'")]
pub(crate) struct Mounts {
    /// Print as JSON, with all mount options
    #[arg(long)]
    pub(crate) json: bool,
    /// Say what is wrong with a volume, and exit with 1 if anything is: its server does not answer,
    /// an error has stopped it, damage was found, or nothing is mounted on DIR. All volumes unless
    /// there is a DIR
    #[arg(long, value_name = "DIR", num_args = 0.., value_hint = ValueHint::DirPath)]
    pub(crate) check: Option<Vec<PathBuf>>,
}

/// Write home the content of a cache in persistent memory (schemes ubj, tinca, spindle)
///
/// An image must not be mounted. It may be left from a crash, or from an unmount with a warm cache
/// (-o keep-cache). Afterwards it is a plain ext4 volume and does not need the memory any more. A
/// mounted volume stays mounted, and its cache fills again.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  stetfs drain disk.img
  stetfs drain disk.img --nvm nvm.img    the memory is elsewhere now
  stetfs drain /mnt")]
pub(crate) struct Drain {
    /// File or block device, or the directory where one is mounted
    #[arg(value_hint = ValueHint::AnyPath)]
    pub(crate) path: PathBuf,
    /// File of the memory beside the volume [default: where the volume had it last]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) nvm: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) part: PartArgs,
}

/// Recover the journal of a volume, and do nothing else
///
/// Does what a mount does after a crash or a power cut, by the scheme that wrote the journal,
/// without mounting and without root: committed transactions go home, and files that were deleted
/// while open are freed. Checks nothing else; that is `stetfs fsck`. It takes milliseconds, and
/// leaves a plain ext4 volume for the kernel and every tool. If nothing is to be recovered, not a
/// byte of IMAGE is written.
#[derive(Debug, Args)]
#[command(after_help = "\
Exit codes: 0 it was recovered, or there was nothing to recover; 1 it failed; 2 the command line is
wrong.

Examples:
  stetfs recover disk.img
  stetfs recover -n disk.img                  what would be recovered? Writes nothing
  stetfs recover --json disk.img | jq .transactions
  stetfs recover --nvm FILE disk.img          the memory beside the volume was moved
                                              (schemes dj, ubj, tinca, spindle)")]
pub(crate) struct Recover {
    /// File, block device or NAND part that is not mounted
    #[arg(value_hint = ValueHint::FilePath)]
    pub(crate) image: PathBuf,
    /// Recover in memory only, and write nothing
    #[arg(short = 'n', long)]
    pub(crate) dry_run: bool,
    /// File of the memory beside the volume [default: where the volume had it last]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) nvm: Option<PathBuf>,
    /// Print what was done as JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) part: PartArgs,
}

/// Check a volume: recover its journal, then run e2fsck -f
#[derive(Debug, Args)]
#[command(after_help = "\
Exit codes, as fsck(8); their sum when several apply:
  0  no errors                       8   operational error (no such image, in use, no e2fsck)
  1  errors were corrected           16  the command line is wrong
  4  errors were left uncorrected    32  cancelled

Examples:
  stetfs fsck disk.img                     repair, asking first (without a terminal: as -p)
  stetfs fsck -n disk.img                  change nothing, only look
  stetfs fsck --nvm FILE disk.img          the memory beside the volume was moved
                                           (schemes dj, ubj, tinca, spindle)
  stetfs fsck -y --forget-log disk.img     that memory is lost: repair the blocks that are home
  stetfs fsck -y disk.img -- -D            further options for e2fsck")]
pub(crate) struct Fsck {
    /// File, block device or NAND part that is not mounted
    #[arg(value_hint = ValueHint::FilePath)]
    pub(crate) image: PathBuf,
    /// Change nothing: no recovery, no repair
    #[arg(short = 'n', long, conflicts_with_all = ["yes", "preen"])]
    pub(crate) no_change: bool,
    /// Repair everything without asking
    #[arg(short, long, conflicts_with = "preen")]
    pub(crate) yes: bool,
    /// Repair without asking what is safe to repair, and stop at anything else
    #[arg(short, long)]
    pub(crate) preen: bool,
    /// File of the memory beside the volume [default: where the volume had it last]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) nvm: Option<PathBuf>,
    /// If the log that only the volume's scheme can read cannot be recovered, give it up: the last
    /// writes are LOST, also confirmed ones
    #[arg(long, conflicts_with = "no_change")]
    pub(crate) forget_log: bool,
    #[command(flatten)]
    pub(crate) part: PartArgs,
    /// Further arguments for e2fsck
    #[arg(last = true, value_name = "E2FSCK-ARGUMENTS")]
    pub(crate) extra: Vec<String>,
}

/// Run a command whose changes below DIR happen at once, or not at all
///
/// The command sees DIR as usual, with its own changes; nobody else sees these. When it exits with
/// 0, all of them happen in one transaction, which is durable when stetfs returns. After a crash or
/// a power cut, all of them are there, or none. If the command fails, or if others meanwhile
/// changed what it changed, none happens. What the command changes elsewhere is no part of this.
///
/// A volume has one such transaction at a time. An ordinary user can make one in directories of
/// their own. Until the command ends, its changes are kept in DIR/.stetfs-tx on the volume, or in
/// memory (--layer). docs/ATOMIC.md has the limits.
#[derive(Debug, Args)]
#[command(after_help = "\
Exit codes: the command's own; 128 and the signal's number if a signal ended it; and, when nothing
was changed for another reason:
  125  the reason is on standard error
  126  the command cannot be run
  127  there is no such command

Examples:
  stetfs tx mnt/app -- make -C mnt/app install
  stetfs tx --dry-run mnt/app -- ./upgrade.sh       what would it change?
  stetfs tx --layer memory mnt/app -- tar -xC mnt/app -f app.tar   many small files
  cd mnt/site && stetfs tx . -- sh -c 'git pull && make'")]
pub(crate) struct Tx {
    /// A directory on a mounted stetfs volume
    #[arg(value_hint = ValueHint::DirPath)]
    pub(crate) dir: PathBuf,
    /// List the changes instead of making them
    #[arg(short = 'n', long)]
    pub(crate) dry_run: bool,
    /// Print the list as JSON; what the command prints goes to standard error
    #[arg(long, requires = "dry_run")]
    pub(crate) json: bool,
    /// Wait while another transaction runs on the volume [default: fail]
    #[arg(short, long)]
    pub(crate) wait: bool,
    /// Where the changes are kept until the command ends
    #[arg(long, value_name = "WHERE", default_value = "volume")]
    pub(crate) layer: Layer,
    /// Most that a layer in memory may take: 512M, 4G [default: half of the machine's memory]
    #[arg(long, value_name = "SIZE", requires = "layer")]
    pub(crate) layer_size: Option<Size>,
    /// Set for the process that runs the command: what the server calls the transaction.
    #[arg(long, hide = true, value_name = "NAME")]
    pub(crate) inside: Option<String>,
    /// The command, and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(crate) words: Vec<OsString>,
}

/// Where a transaction keeps its changes until the command ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Layer {
    /// On the volume, as far as it has room
    Volume,
    /// In memory: faster for many small files
    Memory,
}

/// Show what a volume is: superblock, journal, scheme, state
#[derive(Debug, Args)]
pub(crate) struct Info {
    /// File or block device, mounted or not
    #[arg(value_hint = ValueHint::FilePath)]
    pub(crate) image: PathBuf,
    /// Print as JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) part: PartArgs,
}

/// Show the journal's transactions in words
///
/// Shows each record in the order of the log: descriptors with the home of each block and what
/// lies there, revokes, commit records with their times; and whether recovery would replay it.
/// Reads only.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  stetfs journal disk.img              the transactions that recovery would replay
  stetfs journal --all disk.img        also those left from earlier laps
  stetfs journal --json disk.img | jq '.transactions[].tid'")]
pub(crate) struct Journal {
    /// File or block device
    #[arg(value_hint = ValueHint::FilePath)]
    pub(crate) image: PathBuf,
    /// Also show transactions that recovery would not replay
    #[arg(short, long)]
    pub(crate) all: bool,
    /// Print as JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) part: PartArgs,
}

/// Show the counters of a mounted volume: bytes by class and cause, commits, caches
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  stetfs stats mnt
  stetfs stats --watch mnt             once a second, with the changes
  stetfs stats --watch=0.2 mnt         five times a second
  stetfs stats --json mnt | jq .journal.commits
  stetfs stats --prometheus            all mounted volumes, for a monitoring system")]
pub(crate) struct Stats {
    /// The mount point, or anything in it
    #[arg(
        value_hint = ValueHint::DirPath,
        required_unless_present_any = ["from", "watch", "prometheus"]
    )]
    pub(crate) dir: Option<PathBuf>,
    /// Show the counters in this file, which --json printed earlier
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with_all = ["dir", "watch"],
        value_hint = ValueHint::FilePath,
    )]
    pub(crate) from: Option<PathBuf>,
    /// Print as JSON (with --watch one object a line)
    #[arg(long)]
    pub(crate) json: bool,
    /// Print in Prometheus's text format; without a mount point, of all mounted volumes
    #[arg(long, conflicts_with_all = ["json", "watch"])]
    pub(crate) prometheus: bool,
    /// Repeat every SECONDS until interrupted
    // A mount point may follow it without them: see `stats.rs`.
    #[arg(short, long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1")]
    pub(crate) watch: Option<OsString>,
}

/// Show who writes to a mounted volume, and how long a device would last at this rate
///
/// Pages that the kernel writes later count for the program that has opened the file; what is
/// counted is what programs asked for, and the syncs that make commits. What the device received is
/// counted where stetfs gives it away: what an SSD writes beyond that, it knows itself.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  stetfs wear --tbw 600 mnt            since the mount, for an SSD of 600 TBW
  stetfs wear --seconds 60 mnt         what a minute writes
  stetfs wear --json mnt | jq -r '.files[].path'")]
pub(crate) struct Wear {
    /// The mount point, or anything in it
    #[arg(value_hint = ValueHint::DirPath)]
    pub(crate) dir: PathBuf,
    /// Measure for SECONDS from now on, instead of since the mount
    #[arg(short, long)]
    pub(crate) seconds: Option<f64>,
    /// The endurance of the device, in terabytes, as its datasheet has it (TBW)
    #[arg(long, value_name = "TB")]
    pub(crate) tbw: Option<f64>,
    /// Print as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// List files of an image that is not mounted
///
/// Characters of a name that cannot be printed are shown as ls -b shows them (\n, \033); spaces
/// stay. --json has the names as they are.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  stetfs ls disk.img
  stetfs ls -lR disk.img:/home")]
pub(crate) struct Ls {
    /// IMAGE or IMAGE:/PATH
    #[arg(required = true, value_name = "PLACE")]
    pub(crate) places: Vec<Place>,
    /// Show mode, links, owner, size and time
    #[arg(short, long)]
    pub(crate) long: bool,
    /// Show names that begin with a dot, too
    #[arg(short, long)]
    pub(crate) all: bool,
    /// List subdirectories, too
    #[arg(short = 'R', long)]
    pub(crate) recursive: bool,
    /// Show the inode number first
    #[arg(short, long)]
    pub(crate) inode: bool,
    /// Show a directory itself, not what is in it
    #[arg(short, long)]
    pub(crate) directory: bool,
    /// Print as JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) part: PartArgs,
}

/// Print files of an image that is not mounted
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  stetfs cat disk.img:/etc/hostname")]
pub(crate) struct Cat {
    /// IMAGE:/PATH
    #[arg(required = true, value_name = "PLACE")]
    pub(crate) places: Vec<Place>,
    #[command(flatten)]
    pub(crate) part: PartArgs,
}

/// Copy files into, out of or between images that are not mounted
///
/// A place in an image is written IMAGE:/PATH, where IMAGE must exist; any other place is a path on
/// this machine. The rules are those of cp(1): an existing file gets the new content and keeps its
/// owner, mode and attributes; without -r, pipes and devices are read to their end. Holes in sparse
/// files stay holes. When the command returns, every file that was copied into an image is on the
/// device. docs/COMMANDS.md has each case.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  stetfs cp notes.txt disk.img:/
  stetfs cp -a ~/photos disk.img:/home/me
  stetfs cp disk.img:/etc/fstab .
  stetfs cp -a --chown 0:0 build/root/. disk.img:/
  stetfs cp -a old.img:/ new.img:/copy")]
pub(crate) struct Cp {
    /// The files to copy (one or more), then the destination
    #[arg(required = true, num_args = 2.., value_name = "PLACE", value_hint = ValueHint::AnyPath)]
    pub(crate) places: Vec<Place>,
    /// Copy directories with their contents, and symbolic links, pipes and devices as such
    #[arg(short, long, visible_short_alias = 'R')]
    pub(crate) recursive: bool,
    /// Do as -r, and keep mode, owner, times, extended attributes, ACLs, hard links and special
    /// files
    #[arg(short, long)]
    pub(crate) archive: bool,
    /// Do not overwrite existing files
    #[arg(short, long)]
    pub(crate) no_clobber: bool,
    #[command(flatten)]
    pub(crate) owners: Owners,
    /// Show no progress bar
    #[arg(short, long)]
    pub(crate) quiet: bool,
    #[command(flatten)]
    pub(crate) part: PartArgs,
}

/// Move or rename files in an image that is not mounted
///
/// Works as mv(1) within one image. A file that already has the new name is replaced; a directory,
/// only if it is empty.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  stetfs mv disk.img:/etc/fstab disk.img:/etc/fstab.old
  stetfs mv disk.img:/a disk.img:/b disk.img:/dir")]
pub(crate) struct Mv {
    /// The files to move (one or more), then the new name or the directory
    #[arg(required = true, num_args = 2.., value_name = "PLACE", value_hint = ValueHint::AnyPath)]
    pub(crate) places: Vec<Place>,
    /// Do not overwrite existing files
    #[arg(short, long)]
    pub(crate) no_clobber: bool,
    #[command(flatten)]
    pub(crate) part: PartArgs,
}

/// Make links in an image that is not mounted
///
/// Works as ln(1) within one image. A symbolic link stores TARGET as it is given, whether or not it
/// leads anywhere.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  stetfs ln -s ../run/resolv.conf disk.img:/etc/resolv.conf
  stetfs ln disk.img:/bin/busybox disk.img:/bin/sh")]
pub(crate) struct Ln {
    /// What to link (one or more): IMAGE:/PATH, or with -s any text; then the name of the link, or
    /// a directory
    #[arg(required = true, num_args = 2.., value_name = "TARGET", value_hint = ValueHint::AnyPath)]
    pub(crate) words: Vec<OsString>,
    /// Make symbolic links
    #[arg(short, long)]
    pub(crate) symbolic: bool,
    /// Replace a file that already has the link's name
    #[arg(short, long)]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) part: PartArgs,
}

/// Remove files of an image that is not mounted
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  stetfs rm -r disk.img:/tmp/build")]
pub(crate) struct Rm {
    /// IMAGE:/PATH
    #[arg(required = true, value_name = "PLACE")]
    pub(crate) places: Vec<Place>,
    /// Remove directories and their contents
    #[arg(short, long, visible_short_alias = 'R')]
    pub(crate) recursive: bool,
    /// Ignore a missing file
    #[arg(short, long)]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) part: PartArgs,
}

/// Make directories in an image that is not mounted
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  stetfs mkdir -p disk.img:/srv/www/static")]
pub(crate) struct Mkdir {
    /// IMAGE:/PATH
    #[arg(required = true, value_name = "PLACE")]
    pub(crate) places: Vec<Place>,
    /// Make parents as needed; an existing directory is no error
    #[arg(short, long)]
    pub(crate) parents: bool,
    /// Permissions, in octal [default: 777 without the bits of the umask]
    #[arg(short, long, value_parser = parse_mode)]
    pub(crate) mode: Option<u16>,
    #[command(flatten)]
    pub(crate) part: PartArgs,
}

/// List the journaling schemes: what each promises and needs
#[derive(Debug, Args)]
pub(crate) struct Schemes {
    /// Print as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Make and inspect NAND flash: a simulated part in a file, with a flash translation layer
///
/// The layer makes the part a block device that can remap: a journaled block gets home without
/// being copied. Simulated parts have bad blocks, wrong bits and wear; what is random in them
/// depends on --seed alone.
#[derive(Debug, Args)]
#[command(
    disable_help_subcommand = true,
    after_help = "\
Examples:
  stetfs nand create flash.nand                       128 MiB in pages of 512 bytes
  stetfs nand create flash.nand --part mlc --size 1G  pages of 8 KiB, 3,000 erases
  stetfs nand info flash.nand
  stetfs nand check flash.nand                        reads everything
  stetfs nand create /dev/mtd0                        a real part with 16 free out-of-band bytes
                                                      per page
  stetfs nand wear --json flash.nand | jq .life_left
  stetfs nand export flash.nand dev                   dev/device, for losetup and the like"
)]
pub(crate) struct Nand {
    #[command(subcommand)]
    pub(crate) command: NandCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum NandCommand {
    /// Make a part with an empty layer, in a new file; or a layer on a real part (/dev/mtdN)
    Create(NandCreate),
    /// Describe the part and its layer
    Info(NandFileArgs),
    /// Read the map and every page in use; exit with 1 if a page is damaged
    Check(NandFileArgs),
    /// Show how the erases are spread over the blocks, and how much can still be written
    Wear(NandFileArgs),
    Export(NandExport),
}

#[derive(Debug, Args)]
pub(crate) struct NandCreate {
    /// File to make, or the node of a real part (/dev/mtdN)
    #[arg(value_hint = ValueHint::FilePath)]
    pub(crate) file: PathBuf,
    /// Kind of simulated part: jftl (the default) has pages of 512 bytes, 100,000 erases, 128 MiB;
    /// mlc has pages of 8 KiB, 3,000 erases, 8 GiB
    #[arg(short, long, value_parser = ["jftl", "mlc"])]
    pub(crate) part: Option<String>,
    /// Size, rounded down to whole erase blocks [default: that of --part]
    #[arg(short, long)]
    pub(crate) size: Option<Size>,
    /// Percentage of the pages that the device does not offer, from 1 to 90; the higher it is, the
    /// cheaper is garbage collection
    #[arg(short, long, value_name = "PERCENT", default_value_t = 7)]
    pub(crate) over_provisioning: u32,
    /// Make a part without bad blocks, wrong bits and wear
    #[arg(long)]
    pub(crate) flawless: bool,
    /// Seed of every random choice [default: 1]
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    /// Make the layer on a real part that is not empty; its content is lost
    #[arg(long)]
    pub(crate) force: bool,
    /// Print what was made as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct NandFileArgs {
    /// File of a NAND part, or node of a real one (/dev/mtdN), that is not in use
    #[arg(value_hint = ValueHint::FilePath)]
    pub(crate) file: PathBuf,
    /// Print as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Print shell completions
#[derive(Debug, Args)]
pub(crate) struct Completions {
    pub(crate) shell: clap_complete::Shell,
}

/// Write the man pages into a directory
#[derive(Debug, Args)]
pub(crate) struct Man {
    #[arg(value_hint = ValueHint::DirPath)]
    pub(crate) dir: PathBuf,
}

/// Mount a stetfs volume, called by mount(8)
///
/// mount(8) runs this for the type fuse.stetfs; the options are those of `stetfs mount -o`. Options
/// that only mount(8), systemd or fstab(5) know (auto, nofail, user, x-...) are accepted and
/// ignored.
#[derive(Debug, Parser)]
#[command(
    name = "mount.fuse.stetfs",
    version,
    after_help = "\
Exit codes, as mount(8): 0 mounted; 1 wrong arguments; 32 the mount failed.

Examples:
  mount -t fuse.stetfs -o noatime disk.img /mnt
  /srv/disk.img  /mnt  fuse.stetfs  noatime,nofail  0  0     (a line of /etc/fstab)"
)]
pub(crate) struct MountHelper {
    /// File, block device or NAND part with an ext4 volume
    pub(crate) image: PathBuf,
    /// The mount point
    pub(crate) dir: PathBuf,
    /// Mount options
    #[arg(short, value_name = "OPTIONS", value_delimiter = ',')]
    pub(crate) options: Vec<String>,
    /// Tolerate unknown options
    #[arg(short)]
    pub(crate) sloppy: bool,
    /// Check everything, mount nothing
    #[arg(short)]
    pub(crate) fake: bool,
    /// Ignored: /etc/mtab is the kernel's
    #[arg(short, hide = true)]
    pub(crate) no_mtab: bool,
    /// Say more
    #[arg(short, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
    /// The type, fuse.stetfs
    #[arg(short = 't', value_name = "TYPE", hide = true)]
    pub(crate) kind: Option<String>,
}

/// Unmount a stetfs volume, called by umount(8)
///
/// umount(8) runs this for mounts of the type fuse.stetfs. Returns when the image is released and
/// clean.
#[derive(Debug, Parser)]
#[command(name = "umount.fuse.stetfs", version)]
pub(crate) struct UmountHelper {
    /// The mount point
    pub(crate) dir: PathBuf,
    /// Detach now, do not wait
    #[arg(short)]
    pub(crate) lazy: bool,
    /// Ignored
    #[arg(short, hide = true)]
    pub(crate) force: bool,
    /// Ignored: /etc/mtab is the kernel's
    #[arg(short, hide = true)]
    pub(crate) no_mtab: bool,
    /// Ignored
    #[arg(short, hide = true)]
    pub(crate) read_only: bool,
    /// Say more
    #[arg(short, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
    /// The type, fuse.stetfs
    #[arg(short = 't', value_name = "TYPE", hide = true)]
    pub(crate) kind: Option<String>,
}

fn parse_mode(text: &str) -> Result<u16, String> {
    u16::from_str_radix(text, 8)
        .ok()
        .filter(|mode| *mode <= 0o7777)
        .ok_or_else(|| "permissions are an octal number of at most 7777, such as 755".to_owned())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
        MountHelper::command().debug_assert();
        UmountHelper::command().debug_assert();
    }

    #[test]
    fn modes_are_octal() {
        assert_eq!(parse_mode("1777"), Ok(0o1777));
        assert!(parse_mode("17777").is_err());
        assert!(parse_mode("8").is_err());
    }
}

/// Run the papers' experiments: systems side by side, with the paper's figures beside ours
///
/// This is the program stetfs-lab, which is installed beside stetfs; `stetfs lab --help` is its
/// help.
#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Lab {
    /// What stetfs-lab takes: experiments and options
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "ARGS"
    )]
    pub(crate) args: Vec<OsString>,
}
