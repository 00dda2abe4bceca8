//! What cannot be made is refused by name, before anything is written.

use stetfs_format::{FeatureCompat, FeatureIncompat, FeatureRoCompat};
use stetfs_media::{BlockDev, RamDev};
use stetfs_mkfs::{Inodes, JournalSize, MkfsError, Params, Plan, make};

/// The error of a volume of 64 MiB with a change.
fn error(change: impl FnOnce(&mut Params)) -> MkfsError {
    let mut params = Params::ext4(4096, 16384);
    change(&mut params);
    Plan::new(&params).expect_err("it cannot be made")
}

macro_rules! assert_refused {
    ($change:expr, $error:pat) => {
        let error = error($change);
        assert!(matches!(error, $error), "{error:?}");
    };
}

#[test]
fn numbers() {
    assert_refused!(|p| p.block_size = 8192, MkfsError::BlockSize(8192));
    assert_refused!(|p| p.inode_size = 64, MkfsError::InodeSize(64));
    assert_refused!(|p| p.inode_size = 384, MkfsError::InodeSize(384));
    assert_refused!(|p| p.inode_size = 8192, MkfsError::InodeSize(8192));
    let group = MkfsError::BlocksPerGroup;
    for blocks in [0, 255, 257, 32769] {
        let error = error(|p| p.blocks_per_group = Some(blocks));
        assert_eq!(error.to_string(), group(blocks).to_string());
    }
    assert_refused!(|p| p.flex_groups = 0, MkfsError::FlexGroups(0));
    assert_refused!(|p| p.flex_groups = 3, MkfsError::FlexGroups(3));
    assert_refused!(|p| p.inodes = Inodes::Ratio(0), MkfsError::InodeRatio);
    assert_refused!(|p| p.reserved_percent = 51.0, MkfsError::Reserved(_));
    assert_refused!(|p| p.reserved_percent = f64::NAN, MkfsError::Reserved(_));
    assert_refused!(|p| p.time = 1 << 34, MkfsError::Time(_));
}

#[test]
fn features() {
    let error = error(|p| {
        p.incompat |= FeatureIncompat::INLINE_DATA;
        p.ro_compat |= FeatureRoCompat::QUOTA;
    });
    assert_eq!(
        error.to_string(),
        "the features inline_data, quota cannot be made here"
    );
    for change in [
        |p: &mut Params| p.incompat -= FeatureIncompat::EXTENTS,
        |p: &mut Params| p.incompat |= FeatureIncompat::META_BG,
        |p: &mut Params| p.ro_compat -= FeatureRoCompat::SPARSE_SUPER,
        |p: &mut Params| p.ro_compat |= FeatureRoCompat::GDT_CSUM,
        |p: &mut Params| {
            p.incompat |= FeatureIncompat::CSUM_SEED;
            p.ro_compat -= FeatureRoCompat::METADATA_CSUM;
        },
    ] {
        assert_refused!(change, MkfsError::FeaturePair(_));
    }
}

#[test]
fn sizes() {
    for blocks in [0, 1, 50] {
        assert_refused!(|p| p.blocks = blocks, MkfsError::TooFewBlocks(_));
    }
    let many = |p: &mut Params| {
        p.blocks = 1 << 32;
        p.incompat -= FeatureIncompat::IS_64BIT;
    };
    assert_refused!(many, MkfsError::TooManyBlocks(_));
    assert_refused!(|p| p.blocks = u64::MAX, MkfsError::TooManyBlocks(_));
    assert_refused!(
        |p| p.inodes = Inodes::Count(u32::MAX),
        MkfsError::TooManyInodes(_)
    );
    assert_refused!(
        |p| {
            p.block_size = 1024;
            p.blocks = 64;
            p.inodes = Inodes::Ratio(8192);
        },
        MkfsError::TooFewInodes(8)
    );
}

#[test]
fn journals() {
    let blocks = |n| move |p: &mut Params| p.journal = JournalSize::Blocks(n);
    assert_refused!(blocks(1023), MkfsError::JournalBlocks(1023));
    assert_refused!(blocks(10_240_001), MkfsError::JournalBlocks(_));
    assert_refused!(blocks(9000), MkfsError::JournalTooLarge { .. });
    let mut params = Params::ext4(4096, 16384);
    params.compat -= FeatureCompat::HAS_JOURNAL;
    params.journal = JournalSize::Blocks(1);
    let plan = Plan::new(&params).expect("nobody asks for a journal");
    assert_eq!(plan.journal_blocks(), 0);
}

#[test]
fn devices() {
    let params = Params::ext4(1024, 8192);
    let small = RamDev::new((8 << 20) - 512);
    let error = make(&small, &params).expect_err("too small");
    assert!(matches!(error, MkfsError::DeviceTooSmall { .. }), "{error}");
    let coarse = RamDev::with_sector(8 << 20, 4096);
    let error = make(&coarse, &params).expect_err("blocks smaller than a sector");
    assert!(matches!(error, MkfsError::SectorSize { .. }), "{error}");
    for dev in [small, coarse] {
        let traffic = dev.meter().snapshot().total();
        assert_eq!(traffic, Default::default(), "nothing is done");
    }
}
