//! Copying between files of the volume (`copy_file_range`).

use stetfs_format::width::{u64_as_usize, usize_as_u64};

use crate::error::{Error, Result};
use crate::file;
use crate::inode::Inode;
use crate::scope::Scope;
use crate::seek;
use crate::types::{Caller, SetAttr, Whence, WriteFlags};
use crate::volume::Volume;

/// How many bytes are in memory at once.
const CHUNK: u64 = 1 << 20;

/// Copies up to `len` bytes; returns the number copied. Past the target's end, holes of the source
/// stay holes.
///
/// # Errors
/// `Invalid` for overlapping ranges of one file, `IsDirectory`, and the errors of reading and
/// writing.
pub(crate) fn copy_range(
    vol: &Scope<'_>,
    c: &Caller,
    (from, from_offset): (&Inode, u64),
    (to, to_offset): (&Inode, u64),
    len: u64,
) -> Result<u64> {
    let from_end = from_offset.checked_add(len).ok_or(Error::Overflow)?;
    let to_end = to_offset.checked_add(len).ok_or(Error::TooBig)?;
    if from.ino == to.ino && from_offset < to_end && to_offset < from_end {
        return Err(Error::Invalid);
    }
    let (size, regular) = {
        let st = from.state.read();
        st.check_live()?;
        (st.raw.size, st.is_reg())
    };
    if !regular {
        return Err(if from.state.read().is_dir() {
            Error::IsDirectory
        } else {
            Error::Invalid
        });
    }
    let len = len.min(size.saturating_sub(from_offset));
    let mut buffer = vec![0; u64_as_usize(len.min(CHUNK))];
    let mut done = 0;
    while done < len {
        let at = from_offset + done;
        let hole = hole_at(vol, from, at, from_offset + len)?;
        if hole > 0 && to_offset + done >= to.state.read().raw.size {
            grow(vol, c, to, to_offset + done + hole)?;
            done += hole;
            continue;
        }
        let want = u64_as_usize((len - done).min(CHUNK));
        let n = file::read(vol, from, at, &mut buffer[..want])?;
        if n == 0 {
            break;
        }
        let (_, n) = file::write(
            vol,
            c,
            to,
            to_offset + done,
            &buffer[..n],
            WriteFlags::empty(),
        )?;
        done += usize_as_u64(n);
    }
    Ok(done)
}

/// Returns the length of the hole at `at`, up to `end`; 0 when there is data.
fn hole_at(vol: &Volume, from: &Inode, at: u64, end: u64) -> Result<u64> {
    match seek::seek(vol, from, at, Whence::Data) {
        Ok(data) => Ok(data.min(end) - at),
        Err(Error::NoSuchDevice) => Ok(end - at),
        Err(e) => Err(e),
    }
}

fn grow(vol: &Scope<'_>, c: &Caller, to: &Inode, size: u64) -> Result<()> {
    let set = SetAttr {
        size: Some(size),
        through_handle: true,
        ..SetAttr::default()
    };
    crate::attr::setattr(vol, c, to, &set).map(drop)
}
