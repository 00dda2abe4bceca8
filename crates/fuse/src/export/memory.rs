//! Makes the process need no more memory than it has.

use std::fs;

/// The least likely to be killed when memory runs out (`OOM_SCORE_ADJ_MIN`).
const NEVER_KILL: &str = "-1000";

/// Heap that is taken now, for what the device below allocates for a request and gives back.
const HEAP_BYTES: usize = 4 << 20;
/// In pieces of the sizes that are asked for: lists, pages, records.
const HEAP_PIECE: usize = 16 << 10;

/// Locks everything that the process has and will have in memory, and asks the out-of-memory killer to take others. Ordinary users may have
/// neither: then it says so, and the export works as long as memory is not short. To be called when all else is ready.
///
/// What is locked stays with the process when it is freed: so the heap is filled and emptied once.
pub fn prepare_memory() {
    let heap: Vec<Vec<u8>> = (0..HEAP_BYTES / HEAP_PIECE)
        .map(|_| vec![0xff; HEAP_PIECE])
        .collect();
    std::hint::black_box(&heap);
    if let Err(e) = stetfs_sys::lock_memory() {
        tracing::warn!(
            "memory cannot be locked ({e}): when memory is short, the export can get stuck; root may, or a larger ulimit -l"
        );
    }
    drop(heap);
    if let Err(e) = fs::write("/proc/self/oom_score_adj", NEVER_KILL) {
        tracing::debug!("/proc/self/oom_score_adj: {e}");
    }
}
