//! A file mapped into memory, for storage that is written by storing.
//!
//! - Memory is accessed only as aligned words of 8 bytes, each by one atomic access. Another
//!   process that maps the file, and other threads here, see each word old or new. A store to a
//!   part of a word keeps the rest, even when others change that at the same time.
//! - The memory is never handed out, neither as a slice nor as a pointer. Ranges are checked: one
//!   outside the mapping panics.
//! - An access to memory that has gone bad, or beyond the new end of a truncated file, is EIO: what
//!   was loaded is invalid, and what was stored is lost. It stays so until the file is mapped anew.
//! - On x86-64, `clwb`, `clflushopt` or `clflush` writes lines to the medium, whichever the
//!   processor has. Elsewhere there is only [`Mapping::sync`], and a mapping says so
//!   ([`Mapping::write_back_instruction`]).

use std::fmt;
use std::fs::File;
use std::ops::Range;
use std::ptr::{self, NonNull};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use rustix::io::Errno;
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};

use crate::cache_line::{self, WriteBack};
use crate::lost_pages::Watched;

/// Bytes of a word, which is never torn.
const WORD: usize = 8;

/// Memory of a file, writable or not, mapped until this is dropped.
pub struct Mapping {
    base: NonNull<AtomicU64>,
    words: usize,
    /// Bytes that the kernel was asked for.
    mapped: usize,
    is_synchronous: bool,
    write_back: WriteBack,
    watched: &'static Watched,
}

// SAFETY: the memory belongs to the mapping until it is dropped and is accessed through atomics
// only (and by instructions that write whole words), so any thread may do so at any time.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

/// How a file is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Loads only: a store kills the process.
    ReadOnly,
    /// Loads and stores; stores change the file.
    ReadWrite,
    /// Loads and stores; stores stay in this process's memory (MAP_PRIVATE), and the file may be
    /// open for reading only.
    Private,
    /// As `ReadWrite`, with MAP_SYNC: the file system has written its own structures before a page
    /// can first be stored to, so lines that went to the medium are in the file after a power cut.
    /// `EOPNOTSUPP` where the file is not on persistent memory with DAX, and on processors without
    /// an instruction that writes lines back.
    Synchronous,
}

impl Mapping {
    /// Maps the first `len` bytes of a file, rounded down to words.
    pub fn new(file: &File, len: usize, access: Access) -> Result<Self, Errno> {
        let write_back = cache_line::detect();
        let (protection, flags) = match access {
            Access::ReadOnly => (ProtFlags::READ, MapFlags::SHARED),
            Access::ReadWrite => (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED),
            Access::Private => (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE),
            Access::Synchronous if write_back == WriteBack::None => return Err(Errno::OPNOTSUPP),
            Access::Synchronous => (
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED_VALIDATE | MapFlags::SYNC,
            ),
        };
        // SAFETY: without an address the kernel chooses one that nothing else uses.
        let base = unsafe { mmap(ptr::null_mut(), len, protection, flags, file, 0) }?;
        let start = base.addr();
        let watched = Watched::begin(start..start + len).inspect_err(|_| {
            // SAFETY: it was just mapped, and nothing refers to it.
            let _ = unsafe { munmap(base, len) };
        })?;
        Ok(Self {
            base: NonNull::new(base.cast()).ok_or(Errno::FAULT)?,
            words: len / WORD,
            mapped: len,
            is_synchronous: access == Access::Synchronous,
            write_back,
            watched,
        })
    }

    /// Its length in bytes.
    pub fn len(&self) -> usize {
        self.words * WORD
    }

    /// Whether its length is 0.
    pub fn is_empty(&self) -> bool {
        self.words == 0
    }

    /// Whether written-back and fenced lines survive a power cut by themselves. Otherwise they
    /// survive only after [`sync`](Self::sync).
    pub fn is_synchronous(&self) -> bool {
        self.is_synchronous
    }

    /// The instruction that writes lines back, or `none`.
    pub fn write_back_instruction(&self) -> &'static str {
        self.write_back.name()
    }

    /// Copies bytes out.
    pub fn load(&self, offset: usize, out: &mut [u8]) -> Result<(), Errno> {
        let range = self.checked(offset, out.len());
        let (head, rest) = out.split_at_mut(head_len(&range));
        let (whole, tail) = rest.as_chunks_mut::<WORD>();
        let first = range.start.div_ceil(WORD);
        if !head.is_empty() {
            let bytes = self.words()[range.start / WORD].load(Relaxed).to_ne_bytes();
            head.copy_from_slice(&bytes[range.start % WORD..][..head.len()]);
        }
        cache_line::load_words(&self.words()[first..], whole);
        if !tail.is_empty() {
            let bytes = self.words()[first + whole.len()]
                .load(Relaxed)
                .to_ne_bytes();
            tail.copy_from_slice(&bytes[..tail.len()]);
        }
        self.check(&range)
    }

    /// Copies bytes in, through the processor's cache.
    pub fn store(&self, offset: usize, data: &[u8]) -> Result<(), Errno> {
        let range = self.checked(offset, data.len());
        let (head, rest) = data.split_at(head_len(&range));
        let (whole, tail) = rest.as_chunks::<WORD>();
        let first = range.start.div_ceil(WORD);
        if !head.is_empty() {
            store_part(&self.words()[range.start / WORD], range.start % WORD, head);
        }
        for (word, bytes) in self.words()[first..].iter().zip(whole) {
            word.store(u64::from_ne_bytes(*bytes), Relaxed);
        }
        if !tail.is_empty() {
            store_part(&self.words()[first + whole.len()], 0, tail);
        }
        self.check(&range)
    }

    /// Copies whole words in, past the cache. They are on their way to the medium at once, but
    /// other threads see them only after [`store_fence`](crate::store_fence) or the release of a
    /// lock. Panics unless offset and length are multiples of 8.
    pub fn store_past_cache(&self, offset: usize, data: &[u8]) -> Result<(), Errno> {
        let range = self.checked(offset, data.len());
        let (chunks, rest) = data.as_chunks::<WORD>();
        assert!(
            range.start.is_multiple_of(WORD) && rest.is_empty(),
            "{} bytes at {offset} are no whole words",
            data.len()
        );
        let first = range.start / WORD;
        cache_line::store_past_cache(&self.words()[first..first + chunks.len()], chunks);
        self.check(&range)
    }

    /// Loads one word. Panics unless `offset` is a multiple of 8. The caller then sees everything
    /// that was stored before the [`store_u64`](Self::store_u64) whose value this returns.
    pub fn load_u64(&self, offset: usize) -> Result<u64, Errno> {
        let value = self.word(offset).load(Acquire);
        self.check(&(offset..offset + WORD)).map(|()| value)
    }

    /// Stores one word, in one piece. Panics unless `offset` is a multiple of 8.
    pub fn store_u64(&self, offset: usize, value: u64) -> Result<(), Errno> {
        self.word(offset).store(value, Release);
        self.check(&(offset..offset + WORD))
    }

    /// Begins to write the lines of a range back to the medium, which
    /// [`store_fence`](crate::store_fence) completes. Returns how many lines of 64 bytes the range
    /// touches.
    pub fn write_back(&self, offset: usize, len: usize) -> Result<usize, Errno> {
        let range = self.checked(offset, len);
        if range.is_empty() {
            return Ok(0);
        }
        let lines = range.start / cache_line::LINE..range.end.div_ceil(cache_line::LINE);
        for line in lines.clone() {
            self.write_back
                .line(&self.words()[line * cache_line::LINE / WORD]);
        }
        self.check(&range).map(|()| lines.len())
    }

    /// Writes the pages of a range to the file's device and waits until they are durable, as fsync
    /// does.
    pub fn sync(&self, offset: usize, len: usize) -> Result<(), Errno> {
        let range = self.checked(offset, len);
        if range.is_empty() {
            return Ok(());
        }
        let page = rustix::param::page_size();
        let start = range.start - range.start % page;
        // SAFETY: the range is inside the mapping, and `start` is the beginning of a page because
        // the mapping is.
        unsafe {
            let at = self.base.as_ptr().cast::<u8>().add(start);
            msync(at.cast(), range.end - start, MsyncFlags::SYNC)
        }?;
        self.check(&range)
    }

    /// Returns EIO when a page of the range was lost.
    #[inline]
    fn check(&self, range: &Range<usize>) -> Result<(), Errno> {
        let base = self.base.as_ptr().addr();
        self.watched.check(|| base + range.start..base + range.end)
    }

    fn words(&self) -> &[AtomicU64] {
        // SAFETY: `new` has mapped that many words at `base`, which is the beginning of a page and
        // so aligned; they stay until `drop`. Being atomics they may change at any time.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.words) }
    }

    fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(
            offset.is_multiple_of(WORD),
            "a word at {offset} is not aligned"
        );
        &self.words()[offset / WORD]
    }

    fn checked(&self, offset: usize, len: usize) -> Range<usize> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len() => offset..end,
            _ => panic!("{len} bytes at {offset} of a mapping of {}", self.len()),
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        self.watched.end();
        // SAFETY: nothing refers to the memory any more: it was never handed out. munmap fails only
        // for arguments that no mapping has.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.mapped) };
    }
}

impl fmt::Debug for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mapping")
            .field("len", &self.len())
            .field("is_synchronous", &self.is_synchronous)
            .finish_non_exhaustive()
    }
}

/// Returns how many bytes of a range lie before the first word that begins in it.
fn head_len(range: &Range<usize>) -> usize {
    let to_next = range.start.next_multiple_of(WORD) - range.start;
    to_next.min(range.len())
}

/// Changes some bytes of a word and keeps the others, even when others change those at the same
/// time.
fn store_part(word: &AtomicU64, start: usize, bytes: &[u8]) {
    let merged = |old: u64| {
        let mut new = old.to_ne_bytes();
        new[start..start + bytes.len()].copy_from_slice(bytes);
        Some(u64::from_ne_bytes(new))
    };
    // The closure always gives a value, so this always succeeds.
    let _ = word.fetch_update(Relaxed, Relaxed, merged);
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use rustix::fs::{MemfdFlags, memfd_create};

    use super::*;

    const LEN: usize = 8192;

    fn memory() -> (File, Mapping) {
        let file = File::from(memfd_create("test", MemfdFlags::CLOEXEC).expect("a memory file"));
        file.set_len(LEN as u64).expect("a size");
        let mapping = Mapping::new(&file, LEN, Access::ReadWrite).expect("a mapping");
        (file, mapping)
    }

    /// Tries every offset in a word and every length up to three words, against the file as the
    /// kernel reads it.
    #[test]
    fn bytes_arrive_where_they_belong() {
        let (file, mapping) = memory();
        let mut model = vec![0; LEN];
        let mut byte = 0u8;
        for start in 0..16 {
            for len in 0..25 {
                let at = 64 * 25 + start;
                byte = byte.wrapping_add(1);
                let data: Vec<u8> = (0..len as u8).map(|i| i.wrapping_mul(7) ^ byte).collect();
                mapping.store(at, &data).expect("a store");
                model[at..at + len].copy_from_slice(&data);
                let (mut read, mut loaded) = (vec![0; LEN], vec![0; len + 5]);
                file.read_exact_at(&mut read, 0).expect("the file");
                assert!(read == model, "{len} bytes at {at}");
                mapping.load(at - 3, &mut loaded).expect("a load");
                assert_eq!(loaded, model[at - 3..at + len + 2]);
            }
        }
        mapping.store_past_cache(4096, &[9; 1024]).expect("a store");
        crate::store_fence();
        model[4096..5120].fill(9);
        mapping
            .store_u64(8184, 0x0102_0304_0506_0708)
            .expect("a store");
        model[8184..].copy_from_slice(&0x0102_0304_0506_0708u64.to_ne_bytes());
        assert_eq!(mapping.load_u64(8184), Ok(0x0102_0304_0506_0708));
        let mut read = vec![0; LEN];
        file.read_exact_at(&mut read, 0).expect("the file");
        assert!(read == model);
        mapping.sync(4000, 200).expect("a sync");
    }

    #[test]
    fn lines_are_those_that_the_range_touches() {
        let (_, mapping) = memory();
        let cases = [
            (0, 0, 0),
            (64, 0, 0),
            (0, 1, 1),
            (63, 2, 2),
            (64, 64, 1),
            (1, 128, 3),
            (8191, 1, 1),
        ];
        for (offset, len, lines) in cases {
            assert_eq!(
                mapping.write_back(offset, len),
                Ok(lines),
                "{len} at {offset}"
            );
        }
    }

    /// A thread that changes a byte does not undo what others change in the same word.
    #[test]
    fn neighbours_in_a_word_do_not_meet() {
        let (_, mapping) = memory();
        std::thread::scope(|scope| {
            for i in 0..2 {
                let mapping = &mapping;
                scope.spawn(move || {
                    for n in 0..=255 {
                        mapping.store(100 + i * 3, &[n, !n, n]).expect("a store");
                        let mut mine = [0; 3];
                        mapping.load(100 + i * 3, &mut mine).expect("a load");
                        assert_eq!(mine, [n, !n, n]);
                    }
                });
            }
        });
    }

    #[test]
    fn what_is_outside_panics() {
        let (file, mapping) = memory();
        let panics =
            |f: &dyn Fn()| std::panic::catch_unwind(std::panic::AssertUnwindSafe(f)).is_err();
        for offset in [LEN, LEN - 7, usize::MAX - 3] {
            assert!(
                panics(&|| _ = mapping.load(offset, &mut [0; 8])),
                "{offset}"
            );
            assert!(panics(&|| _ = mapping.store(offset, &[0; 8])), "{offset}");
            assert!(panics(&|| _ = mapping.store_past_cache(offset, &[0; 8])));
            assert!(panics(&|| _ = mapping.write_back(offset, 8)));
            assert!(panics(&|| _ = mapping.sync(offset, 8)));
            assert!(panics(&|| _ = mapping.load_u64(offset)));
            assert!(panics(&|| _ = mapping.store_u64(offset, 1)));
        }
        assert!(panics(&|| _ = mapping.load_u64(4)));
        assert!(panics(&|| _ = mapping.store_past_cache(4, &[0; 8])));
        assert!(panics(&|| _ = mapping.store_past_cache(8, &[0; 4])));
        let synchronous = Mapping::new(&file, LEN, Access::Synchronous);
        assert_eq!(synchronous.expect_err("no DAX here"), Errno::OPNOTSUPP);
        assert_eq!(
            Mapping::new(&file, 0, Access::ReadOnly).expect_err("nothing"),
            Errno::INVAL
        );
    }

    /// Any access behind the new end of a truncated file is an error; the content before it is
    /// there.
    #[test]
    fn what_was_cut_off_is_an_error() {
        let page = rustix::param::page_size();
        let file = File::from(memfd_create("test", MemfdFlags::CLOEXEC).expect("a memory file"));
        let pages = 100;
        file.set_len((pages * page) as u64).expect("a size");
        let mapping = Mapping::new(&file, pages * page, Access::ReadWrite).expect("a mapping");
        let (_, other) = memory();
        let at = |n: usize| n * page;
        (0..pages).for_each(|n| mapping.store(at(n), &[n as u8]).expect("a store"));
        file.set_len(at(2) as u64).expect("a size");
        let mut byte = [7];
        let lost = Err(Errno::IO);
        assert_eq!(mapping.load(at(5), &mut byte), lost);
        assert_eq!(
            mapping.load(at(5) + 100, &mut byte),
            lost,
            "the second time"
        );
        assert_eq!(
            mapping.load(at(4) - 1, &mut [0; 8192]),
            lost,
            "with what is not"
        );
        assert_eq!(mapping.store(at(6), &[1; 3]), lost);
        assert_eq!(mapping.store_past_cache(at(7), &[1; 8]), lost);
        assert_eq!(mapping.load_u64(at(8)), Err(Errno::IO));
        assert_eq!(mapping.store_u64(at(9), 1), lost);
        assert_eq!(mapping.write_back(at(10), 64), Err(Errno::IO));
        assert_eq!(mapping.sync(at(5), 1), lost);
        for n in 0..2 {
            mapping.load(at(n), &mut byte).expect("it is still there");
            assert_eq!(byte, [n as u8]);
        }
        other.store(0, &[1]).expect("another mapping");
        // More lost pages than can be noted.
        assert!((2..pages).all(|n| mapping.load(at(n), &mut byte) == lost));
        assert_eq!(mapping.load(0, &mut byte), lost, "all of it counts as lost");
        drop(mapping);
        let again = Mapping::new(&file, at(2), Access::ReadWrite).expect("a mapping");
        again.load(at(1), &mut byte).expect("mapped anew");
        assert_eq!(byte, [1]);
    }

    /// No thread takes the zeros for content, whichever thread lost the page.
    #[test]
    fn threads_see_content_or_an_error() {
        let page = rustix::param::page_size();
        for _ in 0..20 {
            let file = File::from(memfd_create("test", MemfdFlags::CLOEXEC).expect("a file"));
            file.set_len(8 * page as u64).expect("a size");
            let mapping = Mapping::new(&file, 8 * page, Access::ReadWrite).expect("a mapping");
            mapping.store(0, &vec![5; 8 * page]).expect("a store");
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| {
                        for n in (0..2000).map(|n| n % 8) {
                            let mut bytes = [0; 64];
                            let loaded = mapping.load(n * page, &mut bytes);
                            assert!(loaded.is_err() || bytes == [5; 64], "{bytes:?}");
                        }
                    });
                }
                scope.spawn(|| file.set_len(0).expect("a size"));
            });
        }
    }
}
