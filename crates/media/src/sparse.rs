//! Reading and writing image files without touching their holes.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::io::Errno;
use stetfs_format::width::{u64_as_usize, usize_as_u64};

/// Returns the whole pieces of `piece` bytes that may hold data, as byte ranges in ascending order.
/// The last one ends at `size`. A file system that cannot tell gives one range.
fn data_ranges(file: &File, size: u64, piece: u64) -> io::Result<Vec<Range<u64>>> {
    let whole = 0..size;
    let mut ranges: Vec<Range<u64>> = Vec::new();
    let mut at = 0;
    while at < size {
        let start = match rustix::fs::seek(file, rustix::fs::SeekFrom::Data(at)) {
            Ok(start) => start,
            Err(Errno::NXIO) => break,
            Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(vec![whole]),
            Err(e) => return Err(e.into()),
        };
        if start >= size {
            break;
        }
        let end = rustix::fs::seek(file, rustix::fs::SeekFrom::Hole(start))?.clamp(start + 1, size);
        let range = start - start % piece..end.next_multiple_of(piece).min(size);
        match ranges.last_mut() {
            Some(last) if last.end >= range.start => last.end = range.end,
            _ => ranges.push(range.clone()),
        }
        at = range.end;
    }
    Ok(ranges)
}

/// Calls `put` with each piece of `piece` bytes of the file that may hold data; the last one may be
/// shorter. Returns the file's size, rounded down to whole sectors of 512 bytes, and ignores the
/// rest.
pub(crate) fn load(path: &Path, piece: usize, mut put: impl FnMut(u64, &[u8])) -> io::Result<u64> {
    let mut file = File::open(path)?;
    let len = file.metadata()?.len();
    let size = len - len % 512;
    let mut buffer = vec![0; piece];
    for range in data_ranges(&file, size, usize_as_u64(piece))? {
        file.seek(SeekFrom::Start(range.start))?;
        let mut at = range.start;
        while at < range.end {
            let n = u64_as_usize((range.end - at).min(usize_as_u64(piece)));
            file.read_exact(&mut buffer[..n])?;
            put(at, &buffer[..n]);
            at += usize_as_u64(n);
        }
    }
    Ok(size)
}

/// Bytes written in one call.
const RUN: usize = 1 << 20;

/// Makes a file of `size` bytes with the given pieces in it and holes elsewhere. Writes consecutive
/// pieces together.
pub(crate) fn store<P: AsRef<[u8]>>(
    path: &Path,
    size: u64,
    pieces: impl Iterator<Item = (u64, P)>,
) -> io::Result<()> {
    let file = File::create(path)?;
    file.set_len(size)?;
    let (mut start, mut run) = (0, Vec::new());
    for (offset, bytes) in pieces {
        let bytes = bytes.as_ref();
        if offset != start + usize_as_u64(run.len()) || run.len() + bytes.len() > RUN {
            file.write_all_at(&run, start)?;
            run.clear();
            start = offset;
        }
        run.extend_from_slice(bytes);
    }
    file.write_all_at(&run, start)
}

/// Whether all bytes are zero.
pub(crate) fn is_zero(bytes: &[u8]) -> bool {
    let (words, rest) = bytes.as_chunks::<64>();
    words.iter().all(|w| *w == [0; 64]) && rest.iter().all(|b| *b == 0)
}
