//! What a request and its answer tell.

use bytemuck::Pod;
use stetfs_format::InodeNo;

use super::records::Ended;
use super::uses::Uses;
use crate::attr::inode;
use crate::wire::abi::{self, WriteKind};
use crate::wire::{Request, What};

/// Whether the core chooses the offset of a write.
pub(super) fn appends(from: &abi::WriteIn, writeback: bool) -> bool {
    let is_cached = WriteKind::from_bits_retain(from.write_flags).contains(WriteKind::CACHE);
    !is_cached && !writeback && from.flags & libc::O_APPEND != 0
}

/// Reads the record at this offset of an answer.
pub(super) fn record<T: Pod>(answer: &[u8], at: usize) -> Option<T> {
    let bytes = answer.get(at..at + size_of::<T>())?;
    Some(bytemuck::pod_read_unaligned(bytes))
}

/// Returns the inode of an answer's entry, and its generation.
pub(super) fn entry(answer: &[u8]) -> Option<(InodeNo, u32)> {
    let entry: abi::EntryOut = record(answer, 0)?;
    Some((inode(entry.nodeid), u32::try_from(entry.generation).ok()?))
}

/// Notes what a request that has ended leaves in use.
pub(super) fn note(uses: &mut Uses, request: &Request<'_>, ended: &Ended<'_>, answer: &[u8]) {
    if let Some((ino, generation, handle)) = opened(request, ended, answer) {
        uses.opened(ino, generation, handle);
        if let What::TmpFile(m) = &request.what
            && m.flags & libc::O_EXCL == 0
        {
            uses.is_nameable(ino, generation);
        }
    }
    if let What::Link { ino, .. } = &request.what {
        uses.was_named(inode(*ino));
    }
    if let Some((ino, generation)) = ended.held {
        uses.holds(ino, generation);
    }
}

/// Returns the file that a request has opened: its number, generation, and handle.
pub(super) fn opened(
    request: &Request<'_>,
    ended: &Ended<'_>,
    answer: &[u8],
) -> Option<(InodeNo, u32, u64)> {
    let (file, at) = match &request.what {
        What::Open(_) => {
            let opened = ended.past.changed.first()?;
            ((opened.ino, opened.generation), 0)
        }
        What::Create(..) | What::TmpFile(_) => (entry(answer)?, size_of::<abi::EntryOut>()),
        _ => return None,
    };
    let open: abi::OpenOut = record(answer, at)?;
    Some((file.0, file.1, open.fh))
}
