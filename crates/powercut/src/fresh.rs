//! The empty volume on which a program runs, and on which states are shown.

use stetfs_media::Image;
use stetfs_media::sim::{CrashImage, SimOptions};
use stetfs_mkfs::{JournalSize, MkfsError, Params};

/// Block size, in bytes.
const BLOCK: u32 = 4096;

/// The UUID of every volume: 73746574-6673-4c61-8000-000000000002.
const UUID: [u8; 16] = *b"stetfsLa\x80\0\0\0\0\0\0\x02";

/// Seconds since 1970 at which every volume was made.
const MADE_AT: u64 = 1_700_000_000;

/// Bytes of the journal.
const JOURNAL: u32 = 4 << 20;

/// Bytes of the smallest volume: a journal, and some room beside it.
pub const SIZE_MIN: u64 = 16 << 20;

/// Makes an empty volume of `size` bytes in memory, whose root directory is the caller's. Nothing
/// in it is random or depends on the time: a case is replayed on another volume.
///
/// # Errors
/// The size is impossible.
pub fn volume(size: u64) -> Result<Image, MkfsError> {
    let user = rustix::process::geteuid();
    let params = Params {
        reserved_percent: 0.0,
        journal: JournalSize::Blocks(JOURNAL / BLOCK),
        uuid: UUID,
        hash_seed: UUID,
        time: MADE_AT,
        root_owner: (user.as_raw(), rustix::process::getegid().as_raw()),
        ..Params::ext4(BLOCK, size / u64::from(BLOCK))
    };
    let dev = CrashImage::new(Image::new(size), SimOptions::default());
    stetfs_mkfs::make(&dev, &params)?;
    Ok(dev.image())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A case of a scheme is a moment on such a volume, and all shards must be of equal volumes.
    #[test]
    fn volumes_are_the_same_at_any_time() {
        let made = || volume(SIZE_MIN).unwrap().to_bytes();
        let first = made();
        // The volume's times have a resolution of a second.
        std::thread::sleep(std::time::Duration::from_millis(1100));
        assert!(first == made(), "two volumes differ");
    }
}
