//! Answers: records and bytes that go back to the kernel behind a header.
//!
//! An answer is built where it is sent from: in the worker's buffer, behind room for the header.
//! Contents of files are read from the volume straight into it.

use std::time::Duration;

use bytemuck::Pod;
use rustix::io::Errno;
use stetfs_format::width::{must_fit_u32, u32_as_usize};

use super::abi::{self, Attr, OutHeader};

/// Bytes for the header before an answer's body.
pub(crate) const HEADER: usize = size_of::<OutHeader>();

/// An answer while it is built.
#[derive(Debug)]
pub(crate) struct Answer<'a> {
    buffer: &'a mut [u8],
    /// The end of the answer so far; at first just behind the header.
    end: usize,
}

impl<'a> Answer<'a> {
    pub(crate) fn new(buffer: &'a mut [u8]) -> Self {
        Self {
            buffer,
            end: HEADER,
        }
    }

    /// Returns the number of bytes so far, with the header.
    pub(crate) fn len(&self) -> usize {
        self.end
    }

    /// Returns what was added so far.
    pub(crate) fn body(&self) -> &[u8] {
        &self.buffer[HEADER..self.end]
    }

    /// Adds a record.
    ///
    /// # Errors
    /// The record does not fit. Every answer that the kernel can ask for does.
    pub(crate) fn record<T: Pod>(&mut self, record: &T) -> Result<(), Errno> {
        self.bytes(bytemuck::bytes_of(record))
    }

    /// Adds bytes.
    ///
    /// # Errors
    /// As [`Self::record`].
    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> Result<(), Errno> {
        self.fill(bytes.len(), |room| {
            room.copy_from_slice(bytes);
            Ok(bytes.len())
        })
    }

    /// Adds bytes: `fill` gets room for `len` bytes and returns how many it has put there.
    ///
    /// # Errors
    /// As [`Self::record`]; those of `fill`.
    pub(crate) fn fill(
        &mut self,
        len: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<usize, Errno>,
    ) -> Result<(), Errno> {
        let end = self.end.checked_add(len).ok_or(Errno::IO)?;
        let room = self.buffer.get_mut(self.end..end).ok_or(Errno::IO)?;
        self.end += fill(room)?;
        Ok(())
    }

    /// Adds the attributes of a file, which the kernel may keep for `keep`.
    ///
    /// # Errors
    /// As [`Self::record`].
    pub(crate) fn attr(&mut self, attr: Attr, keep: Duration) -> Result<(), Errno> {
        self.record(&abi::AttrOut::new(attr, keep))
    }

    /// Adds an extended attribute or a list of their names; only its size if the kernel asks with
    /// `size` 0.
    ///
    /// # Errors
    /// ERANGE if it is larger than the kernel's room; as [`Self::record`].
    pub(crate) fn xattr(&mut self, value: &[u8], size: u32) -> Result<(), Errno> {
        if size == 0 {
            return self.record(&abi::GetXattrOut {
                size: must_fit_u32(value.len()),
                padding: 0,
            });
        }
        if value.len() > u32_as_usize(size) {
            return Err(Errno::RANGE);
        }
        self.bytes(value)
    }

    /// Begins a list of names of at most `size` bytes in this answer.
    pub(crate) fn names(&mut self, size: u32) -> Names<'_, 'a> {
        let limit = self.end.saturating_add(u32_as_usize(size));
        let limit = limit.min(self.buffer.len());
        Names {
            answer: self,
            limit,
        }
    }

    /// Fills the header. Returns all bytes to send.
    pub(crate) fn finish(self, unique: u64) -> &'a [u8] {
        let header = OutHeader {
            len: must_fit_u32(self.end),
            error: 0,
            unique,
        };
        self.buffer[..HEADER].copy_from_slice(bytemuck::bytes_of(&header));
        &self.buffer[..self.end]
    }
}

/// The answer to READDIR or READDIRPLUS, while it is built.
#[derive(Debug)]
pub(crate) struct Names<'b, 'a> {
    answer: &'b mut Answer<'a>,
    limit: usize,
}

impl Names<'_, '_> {
    /// Adds a name, behind `entry` for READDIRPLUS. Returns whether it had room.
    pub(crate) fn add(
        &mut self,
        entry: Option<&abi::EntryOut>,
        (ino, kind): (u64, u32),
        next: u64,
        name: &[u8],
    ) -> bool {
        let head = entry.map_or(&[][..], bytemuck::bytes_of);
        let padded = (size_of::<abi::Dirent>() + name.len()).next_multiple_of(8);
        let start = self.answer.end;
        let end = start + head.len() + padded;
        if end > self.limit {
            return false;
        }
        let dirent = abi::Dirent {
            ino,
            off: next,
            namelen: must_fit_u32(name.len()),
            kind,
        };
        let room = &mut self.answer.buffer[start..end];
        let (place, room) = room.split_at_mut(head.len());
        place.copy_from_slice(head);
        let (place, room) = room.split_at_mut(size_of::<abi::Dirent>());
        place.copy_from_slice(bytemuck::bytes_of(&dirent));
        let (place, padding) = room.split_at_mut(name.len());
        place.copy_from_slice(name);
        padding.fill(0);
        self.answer.end = end;
        true
    }
}

/// Makes an answer with only an errno.
pub(crate) fn refusal(unique: u64, errno: Errno) -> OutHeader {
    OutHeader {
        len: must_fit_u32(HEADER),
        error: -errno.raw_os_error(),
        unique,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_end_where_the_kernel_has_no_more_room() {
        let mut buffer = vec![0xaa; 4096];
        let mut answer = Answer::new(&mut buffer);
        let mut names = answer.names(24 + 8 + 24 + 16);
        assert!(names.add(None, (2, 4), 1, b"."));
        assert!(names.add(None, (12, 8), 2, b"ninechars"));
        assert!(!names.add(None, (13, 8), 3, b"x"));
        let sent = answer.finish(5);
        assert_eq!(sent.len(), HEADER + 72);
        // Seven bytes of padding follow the name of one byte.
        assert_eq!(&sent[HEADER + 24..HEADER + 32], b".\0\0\0\0\0\0\0");
        assert_eq!(sent[..4], 88_u32.to_ne_bytes());
    }

    #[test]
    fn an_attribute_is_measured_or_given() {
        let mut buffer = vec![0; 64];
        let mut answer = Answer::new(&mut buffer);
        answer.xattr(b"value", 0).unwrap();
        assert_eq!(answer.finish(1)[HEADER..], *b"\x05\0\0\0\0\0\0\0");
        let mut answer = Answer::new(&mut buffer);
        assert_eq!(answer.xattr(b"value", 4), Err(Errno::RANGE));
        answer.xattr(b"value", 5).unwrap();
        assert_eq!(answer.finish(1)[HEADER..], *b"value");
    }
}
