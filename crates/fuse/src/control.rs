//! Talks to the server of a mounted volume through the mount itself, by four extended attributes
//! that no file has.
//!
//! | name | how | what |
//! |---|---|---|
//! | `system.stetfs.stats` | `getxattr` on any file of the mount | live counters and facts about the server, JSON |
//! | `system.stetfs.writers` | the same | which programs have written how much, and to which files, JSON |
//! | `system.stetfs.atomic_write_max` | `getxattr` on a file, by anybody | in digits, see below |
//! | `system.stetfs.control` | `setxattr` on any file | a command in a word or two |
//!
//! They need no socket, work in every mount namespace, and are never listed. Only root and the
//! server's own user may read counters and give commands. Commands: `commit`, `drain`,
//! `shutdown full`, `shutdown logflush`, `shutdown nologflush`, `upgrade PROGRAM`
//! (`upgrade.rs`), and `freeze SECONDS SOCKET` (`freeze.rs`).
//!
//! `atomic_write_max` is the size, in bytes, up to which one write(2) to the file is one
//! transaction: all of it or nothing survives. It holds for descriptors that were opened since the
//! file was marked. 0 means that this is not promised (docs/ATOMIC.md).

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::XattrFlags;
use stetfs::Shutdown;

use crate::wrote::Wrote;

/// The attribute with the counters, to read.
pub(crate) const STATS: &str = "system.stetfs.stats";
/// The attribute with what programs have written, to read.
pub(crate) const WRITERS: &str = "system.stetfs.writers";
/// The attribute with the largest atomic write, which programs read.
pub(crate) const ATOMIC: &str = "system.stetfs.atomic_write_max";
/// The attribute for commands, to write.
pub(crate) const CONTROL: &str = "system.stetfs.control";

/// The command to hand the mount over, before the program's path.
const UPGRADE: &[u8] = b"upgrade ";
/// The command to freeze it, before the seconds and the socket's name.
const FREEZE: &[u8] = b"freeze ";

/// The longest value that an attribute can have (XATTR_SIZE_MAX).
const VALUE_MAX: usize = 65_536;

/// A command to a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    /// Commit the running transaction: everything done before is durable when the command returns.
    Commit,
    /// Commit, and bring home some blocks of the scheme's cache ([`stetfs::Fs::drain_some`]); the
    /// counters tell what is left.
    Drain,
    /// Stop serving, as FS_IOC_SHUTDOWN does.
    Shutdown(Shutdown),
}

impl Command {
    /// Returns the command in words.
    pub fn encode(self) -> &'static str {
        match self {
            Self::Commit => "commit",
            Self::Drain => "drain",
            Self::Shutdown(Shutdown::Full) => "shutdown full",
            Self::Shutdown(Shutdown::LogFlush) => "shutdown logflush",
            Self::Shutdown(Shutdown::NoLogFlush) => "shutdown nologflush",
        }
    }

    /// Reads a command from words; `None` if there is no such command.
    pub(crate) fn decode(words: &[u8]) -> Option<Self> {
        const ALL: [Command; 5] = [
            Command::Commit,
            Command::Drain,
            Command::Shutdown(Shutdown::Full),
            Command::Shutdown(Shutdown::LogFlush),
            Command::Shutdown(Shutdown::NoLogFlush),
        ];
        ALL.into_iter()
            .find(|c| c.encode().as_bytes() == words.trim_ascii())
    }
}

/// Returns the counters of the mounted volume that `path` is on, as JSON.
///
/// # Errors
/// `Unsupported` if the path is on no stetfs mount; otherwise the system's error.
pub fn query_stats(path: &Path) -> io::Result<String> {
    query(path, STATS)
}

/// Returns which programs have written how much to the mounted volume that `path` is on, and to
/// which of its files.
///
/// # Errors
/// `Unsupported` if the path is on no stetfs mount, or on one whose files the kernel serves;
/// otherwise the system's error.
pub fn query_writers(path: &Path) -> io::Result<Wrote> {
    Ok(serde_json::from_str(&query(path, WRITERS)?)?)
}

fn query(path: &Path, what: &str) -> io::Result<String> {
    let mut value = vec![0; VALUE_MAX];
    match rustix::fs::getxattr(path, what, &mut value[..]) {
        Ok(len) => {
            value.truncate(len);
            String::from_utf8(value).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))
        }
        Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NODATA) => Err(not_stetfs(path)),
        Err(e) => Err(e.into()),
    }
}

/// Gives a command to the server of the mounted volume that `path` is on. Returns when it is done.
///
/// # Errors
/// `Unsupported` if the path is on no stetfs mount, `PermissionDenied` unless the caller is root or
/// the server's user; otherwise the error of the command.
pub fn command(path: &Path, command: Command) -> io::Result<()> {
    match tell(path, command.encode().as_bytes()) {
        Err(rustix::io::Errno::OPNOTSUPP) => Err(not_stetfs(path)),
        done => Ok(done?),
    }
}

/// Tells the server of the mounted volume that `path` is on what to do.
fn tell(path: &Path, words: &[u8]) -> Result<(), rustix::io::Errno> {
    rustix::fs::setxattr(path, CONTROL, words, XattrFlags::empty())
}

/// Has the mounted volume that `path` is on handed over to a program that takes over from its
/// server ([`Handed`](crate::upgrade::Handed)). Returns when that program serves it.
///
/// # Errors
/// As [`command`]; also `ResourceBusy` if files, transactions or requests forbid it now, and
/// `Unsupported` if the server never can. Then the mount goes on as it was, and its counters say
/// why. `NotConnected` and `ConnectionAborted`: the program has failed, and the mount has ended.
pub fn upgrade(path: &Path, program: &Path) -> io::Result<()> {
    let words = [UPGRADE, program.as_os_str().as_bytes()].concat();
    Ok(tell(path, &words)?)
}

/// Freezes the mounted volume that `path` is on, as long as the server's connection to a socket is
/// not closed, which listens under this name in no directory; at most `seconds`. Returns when the
/// mount stands still: requests wait, and everything that was done is committed.
///
/// # Errors
/// As [`upgrade`]; also `ERANGE` if the mount gives its server up before that (`abort_hung=`).
pub fn freeze(path: &Path, seconds: u64, socket: &str) -> io::Result<()> {
    let words = [FREEZE, format!("{seconds} {socket}").as_bytes()].concat();
    Ok(tell(path, &words)?)
}

/// What stops a mount for a moment.
pub(crate) enum Stop<'a> {
    /// It is handed over to this program.
    Upgrade(&'a OsStr),
    /// It is frozen as these words say.
    Freeze(&'a OsStr),
}

impl<'a> Stop<'a> {
    /// Returns what an attribute to set asks for.
    pub(crate) fn asked(name: &OsStr, value: &'a [u8]) -> Option<Self> {
        let rest = |word| value.strip_prefix(word).map(OsStr::from_bytes);
        if name != CONTROL {
            return None;
        }
        let freeze = || rest(FREEZE).map(Self::Freeze);
        rest(UPGRADE).map(Self::Upgrade).or_else(freeze)
    }
}

fn not_stetfs(path: &Path) -> io::Error {
    let message = format!("{}: not on a mounted stetfs volume", path.display());
    io::Error::new(io::ErrorKind::Unsupported, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_round_trip() {
        for c in [
            Command::Commit,
            Command::Drain,
            Command::Shutdown(Shutdown::NoLogFlush),
            Command::Shutdown(Shutdown::Full),
        ] {
            assert_eq!(Command::decode(c.encode().as_bytes()), Some(c));
        }
        assert_eq!(Command::decode(b" commit\n"), Some(Command::Commit));
        assert_eq!(Command::decode(b"explode"), None);
    }

    #[test]
    fn other_file_systems_are_told_apart() {
        let e = query_stats(Path::new("/proc")).unwrap_err();
        assert_eq!(e.kind(), io::ErrorKind::Unsupported);
    }
}
