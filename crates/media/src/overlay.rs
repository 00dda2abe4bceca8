//! A device over another one that is only read. Writes stay in memory and vanish with the overlay.
//!
//! It lets a program read a volume that was not cleanly unmounted, without changing it: the journal
//! is replayed into the overlay. Written content takes memory in pages of 4 KiB, or of one sector
//! if that is larger.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::RwLock;

use crate::dev::BlockDev;
use crate::error::{MediaError, Op};
use crate::meter::Meter;
use crate::pmem::contract::Survives;
use crate::range::{check_parts, check_range};
use crate::tag::{Cause, Tag};
use stetfs_format::BlockSize;
use stetfs_format::width::{u32_as_usize, u64_as_usize, usize_as_u64};

/// Bytes of a page, unless the sectors are larger.
const PAGE: u32 = 4096;

/// A device whose writes stay in memory, over another one that is only read.
pub struct Overlay {
    below: Arc<dyn BlockDev>,
    page: BlockSize,
    /// Written pages, by their number.
    pages: RwLock<HashMap<u64, Box<[u8]>>>,
}

impl Overlay {
    /// An overlay over `below`, to which it writes nothing.
    pub fn new(below: Arc<dyn BlockDev>) -> Self {
        Self {
            page: BlockSize::of(u32_as_usize(PAGE.max(below.sector_size()))),
            below,
            pages: RwLock::default(),
        }
    }

    /// Bytes of memory that the written pages take.
    pub fn taken_bytes(&self) -> u64 {
        self.page.offset_of(usize_as_u64(self.pages.read().len()))
    }

    fn put(&self, offset: u64, data: &[u8], tag: Tag) -> Result<(), MediaError> {
        let mut pages = self.pages.write();
        for piece in self.page.pieces(offset, data.len()) {
            let page = match pages.entry(piece.block) {
                std::collections::hash_map::Entry::Occupied(page) => page.into_mut(),
                std::collections::hash_map::Entry::Vacant(place) => {
                    let start = self.page.offset_of(piece.block);
                    let left = u64_as_usize(self.below.size() - start);
                    let size = self.page.bytes().min(left);
                    let mut page = vec![0; size].into_boxed_slice();
                    if piece.len < size {
                        self.below.read_at(start, &mut page, Tag::read(tag.class))?;
                    }
                    place.insert(page)
                }
            };
            page[piece.in_block()].copy_from_slice(&data[piece.in_range()]);
        }
        Ok(())
    }
}

impl BlockDev for Overlay {
    fn describe(&self) -> String {
        format!(
            "{} (read only; changes stay in memory)",
            self.below.describe()
        )
    }

    fn size(&self) -> u64 {
        self.below.size()
    }

    fn sector_size(&self) -> u32 {
        self.below.sector_size()
    }

    fn atomic_unit(&self) -> u32 {
        self.below.atomic_unit()
    }

    fn read_only(&self) -> bool {
        false
    }

    fn volatile_cache(&self) -> bool {
        false
    }

    fn host_cached(&self) -> bool {
        self.below.host_cached()
    }

    fn jump_bytes(&self) -> u64 {
        self.below.jump_bytes()
    }

    fn survives(&self) -> Option<Survives> {
        self.below.survives()
    }

    fn read_at(&self, offset: u64, out: &mut [u8], tag: Tag) -> Result<(), MediaError> {
        // The lock is held while the device is read, so that a page written meanwhile appears in
        // all of the range or in none.
        let pages = self.pages.read();
        self.below.read_at(offset, out, tag)?;
        for piece in self.page.pieces(offset, out.len()) {
            if let Some(page) = pages.get(&piece.block) {
                out[piece.in_range()].copy_from_slice(&page[piece.in_block()]);
            }
        }
        Ok(())
    }

    fn write_vectored_at(&self, offset: u64, parts: &[&[u8]], tag: Tag) -> Result<(), MediaError> {
        check_parts(offset, parts, self.sector_size(), self.size())?;
        let mut at = offset;
        for part in parts {
            self.put(at, part, tag)?;
            at += usize_as_u64(part.len());
        }
        Ok(())
    }

    fn flush(&self, _: Cause) -> Result<(), MediaError> {
        Ok(())
    }

    fn check_backing(&self) -> Result<(), MediaError> {
        self.below.check_backing()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), MediaError> {
        check_range(Op::Discard, offset, len, self.sector_size(), self.size())
    }

    fn meter(&self) -> &Meter {
        self.below.meter()
    }
}

#[cfg(test)]
mod tests {
    use crate::image::Image;
    use crate::ram::RamDev;
    use crate::tag::Class;

    use super::*;

    const READ: Tag = Tag::read(Class::Data);
    const WRITE: Tag = Tag::new(Class::Data, Cause::Home);

    /// The overlay behaves like an image with the same writes, and the device below does not
    /// change.
    #[test]
    fn it_reads_what_was_written_and_writes_nothing() {
        let size = 1 << 18;
        // The last page is short.
        let size = size - 512;
        let content: Vec<u8> = (0..size).map(|i| (i / 512 % 251) as u8).collect();
        let below = Arc::new(RamDev::from_image(&content));
        let overlay = Overlay::new(below.clone());
        let mut model = Image::from_bytes(&content);
        let mut seed = 1u64;
        let mut random = move |n: u64| {
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % n
        };
        for round in 0..500u64 {
            let sectors = size as u64 / 512;
            let first = random(sectors);
            let len = 1 + random((sectors - first).min(40));
            let data = vec![round as u8; len as usize * 512];
            let middle = random(len) as usize * 512;
            let parts = [&data[..middle], &data[middle..]];
            overlay
                .write_vectored_at(first * 512, &parts, WRITE)
                .unwrap();
            model.write(first * 512, &data);
            let first = random(sectors);
            let len = 1 + random(sectors - first);
            let (mut is, mut should) = (vec![0; len as usize * 512], vec![0; len as usize * 512]);
            overlay.read_at(first * 512, &mut is, READ).unwrap();
            model.read(first * 512, &mut should);
            assert!(is == should, "round {round}: {len} sectors at {first}");
        }
        let mut after = vec![0; size];
        below.read_at(0, &mut after, READ).unwrap();
        assert!(after == content);
        assert!(overlay.taken_bytes() > 0);
        assert!(overlay.write_at(size as u64, &[0; 512], WRITE).is_err());
    }
}
