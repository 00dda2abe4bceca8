//! The snooping layer on a flash translation layer, beside a plain device that gets the same
//! requests: whatever is remapped, both must read the same.

mod scheme;
mod script;
#[path = "../support/mod.rs"]
mod support;

use std::sync::Arc;

use stetfs_below::{Snoop, SnoopStats};
use stetfs_ftl::{Ftl, FtlOptions, FtlStats, MountOptions};
use stetfs_media::nand::{NandPart, NandSim, parts};
use stetfs_media::{Block, BlockDev, Cause, Class, Layer, MediaError, RamDev, Tag};

const TAG: Tag = Tag::new(Class::Data, Cause::Home);

/// Kinds of volumes: block sizes, checksums of the journal, ways to map it.
const KINDS: [&[&str]; 5] = [
    &["-t", "ext4", "-b", "1024"],
    &["-t", "ext4", "-b", "4096"],
    &["-t", "ext4", "-b", "2048", "-O", "^metadata_csum,^64bit"],
    &["-t", "ext3", "-b", "1024"],
    &["-t", "ext4", "-b", "4096", "-O", "fast_commit"],
];

/// The layer on a part in memory, and the plain device.
struct Bed {
    nand: Arc<NandSim>,
    ftl: Arc<Ftl>,
    snoop: Arc<Snoop>,
    plain: RamDev,
}

impl Bed {
    /// Makes both devices with the content of `volume`; the table remembers `table` blocks of the
    /// log.
    fn new(volume: &RamDev, table: u32) -> Self {
        const PART: NandPart = parts::JFTL.flawless().with_blocks(800);
        let nand = Arc::new(NandSim::new(PART));
        let ftl = Ftl::create(
            nand.clone(),
            [7; 16],
            &FtlOptions::default(),
            MountOptions::default(),
        )
        .unwrap();
        let ftl = Arc::new(ftl);
        assert!(ftl.size() >= volume.size());
        let mut chunk = Block::zeroed(1 << 16);
        for at in (0..volume.size()).step_by(1 << 16) {
            volume.read_at(at, chunk.bytes_mut(), TAG).unwrap();
            if chunk.bytes().iter().any(|byte| *byte != 0) {
                ftl.write_at(at, chunk.bytes(), TAG).unwrap();
            }
        }
        Self {
            snoop: Arc::new(Snoop::new(ftl.clone(), table).unwrap()),
            nand,
            ftl,
            plain: volume.fork(),
        }
    }

    /// Panics unless both devices read the same, and so does the layer when it is mounted again
    /// now.
    fn compare(&self, context: &str) {
        let read = |dev: &dyn BlockDev| {
            let mut all = vec![0; self.plain.size() as usize];
            dev.read_at(0, &mut all, TAG).unwrap();
            all
        };
        let plain = read(&self.plain);
        let same = |what: &str, found: &[u8]| {
            let differs = plain
                .chunks(512)
                .zip(found.chunks(512))
                .position(|(a, b)| a != b);
            assert_eq!(differs, None, "{context}: sector of {what}");
        };
        same("the layer", &read(&Beside(self)));
        same("the part", &read(&*self.ftl));
    }

    fn stats(&self) -> (SnoopStats, FtlStats) {
        (self.snoop.stats(), self.ftl.stats())
    }
}

/// Sends requests to both devices of a bed. Reads return the layer's content, and panic where the
/// devices differ.
struct Beside<'a>(&'a Bed);

impl Layer for Beside<'_> {
    fn below(&self) -> &dyn BlockDev {
        &*self.0.snoop
    }

    fn read_at(&self, offset: u64, out: &mut [u8], tag: Tag) -> Result<(), MediaError> {
        let mut plain = vec![0; out.len()];
        self.0.plain.read_at(offset, &mut plain, tag)?;
        self.below().read_at(offset, out, tag)?;
        assert!(plain == out, "{} bytes at {offset} differ", out.len());
        Ok(())
    }

    fn write_vectored_at(&self, offset: u64, parts: &[&[u8]], tag: Tag) -> Result<(), MediaError> {
        self.0.plain.write_vectored_at(offset, parts, tag)?;
        self.below().write_vectored_at(offset, parts, tag)
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), MediaError> {
        self.0.plain.write_zeros(offset, len, TAG)?;
        self.below().discard(offset, len)
    }

    fn write_zeros(&self, offset: u64, len: u64, tag: Tag) -> Result<(), MediaError> {
        self.0.plain.write_zeros(offset, len, tag)?;
        self.below().write_zeros(offset, len, tag)
    }
}

#[test]
fn a_device_that_cannot_remap_is_refused() {
    let refused = Snoop::new(Arc::new(RamDev::new(1 << 20)), 16);
    assert_eq!(refused.err(), Some(stetfs_below::SnoopError::CannotRemap));
}
