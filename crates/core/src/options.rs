//! Mount options: their meaning, and reading them from `-o` strings.

mod unused;
pub(crate) mod value;

use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;
use stetfs_media::Survives;

use crate::clock::Clock;
use crate::types::InUse;
use value::{OptionError, parse_size, parse_u32};

/// How a volume is mounted.
///
/// ```
/// use stetfs::MountOptions;
///
/// let options = MountOptions::parse("scheme=stet,commit=1,ro")?;
/// assert!(options.read_only && options.names_scheme());
/// let wrong = MountOptions::parse("comit=1").unwrap_err().to_string();
/// assert!(wrong.contains("comit"));
/// # Ok::<(), stetfs::OptionError>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct MountOptions {
    /// No operation changes anything (`ro`). A dirty journal is still replayed when the device can
    /// be written.
    pub read_only: bool,
    /// The journaling scheme by its registry name (`scheme=`).
    pub scheme: String,
    /// Whether `scheme=` was given. If not, and [`scheme`](Self::scheme) is the default, the volume
    /// decides: the scheme that alone can read its newest content, else the scheme among the mount
    /// options that the volume carries (`tune2fs -E mount_opts=`).
    pub scheme_named: bool,
    /// The scheme's mode (`data=`); `None` means the volume's own, or else the scheme's.
    pub data: Option<String>,
    /// How often the running transaction is committed (`commit=` seconds, 0 means 5). With
    /// `Duration::MAX`, which only a program can set, nothing happens by the clock, and no thread
    /// works in the background: everything happens in one order.
    pub commit: Duration,
    /// How long new data may stay delayed in the modes `ordered` and `writeback` (`dirty_expire=`
    /// seconds). `nodelalloc` means 0: the next commit takes the data. With `commit` at
    /// `Duration::MAX` no data gets too old.
    pub dirty_expire: Duration,
    /// How long a commit may wait for other threads that will soon sync too (`max_batch_time=`
    /// microseconds; 0: not at all). The wait ends when as many threads ask as at the last commit,
    /// and at latest one average commit's time after that commit's end. With `commit` at
    /// `Duration::MAX` a commit waits for nobody.
    pub max_batch_time: Duration,
    /// How long a commit waits at least while a thread is missing, even if commits are shorter
    /// (`min_batch_time=` microseconds; default 0). Never longer than `max_batch_time`.
    pub min_batch_time: Duration,
    /// Delayed data of a file is placed when the file takes another one's name by a rename, or is
    /// closed after it was truncated to 0 bytes (`auto_da_alloc`, `noauto_da_alloc`).
    pub auto_da_alloc: bool,
    /// What happens when damage is found (`errors=`); `None` means the volume's own setting.
    pub errors: Option<OnError>,
    /// When reading a file changes its `atime` (`relatime`, `noatime`, `strictatime`).
    pub atime: Atime,
    /// Whether reading changes the `atime` of directories (off with `nodiratime`).
    pub diratime: bool,
    /// Freed blocks are discarded on the device (`discard`).
    pub discard: bool,
    /// POSIX ACLs are honoured (`acl`, `noacl`).
    pub acl: bool,
    /// `user.` attributes can be used (`user_xattr`, `nouser_xattr`).
    pub user_xattr: bool,
    /// Which files are atomic: one write is one transaction, or nothing of it
    /// (`atomic=all|marked|none`); see [`crate::Fs::is_atomic`].
    pub atomic: AtomicFiles,
    /// How much memory all caches may take together, in bytes (`memory=`, with K, M or G).
    pub memory: u64,
    /// Bypass the host's page cache (`direct`, `nodirect`); for the code that opens the device.
    /// `None`: bypass it where that is cheaper, which is on block devices.
    pub direct: Option<bool>,
    /// The volume is in byte-addressable memory, or in a file used as such, and is written by
    /// stores of bytes (`dax`); for the code that opens the device. Schemes that need this have it
    /// anyway.
    pub dax: bool,
    /// Which failures a volume survives that is in memory, or on a NAND part in an ordinary file
    /// (`durability=power|process`); for the code that opens the device.
    pub durability: Survives,
    /// The file of the persistent memory that the scheme has beside the volume (`nvm=FILE`); for
    /// the code that opens the device.
    pub nvm: Option<PathBuf>,
    /// Any content of that memory may be overwritten, unless a volume needs it (`nvm-new`).
    pub nvm_new: bool,
    /// Flush the device's volatile cache where order demands it (`barrier`, `nobarrier`).
    pub barrier: bool,
    /// Do not read the journal (`noload`). A volume that needs recovery can then only be read.
    /// Another one is written to without a journal, as with scheme `null`.
    pub noload: bool,
    /// The user and the group who may also have root's reserved blocks (`resuid=`, `resgid=`);
    /// `None` means the volume's own setting.
    pub reserved_for: (Option<u32>, Option<u32>),
    /// Where to find the copy of the superblock that replaces a damaged first one (`sb=`), as the
    /// number of a block of 1 KiB.
    pub superblock: Option<u32>,
    /// statfs(2) counts the volume's own structures in its blocks (`minixdf`; not with `bsddf`).
    pub minix_df: bool,
    /// A directory of this many KiB gets no further block (`max_dir_size_kb=`); 0: no limit.
    pub max_dir_size_kb: u32,
    /// New files get their directory's group (`grpid`, `bsdgroups`).
    pub grpid: bool,
    /// Where the time comes from.
    pub clock: Clock,
    /// How many inodes to keep in memory; `None`: as many as `memory` has room for.
    pub inodes: Option<usize>,
    /// The longest read of a file that stays in memory, in bytes, on devices that the host does not
    /// cache; `None`: a 64th of `memory`. A caller that caches file contents itself, as the kernel
    /// does above a mount, sets less.
    pub kept_read: Option<u64>,
    /// What another program has had in use that hands the volume over in the middle of its mount
    /// ([`crate::Fs::in_use`]): files without a name among them stay. `None`: the mount begins.
    pub in_use: Option<Vec<InUse>>,
    /// Operations may be done once more after a crash ([`crate::Fs::redo`]): `i_version` of each
    /// directory counts the changes of its names.
    pub redo: bool,
    /// The scheme's own options and their values ([`stetfs_scheme::OptionAbout`]).
    pub scheme_options: Vec<(String, String)>,
    /// Options of ext4 that were given and change nothing here.
    pub unused: Vec<String>,
}

/// What to do when damage is found in operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnError {
    /// Mark the volume and continue.
    Continue,
    /// Mark the volume and refuse changes from then on.
    RemountReadOnly,
    /// Mark the volume and stop the process.
    Panic,
}

/// When reading changes `atime`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Atime {
    /// When it is not newer than `mtime` and `ctime`, or older than a day.
    Relative,
    /// Never.
    Never,
    /// Always.
    Strict,
}

/// Which files are atomic: one write is one transaction, or nothing of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum AtomicFiles {
    /// All files.
    All,
    /// Marked files (`chattr +j`).
    Marked,
    /// No file; the scheme treats all data as it always does.
    None,
}

/// The period of commits when none is given, as in the kernel (JBD2_DEFAULT_MAX_COMMIT_AGE).
const COMMIT_DEFAULT: Duration = Duration::from_secs(5);

/// The default of `dirty_expire`, as in the kernel
/// (`dirty_expire_interval`, /proc/sys/vm/dirty_expire_centisecs).
const DIRTY_EXPIRE_DEFAULT: Duration = Duration::from_secs(30);

/// The default of `max_batch_time`, as in the kernel (EXT4_DEF_MAX_BATCH_TIME).
const MAX_BATCH_TIME_DEFAULT: Duration = Duration::from_millis(15);

/// The scheme when none is given: the kernel's.
pub(crate) const SCHEME_DEFAULT: &str = "jbd2";

/// The default of `memory`, in bytes.
const MEMORY_DEFAULT: u64 = 256 << 20;

/// The least `memory` that still holds what one transaction needs, in bytes.
const MEMORY_MIN: u64 = 8 << 20;

impl Default for MountOptions {
    fn default() -> Self {
        Self {
            read_only: false,
            scheme: SCHEME_DEFAULT.to_owned(),
            scheme_named: false,
            data: None,
            commit: COMMIT_DEFAULT,
            dirty_expire: DIRTY_EXPIRE_DEFAULT,
            max_batch_time: MAX_BATCH_TIME_DEFAULT,
            min_batch_time: Duration::ZERO,
            auto_da_alloc: true,
            errors: None,
            atime: Atime::Relative,
            diratime: true,
            discard: false,
            acl: true,
            user_xattr: true,
            atomic: AtomicFiles::Marked,
            memory: MEMORY_DEFAULT,
            direct: None,
            dax: false,
            durability: Survives::PowerLoss,
            nvm: None,
            nvm_new: false,
            barrier: true,
            noload: false,
            reserved_for: (None, None),
            superblock: None,
            minix_df: false,
            max_dir_size_kb: 0,
            grpid: false,
            clock: Clock::System,
            inodes: None,
            kept_read: None,
            in_use: None,
            redo: false,
            scheme_options: Vec::new(),
            unused: Vec::new(),
        }
    }
}

impl MountOptions {
    /// Reads a comma-separated list as `mount -o` takes it, over the defaults.
    ///
    /// # Errors
    /// The first option that is unknown or has a wrong value.
    pub fn parse(list: &str) -> Result<Self, OptionError> {
        let mut options = Self::default();
        for option in list.split(',').map(str::trim).filter(|o| !o.is_empty()) {
            options.apply(option)?;
        }
        Ok(options)
    }

    /// Applies one option, `name` or `name=value`. A later option overrides an earlier one.
    ///
    /// # Errors
    /// The option is unknown or has a wrong value; nothing is changed then.
    pub fn apply(&mut self, option: &str) -> Result<(), OptionError> {
        let parts = option.split_once('=');
        let (name, value) = parts.map_or((option, None), |(name, value)| (name, Some(value)));
        if unused::is_unused(name, value)? {
            if !unused::is_always_so(option) && !self.unused.iter().any(|known| known == option) {
                self.unused.push(option.to_owned());
            }
            return Ok(());
        }
        match value {
            Some(value) => self.apply_value(name, value),
            None => self.apply_flag(name),
        }
    }

    /// Whether the caller chose the scheme: by `scheme=`, or by a name other than the default.
    pub fn names_scheme(&self) -> bool {
        self.scheme_named || self.scheme != SCHEME_DEFAULT
    }

    fn apply_flag(&mut self, name: &str) -> Result<(), OptionError> {
        match name {
            "ro" => self.read_only = true,
            "rw" => self.read_only = false,
            // mount(8): `atime` only undoes `noatime`; everything but `strictatime` is relative.
            "relatime" | "atime" | "norelatime" | "nostrictatime" => self.atime = Atime::Relative,
            "noatime" => self.atime = Atime::Never,
            "strictatime" => self.atime = Atime::Strict,
            "diratime" => self.diratime = true,
            "nodiratime" => self.diratime = false,
            "discard" => self.discard = true,
            "nodiscard" => self.discard = false,
            "acl" => self.acl = true,
            "noacl" => self.acl = false,
            "user_xattr" => self.user_xattr = true,
            "nouser_xattr" => self.user_xattr = false,
            "direct" => self.direct = Some(true),
            "nodirect" => self.direct = Some(false),
            "dax" => self.dax = true,
            "nodax" => self.dax = false,
            "bsddf" => self.minix_df = false,
            "minixdf" => self.minix_df = true,
            "barrier" => self.barrier = true,
            "nobarrier" => self.barrier = false,
            "noload" | "norecovery" => self.noload = true,
            "nvm-new" => self.nvm_new = true,
            "grpid" | "bsdgroups" => self.grpid = true,
            "nogrpid" | "sysvgroups" => self.grpid = false,
            "defaults" => {}
            "delalloc" => self.dirty_expire = DIRTY_EXPIRE_DEFAULT,
            "nodelalloc" => self.dirty_expire = Duration::ZERO,
            "auto_da_alloc" => self.auto_da_alloc = true,
            "noauto_da_alloc" => self.auto_da_alloc = false,
            "scheme" | "data" | "commit" | "dirty_expire" | "max_batch_time" | "min_batch_time"
            | "errors" | "memory" | "durability" | "nvm" | "atomic" | "resuid" | "resgid"
            | "sb" | "max_dir_size_kb" => {
                return Err(OptionError::NoValue(name.to_owned()));
            }
            _ => match stetfs_schemes::find_option(name) {
                Some(option) if option.syntax == "on|off" => self.set_of_scheme(name, "on"),
                Some(_) => return Err(OptionError::NoValue(name.to_owned())),
                None => return Err(OptionError::Unknown(name.to_owned())),
            },
        }
        Ok(())
    }

    fn set_of_scheme(&mut self, name: &str, value: &str) {
        let known = self.scheme_options.iter_mut().find(|(n, _)| n == name);
        match known {
            Some((_, was)) => value.clone_into(was),
            None => self
                .scheme_options
                .push((name.to_owned(), value.to_owned())),
        }
    }

    fn apply_value(&mut self, name: &str, value: &str) -> Result<(), OptionError> {
        let wrong = |expected| OptionError::Value {
            option: name.to_owned(),
            value: value.to_owned(),
            expected,
        };
        if value.is_empty() {
            return Err(OptionError::NoValue(name.to_owned()));
        }
        match name {
            "scheme" => (self.scheme, self.scheme_named) = (value.to_owned(), true),
            "data" => self.data = Some(value.to_owned()),
            "commit" => {
                let seconds = parse_u32(value).ok_or_else(|| wrong("a number of seconds"))?;
                self.commit = match seconds {
                    0 => COMMIT_DEFAULT,
                    s => Duration::from_secs(s.into()),
                };
            }
            "dirty_expire" => {
                let seconds: u32 = value.parse().map_err(|_| wrong("a number of seconds"))?;
                self.dirty_expire = Duration::from_secs(seconds.into());
            }
            "max_batch_time" => {
                let micros = parse_u32(value).ok_or_else(|| wrong("a number of microseconds"))?;
                self.max_batch_time = Duration::from_micros(micros.into());
            }
            "min_batch_time" => {
                let micros = parse_u32(value).ok_or_else(|| wrong("a number of microseconds"))?;
                self.min_batch_time = Duration::from_micros(micros.into());
            }
            // -1 stands for nobody.
            "resuid" | "resgid" => {
                let id = parse_u32(value).filter(|id| *id != u32::MAX);
                let id = Some(id.ok_or_else(|| wrong("a number, not a name"))?);
                match name {
                    "resuid" => self.reserved_for.0 = id,
                    _ => self.reserved_for.1 = id,
                }
            }
            "sb" => {
                let at = parse_u32(value).filter(|at| *at > 0);
                self.superblock =
                    Some(at.ok_or_else(|| wrong("the number of a block of 1 KiB, from 1"))?);
            }
            "max_dir_size_kb" => {
                self.max_dir_size_kb = parse_u32(value).ok_or_else(|| wrong("a number of KiB"))?;
            }
            // `inode`, ext4's default, changes nothing.
            "dax" => {
                self.dax = match value {
                    "always" => true,
                    "inode" | "never" => false,
                    _ => return Err(wrong("always, inode or never")),
                };
            }
            "journal_path" => return Err(wrong("external journals are not supported")),
            "auto_da_alloc" => {
                self.auto_da_alloc = parse_u32(value).ok_or_else(|| wrong("0 or 1"))? != 0;
            }
            "errors" => {
                self.errors = Some(match value {
                    "continue" => OnError::Continue,
                    "remount-ro" => OnError::RemountReadOnly,
                    "panic" => OnError::Panic,
                    _ => return Err(wrong("continue, remount-ro or panic")),
                });
            }
            "atomic" => {
                self.atomic = match value {
                    "all" => AtomicFiles::All,
                    "marked" => AtomicFiles::Marked,
                    "none" => AtomicFiles::None,
                    _ => return Err(wrong("all, marked or none")),
                };
            }
            "durability" => {
                self.durability = match value {
                    "power" => Survives::PowerLoss,
                    "process" => Survives::ProcessCrash,
                    _ => return Err(wrong("power or process")),
                };
            }
            "nvm" => self.nvm = Some(value.into()),
            "barrier" => self.barrier = parse_u32(value).ok_or_else(|| wrong("0 or 1"))? != 0,
            "memory" => {
                self.memory = parse_size(value)
                    .filter(|&n| n >= MEMORY_MIN)
                    .ok_or_else(|| wrong("a size of at least 8M, such as 64M or 1G"))?;
            }
            _ if stetfs_schemes::find_option(name).is_some() => self.set_of_scheme(name, value),
            _ if Self::default().apply_flag(name).is_ok() => {
                return Err(OptionError::UnwantedValue(name.to_owned()));
            }
            _ => return Err(OptionError::Unknown(name.to_owned())),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_line() {
        let o = MountOptions::parse(
            "ro,scheme=jbd2,data=journal,commit=9,dirty_expire=7,max_batch_time=30,\
                noauto_da_alloc,errors=remount-ro,noatime,memory=64M",
        )
        .unwrap();
        assert!(o.read_only);
        assert_eq!(o.scheme, "jbd2");
        assert_eq!(o.data.as_deref(), Some("journal"));
        assert_eq!(o.commit, Duration::from_secs(9));
        assert_eq!(o.dirty_expire, Duration::from_secs(7));
        assert_eq!(o.max_batch_time, Duration::from_micros(30));
        assert!(!o.auto_da_alloc);
        assert_eq!(o.errors, Some(OnError::RemountReadOnly));
        assert_eq!(o.atime, Atime::Never);
        assert_eq!(o.memory, 64 << 20);
    }

    #[test]
    fn options_of_schemes_come_from_the_registry() {
        let of_scheme = |list| MountOptions::parse(list).unwrap().scheme_options;
        let name = "journal_async_commit".to_owned();
        let all = of_scheme("journal_async_commit");
        assert_eq!(all, [(name.clone(), "on".to_owned())]);
        let all = of_scheme("journal_async_commit,journal_async_commit=off");
        assert_eq!(all, [(name, "off".to_owned())], "the later one counts");
    }

    #[test]
    fn wrong_options_are_named() {
        use OptionError::*;
        let parse = |s: &str| MountOptions::parse(s).unwrap_err();
        assert_eq!(parse("rw,frobnicate"), Unknown("frobnicate".into()));
        assert_eq!(parse("frobnicate=3"), Unknown("frobnicate".into()));
        assert_eq!(parse("commit"), NoValue("commit".into()));
        assert_eq!(parse("scheme="), NoValue("scheme".into()));
        assert_eq!(parse("noatime=1"), UnwantedValue("noatime".into()));
        for bad in [
            "commit=x",
            "dirty_expire=soon",
            "max_batch_time=-1",
            "auto_da_alloc=x",
            "errors=explode",
            "memory=1",
            "memory=99999999999G",
            "barrier=x",
            "atomic=some",
        ] {
            assert!(matches!(parse(bad), Value { .. }), "{bad}");
        }
    }

    #[test]
    fn later_wins_and_blanks_are_skipped() {
        let o = MountOptions::parse(" ro, rw,,commit=0,").unwrap();
        assert!(!o.read_only);
        assert_eq!(o.commit, COMMIT_DEFAULT);
    }
}
