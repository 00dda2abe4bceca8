//! A device in memory: for tests, and for benchmarks in which the medium must cost little more than
//! the copy.
//!
//! The memory is divided into chunks of 64 KiB. Each has its own lock and is allocated when it is
//! first written. So threads that work in different places do not meet, and a device of 16 GiB
//! takes only what it uses. Nothing survives the process; a flush has nothing to do.

use std::io;
use std::path::Path;

use parking_lot::RwLock;

use crate::dev::BlockDev;
use crate::error::{MediaError, Op};
use crate::meter::Meter;
use crate::range::{check_parts, check_range};
use crate::sparse;
use crate::tag::{Cause, Tag};
use stetfs_format::BlockSize;
use stetfs_format::block_size::Piece;
use stetfs_format::width::{must_fit, u64_as_usize, usize_as_u64};

/// Bytes under one lock. A multiple of every sector size, so nobody ever sees half of a sector.
const CHUNK: usize = 64 << 10;
const CHUNKS: BlockSize = BlockSize::of(CHUNK);

type Chunk = Option<Box<[u8]>>;

/// Memory as a block device.
pub struct RamDev {
    chunks: Box<[RwLock<Chunk>]>,
    size: u64,
    sector: u32,
    meter: Meter,
}

impl RamDev {
    /// A device of `size` bytes, all zero, with sectors of 512 bytes. Panics unless `size` is a
    /// multiple of 512.
    pub fn new(size: u64) -> Self {
        Self::with_sector(size, 512)
    }

    /// A device of `size` zero bytes with sectors of `sector` bytes. Panics unless `sector` is a
    /// power of two from 512 to 65,536 and divides `size`.
    pub fn with_sector(size: u64, sector: u32) -> Self {
        assert!(
            sector.is_power_of_two() && (512..=must_fit(CHUNK)).contains(&sector),
            "sectors of {sector} bytes"
        );
        assert!(
            size.is_multiple_of(u64::from(sector)),
            "{size} bytes are no whole sectors of {sector}"
        );
        let count = CHUNKS.blocks_for(size);
        Self {
            chunks: (0..count).map(|_| RwLock::new(None)).collect(),
            size,
            sector,
            meter: Meter::new(),
        }
    }

    /// A device with this content. Panics unless its length is a multiple of 512.
    pub fn from_image(image: &[u8]) -> Self {
        let dev = Self::new(usize_as_u64(image.len()));
        for (chunk, bytes) in dev.chunks.iter().zip(image.chunks(CHUNK)) {
            put_unless_zero(&mut chunk.write(), bytes);
        }
        dev
    }

    /// A device with the content of a file, without a last piece that is shorter than a sector.
    pub fn from_file(path: &Path) -> io::Result<Self> {
        let len = std::fs::metadata(path)?.len();
        let dev = Self::new(len - len % 512);
        sparse::load(path, CHUNK, |offset, bytes| {
            if let Some(chunk) = dev.chunks.get(u64_as_usize(CHUNKS.block_of(offset))) {
                put_unless_zero(&mut chunk.write(), bytes);
            }
        })?;
        Ok(dev)
    }

    /// Writes the whole content into a file, with holes where nothing was ever written. The file
    /// may or may not contain each sector of a concurrent write.
    pub fn to_file(&self, path: &Path) -> io::Result<()> {
        let pieces = self.chunks.iter().enumerate().filter_map(|(i, chunk)| {
            let bytes = chunk
                .read()
                .as_ref()
                .map(|bytes| bytes[..self.chunk_len(i)].to_vec());
            bytes.map(|bytes| (usize_as_u64(i * CHUNK), bytes))
        });
        sparse::store(path, self.size, pieces)
    }

    /// Returns a second device with a copy of the content and an account of its own. The copy is
    /// one that a power cut could leave: if it contains a write, it also contains every write that
    /// had returned before that one began.
    pub fn fork(&self) -> Self {
        // All chunks stay locked until all are copied; a writer holds one at a time and waits.
        let held: Vec<_> = self.chunks.iter().map(RwLock::read).collect();
        Self {
            chunks: held
                .iter()
                .map(|chunk| RwLock::new((*chunk).clone()))
                .collect(),
            size: self.size,
            sector: self.sector,
            meter: Meter::new(),
        }
    }

    /// Bytes of memory that hold content.
    pub fn allocated_bytes(&self) -> u64 {
        let used = self
            .chunks
            .iter()
            .filter(|chunk| chunk.read().is_some())
            .count();
        usize_as_u64(used * CHUNK)
    }

    /// Bytes of chunk `i` that belong to the device.
    fn chunk_len(&self, i: usize) -> usize {
        CHUNK.min(u64_as_usize(self.size) - i * CHUNK)
    }

    /// Copies `parts` in and returns their length.
    fn store(&self, offset: u64, parts: &[&[u8]]) -> Result<u64, MediaError> {
        let len = check_parts(offset, parts, self.sector, self.size)?;
        let mut at = offset;
        for part in parts {
            for (chunk, piece) in self.pieces(at, part.len()) {
                let mut chunk = chunk.write();
                let bytes = chunk.get_or_insert_with(empty_chunk);
                bytes[piece.in_block()].copy_from_slice(&part[piece.in_range()]);
            }
            at += usize_as_u64(part.len());
        }
        Ok(len)
    }

    /// Splits a range by chunk, and gives each part with its chunk's lock.
    fn pieces(&self, at: u64, len: usize) -> impl Iterator<Item = (&RwLock<Chunk>, Piece)> {
        let pieces = CHUNKS.pieces(at, len);
        pieces.map(|piece| (&self.chunks[u64_as_usize(piece.block)], piece))
    }
}

fn empty_chunk() -> Box<[u8]> {
    vec![0; CHUNK].into_boxed_slice()
}

fn put_unless_zero(chunk: &mut Chunk, bytes: &[u8]) {
    if !sparse::is_zero(bytes) {
        chunk.get_or_insert_with(empty_chunk)[..bytes.len()].copy_from_slice(bytes);
    }
}

impl BlockDev for RamDev {
    fn describe(&self) -> String {
        format!("memory, {} KiB", self.size >> 10)
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn sector_size(&self) -> u32 {
        self.sector
    }

    fn read_only(&self) -> bool {
        false
    }

    fn volatile_cache(&self) -> bool {
        false
    }

    fn host_cached(&self) -> bool {
        true
    }

    fn read_at(&self, offset: u64, out: &mut [u8], tag: Tag) -> Result<(), MediaError> {
        let len = usize_as_u64(out.len());
        check_range(Op::Read, offset, len, self.sector, self.size)?;
        for (chunk, piece) in self.pieces(offset, out.len()) {
            let out = &mut out[piece.in_range()];
            match &*chunk.read() {
                Some(bytes) => out.copy_from_slice(&bytes[piece.in_block()]),
                None => out.fill(0),
            }
        }
        self.meter.count_read(tag, len);
        Ok(())
    }

    fn write_vectored_at(&self, offset: u64, parts: &[&[u8]], tag: Tag) -> Result<(), MediaError> {
        let len = self.store(offset, parts)?;
        self.meter.count_write(tag, len);
        Ok(())
    }

    fn write_durable(&self, offset: u64, parts: &[&[u8]], tag: Tag) -> Result<(), MediaError> {
        let len = self.store(offset, parts)?;
        self.meter.count_durable_write(tag, len);
        Ok(())
    }

    fn flush(&self, cause: Cause) -> Result<(), MediaError> {
        self.meter.count_flush(cause);
        Ok(())
    }

    /// Gives the memory back; a later read gives zeros.
    fn discard(&self, offset: u64, len: u64) -> Result<(), MediaError> {
        check_range(Op::Discard, offset, len, self.sector, self.size)?;
        for (chunk, piece) in self.pieces(offset, u64_as_usize(len)) {
            let mut chunk = chunk.write();
            if piece.len == CHUNK {
                *chunk = None;
            } else if let Some(bytes) = &mut *chunk {
                bytes[piece.in_block()].fill(0);
            }
        }
        self.meter.count_discard(len, 0);
        Ok(())
    }

    fn meter(&self) -> &Meter {
        &self.meter
    }
}
