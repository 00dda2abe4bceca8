//! Calls on files by the symbols of the C library.
//!
//! Programs such as fakeroot(1) show another machine to one process: they stand before these
//! symbols (LD_PRELOAD). fakeroot remembers the owners, modes, devices and attributes that its
//! process was not allowed to set, and reports them later. A direct system call would not see them,
//! and would leave fakeroot's record of a file behind when it removes the file. The standard
//! library calls these symbols too; this module has what it does not offer.

use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd};

use rustix::io::Errno;

/// The user and group that new files belong to.
pub fn effective_ids() -> (u32, u32) {
    // SAFETY: both take no argument and cannot fail.
    unsafe { (libc::geteuid(), libc::getegid()) }
}

/// Makes a directory of this name in `dir` (mkdirat(2)).
pub fn make_dir(dir: impl AsFd, name: &[u8], mode: u32) -> Result<(), Errno> {
    let name = c_string(name)?;
    // SAFETY: the name is ended by a NUL and lives until the call returns.
    done(unsafe { libc::mkdirat(dir.as_fd().as_raw_fd(), name.as_ptr(), mode) })
}

/// Makes a file of this type and mode in `dir`; `rdev` is major and minor number of a device
/// (mknodat(2)).
pub fn make_node(
    dir: impl AsFd,
    name: &[u8],
    mode: u32,
    (major, minor): (u32, u32),
) -> Result<(), Errno> {
    let name = c_string(name)?;
    let (dir, rdev) = (dir.as_fd().as_raw_fd(), libc::makedev(major, minor));
    // SAFETY: the name is ended by a NUL and lives until the call returns.
    done(unsafe { libc::mknodat(dir, name.as_ptr(), mode, rdev) })
}

/// Removes this name from `dir`: an empty directory if `is_dir`, otherwise anything else
/// (unlinkat(2)).
pub fn remove(dir: impl AsFd, name: &[u8], is_dir: bool) -> Result<(), Errno> {
    let name = c_string(name)?;
    let flags = if is_dir { libc::AT_REMOVEDIR } else { 0 };
    // SAFETY: the name is ended by a NUL and lives until the call returns.
    done(unsafe { libc::unlinkat(dir.as_fd().as_raw_fd(), name.as_ptr(), flags) })
}

/// Lists the names of a file's extended attributes, each ended by a NUL (listxattr(2)). Returns how
/// many bytes there are; `RANGE` if they do not fit.
pub fn list_xattrs(path: &[u8], out: &mut [u8]) -> Result<usize, Errno> {
    let path = c_string(path)?;
    // SAFETY: the path is ended by a NUL, and the buffer has as many bytes as the call is told.
    length(unsafe { libc::listxattr(path.as_ptr(), out.as_mut_ptr().cast(), out.len()) })
}

/// Reads the value of an extended attribute (getxattr(2)). Returns its length; `RANGE` if it does
/// not fit.
pub fn get_xattr(path: &[u8], name: &[u8], out: &mut [u8]) -> Result<usize, Errno> {
    let (path, name) = (c_string(path)?, c_string(name)?);
    let value = out.as_mut_ptr().cast();
    // SAFETY: both strings are ended by a NUL, and the buffer has as many bytes as the call is
    // told.
    length(unsafe { libc::getxattr(path.as_ptr(), name.as_ptr(), value, out.len()) })
}

/// Sets an extended attribute, whether or not the file has one of this name (setxattr(2)).
pub fn set_xattr(path: &[u8], name: &[u8], value: &[u8]) -> Result<(), Errno> {
    let (path, name) = (c_string(path)?, c_string(name)?);
    let (bytes, len) = (value.as_ptr().cast(), value.len());
    // SAFETY: both strings are ended by a NUL, and the value has as many bytes as the call is told.
    done(unsafe { libc::setxattr(path.as_ptr(), name.as_ptr(), bytes, len, 0) })
}

/// Removes an extended attribute (removexattr(2)).
pub fn remove_xattr(path: &[u8], name: &[u8]) -> Result<(), Errno> {
    let (path, name) = (c_string(path)?, c_string(name)?);
    // SAFETY: both strings are ended by a NUL and live until the call returns.
    done(unsafe { libc::removexattr(path.as_ptr(), name.as_ptr()) })
}

fn c_string(bytes: &[u8]) -> Result<CString, Errno> {
    CString::new(bytes).map_err(|_| Errno::INVAL)
}

fn done(result: libc::c_int) -> Result<(), Errno> {
    match result {
        0 => Ok(()),
        _ => Err(last_error()),
    }
}

fn length(result: libc::ssize_t) -> Result<usize, Errno> {
    usize::try_from(result).map_err(|_| last_error())
}

fn last_error() -> Errno {
    let last = std::io::Error::last_os_error();
    Errno::from_io_error(&last).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    #[test]
    fn what_is_made_is_there_and_what_fails_has_its_errno() {
        let path = std::env::temp_dir().join(format!("libc-files-{}", std::process::id()));
        fs::create_dir(&path).expect("a directory");
        let dir = fs::File::open(&path).expect("it can be opened");
        make_dir(&dir, b"dir", 0o700).expect("a directory in it");
        assert_eq!(make_dir(&dir, b"dir", 0o700), Err(Errno::EXIST));
        make_node(&dir, b"fifo", libc::S_IFIFO | 0o600, (0, 0)).expect("a pipe");
        assert_eq!(remove(&dir, b"dir", false), Err(Errno::ISDIR));
        let mut out = [0; 100];
        let bytes = path.as_os_str().as_bytes();
        let missing = get_xattr(bytes, b"user.none", &mut out);
        assert!(
            matches!(missing, Err(Errno::NODATA | Errno::NOTSUP)),
            "{missing:?}"
        );
        assert_eq!(set_xattr(bytes, b"user.\0", b""), Err(Errno::INVAL));
        remove(&dir, b"dir", true).expect("it is empty");
        remove(&dir, b"fifo", false).expect("it is there");
        fs::remove_dir(&path).expect("nothing is left");
    }
}
