//! The log as a ring of bytes in persistent memory.
//!
//! Blocks 0 (JBD2's superblock) and 1 (our header) of the journal's inode stay out of the ring; the
//! rest is the ring, in order of the inode. Positions count from its start without end; they are
//! multiples of a cache line.

use std::sync::Arc;

use stetfs_format::jbd2::JBD2_MAGIC;
use stetfs_format::private_log::{LOG_STATE_OFFSET, LogHeader, TAIL_OFFSET, Tail};
use stetfs_format::width::{u64_as_usize, usize_as_u64};
use stetfs_media::pmem::Durable;
use stetfs_media::{Cause, Class, Pmem, Tag};

use crate::parts::ring::Ring;

use stetfs_scheme::{LogExtent, Result, SchemeError};

const CONTROL: Tag = Tag::new(Class::Journal, Cause::Control);
const RECOVERY: Tag = Tag::new(Class::Journal, Cause::Recovery);

pub(super) struct ByteLog {
    pub(super) ring: Ring,
    block_size: u64,
    header_at: u64,
}

impl ByteLog {
    /// The smallest ring that is worth its name: 16 blocks.
    const LEAST_BLOCKS: u64 = 16;

    pub(super) fn new(
        pmem: Arc<dyn Pmem>,
        block_size: usize,
        extents: &[LogExtent],
    ) -> Result<Self> {
        let block_size = usize_as_u64(block_size);
        let (mut skip, mut header_at, mut pieces) = (2, None, Vec::new());
        for extent in extents {
            let (start, len) = (extent.start.0, u64::from(extent.len));
            if header_at.is_none() && skip <= len {
                header_at = Some((start + skip - 1) * block_size);
            }
            let left_out = skip.min(len);
            skip -= left_out;
            if left_out < len {
                pieces.push((
                    (start + left_out) * block_size,
                    (len - left_out) * block_size,
                ));
            }
        }
        let capacity: u64 = pieces.iter().map(|p| p.1).sum();
        let in_memory =
            |&(at, len): &(u64, u64)| at.checked_add(len).is_some_and(|e| e <= pmem.size());
        match header_at {
            Some(header_at)
                if capacity >= Self::LEAST_BLOCKS * block_size && pieces.iter().all(in_memory) =>
            {
                Ok(Self {
                    ring: Ring::new(pmem, pieces)?,
                    block_size,
                    header_at,
                })
            }
            _ => Err(SchemeError::Unusable(format!(
                "its inode has {capacity} bytes for a log in this memory, too few"
            ))),
        }
    }

    /// Stores the state that makes a durable body valid; durable when it returns.
    pub(super) fn write_commit(&self, body: Durable<'_>, at: u64, word: u64) -> Result<()> {
        let tag = Tag::new(Class::Journal, Cause::CommitRecord);
        Ok(body.store_commit_word(self.ring.word_at(at), word, tag)?)
    }

    /// Stores a transaction's state that vouches for nothing; durable when it returns.
    pub(super) fn write_state(&self, at: u64, word: u64, cause: Cause) -> Result<()> {
        let tag = Tag::new(Class::Journal, cause);
        self.store_word(self.ring.word_at(at), word, tag)
    }

    /// The header block, as it stands.
    pub(super) fn read_header(&self) -> Result<[u8; LogHeader::SIZE]> {
        let mut bytes = [0; LogHeader::SIZE];
        self.ring.pmem.load(self.header_at, &mut bytes, RECOVERY)?;
        Ok(bytes)
    }

    /// Writes the header; durable when it returns.
    pub(super) fn write_header(&self, header: &LogHeader) -> Result<()> {
        let mut bytes = [0; LogHeader::SIZE];
        header.encode(&mut bytes);
        self.ring.pmem.store_nt(self.header_at, &bytes, CONTROL)?;
        Ok(self.ring.pmem.fence(Cause::Control)?)
    }

    /// Closes the log or opens it again, in one store; durable when it returns.
    pub(super) fn write_log_state(&self, is_closed: bool) -> Result<()> {
        let at = self.header_at + usize_as_u64(LOG_STATE_OFFSET);
        let word = LogHeader::state_word(is_closed);
        self.store_word(at, word, CONTROL)
    }

    /// Moves the log's beginning, in one store; durable when it returns.
    pub(super) fn write_tail(&self, tail: Tail, cause: Cause) -> Result<()> {
        let at = self.header_at + usize_as_u64(TAIL_OFFSET);
        self.store_word(at, tail.to_word(), Tag::new(Class::Journal, cause))
    }

    /// Stores a word; durable when it returns.
    fn store_word(&self, at: u64, word: u64, tag: Tag) -> Result<()> {
        self.ring.pmem.store_u64(at, word, tag)?;
        self.ring.pmem.flush(at, 8, tag)?;
        Ok(self.ring.pmem.fence(tag.cause)?)
    }

    /// Clears the blocks of the first `used` bytes of the ring that begin as a record of JBD2 does,
    /// so that its recovery never takes what is left here for one.
    pub(super) fn wipe(&self, used: u64) -> Result<()> {
        let mut at = 0;
        for &(offset, len) in &self.ring.pieces {
            for block in (0..len).step_by(u64_as_usize(self.block_size)) {
                if at + block >= used {
                    break;
                }
                let word = self.ring.pmem.load_u64(offset + block, CONTROL)?;
                if word.to_le_bytes().starts_with(&JBD2_MAGIC.to_be_bytes()) {
                    self.ring.pmem.store_nt(offset + block, &[0; 8], CONTROL)?;
                }
            }
            at += len;
        }
        Ok(self.ring.pmem.fence(Cause::Control)?)
    }
}

#[cfg(test)]
mod tests {
    use stetfs_format::BlockNo;
    use stetfs_media::pmem::Dirty;
    use stetfs_media::{Image, SimPmem};

    use super::*;

    fn extent(start: u64, len: u32) -> LogExtent {
        LogExtent {
            start: BlockNo(start),
            len,
        }
    }

    #[test]
    fn the_ring_goes_around_and_across_pieces() {
        for extents in [
            vec![extent(3, 40)],
            vec![extent(9, 1), extent(50, 20), extent(30, 19)],
            vec![extent(20, 2), extent(60, 38)],
        ] {
            let pmem = Arc::new(SimPmem::new(Image::new(128 << 10)));
            let byte_log = ByteLog::new(pmem.clone(), 1024, &extents).expect("a log");
            assert_eq!(byte_log.ring.capacity, 38 * 1024);
            let ring = &byte_log.ring;
            let bytes: Vec<u8> = (0..ring.capacity / 8 * 8)
                .map(|i| (i % 251) as u8)
                .collect();
            let at = ring.capacity * 3 + 17 * 64;
            let mut body = Dirty::in_memory(&*pmem);
            ring.write(&mut body, at, &bytes).expect("a write");
            let mut found = vec![0; bytes.len()];
            ring.read(at, &mut found).expect("a read");
            assert_eq!(found, bytes);
            ring.read(0, &mut found[..64]).expect("a read");
            assert_eq!(found[..64], bytes[bytes.len() - 17 * 64..][..64]);
            // Nothing outside the journal's blocks was touched, nor blocks 0 and 1.
            let newest = pmem.newest().to_bytes();
            let mine: Vec<u64> = extents
                .iter()
                .flat_map(|e| e.start.0..e.start.0 + u64::from(e.len))
                .skip(2)
                .collect();
            for block in (0..128).filter(|b| !mine.contains(b)) {
                assert!(
                    newest[block as usize * 1024..][..1024]
                        .iter()
                        .all(|&b| b == 0)
                );
            }
        }
    }
}
