//! Names and attributes by path, for C: what `c.rs` leaves out. Each change is a transaction, or
//! part of one, as on a mount.

use std::ffi::{c_char, c_int};

use stetfs::{Caller, Entry, Fs, SetAttr, SetTime};
use stetfs_format::Time;

use super::{
    Result, StetfsVolume, answer, bytes, done, fill, how_to_set, invalid, memory, memory_mut,
};

/// Bytes of the longest name and the 0 behind it.
pub const STETFS_NAME_SIZE: usize = 256;

/// A point in time.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct StetfsTime {
    /// Seconds since 1970.
    pub seconds: i64,
    /// Nanoseconds of the second, below 1000000000.
    pub nanoseconds: u32,
}

/// The attributes of a file, as stat(2) gives them.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct StetfsStat {
    /// Inode number.
    pub ino: u64,
    /// Length in bytes.
    pub size: u64,
    /// Allocated space in units of 512 bytes.
    pub blocks: u64,
    /// File type and permissions (`S_IFDIR | 0755`).
    pub mode: u32,
    /// Number of names (hard links).
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Major number of a device file.
    pub major: u32,
    /// Minor number of a device file.
    pub minor: u32,
    /// Last access.
    pub atime: StetfsTime,
    /// Last change of the content.
    pub mtime: StetfsTime,
    /// Last change of the inode.
    pub ctime: StetfsTime,
    /// Creation; 0 where the volume has no room for it.
    pub crtime: StetfsTime,
}

/// An entry of a directory.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct StetfsEntry {
    /// Inode number.
    pub ino: u64,
    /// File type, as `d_type` of readdir(3): 4 a directory, 8 a regular file, 10 a symbolic link, 0
    /// unknown.
    pub kind: u8,
    /// The name, ended by a 0.
    pub name: [u8; STETFS_NAME_SIZE],
}

impl From<Time> for StetfsTime {
    fn from(time: Time) -> Self {
        Self {
            seconds: time.sec,
            nanoseconds: time.nsec,
        }
    }
}

/// Finds what a path names. Does not follow a symbolic link at its end.
fn find(fs: &Fs, path: Result<&[u8]>) -> Result<Entry> {
    Ok(fs.resolve(&Caller::root(), path?, false)?)
}

/// Changes attributes of what a path names. Follows a symbolic link at its end.
fn change(fs: &Fs, path: Result<&[u8]>, set: &SetAttr) -> Result<()> {
    let c = Caller::root();
    let found = fs.resolve(&c, path?, true)?;
    fs.setattr(&c, found.ino, set)?;
    Ok(())
}

/// Reads the attributes of what `path` names. Follows a symbolic link at its end if `follow` is not
/// 0.
///
/// # Safety
/// The volume is open, `path` is a string, `out` points to a `StetfsStat`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stetfs_stat(
    volume: *const StetfsVolume,
    path: *const c_char,
    follow: c_int,
    out: *mut StetfsStat,
) -> c_int {
    // SAFETY: by the contract.
    let (fs, path) = unsafe { (&(*volume).fs, bytes(path)) };
    let stat = || {
        let found = fs.resolve(&Caller::root(), path?, follow != 0)?;
        let attr = fs.getattr(found.ino)?;
        Ok(StetfsStat {
            ino: attr.ino.0.into(),
            size: attr.size,
            blocks: attr.blocks,
            mode: attr.mode.into(),
            nlink: attr.nlink,
            uid: attr.uid,
            gid: attr.gid,
            major: attr.rdev.0,
            minor: attr.rdev.1,
            atime: attr.atime.into(),
            mtime: attr.mtime.into(),
            ctime: attr.ctime.into(),
            crtime: attr.crtime.into(),
        })
    };
    // SAFETY: by the contract.
    done(stat().map(|stat| unsafe { *out = stat }))
}

/// Reads the next entry of a directory. Returns 1 if there is one, 0 at the end. `*cookie` is 0 at
/// first; each call leaves there where the next one goes on. "." and ".." are entries too. Names
/// that are created or removed meanwhile may be missing; every other name comes once.
///
/// # Safety
/// The volume is open, `path` is a string, `cookie` and `out` point to values of their types.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stetfs_readdir(
    volume: *const StetfsVolume,
    path: *const c_char,
    cookie: *mut u64,
    out: *mut StetfsEntry,
) -> c_int {
    // SAFETY: by the contract.
    let (fs, path, cookie) = unsafe { (&(*volume).fs, bytes(path), &mut *cookie) };
    let read = || {
        let dir = fs.resolve(&Caller::root(), path?, true)?;
        let mut found = None;
        fs.readdir(dir.ino, *cookie, &mut |entry| {
            if found.is_some() {
                return false;
            }
            let mut name = [0; STETFS_NAME_SIZE];
            // A name has at most 255 bytes.
            let len = entry.name.len().min(STETFS_NAME_SIZE - 1);
            name[..len].copy_from_slice(&entry.name[..len]);
            let (ino, kind) = (entry.ino.0.into(), entry.kind);
            found = Some((StetfsEntry { ino, kind, name }, entry.next));
            true
        })?;
        Ok(found)
    };
    let given = answer(read().map(|found| match found {
        None => 0,
        Some((entry, next)) => {
            *cookie = next;
            // SAFETY: by the contract.
            unsafe { *out = entry };
            1
        }
    }));
    c_int::try_from(given).unwrap_or(-1)
}

/// Removes an empty directory.
///
/// # Safety
/// The volume is open, `path` is a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stetfs_rmdir(volume: *const StetfsVolume, path: *const c_char) -> c_int {
    // SAFETY: by the contract.
    let (fs, path) = unsafe { (&(*volume).fs, bytes(path)) };
    done(path.and_then(|path| {
        let (dir, name) = fs.resolve_parent(&Caller::root(), path)?;
        Ok(fs.rmdir(&Caller::root(), dir.ino, name)?)
    }))
}

/// Creates a symbolic link at `path` that leads to `target`.
///
/// # Safety
/// The volume is open, both are strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stetfs_symlink(
    volume: *const StetfsVolume,
    target: *const c_char,
    path: *const c_char,
) -> c_int {
    // SAFETY: by the contract.
    let (fs, target, path) = unsafe { (&(*volume).fs, bytes(target), bytes(path)) };
    let make = || {
        let c = Caller::root();
        let (dir, name) = fs.resolve_parent(&c, path?)?;
        fs.symlink(&c, dir.ino, name, target?)?;
        Ok(())
    };
    done(make())
}

/// Reads the target of a symbolic link, without a 0 behind it, and returns its length. A `len` of 0
/// asks for the length alone; -ERANGE: `out` is too short.
///
/// # Safety
/// The volume is open, `path` is a string, `out` has `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stetfs_readlink(
    volume: *const StetfsVolume,
    path: *const c_char,
    out: *mut u8,
    len: usize,
) -> i64 {
    // SAFETY: by the contract.
    let (fs, path, out) = unsafe { (&(*volume).fs, bytes(path), memory_mut(out, len)) };
    let read = || fill(out?, &fs.readlink(find(fs, path)?.ino)?);
    answer(read())
}

/// Gives the file at `from` one more name, `to`. `from` may be no directory.
///
/// # Safety
/// The volume is open, both paths are strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stetfs_link(
    volume: *const StetfsVolume,
    from: *const c_char,
    to: *const c_char,
) -> c_int {
    // SAFETY: by the contract.
    let (fs, from, to) = unsafe { (&(*volume).fs, bytes(from), bytes(to)) };
    let link = || {
        let c = Caller::root();
        let from = find(fs, from)?;
        let (dir, name) = fs.resolve_parent(&c, to?)?;
        fs.link(&c, from.ino, dir.ino, name)?;
        Ok(())
    };
    done(link())
}

/// Sets the permissions, at most 07777. Follows a symbolic link at the end of `path`.
///
/// # Safety
/// The volume is open, `path` is a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stetfs_chmod(
    volume: *const StetfsVolume,
    path: *const c_char,
    mode: u16,
) -> c_int {
    // SAFETY: by the contract.
    let (fs, path) = unsafe { (&(*volume).fs, bytes(path)) };
    let set = SetAttr {
        mode: Some(mode),
        ..SetAttr::default()
    };
    done(change(fs, path, &set))
}

/// Sets the owner and the group; -1 leaves one as it is. Does not follow a symbolic link at the end
/// of `path`.
///
/// # Safety
/// The volume is open, `path` is a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stetfs_chown(
    volume: *const StetfsVolume,
    path: *const c_char,
    uid: u32,
    gid: u32,
) -> c_int {
    // SAFETY: by the contract.
    let (fs, path) = unsafe { (&(*volume).fs, bytes(path)) };
    let given = |id: u32| (id != u32::MAX).then_some(id);
    let set = SetAttr {
        uid: given(uid),
        gid: given(gid),
        ..SetAttr::default()
    };
    let change = || {
        fs.setattr(&Caller::root(), find(fs, path)?.ino, &set)?;
        Ok(())
    };
    done(change())
}

/// Sets the times of the last access and of the last change of the content; NULL leaves one as it
/// is. Follows a symbolic link at the end of `path`.
///
/// # Safety
/// The volume is open, `path` is a string, the times are NULL or times.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stetfs_utimes(
    volume: *const StetfsVolume,
    path: *const c_char,
    atime: *const StetfsTime,
    mtime: *const StetfsTime,
) -> c_int {
    // SAFETY: by the contract.
    let (fs, path, atime, mtime) =
        unsafe { (&(*volume).fs, bytes(path), atime.as_ref(), mtime.as_ref()) };
    let time = |time: Option<&StetfsTime>| match time {
        None => Ok(None),
        Some(time) if time.nanoseconds < 1_000_000_000 => Ok(Some(SetTime::At(Time {
            sec: time.seconds,
            nsec: time.nanoseconds,
        }))),
        Some(time) => Err(invalid(format!("{} nanoseconds", time.nanoseconds))),
    };
    let set = || {
        let set = SetAttr {
            atime: time(atime)?,
            mtime: time(mtime)?,
            ..SetAttr::default()
        };
        change(fs, path, &set)
    };
    done(set())
}

/// Sets an extended attribute. Does not follow a symbolic link at the end of `path`. `flags` are
/// those of setxattr(2).
///
/// # Safety
/// The volume is open, path and name are strings, `value` has `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stetfs_setxattr(
    volume: *const StetfsVolume,
    path: *const c_char,
    name: *const c_char,
    value: *const u8,
    len: usize,
    flags: c_int,
) -> c_int {
    // SAFETY: by the contract.
    let (fs, path, name) = unsafe { (&(*volume).fs, bytes(path), bytes(name)) };
    // SAFETY: by the contract.
    let value = unsafe { memory(value, len) };
    let set = || {
        let how = how_to_set(flags)?;
        let found = find(fs, path)?;
        Ok(fs.setxattr(&Caller::root(), found.ino, name?, value?, how)?)
    };
    done(set())
}

/// Removes an extended attribute. Does not follow a symbolic link at the end of `path`.
///
/// # Safety
/// The volume is open, path and name are strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stetfs_removexattr(
    volume: *const StetfsVolume,
    path: *const c_char,
    name: *const c_char,
) -> c_int {
    // SAFETY: by the contract.
    let (fs, path, name) = unsafe { (&(*volume).fs, bytes(path), bytes(name)) };
    let remove = || {
        let found = find(fs, path)?;
        Ok(fs.removexattr(&Caller::root(), found.ino, name?)?)
    };
    done(remove())
}

/// Reads an extended attribute and returns its length. A `len` of 0 asks for the length alone;
/// -ERANGE: `out` is too short. Does not follow a symbolic link at the end of `path`.
///
/// # Safety
/// The volume is open, path and name are strings, `out` has `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stetfs_getxattr(
    volume: *const StetfsVolume,
    path: *const c_char,
    name: *const c_char,
    out: *mut u8,
    len: usize,
) -> i64 {
    // SAFETY: by the contract.
    let (fs, path, name) = unsafe { (&(*volume).fs, bytes(path), bytes(name)) };
    // SAFETY: by the contract.
    let out = unsafe { memory_mut(out, len) };
    let get = || {
        let found = find(fs, path)?;
        fill(out?, &fs.getxattr(&Caller::root(), found.ino, name?)?)
    };
    answer(get())
}

/// Lists the names of the extended attributes, each ended by a 0, and returns their length
/// together. `len` and symbolic links are as in `stetfs_getxattr`.
///
/// # Safety
/// The volume is open, the path is a string, `out` has `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stetfs_listxattr(
    volume: *const StetfsVolume,
    path: *const c_char,
    out: *mut u8,
    len: usize,
) -> i64 {
    // SAFETY: by the contract.
    let (fs, path, out) = unsafe { (&(*volume).fs, bytes(path), memory_mut(out, len)) };
    let list = || fill(out?, &fs.listxattr(&Caller::root(), find(fs, path)?.ino)?);
    answer(list())
}
