//! The words of `-o a,b,c`: some are FUSE's, some the file system's, and some only mount(8) and
//! fstab(5) use.
//!
//! | who | words |
//! |---|---|
//! | here | `allow_other`, `noallow_other`, `allow_root`, `dev`, `suid`, `exec`, `symfollow`, `sync`, `dirsync`, `loop` with their `no` or opposite forms, `auto_unmount`, `survive`, `transport=`, `threads=`, `clone_fd`, `writeback`, `timeout=`, `readahead=`, `abort_hung=`, `context=` and its kin, `fakeroot` |
//! | here, ignored | what libfuse programs are given out of habit: `default_permissions` (always on), `fsname=`, `subtype=`, `nonempty`, `big_writes`, `max_read=`, `blkdev`, ... |
//! | mount(8), ignored | `defaults`, `auto`, `user`, `users`, `owner`, `group`, `nofail`, `_netdev`, `x-...`, `comment=`, ... |
//! | mount(8), without effect | `lazytime`, `mand`, `iversion`: named in [`stetfs::MountOptions::unused`] |
//! | both | `ro`, `rw`, `noatime`, `relatime`, ... |
//! | [`stetfs::MountOptions`] | everything else |

use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::time::Duration;

use stetfs::{Atime, AtomicFiles, MountOptions, OptionError};

/// Who may use the mount, besides what the permission bits say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Allow {
    /// The user who mounted it.
    Owner,
    /// That user, and root.
    Root,
    /// Everybody. The default for root, as with any file system that root mounts.
    Everybody,
}

/// Whether the mount is on a block device (type `fuseblk.stetfs`), which only root can make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnBlock {
    /// On a block device if possible.
    Auto,
    /// On a block device, or there is no mount.
    Must,
    /// A plain FUSE mount in any case.
    Never,
}

/// How requests come from the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// By io_uring if the kernel allows it, otherwise by `/dev/fuse`.
    Auto,
    /// By io_uring, or there is no mount.
    Uring,
    /// By `/dev/fuse`.
    Device,
}

/// How the volume is shown to the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FuseOptions {
    /// Who may use the mount.
    pub allow: Allow,
    /// Whether the mount is on a block device.
    pub on_block: OnBlock,
    /// Device files work. `None`: see [`Self::trusts`].
    pub dev: Option<bool>,
    /// Set-user-ID and set-group-ID bits work. `None`: see [`Self::trusts`].
    pub suid: Option<bool>,
    /// Programs may be run.
    pub exec: bool,
    /// Symbolic links are not followed (`nosymfollow`); root only.
    pub nosymfollow: bool,
    /// SELinux's options (`context="..."` and others), for the kernel; root only.
    pub contexts: Vec<String>,
    /// Whoever may use the mount is root there: nobody checks permissions. Device files and
    /// set-user-ID bits do not work then.
    pub fakeroot: bool,
    /// Somebody else has made the mount, and this is the number of the descriptor of `/dev/fuse`
    /// that this process has inherited for it (`/dev/fd/N` in place of a mount point).
    pub session: Option<u32>,
    /// Nothing can be changed.
    pub read_only: bool,
    /// Shown in the mount table. The core deals with access times.
    pub noatime: bool,
    /// Every write is durable when it returns.
    pub sync: bool,
    /// Every change of a directory is durable when it returns.
    pub dirsync: bool,
    /// A companion process releases the mount point when the server dies.
    pub auto_unmount: bool,
    /// When the server dies, another one goes on with the mount (`survive.rs`), unless more than so
    /// many have died within a minute. 0: none goes on.
    pub survive: u32,
    /// SIGTERM, SIGINT and SIGHUP end the mount. If false, the program that mounts it does.
    pub signals: bool,
    /// How requests come from the kernel.
    pub transport: Transport,
    /// Number of worker threads.
    pub threads: usize,
    /// Each worker reads its own clone of `/dev/fuse`.
    pub clone_fd: bool,
    /// The kernel keeps written pages and sends them later.
    pub writeback: bool,
    /// How long the kernel may keep names and attributes. They change only through the kernel, so
    /// this may be long.
    pub timeout: Duration,
    /// How far the kernel reads ahead, in bytes.
    pub readahead: u32,
    /// After how long without an answer from the server the connection is aborted. `None`: never,
    /// since an abort loses everything that was not written yet, and a server that was stopped or
    /// waits for a slow device has lost nothing.
    pub abort_hung: Option<Duration>,
    /// The user has said how often to commit.
    pub commit_given: bool,
    /// The mount options as a list, for those who ask the server.
    pub in_words: String,
}

/// How many deaths within a minute are survived if nobody says.
const SURVIVED: u32 = 3;

impl Default for FuseOptions {
    fn default() -> Self {
        let root = rustix::process::geteuid().is_root();
        Self {
            allow: if root { Allow::Everybody } else { Allow::Owner },
            on_block: OnBlock::Auto,
            dev: None,
            suid: None,
            exec: true,
            nosymfollow: false,
            contexts: Vec::new(),
            fakeroot: false,
            session: None,
            read_only: false,
            noatime: false,
            sync: false,
            dirsync: false,
            auto_unmount: true,
            survive: 0,
            signals: true,
            transport: Transport::Auto,
            threads: 16,
            clone_fd: true,
            writeback: true,
            timeout: Duration::from_secs(365 * 86_400),
            readahead: 1 << 20,
            abort_hung: None,
            commit_given: false,
            in_words: String::new(),
        }
    }
}

/// All options of a mount.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// How the volume is shown to the kernel.
    pub fuse: FuseOptions,
    /// How the volume is run.
    pub core: MountOptions,
}

/// The longest read, in bytes, that the core keeps in memory. The kernel keeps what was read; the
/// core's copy only tells what a partial overwrite changed.
const KEPT_READ: u64 = 64 << 10;

impl Default for Options {
    fn default() -> Self {
        Self {
            fuse: FuseOptions::default(),
            core: MountOptions {
                kept_read: Some(KEPT_READ),
                ..MountOptions::default()
            },
        }
    }
}

impl Options {
    /// Reads a comma-separated list over the defaults. Later words override earlier ones.
    ///
    /// # Errors
    /// The first word that is unknown, or whose value is wrong.
    pub fn parse(list: &str) -> Result<Self, OptionError> {
        let mut options = Self::default();
        for option in split(list) {
            options.apply(option)?;
        }
        Ok(options)
    }

    /// Returns whether the word changes nothing in these options.
    pub fn have(&self, option: &str) -> bool {
        let mut then = self.clone();
        if then.apply(option).is_err() {
            return false;
        }
        then.core.unused.clone_from(&self.core.unused);
        then == *self
    }

    /// Takes one word, `name` or `name=value`.
    ///
    /// # Errors
    /// The word is unknown, or its value is wrong.
    pub fn apply(&mut self, option: &str) -> Result<(), OptionError> {
        if UNUSED.contains(&option) {
            if !self.core.unused.iter().any(|known| known == option) {
                self.core.unused.push(option.to_owned());
            }
            return Ok(());
        }
        if is_for_others(option) {
            return Ok(());
        }
        let taken = match option.split_once('=') {
            Some((name, value)) => self.fuse.apply_value(name, value)?,
            None => self.fuse.apply_flag(option),
        };
        if !taken || is_shared(option) {
            self.core.apply(option)?;
            self.fuse.commit_given |= option.starts_with("commit=");
            self.fuse.noatime = self.core.atime == Atime::Never;
        }
        self.core.redo = self.fuse.survive > 0;
        // With `atomic=all` the page cache keeps nothing to write later. Without a writeback cache
        // the kernel asks for times, too.
        self.fuse.writeback &= self.core.atomic != AtomicFiles::All;
        Ok(())
    }
}

impl FuseOptions {
    /// Returns whether device files and set-user-ID bits of a volume may work if the options do not
    /// say: when root mounts an image that root owns and nobody else may write. Anybody else who
    /// can write to an image can put anything into it.
    pub fn trusts(image: &Path) -> bool {
        const OTHERS_WRITE: u32 = 0o022;
        let is_roots = |m: std::fs::Metadata| {
            // A block device belongs to a group of administrators.
            let mode = m.mode() & OTHERS_WRITE;
            m.uid() == 0 && (mode == 0 || mode == 0o020 && m.file_type().is_block_device())
        };
        rustix::process::geteuid().is_root() && std::fs::metadata(image).is_ok_and(is_roots)
    }

    /// Returns whether a remount can do what the word says, or the word says nothing: the kernel
    /// alone decides of it.
    pub fn can_change_live(option: &str) -> bool {
        const KERNEL: &[&str] = &[
            "ro",
            "rw",
            "dev",
            "nodev",
            "suid",
            "nosuid",
            "exec",
            "noexec",
            "symfollow",
            "nosymfollow",
            "user",
            "users",
            "owner",
            "group",
            "sync",
            "async",
            "dirsync",
            "atime",
            "noatime",
            "relatime",
            "norelatime",
            "strictatime",
            "nostrictatime",
            "diratime",
            "nodiratime",
        ];
        is_for_others(option) || UNUSED.contains(&option) || KERNEL.contains(&option)
    }

    /// Applies a word without a value. Returns whether it is one of these.
    fn apply_flag(&mut self, name: &str) -> bool {
        match name {
            "allow_other" => self.allow = Allow::Everybody,
            "allow_root" => self.allow = Allow::Root,
            "noallow_other" => self.allow = Allow::Owner,
            "loop" => self.on_block = OnBlock::Must,
            "noloop" => self.on_block = OnBlock::Never,
            "dev" => self.dev = Some(true),
            "nodev" => self.dev = Some(false),
            "suid" => self.suid = Some(true),
            "nosuid" => self.suid = Some(false),
            "exec" => self.exec = true,
            "noexec" => self.exec = false,
            "nosymfollow" => self.nosymfollow = true,
            "symfollow" => self.nosymfollow = false,
            "fakeroot" => self.fakeroot = true,
            "nofakeroot" => self.fakeroot = false,
            "ro" => self.read_only = true,
            "rw" => self.read_only = false,
            "sync" => self.sync = true,
            "async" => self.sync = false,
            "dirsync" => self.dirsync = true,
            "auto_unmount" => self.auto_unmount = true,
            "noauto_unmount" => self.auto_unmount = false,
            "survive" => self.survive = SURVIVED,
            "nosurvive" => self.survive = 0,
            "clone_fd" => self.clone_fd = true,
            "noclone_fd" => self.clone_fd = false,
            "writeback" | "writeback_cache" => self.writeback = true,
            "nowriteback" | "nowriteback_cache" => self.writeback = false,
            // mount(8): these imply the safe flags, which a later word may take back.
            "user" | "users" => {
                (self.dev, self.suid, self.exec) = (Some(false), Some(false), false);
            }
            "owner" | "group" => (self.dev, self.suid) = (Some(false), Some(false)),
            _ => return false,
        }
        true
    }

    fn apply_value(&mut self, name: &str, value: &str) -> Result<bool, OptionError> {
        let wrong = |expected| OptionError::Value {
            option: name.to_owned(),
            value: value.to_owned(),
            expected,
        };
        match name {
            "threads" => {
                let n = value.parse().ok().filter(|n| (1..=256).contains(n));
                self.threads = n.ok_or_else(|| wrong("a number from 1 to 256"))?;
            }
            "transport" => {
                self.transport = match value {
                    "auto" => Transport::Auto,
                    "uring" => Transport::Uring,
                    "dev" => Transport::Device,
                    _ => return Err(wrong("auto, uring or dev")),
                };
            }
            "survive" => {
                let deaths = value.parse().ok().filter(|n| (1..=100_000).contains(n));
                self.survive = match value {
                    "on" => SURVIVED,
                    "off" => 0,
                    _ => deaths.ok_or_else(|| {
                        wrong("on, off, or a number of deaths in a minute up to 100000")
                    })?,
                };
            }
            "timeout" => {
                let s: f64 = value.parse().map_err(|_| wrong("a number of seconds"))?;
                self.timeout =
                    Duration::try_from_secs_f64(s).map_err(|_| wrong("a number of seconds"))?;
            }
            "abort_hung" => {
                let s = value.parse().ok().filter(|s| *s <= u16::MAX.into());
                let s: u64 = s.ok_or_else(|| wrong("a number of seconds up to 65535; 0: never"))?;
                self.abort_hung = (s > 0).then(|| Duration::from_secs(s));
            }
            "readahead" => {
                let n = value
                    .parse::<u32>()
                    .ok()
                    .filter(|n| (4..=16_384).contains(n));
                self.readahead =
                    1024 * n.ok_or_else(|| wrong("a number of KiB from 4 to 16384"))?;
            }
            "context" | "fscontext" | "defcontext" | "rootcontext" => {
                self.contexts.push(format!("{name}={value}"));
            }
            // mount(8) passes the name of the user who mounted.
            "user" => return Ok(self.apply_flag("user")),
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// Splits a list into words. Commas between double quotes separate nothing (mount(8), `context=`).
pub fn split(list: &str) -> impl Iterator<Item = &str> {
    let mut is_quoted = false;
    let words = list.split(move |c| {
        is_quoted ^= c == '"';
        c == ',' && !is_quoted
    });
    words.map(str::trim).filter(|word| !word.is_empty())
}

/// Options of mount(8) that ask for something that this file system does not have.
const UNUSED: &[&str] = &["lazytime", "mand", "iversion"];

/// Returns whether a word concerns the file system as well.
fn is_shared(option: &str) -> bool {
    matches!(option, "ro" | "rw")
}

/// Returns whether a word is accepted and means nothing here.
fn is_for_others(option: &str) -> bool {
    let name = option.split_once('=').map_or(option, |(name, _)| name);
    const FSTAB: &[&str] = &[
        "defaults",
        "auto",
        "noauto",
        "nouser",
        "nousers",
        "noowner",
        "nogroup",
        "nofail",
        "fail",
        "_netdev",
        "comment",
        "remount",
        "user_id",
        "group_id",
        "blksize",
        "uhelper",
        "helper",
        "silent",
        "loud",
        "nomand",
        "nolazytime",
        "noiversion",
        "quiet",
        "verbose",
    ];
    name.starts_with("x-")
        || name.starts_with("X-")
        || FSTAB.contains(&name)
        || matches!(name, "default_permissions" | "debug")
        || adjusts_libfuse(name)
}

/// Returns whether a word adjusts what programs of libfuse do and this one does not.
pub fn adjusts_libfuse(name: &str) -> bool {
    const LIBFUSE: &[&str] = &[
        "fsname",
        "subtype",
        "nonempty",
        "big_writes",
        "max_read",
        "max_write",
        "blkdev",
        "large_read",
        "kernel_cache",
        "auto_cache",
        "noauto_cache",
        "splice_read",
        "splice_write",
        "splice_move",
        "drop_privileges",
    ];
    LIBFUSE.contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_of_the_manual() {
        let o = Options::parse(
            "ro,scheme=jbd2,data=journal,commit=5,errors=remount-ro,noatime,allow_other,\
                default_permissions",
        )
        .unwrap();
        assert!(o.fuse.read_only && o.core.read_only);
        assert!(o.fuse.noatime);
        assert_eq!(o.fuse.allow, Allow::Everybody);
        assert_eq!(o.core.data.as_deref(), Some("journal"));
    }

    #[test]
    fn where_all_files_are_atomic_nothing_is_written_later() {
        assert!(Options::parse("atomic=marked").unwrap().fuse.writeback);
        assert!(
            !Options::parse("atomic=all,writeback")
                .unwrap()
                .fuse
                .writeback
        );
    }

    #[test]
    fn what_fstab_adds_is_taken() {
        let o =
            Options::parse("defaults,noauto,nofail,_netdev,x-systemd.automount,comment=mine,rw")
                .unwrap();
        assert!(!o.fuse.read_only);
        assert_eq!(o.fuse, FuseOptions::default());
    }

    #[test]
    fn user_mounts_are_safe_unless_said_otherwise() {
        let o = Options::parse("suid,dev,user,exec").unwrap().fuse;
        assert_eq!((o.suid, o.dev, o.exec), (Some(false), Some(false), true));
        let o = Options::parse("user=me").unwrap().fuse;
        assert_eq!((o.suid, o.dev, o.exec), (Some(false), Some(false), false));
    }

    #[test]
    fn nonsense_is_named() {
        assert_eq!(
            Options::parse("rw,frobnicate").unwrap_err(),
            OptionError::Unknown("frobnicate".into())
        );
        for bad in [
            "threads=0",
            "threads=x",
            "transport=pigeon",
            "timeout=-1",
            "readahead=1",
            "commit=x",
        ] {
            assert!(
                matches!(Options::parse(bad), Err(OptionError::Value { .. })),
                "{bad}"
            );
        }
    }

    #[test]
    fn the_later_word_wins() {
        let o = Options::parse("ro,noatime,rw,relatime,noexec,exec").unwrap();
        assert!(!o.fuse.read_only && !o.core.read_only && !o.fuse.noatime && o.fuse.exec);
    }
}
