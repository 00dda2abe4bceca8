//! The command line of fuse2fs, as libfuse reads it: options may stand anywhere, `-o` may be
//! repeated, and a backslash takes the meaning from a comma.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use stetfs_fuse::adjusts_libfuse;

use crate::failure::{Failure, Result};
use crate::size::Size;
use crate::start::EXIT_USAGE;

/// What a command line asks for.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Asked {
    pub(super) device: Option<PathBuf>,
    pub(super) dir: Option<PathBuf>,
    /// Mount options, in the words of `stetfs mount`.
    pub(super) options: Vec<String>,
    /// Words that mean nothing here.
    pub(super) unused: Vec<String>,
    pub(super) offset: u64,
    pub(super) lockfile: Option<PathBuf>,
    pub(super) foreground: bool,
    pub(super) debug: bool,
    /// Print the usage, or the version, and do nothing else.
    pub(super) help: bool,
    pub(super) version: bool,
    /// This is the server process of a mount in the background.
    pub(super) server: bool,
    /// With `kernel`.
    like_kernel: bool,
}

/// The word that the server process gets in addition.
pub(super) const SERVER: &str = "--server";

/// What libfuse does for root without options, too.
const DEFAULTS: [&str; 3] = ["noallow_other", "nodev", "nosuid"];
/// What `kernel` stands for. Words before and behind it count more.
const LIKE_KERNEL: [&str; 4] = ["allow_other", "default_permissions", "suid", "dev"];

/// Options of fuse2fs and libfuse that mean nothing here, beside those that mean nothing to `stetfs
/// mount` either; docs/FUSE2FS.md says why of each.
const UNUSED: &[&str] = &[
    "no_default_opts",
    "timing",
    "oom_score_adj",
    "iomap",
    "use_ino",
    "readdir_ino",
    "hard_remove",
    "direct_io",
    "ac_attr_timeout",
    "attr_timeout",
    "entry_timeout",
    "negative_timeout",
    "noforget",
    "remember",
    "modules",
    "nopath",
    "intr",
    "intr_signal",
    "blksize",
    "max_readahead",
    "max_background",
    "max_idle_threads",
    "congestion_threshold",
    "async_read",
    "sync_read",
    "atomic_o_trunc",
    "no_remote_lock",
    "no_remote_flock",
    "no_remote_posix_lock",
    "no_splice_read",
    "no_splice_write",
    "no_splice_move",
    "io_uring",
    "io_uring_q_depth",
];

fn wrong(what: impl Into<String>) -> Failure {
    Failure::new(what).exit(EXIT_USAGE)
}

impl Asked {
    /// Reads the words behind the program's name.
    pub(super) fn read(words: &[OsString]) -> Result<Self> {
        let mut asked = Self::default();
        let mut words = words.iter();
        let mut only_names = false;
        while let Some(word) = words.next() {
            let bytes = word.as_bytes();
            if only_names || !bytes.starts_with(b"-") || bytes == b"-" {
                asked.name(word)?;
            } else if bytes == b"-o" {
                let list = words
                    .next()
                    .ok_or_else(|| wrong("-o: its value is missing"))?;
                asked.list(list)?;
            } else if let Some(list) = bytes.strip_prefix(b"-o") {
                asked.list(OsStr::from_bytes(list))?;
            } else {
                match bytes {
                    b"--" => only_names = true,
                    b"-f" => asked.foreground = true,
                    b"-d" => asked.debug(),
                    b"-s" => asked.options.push("threads=1".to_owned()),
                    b"-h" | b"--help" | b"--helpfull" => asked.help = true,
                    b"-V" | b"--version" => asked.version = true,
                    _ if bytes == SERVER.as_bytes() => asked.server = true,
                    _ => return Err(wrong(format!("unknown option {}", word.display()))),
                }
            }
        }
        let kernel = LIKE_KERNEL.iter().filter(|_| asked.like_kernel);
        let before = DEFAULTS.iter().chain(kernel).map(|word| (*word).to_owned());
        asked.options = before.chain(asked.options).collect();
        Ok(asked)
    }

    fn name(&mut self, word: &OsStr) -> Result<()> {
        let place = match (&self.device, &self.dir) {
            (None, _) => &mut self.device,
            (_, None) => &mut self.dir,
            _ => return Err(wrong(format!("one word too many: {}", word.display()))),
        };
        *place = Some(PathBuf::from(word));
        Ok(())
    }

    fn debug(&mut self) {
        (self.debug, self.foreground) = (true, true);
    }

    fn list(&mut self, list: &OsStr) -> Result<()> {
        let list = list.to_str();
        let list = list.ok_or_else(|| wrong("-o: mount options are written in UTF-8"))?;
        split(list)
            .into_iter()
            .try_for_each(|word| self.option(word))
    }

    fn option(&mut self, word: String) -> Result<()> {
        let (name, value) = word.split_once('=').unwrap_or((&word, ""));
        match name {
            "kernel" => self.like_kernel = true,
            "debug" => self.debug(),
            "fuse2fs_debug" => self.debug = true,
            "directio" => self.options.push("direct".to_owned()),
            "noblkdev" => self.options.push("noloop".to_owned()),
            "norecovery" | "noload" => {
                self.options.extend(["noload".to_owned(), "ro".to_owned()]);
            }
            "offset" => {
                let bytes: Result<Size, String> = value.parse();
                let Size(bytes) = bytes.map_err(|e| wrong(format!("{word}: {e}")))?;
                self.offset = bytes;
            }
            "lockfile" if value.is_empty() => return Err(wrong("lockfile: its value is missing")),
            "lockfile" => self.lockfile = Some(PathBuf::from(value)),
            "cache_size" => self.options.push(memory(value)?),
            "max_threads" => {
                let number: Option<u32> = value.parse().ok();
                let number = number.ok_or_else(|| wrong(format!("{word}: not a number")))?;
                self.options
                    .push(format!("threads={}", number.clamp(1, 256)));
            }
            "uid" | "gid" | "umask" => {
                return Err(wrong(format!(
                    "{word} is refused: it would show all files with one owner or mode, and chown \
                     and chmod would be lost on them"
                ))
                .advise("to act on the volume as root: -o fakeroot"));
            }
            name if UNUSED.contains(&name) || adjusts_libfuse(name) => {
                if !self.unused.contains(&word) {
                    self.unused.push(word);
                }
            }
            _ => self.options.push(word),
        }
        Ok(())
    }
}

/// Returns the bound of all caches for the size of fuse2fs's disk cache.
fn memory(value: &str) -> Result<String> {
    /// The least that `memory=` takes.
    const LEAST: u64 = 8 << 20;
    let lower = value.to_ascii_uppercase();
    let size = lower
        .parse()
        .ok()
        .filter(|Size(n)| (1..1 << 31).contains(n));
    let Size(size) = size.ok_or_else(|| {
        wrong(format!(
            "cache_size={value}: it must be between 1 byte and 2 GiB"
        ))
    })?;
    Ok(format!("memory={}", size.max(LEAST)))
}

/// Splits a list at its commas, but not at those behind a backslash or between double quotes.
fn split(list: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let (mut is_quoted, mut is_escaped) = (false, false);
    for c in list.chars() {
        let last = words.len() - 1;
        if is_escaped {
            is_escaped = false;
            words[last].push(c);
        } else if c == '\\' {
            is_escaped = true;
        } else if c == ',' && !is_quoted {
            words.push(String::new());
        } else {
            is_quoted ^= c == '"';
            words[last].push(c);
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(words: &[&str]) -> Result<Asked> {
        let words: Vec<OsString> = words.iter().map(OsString::from).collect();
        Asked::read(&words)
    }

    #[test]
    fn options_stand_anywhere_and_repeat() {
        let a = read(&[
            "-f",
            "-o",
            "ro,offset=512",
            "a b",
            "-oallow_other",
            "d",
            "-o",
            "rw",
        ]);
        let a = a.unwrap();
        assert_eq!(a.device.unwrap(), PathBuf::from("a b"));
        assert_eq!(a.dir.unwrap(), PathBuf::from("d"));
        assert!(a.foreground && !a.debug && !a.server);
        assert_eq!(a.offset, 512);
        let after = &a.options[DEFAULTS.len()..];
        assert_eq!(after, ["ro", "allow_other", "rw"], "later words count more");
    }

    #[test]
    fn what_fuse2fs_calls_otherwise_is_translated() {
        let a = read(&[
            "-o",
            "nosuid,kernel,norecovery,cache_size=64m,directio",
            "-s",
        ])
        .unwrap();
        assert_eq!(
            a.options,
            [
                "noallow_other",
                "nodev",
                "nosuid",
                "allow_other",
                "default_permissions",
                "suid",
                "dev",
                "nosuid",
                "noload",
                "ro",
                "memory=67108864",
                "direct",
                "threads=1",
            ]
        );
        let a = read(&["-o", "use_ino,attr_timeout=0,use_ino"]).unwrap();
        assert_eq!(a.unused, ["use_ino", "attr_timeout=0"]);
    }

    #[test]
    fn a_backslash_takes_the_meaning_from_a_comma() {
        let a = read(&["-o", r"lockfile=a\,b\\,ro"]).unwrap();
        assert_eq!(a.lockfile.unwrap(), PathBuf::from(r"a,b\"));
        assert!(a.options.contains(&"ro".to_owned()));
    }

    #[test]
    fn what_is_wrong_is_refused_with_the_code_of_fuse2fs() {
        for words in [
            &["a", "b", "c"][..],
            &["-x"],
            &["-o"],
            &["-o", "uid=5"],
            &["-o", "cache_size=3g"],
            &["-o", "cache_size=0"],
            &["-o", "offset=x"],
            &["-o", "lockfile="],
        ] {
            assert_eq!(read(words).unwrap_err().code, 1, "{words:?}");
        }
        let a = read(&["--", "-a", "-b"]).unwrap();
        assert_eq!(a.dir.unwrap(), PathBuf::from("-b"));
    }
}
