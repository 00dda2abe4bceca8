//! Makes the process need no more memory than it has.

use std::fs::{self, File};
use std::io;
use std::path::Path;

use rustix::fs::FallocateFlags;
use stetfs_format::width::u64_as_usize;
use stetfs_sys::mapping::{Access, Mapping};

/// The least likely to be killed when memory runs out (`OOM_SCORE_ADJ_MIN`).
const NEVER_KILL: &str = "-1000";

/// Heap that is taken now, for what the device below allocates for a request and gives back.
const HEAP_BYTES: usize = 4 << 20;
/// In pieces of the sizes that are asked for: lists, pages, records.
const HEAP_PIECE: usize = 16 << 10;

/// Memory that is held for as long as this lives.
pub struct Resident {
    /// Locked because it is mapped.
    _file: Option<Mapping>,
}

/// Locks everything that the process has and will have in memory, and asks the out-of-memory killer
/// to take others. Ordinary users may have neither: then it says so, and the export works as long
/// as memory is not short. To be called when all else is ready.
///
/// What is locked stays with the process when it is freed: so the heap is filled and emptied once.
/// With `resident` all of that file is given space on its medium, and its pages are held in memory
/// too, so that writing to it needs none.
///
/// # Errors
/// The file cannot be opened, mapped, or given its space.
pub fn prepare_memory(resident: Option<&Path>) -> io::Result<Resident> {
    if let Err(e) = fs::write("/proc/self/oom_score_adj", NEVER_KILL) {
        tracing::warn!("when memory is short, the kernel may kill the server (oom_score_adj: {e})");
    }
    let heap: Vec<Vec<u8>> = (0..HEAP_BYTES / HEAP_PIECE)
        .map(|_| vec![0xff; HEAP_PIECE])
        .collect();
    std::hint::black_box(&heap);
    let file = resident.map(map_whole).transpose()?;
    if let Err(e) = stetfs_sys::lock_memory() {
        tracing::warn!(
            "memory cannot be locked ({e}): when memory is short, the export can get stuck; root \
                may, or a larger ulimit -l"
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
