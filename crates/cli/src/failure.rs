//! How a command fails: what went wrong, what the user can do, and the exit code.
//!
//! All commands share one table of codes ([`EXIT_CODES`]). Exceptions are commands that other
//! programs call by a convention: `fsck` has the codes of fsck(8), the helpers those of mount(8).

use std::any::Any;
use std::error::Error;
use std::fmt::{self, Display};

use rustix::io::Errno;
use stetfs::{Kind, MountError};
use stetfs_journal::JournalError;
use stetfs_media::{MediaError, Op};
use stetfs_scheme::SchemeError;

/// Exit code: it failed; the reason is on standard error.
pub(crate) const EXIT_FAILED: u8 = 1;
/// Exit code: a word of the command line or a mount option is wrong.
pub(crate) const EXIT_USAGE: u8 = 2;

/// The table of exit codes, for `--help` and the man page.
pub(crate) const EXIT_CODES: &str = "\
Exit codes of every command except those below:
  0  done
  1  it failed; the reason is on standard error (ls, cat, cp, mv, ln, rm, mkdir: at least one of \
  the files failed)
  2  the command line is wrong: an unknown option, scheme, mount option or value; nothing was done
  `stetfs tx`: that of its command; 125 it failed, and nothing was changed; 126 the command cannot \
  be run; 127 there is no such command
  `stetfs fsck`, as fsck(8), their sum when several apply:
  0  no errors; 1 errors were corrected; 4 errors were left; 8 it could not be done; 16 the \
  command line is wrong; 32 cancelled
  mount.fuse.stetfs and umount.fuse.stetfs, as mount(8):
  0  done; 1 the command line is wrong; 32 it failed";

/// The result of a command's parts.
pub(crate) type Result<T, E = Failure> = std::result::Result<T, E>;

/// Why a command stops. Printed by `main` as `stetfs: what`, and the advice on a line of its own.
#[derive(Debug)]
pub(crate) struct Failure {
    what: String,
    advice: Option<String>,
    /// The process's exit code.
    pub(crate) code: u8,
}

impl Failure {
    /// Makes a failure with these words.
    pub(crate) fn new(what: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            advice: None,
            code: EXIT_FAILED,
        }
    }

    /// Makes a failure that the user has been told of already.
    pub(crate) fn said() -> Self {
        Self::new("")
    }

    /// Tells the user.
    pub(crate) fn tell(&self) {
        if !self.what.is_empty() {
            eprintln!("stetfs: {self}");
        }
    }

    /// Says what was being done: `context: what`.
    pub(crate) fn context(mut self, context: impl Display) -> Self {
        self.what = format!("{context}: {}", self.what);
        self
    }

    /// Says what the user can do, unless a place nearer to the cause has said it.
    pub(crate) fn advise(mut self, advice: impl Into<String>) -> Self {
        self.advice.get_or_insert(advice.into());
        self
    }

    /// Sets the exit code.
    pub(crate) fn exit(mut self, code: u8) -> Self {
        self.code = code;
        self
    }
}

impl Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)?;
        match &self.advice {
            Some(advice) => write!(f, "\n  -> {advice}"),
            None => Ok(()),
        }
    }
}

/// Makes a failure of any error, with its sources unless its own words repeat them. An answer of
/// the volume comes with advice.
impl<E: Error + 'static> From<E> for Failure {
    fn from(error: E) -> Self {
        let any: &dyn Any = &error;
        let answer = any.downcast_ref::<stetfs::Error>();
        let advice = match (answer, any.downcast_ref::<MediaError>()) {
            (Some(answer), _) => advice(answer),
            (_, Some(media)) => media_advice(media),
            _ => None,
        };
        let code = match answer {
            Some(answer) if is_wrong_wish(answer) => EXIT_USAGE,
            _ => EXIT_FAILED,
        };
        let mut what = plain(&error);
        let mut source = error.source();
        while let Some(cause) = source {
            let text = plain(cause);
            if !what.contains(&text) {
                what = format!("{what}: {text}");
            }
            source = cause.source();
        }
        Self {
            what,
            advice: advice.map(str::to_owned),
            code,
        }
    }
}

/// Advice about damage.
pub(crate) const DAMAGED: &str =
    "the volume is damaged; look with stetfs fsck -n IMAGE, repair with stetfs fsck IMAGE";

/// Advice about an answer of the volume, if there is more to do than to read it.
fn advice(error: &stetfs::Error) -> Option<&'static str> {
    use stetfs::Error;
    match error {
        Error::Media(e) => return media_advice(e),
        Error::Journal(e) => {
            let mut cause = &**e;
            while let JournalError::Aborted(earlier) = cause {
                cause = earlier;
            }
            if let JournalError::Scheme(SchemeError::Media(e)) = cause {
                return media_advice(e);
            }
        }
        Error::Mount(e) if matches!(**e, MountError::DeviceTooSmall { .. }) => {
            return Some(TRUNCATED);
        }
        _ => {}
    }
    match error.kind() {
        Kind::Corrupted => Some(DAMAGED),
        Kind::NoSpace => Some(
            "stetfs info IMAGE shows what is free: blocks, inodes, and what is reserved for root",
        ),
        _ => None,
    }
}

/// Advice about an image that is shorter than its volume.
pub(crate) const TRUNCATED: &str = "the image is not whole (a copy that was cut?): get all of it; \
    a repair would throw away what is \
                                    missing";

fn media_advice(error: &MediaError) -> Option<&'static str> {
    Some(match error {
        MediaError::Io {
            source: Errno::NOSPC | Errno::DQUOT,
            ..
        } => "the file system that the image lies on is full: make room there (df)",
        MediaError::Io {
            source: Errno::FBIG,
            ..
        } => "the image would become larger than its file system or `ulimit -f` lets a file be",
        MediaError::Io {
            op: Op::Write | Op::Discard | Op::Flush,
            source: Errno::PERM | Errno::ROFS | Errno::ACCESS,
            ..
        } => {
            "the device is write-protected (blockdev --getro shows that, --setrw ends it); to read \
                it: -o ro"
        }
        MediaError::Io { .. } | MediaError::WritesLost => {
            "the device fails; copy what can still be read, and look at the kernel's messages \
                (dmesg)"
        }
        MediaError::Truncated { .. } | MediaError::Cut { .. } => TRUNCATED,
        _ => return None,
    })
}

/// True if only the request is wrong.
fn is_wrong_wish(error: &stetfs::Error) -> bool {
    match error {
        stetfs::Error::Journal(e) => matches!(
            **e,
            JournalError::Scheme(SchemeError::Unknown(_) | SchemeError::Option { .. })
        ),
        stetfs::Error::Mount(e) => matches!(
            **e,
            MountError::DataMode { .. } | MountError::NoloadWritable
        ),
        _ => false,
    }
}

/// Returns an error's words without the `(os error 2)` of the standard library.
fn plain(error: &dyn Error) -> String {
    let text = error.to_string();
    match text.rfind(" (os error ") {
        Some(at) if text.ends_with(')') => text[..at].to_owned(),
        _ => text,
    }
}

/// Adds context and advice to results.
pub(crate) trait Explain<T> {
    /// Says what was being done when it failed.
    fn during(self, context: impl FnOnce() -> String) -> Result<T>;
    /// Says what the user can do about it.
    fn or_advise(self, advice: impl FnOnce() -> String) -> Result<T>;
}

impl<T, E: Into<Failure>> Explain<T> for Result<T, E> {
    fn during(self, context: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|e| e.into().context(context()))
    }

    fn or_advise(self, advice: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|e| e.into().advise(advice()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn context_comes_first_and_the_nearest_advice_stays() {
        let failure = std::fs::read("/nowhere")
            .during(|| "/nowhere".to_owned())
            .or_advise(|| "look elsewhere".to_owned())
            .or_advise(|| "give up".to_owned())
            .unwrap_err();
        assert_eq!(
            failure.to_string(),
            "/nowhere: No such file or directory\n  -> look elsewhere"
        );
    }
}
