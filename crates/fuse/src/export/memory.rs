//! Makes sure that the process needs no more memory than it has.

use std::fs::{self, File};
use std::io;
use std::path::Path;

use rustix::fs::FallocateFlags;
use stetfs_format::width::u64_as_usize;
use stetfs_sys::mapping::{Access, Mapping};

/// The score of a process that is never killed when memory runs out (`OOM_SCORE_ADJ_MIN`).
const NEVER_KILL: &str = "-1000";

/// The heap is taken in pieces of the size, in bytes, of typical allocations: lists, pages,
/// records.
const HEAP_PIECE: usize = 16 << 10;

/// Memory that is locked as long as this lives.
pub struct Resident {
    /// The file's pages, locked because they are mapped.
    _file: Option<Mapping>,
}

/// Locks all memory that the process has and will have, and asks the out-of-memory killer to take
/// others. Ordinary users may have neither right; then a warning says so, and the export works as
/// long as memory is not short. Call this when all else is ready.
///
/// Locked memory stays with the process after it is freed: so `heap_bytes` of heap are filled and
/// emptied once, as many as the device takes and frees again.
/// With `resident`, that file is allocated completely, and its pages are locked in memory too:
/// writing to it then needs no memory.
///
/// # Errors
/// The file cannot be opened, mapped or allocated.
pub fn prepare_memory(resident: Option<&Path>, heap_bytes: usize) -> io::Result<Resident> {
    if let Err(e) = fs::write("/proc/self/oom_score_adj", NEVER_KILL) {
        tracing::warn!("when memory is short, the kernel may kill the server (oom_score_adj: {e})");
    }
    let heap: Vec<Vec<u8>> = (0..heap_bytes / HEAP_PIECE)
        .map(|_| vec![0xff; HEAP_PIECE])
        .collect();
    std::hint::black_box(&heap);
    let file = resident.map(map_whole).transpose()?;
    if let Err(e) = stetfs_sys::lock_memory() {
        tracing::warn!(
            "memory cannot be locked ({e}): when memory is short, the export can get stuck; run it \
                as root, or with a larger ulimit -l"
        );
    }
    drop(heap);
    Ok(Resident { _file: file })
}

fn map_whole(path: &Path) -> io::Result<Mapping> {
    let file = File::options().read(true).write(true).open(path)?;
    let size = file.metadata()?.len();
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, size)?;
    Ok(Mapping::new(&file, u64_as_usize(size), Access::ReadOnly)?)
}
