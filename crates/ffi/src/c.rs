//! The library's interface for C. `include/stetfs.h` is made from this file and `c/tree.rs`.
//!
//! Functions of type `c_int` or `i64` return 0 or a count, or a negative errno; [`stetfs_message`]
//! says why in words. This file has volumes, files and groups. `c/tree.rs` has the other calls that
//! take a path.

pub mod tree;

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};
use std::path::Path;
use std::slice;

use rustix::fs::XattrFlags;
use stetfs::{
    Caller, Change, Error, Fs, Group, Kind, MountOptions, New, OpenError, OpenFlags, SetAttr,
    SetXattr,
};
use stetfs_format::InodeNo;
use stetfs_media::MediaError;

/// A mounted volume. Several threads may use it at once.
pub struct StetfsVolume {
    fs: Fs,
}

/// An open file of a volume. Several threads may use it at once.
pub struct StetfsFile {
    fs: Fs,
    ino: InodeNo,
    /// True if it was opened for writing.
    writes: bool,
}

/// Changes that become one transaction. Only one thread at a time may use it.
pub struct StetfsGroup {
    group: Group,
}

/// Open for reading and writing. Without this flag: for reading.
pub const STETFS_WRITE: c_int = 1;
/// Create the file if it does not exist.
pub const STETFS_CREATE: c_int = 2;
/// With `STETFS_CREATE`: fail with -EEXIST if the file exists.
pub const STETFS_EXCLUSIVE: c_int = 4;
/// Truncate the file to length 0.
pub const STETFS_TRUNCATE: c_int = 8;

thread_local! {
    static MESSAGE: RefCell<CString> = RefCell::default();
}

/// Why a call failed: the errno, and the words for [`stetfs_message`].
struct Failed {
    errno: rustix::io::Errno,
    why: String,
}

impl From<Error> for Failed {
    fn from(e: Error) -> Self {
        Self {
            errno: e.kind().errno(),
            why: e.to_string(),
        }
    }
}

impl From<OpenError> for Failed {
    fn from(e: OpenError) -> Self {
        let errno = match &e {
            OpenError::Media(MediaError::Open { source, .. }) => *source,
            OpenError::Media(MediaError::Busy { .. }) => Kind::Busy.errno(),
            _ => Kind::Io.errno(),
        };
        Self {
            errno,
            why: e.to_string(),
        }
    }
}

fn invalid(why: impl ToString) -> Failed {
    Failed {
        errno: Kind::Invalid.errno(),
        why: why.to_string(),
    }
}

type Result<T, E = Failed> = std::result::Result<T, E>;

/// Converts a result into what C gets. Keeps an error's words for [`stetfs_message`].
fn answer(result: Result<i64>) -> i64 {
    result.unwrap_or_else(|failed| {
        // A string of C cannot hold a NUL.
        let words = CString::new(failed.why.replace('\0', "?")).unwrap_or_default();
        MESSAGE.set(words);
        -i64::from(failed.errno.raw_os_error())
    })
}

/// Converts the result of a call that has nothing to count: 0 on success.
fn done<T>(result: Result<T>) -> c_int {
    c_int::try_from(answer(result.map(|_| 0))).unwrap_or(-1)
}

/// # Safety
/// `text` is null or a string that lives as long as the call.
unsafe fn bytes<'a>(text: *const c_char) -> Result<&'a [u8]> {
    if text.is_null() {
        Err(invalid("a null pointer where a string was wanted"))
    } else {
        // SAFETY: by the contract.
        Ok(unsafe { CStr::from_ptr(text) }.to_bytes())
    }
}

/// # Safety
/// As [`bytes`].
unsafe fn string<'a>(text: *const c_char) -> Result<&'a str> {
    // SAFETY: by the contract.
    let bytes = unsafe { bytes(text)? };
    std::str::from_utf8(bytes).map_err(invalid)
}

/// Fails if `at` is null although `len` is not 0, and if no memory has `len` bytes.
fn check_memory(at: *const u8, len: usize) -> Result<()> {
    match isize::try_from(len) {
        Ok(1..) if at.is_null() => Err(invalid("a null pointer where bytes were wanted")),
        Ok(_) => Ok(()),
        Err(_) => Err(invalid(format!("{len} bytes, more than memory can have"))),
    }
}

/// # Safety
/// `at` is null, or points to `len` bytes that live as long as the call.
unsafe fn memory<'a>(at: *const u8, len: usize) -> Result<&'a [u8]> {
    check_memory(at, len)?;
    Ok(match len {
        0 => &[],
        // SAFETY: by the contract, and `check_memory` has passed `len`.
        _ => unsafe { slice::from_raw_parts(at, len) },
    })
}

/// # Safety
/// As [`memory`]; nobody else uses the bytes meanwhile.
unsafe fn memory_mut<'a>(at: *mut u8, len: usize) -> Result<&'a mut [u8]> {
    check_memory(at, len)?;
    Ok(match len {
        0 => &mut [],
        // SAFETY: by the contract, and `check_memory` has passed `len`.
        _ => unsafe { slice::from_raw_parts_mut(at, len) },
    })
}

impl StetfsFile {
    /// Wraps an inode that was opened once for this value.
    fn new(fs: &Fs, ino: InodeNo, writes: bool) -> Self {
        let fs = fs.clone();
        Self { fs, ino, writes }
    }

    fn check_writes(&self) -> Result<()> {
        if self.writes {
            Ok(())
        } else {
            Err(Failed {
                errno: Kind::BadFile.errno(),
                why: "the file is open for reading only".to_owned(),
            })
        }
    }
}

impl StetfsGroup {
    /// Fails for a file of another volume.
    fn check(&self, file: &StetfsFile) -> Result<()> {
        if self.group.fs().is_same(&file.fs) {
            Ok(())
        } else {
            Err(Failed {
                errno: rustix::io::Errno::XDEV,
                why: "the file is on another volume than the group".to_owned(),
            })
        }
    }
}

/// Copies `value` to `out` and returns its length. An empty `out` asks for the length alone; one
/// that is too short fails with [`Error::Range`].
fn fill(out: &mut [u8], value: &[u8]) -> Result<i64> {
    if !out.is_empty() {
        let out = out.get_mut(..value.len()).ok_or(Error::Range)?;
        out.copy_from_slice(value);
    }
    Ok(count(value.len()))
}

/// Translates the flags of setxattr(2).
fn how_to_set(flags: c_int) -> Result<SetXattr> {
    match XattrFlags::from_bits(flags.cast_unsigned()) {
        Some(XattrFlags::CREATE) => Ok(SetXattr::Create),
        Some(XattrFlags::REPLACE) => Ok(SetXattr::Replace),
        Some(flags) if flags.is_empty() => Ok(SetXattr::Any),
        _ => Err(invalid(format!("unknown flags {flags:#x}"))),
    }
}

fn count(n: usize) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

// The functions below rely on what the header says: pointers to volumes, files and groups come from
// this library and are not closed; buffers have their lengths; strings end with a NUL.

/// Returns why the last failed call of this thread failed, in words. The string is valid until the
/// next failure in this thread.
#[unsafe(no_mangle)]
pub extern "C" fn stetfs_message() -> *const c_char {
    MESSAGE.with_borrow(|message| message.as_ptr())
}

/// Opens the volume in a file or block device and locks it against everybody else. `options` are
/// mount options as `stetfs mount -o` takes them (NULL: none). Recovers the volume after a crash.
///
/// # Safety
/// `image` is a string, `options` a string or NULL, `out` points to a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stetfs_open(
    image: *const c_char,
    options: *const c_char,
    out: *mut *mut StetfsVolume,
) -> c_int {
    let open = || {
        // SAFETY: by the contract.
        let (image, options) = unsafe {
            let list = if options.is_null() {
                ""
            } else {
                string(options)?
            };
            (string(image)?, list)
        };
        let options = MountOptions::parse(options).map_err(invalid)?;
        let media = stetfs::open_media(Path::new(image), &options, options.read_only)?;
        let (fs, _) = Fs::mount(media, options)?;
        let volume = Box::into_raw(Box::new(StetfsVolume { fs }));
        // SAFETY: by the contract.
        unsafe { *out = volume };
        Ok(())
    };
    done(open())
}

/// Closes a volume: makes everything durable, leaves the volume clean and frees it. It is freed on
/// failure too; then the next open recovers everything that was confirmed. Close its files and
/// groups first. NULL does nothing.
///
/// # Safety
/// Nobody uses the volume any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stetfs_close(volume: *mut StetfsVolume) -> c_int {
    if volume.is_null() {
        return 0;
    }
    // SAFETY: by the contract `stetfs_open` has made it.
    let volume = unsafe { Box::from_raw(volume) };
    done(volume.fs.unmount().map_err(Failed::from))
}

/// Makes everything durable that was done before. Returns when it is.
///
/// # Safety
/// The volume is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stetfs_sync(volume: *const StetfsVolume) -> c_int {
    // SAFETY: by the contract.
    done(unsafe { &*volume }.fs.sync().map_err(Failed::from))
}

/// Creates a directory.
///
/// # Safety
/// The volume is open, `path` is a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stetfs_mkdir(
    volume: *const StetfsVolume,
    path: *const c_char,
    mode: u16,
) -> c_int {
    // SAFETY: by the contract.
    let (fs, path) = unsafe { (&(*volume).fs, bytes(path)) };
    done(path.and_then(|path| {
        let (dir, name) = fs.resolve_parent(&Caller::root(), path)?;
        fs.mkdir(&Caller::root(), dir.ino, name, mode)?;
        Ok(())
    }))
}

/// Removes a name of a file that is no directory.
///
/// # Safety
/// The volume is open, `path` is a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stetfs_unlink(volume: *const StetfsVolume, path: *const c_char) -> c_int {
    // SAFETY: by the contract.
    let (fs, path) = unsafe { (&(*volume).fs, bytes(path)) };
    done(path.and_then(|path| {
        let (dir, name) = fs.resolve_parent(&Caller::root(), path)?;
        Ok(fs.unlink(&Caller::root(), dir.ino, name)?)
    }))
}

/// Renames `from` to `to`. Replaces a file that has the name `to`.
///
/// # Safety
/// The volume is open, both paths are strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stetfs_rename(
    volume: *const StetfsVolume,
    from: *const c_char,
    to: *const c_char,
) -> c_int {
    // SAFETY: by the contract.
    let (fs, from, to) = unsafe { (&(*volume).fs, bytes(from), bytes(to)) };
    let rename = || {
        let c = Caller::root();
        let (from_dir, from) = fs.resolve_parent(&c, from?)?;
        let (to_dir, to) = fs.resolve_parent(&c, to?)?;
        let flags = stetfs::RenameFlags::empty();
        Ok(fs.rename(&c, from_dir.ino, from, to_dir.ino, to, flags)?)
    };
    done(rename())
}

/// Opens a file by its path. `flags` are `STETFS_...` flags. A new file gets the permissions
/// `mode`.
///
/// # Safety
/// The volume is open, `path` is a string, `out` points to a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stetfs_open_file(
    volume: *const StetfsVolume,
    path: *const c_char,
    flags: c_int,
    mode: u16,
    out: *mut *mut StetfsFile,
) -> c_int {
    // SAFETY: by the contract.
    let (fs, path) = unsafe { (&(*volume).fs, bytes(path)) };
    let opened = path.and_then(|path| open_file(fs, path, flags, mode));
    done(opened.map(|ino| {
        let file = StetfsFile::new(fs, ino, flags & STETFS_WRITE != 0);
        // SAFETY: by the contract.
        unsafe { *out = Box::into_raw(Box::new(file)) };
    }))
}

fn open_file(fs: &Fs, path: &[u8], flags: c_int, mode: u16) -> Result<InodeNo> {
    const KNOWN: c_int = STETFS_WRITE | STETFS_CREATE | STETFS_EXCLUSIVE | STETFS_TRUNCATE;
    if flags & !KNOWN != 0 {
        return Err(invalid(format!("unknown flags {:#x}", flags & !KNOWN)));
    }
    let mut how = OpenFlags::READ;
    for (flag, as_flag) in [
        (STETFS_WRITE, OpenFlags::WRITE),
        (STETFS_EXCLUSIVE, OpenFlags::EXCLUSIVE),
        (STETFS_TRUNCATE, OpenFlags::TRUNCATE),
    ] {
        if flags & flag != 0 {
            how |= as_flag;
        }
    }
    let c = Caller::root();
    if flags & STETFS_CREATE != 0 {
        let (dir, name) = fs.resolve_parent(&c, path)?;
        return Ok(fs.create(&c, dir.ino, name, mode, how)?.ino);
    }
    let ino = fs.resolve(&c, path, true)?.ino;
    fs.open(&c, ino, how)?;
    Ok(ino)
}

/// Closes a file. Data that was written and not synced stays in the file, but a crash may lose it.
/// NULL does nothing.
///
/// # Safety
/// Nobody uses the file any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stetfs_close_file(file: *mut StetfsFile) -> c_int {
    if file.is_null() {
        return 0;
    }
    // SAFETY: by the contract `stetfs_open_file` has made it.
    let file = unsafe { Box::from_raw(file) };
    done(file.fs.release(file.ino).map_err(Failed::from))
}

/// Reads up to `len` bytes at `offset`. Returns how many it read: fewer only at the file's end.
///
/// # Safety
/// The file is open, `out` has `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stetfs_read(
    file: *const StetfsFile,
    out: *mut u8,
    len: usize,
    offset: u64,
) -> i64 {
    // SAFETY: by the contract.
    let (file, out) = unsafe { (&*file, memory_mut(out, len)) };
    answer(out.and_then(|out| Ok(count(file.fs.read(file.ino, offset, out)?))))
}

/// Writes `len` bytes at `offset`. Returns how many it wrote: fewer on a full volume. They are
/// durable after `stetfs_fsync`.
///
/// # Safety
/// The file is open for writing, `from` has `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stetfs_write(
    file: *const StetfsFile,
    from: *const u8,
    len: usize,
    offset: u64,
) -> i64 {
    // SAFETY: by the contract.
    let (file, from) = unsafe { (&*file, memory(from, len)) };
    let write = || {
        file.check_writes()?;
        let n = file.fs.write(&Caller::root(), file.ino, offset, from?)?;
        Ok(count(n))
    };
    answer(write())
}

/// Makes the file's changes durable, also its name. Returns when they are.
///
/// # Safety
/// The file is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stetfs_fsync(file: *const StetfsFile) -> c_int {
    // SAFETY: by the contract.
    let file = unsafe { &*file };
    done(file.fs.fsync(file.ino, false).map_err(Failed::from))
}

/// Sets the file's length to `size` bytes.
///
/// # Safety
/// The file is open for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stetfs_truncate(file: *const StetfsFile, size: u64) -> c_int {
    // SAFETY: by the contract.
    let file = unsafe { &*file };
    let set = of_size(size);
    let cut = || {
        file.check_writes()?;
        file.fs.setattr(&Caller::root(), file.ino, &set)?;
        Ok(())
    };
    done(cut())
}

fn of_size(size: u64) -> SetAttr {
    SetAttr {
        size: Some(size),
        through_handle: true,
        ..SetAttr::default()
    }
}

/// Returns the file's length in bytes.
///
/// # Safety
/// The file is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stetfs_size(file: *const StetfsFile) -> i64 {
    // SAFETY: by the contract.
    let file = unsafe { &*file };
    let attr = file.fs.getattr(file.ino).map_err(Failed::from);
    answer(attr.map(|attr| i64::try_from(attr.size).unwrap_or(i64::MAX)))
}

/// Begins a group of changes. `stetfs_commit` makes them one transaction; nobody else sees them
/// before. The data of existing files that the group writes must be journaled (`data=journal`,
/// `atomic=all`, or a scheme that journals all data).
///
/// # Safety
/// The volume is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stetfs_begin(volume: *const StetfsVolume) -> *mut StetfsGroup {
    // SAFETY: by the contract.
    let group = unsafe { &*volume }.fs.begin();
    Box::into_raw(Box::new(StetfsGroup { group }))
}

/// Stages a write: all of the bytes, or none on failure. -EFBIG: one transaction cannot hold them;
/// -ENOSPC: the volume is full. What was staged before stays staged.
///
/// # Safety
/// Group and file are open and of one volume, `from` has `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stetfs_group_write(
    group: *mut StetfsGroup,
    file: *const StetfsFile,
    from: *const u8,
    len: usize,
    offset: u64,
) -> c_int {
    // SAFETY: by the contract.
    let (group, file, from) = unsafe { (&mut *group, &*file, memory(from, len)) };
    let stage = || {
        group.check(file)?;
        file.check_writes()?;
        Ok(group
            .group
            .write(&Caller::root(), file.ino, offset, from?)?)
    };
    done(stage())
}

/// Reads the file as it will be after the commit. Returns how many bytes it read: fewer than `len`
/// only at the end that the file will have.
///
/// # Safety
/// Group and file are open and of one volume, `out` has `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stetfs_group_read(
    group: *const StetfsGroup,
    file: *const StetfsFile,
    out: *mut u8,
    len: usize,
    offset: u64,
) -> i64 {
    // SAFETY: by the contract.
    let (group, file, out) = unsafe { (&*group, &*file, memory_mut(out, len)) };
    let read = || {
        group.check(file)?;
        Ok(count(group.group.read(file.ino, offset, out?)?))
    };
    answer(read())
}

/// Stages a new length of the file: `size` bytes.
///
/// # Safety
/// Group and file are open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stetfs_group_truncate(
    group: *mut StetfsGroup,
    file: *const StetfsFile,
    size: u64,
) -> c_int {
    // SAFETY: by the contract.
    let (group, file) = unsafe { (&mut *group, &*file) };
    let mut cut = || {
        group.check(file)?;
        file.check_writes()?;
        Ok(group
            .group
            .change(&Caller::root(), &Change::SetAttr(file.ino, &of_size(size)))?)
    };
    done(cut())
}

/// Creates a file and opens it for reading and writing. Others find it once the group is committed.
/// Writes to it, with or without the group, need not fit into a transaction. The functions of a
/// group take paths as the group sees them.
///
/// # Safety
/// The group is open, `path` is a string, `out` points to a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stetfs_group_create(
    group: *mut StetfsGroup,
    path: *const c_char,
    mode: u16,
    out: *mut *mut StetfsFile,
) -> c_int {
    // SAFETY: by the contract.
    let (group, path) = unsafe { (&mut (*group).group, bytes(path)) };
    let create = || {
        let c = Caller::root();
        let (dir, name) = group.resolve_parent(&c, path?)?;
        let made = group.change(&c, &Change::Make((dir.ino, name), New::File(mode)))?;
        // The group keeps its own open; this one is the caller's.
        group
            .fs()
            .open(&c, made.ino, OpenFlags::READ | OpenFlags::WRITE)?;
        Ok(StetfsFile::new(group.fs(), made.ino, true))
    };
    done(create().map(|file| {
        // SAFETY: by the contract.
        unsafe { *out = Box::into_raw(Box::new(file)) };
    }))
}

/// Creates a directory.
///
/// # Safety
/// The group is open, `path` is a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stetfs_group_mkdir(
    group: *mut StetfsGroup,
    path: *const c_char,
    mode: u16,
) -> c_int {
    // SAFETY: by the contract.
    let (group, path) = unsafe { (&mut (*group).group, bytes(path)) };
    let make = || {
        let c = Caller::root();
        let (dir, name) = group.resolve_parent(&c, path?)?;
        group.change(&c, &Change::Make((dir.ino, name), New::Directory(mode)))?;
        Ok(())
    };
    done(make())
}

/// Creates a symbolic link at `path` that leads to `target`.
///
/// # Safety
/// The group is open, both are strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stetfs_group_symlink(
    group: *mut StetfsGroup,
    target: *const c_char,
    path: *const c_char,
) -> c_int {
    // SAFETY: by the contract.
    let (group, target, path) = unsafe { (&mut (*group).group, bytes(target), bytes(path)) };
    let make = || {
        let c = Caller::root();
        let (dir, name) = group.resolve_parent(&c, path?)?;
        group.change(&c, &Change::Make((dir.ino, name), New::Symlink(target?)))?;
        Ok(())
    };
    done(make())
}

/// Gives the file at `from` one more name, `to`. `from` may be no directory.
///
/// # Safety
/// The group is open, both paths are strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stetfs_group_link(
    group: *mut StetfsGroup,
    from: *const c_char,
    to: *const c_char,
) -> c_int {
    // SAFETY: by the contract.
    let (group, from, to) = unsafe { (&mut (*group).group, bytes(from), bytes(to)) };
    let link = || {
        let c = Caller::root();
        let from = group.resolve(&c, from?, false)?;
        let (dir, name) = group.resolve_parent(&c, to?)?;
        Ok(group.change(&c, &Change::Link(from.ino, (dir.ino, name)))?)
    };
    done(link())
}

/// Removes a name of a file that is no directory.
///
/// # Safety
/// The group is open, `path` is a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stetfs_group_unlink(
    group: *mut StetfsGroup,
    path: *const c_char,
) -> c_int {
    // SAFETY: by the contract.
    let (group, path) = unsafe { (&mut (*group).group, bytes(path)) };
    let remove = || {
        let c = Caller::root();
        let (dir, name) = group.resolve_parent(&c, path?)?;
        Ok(group.change(&c, &Change::Unlink((dir.ino, name)))?)
    };
    done(remove())
}

/// Removes a directory, which must be empty as the group sees it.
///
/// # Safety
/// The group is open, `path` is a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stetfs_group_rmdir(group: *mut StetfsGroup, path: *const c_char) -> c_int {
    // SAFETY: by the contract.
    let (group, path) = unsafe { (&mut (*group).group, bytes(path)) };
    let remove = || {
        let c = Caller::root();
        let (dir, name) = group.resolve_parent(&c, path?)?;
        Ok(group.change(&c, &Change::Rmdir((dir.ino, name)))?)
    };
    done(remove())
}

/// Renames `from` to `to`. Replaces a file that has the name `to`.
///
/// # Safety
/// The group is open, both paths are strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stetfs_group_rename(
    group: *mut StetfsGroup,
    from: *const c_char,
    to: *const c_char,
) -> c_int {
    // SAFETY: by the contract.
    let (group, from, to) = unsafe { (&mut (*group).group, bytes(from), bytes(to)) };
    let rename = || {
        let c = Caller::root();
        let (from_dir, from) = group.resolve_parent(&c, from?)?;
        let (to_dir, to) = group.resolve_parent(&c, to?)?;
        let flags = stetfs::RenameFlags::empty();
        Ok(group.change(
            &c,
            &Change::Rename((from_dir.ino, from), (to_dir.ino, to), flags),
        )?)
    };
    done(rename())
}

/// Sets an extended attribute. Does not follow a symbolic link at the end of `path`. `flags` are
/// those of setxattr(2).
///
/// # Safety
/// The group is open, path and name are strings, `value` has `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stetfs_group_setxattr(
    group: *mut StetfsGroup,
    path: *const c_char,
    name: *const c_char,
    value: *const u8,
    len: usize,
    flags: c_int,
) -> c_int {
    // SAFETY: by the contract.
    let (group, path, name) = unsafe { (&mut (*group).group, bytes(path), bytes(name)) };
    // SAFETY: by the contract.
    let value = unsafe { memory(value, len) };
    let set = || {
        let c = Caller::root();
        let how = how_to_set(flags)?;
        let found = group.resolve(&c, path?, false)?;
        Ok(group.change(&c, &Change::SetXattr(found.ino, name?, value?, how))?)
    };
    done(set())
}

/// Removes an extended attribute. Does not follow a symbolic link at the end of `path`.
///
/// # Safety
/// The group is open, path and name are strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stetfs_group_removexattr(
    group: *mut StetfsGroup,
    path: *const c_char,
    name: *const c_char,
) -> c_int {
    // SAFETY: by the contract.
    let (group, path, name) = unsafe { (&mut (*group).group, bytes(path), bytes(name)) };
    let remove = || {
        let c = Caller::root();
        let found = group.resolve(&c, path?, false)?;
        Ok(group.change(&c, &Change::RemoveXattr(found.ino, name?))?)
    };
    done(remove())
}

/// Reads an extended attribute as the group sees it, and returns its length. A `len` of 0 asks for
/// the length alone; -ERANGE: `out` is too short. Does not follow a symbolic link at the end of
/// `path`.
///
/// # Safety
/// The group is open, path and name are strings, `out` has `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stetfs_group_getxattr(
    group: *mut StetfsGroup,
    path: *const c_char,
    name: *const c_char,
    out: *mut u8,
    len: usize,
) -> i64 {
    // SAFETY: by the contract.
    let (group, path, name) = unsafe { (&mut (*group).group, bytes(path), bytes(name)) };
    // SAFETY: by the contract.
    let out = unsafe { memory_mut(out, len) };
    let get = || {
        let c = Caller::root();
        let found = group.resolve(&c, path?, false)?;
        fill(out?, &group.getxattr(&c, found.ino, name?)?)
    };
    answer(get())
}

/// Lists the names of the extended attributes, each ended by a 0, and returns their length
/// together. `len` and symbolic links are as in `stetfs_group_getxattr`.
///
/// # Safety
/// The group is open, the path is a string, `out` has `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stetfs_group_listxattr(
    group: *mut StetfsGroup,
    path: *const c_char,
    out: *mut u8,
    len: usize,
) -> i64 {
    // SAFETY: by the contract.
    let (group, path, out) = unsafe { (&mut (*group).group, bytes(path), memory_mut(out, len)) };
    let list = || {
        let c = Caller::root();
        let found = group.resolve(&c, path?, false)?;
        fill(out?, &group.listxattr(&c, found.ino)?)
    };
    answer(list())
}

/// Commits the group: all of its changes happen, and are durable on return. Then the group is empty
/// and can be used again. On failure nothing has happened and everything stays staged, unless the
/// device has failed. -EBUSY: somebody has meanwhile changed a name, or by another group a file,
/// that this group changes.
///
/// # Safety
/// The group is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stetfs_commit(group: *mut StetfsGroup) -> c_int {
    // SAFETY: by the contract.
    let group = unsafe { &mut *group };
    done(group.group.commit(&Caller::root()).map_err(Failed::from))
}

/// Drops what is staged and frees the group. NULL does nothing.
///
/// # Safety
/// Nobody uses the group any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stetfs_end(group: *mut StetfsGroup) {
    if group.is_null() {
        return;
    }
    // SAFETY: by the contract `stetfs_begin` has made it.
    drop(unsafe { Box::from_raw(group) });
}
