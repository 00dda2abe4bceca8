//! The superblock's two faces: on the medium it has the scheme's mark, and the kernel reads it as
//! it has written it.

use stetfs_format::superblock::reseal;
use stetfs_format::{
    BlockSize, Corrupt, FeatureIncompat, SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE, Superblock,
};
use stetfs_scheme::Mark;

/// Where the superblock is in its block.
fn area(size: BlockSize) -> std::ops::Range<usize> {
    let at = size.within(SUPERBLOCK_OFFSET);
    at..at + SUPERBLOCK_SIZE
}

/// Makes the superblock in a block of the volume one for the medium. Returns it as the kernel wrote
/// it.
///
/// # Errors
/// What is wrong with it.
pub(crate) fn mark(block: &mut [u8], size: BlockSize, with: Mark) -> Result<Superblock, Corrupt> {
    let raw = &mut block[area(size)];
    let written = match Superblock::decode(raw) {
        // e2fsprogs write only the bytes that have changed, and the checksum last.
        Err(Corrupt::SuperChecksum { .. }) => {
            reseal(raw);
            Superblock::decode(raw)?
        }
        decoded => decoded?,
    };
    let mut marked = written.clone();
    marked.feature_incompat -= FeatureIncompat::RECOVER;
    match with {
        Mark::Unclean => {}
        Mark::NeedsRecovery => marked.feature_incompat |= FeatureIncompat::RECOVER,
        Mark::PrivateLog => marked.feature_incompat |= FeatureIncompat::PRIVATE_LOG,
    }
    marked.encode_into(raw);
    Ok(written)
}

/// The superblock in a block of the volume.
///
/// # Errors
/// What is wrong with it.
pub(crate) fn decode(block: &[u8], size: BlockSize) -> Result<Superblock, Corrupt> {
    Superblock::decode(&block[area(size)])
}

/// Makes the superblock in a block of the volume the one that the kernel wrote. One that cannot be
/// decoded stays as it is.
pub(crate) fn unmark(block: &mut [u8], size: BlockSize, needs_recovery: bool) {
    let raw = &mut block[area(size)];
    let Ok(mut sb) = Superblock::decode(raw) else {
        return;
    };
    sb.feature_incompat -= FeatureIncompat::PRIVATE_LOG;
    sb.feature_incompat
        .set(FeatureIncompat::RECOVER, needs_recovery);
    sb.encode_into(raw);
}

/// Whether both are superblocks of one volume, with the journal at one place.
pub(crate) fn is_same_volume(a: &Superblock, b: &Superblock) -> bool {
    (a.uuid, a.block, a.mkfs_time, a.journal_inum) == (b.uuid, b.block, b.mkfs_time, b.journal_inum)
}

/// The block that has the superblock.
pub(crate) fn block_of(size: BlockSize) -> u64 {
    let (block, _) = size.split(SUPERBLOCK_OFFSET);
    block
}
