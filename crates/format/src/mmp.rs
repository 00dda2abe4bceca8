//! The block of multiple-mount protection (`mmp`): who uses the volume, and whether they still do.
//!
//! A mount that writes the volume stores another number in this block every few seconds. Before
//! another one mounts the volume, it reads the number, waits for longer than that, and reads again.
//! A number that has changed belongs to a live mount; one that has not is left from a crash.
//!
//! Source: kernel `Documentation/filesystems/ext4/mmp.rst`, `fs/ext4/mmp.c`; e2fsprogs
//! `lib/ext2fs/mmp.c`.

use crate::checksum::crc32c;
use crate::error::Corrupt;
use crate::geometry::Geometry;
use crate::layout::{Bytes, Le16, Le32, Le64, record};

const MMP_MAGIC: u32 = 0x004d_4d50;
const SEQ_CLEAN: u32 = 0xff4d_4d50;
const SEQ_FSCK: u32 = 0xe24d_4d50;
/// The largest number of a mount.
pub const MMP_SEQ_MAX: u32 = 0xe24d_4d4f;
/// Seconds between updates when the superblock says 0.
pub const MMP_UPDATE_INTERVAL: u16 = 5;
/// The shortest time in seconds after which a number is read again.
pub const MMP_MIN_CHECK_INTERVAL: u16 = 5;

/// Whose the volume is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MmpState {
    /// Nobody's.
    Clean,
    /// e2fsck's: it checks the volume.
    Fsck,
    /// A mount's, with the number that it has written last.
    Mounted(u32),
}

record! {
    /// The block's content; bytes behind it mean nothing.
    pub MMP_LAYOUT = "Multiple-mount protection", 1024, {
        0x000 Le32, MAGIC = "mmp_magic";
        0x004 Le32, SEQ = "mmp_seq";
        0x3fc Le32, CHECKSUM = "mmp_checksum";
    }

    /// The content of the block.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Mmp from (raw) {
        /// When the number was written, in seconds since 1970.
        0x008 Le64, time: u64 = "mmp_time";
        /// The machine that wrote it.
        0x010 Bytes<64>, nodename: [u8; 64] = "mmp_nodename";
        /// The name that the device has on that machine.
        0x050 Bytes<32>, bdevname: [u8; 32] = "mmp_bdevname";
        /// Seconds that others wait before they take an unchanged number for one that a crash left.
        0x070 Le16, check_interval: u16 = "mmp_check_interval";
    } {
        /// Whose the volume is.
        pub state: MmpState = MmpState::Clean;
    }
}

impl Mmp {
    /// Bytes of the record.
    pub const SIZE: usize = MMP_LAYOUT.size;

    /// Reads and checks the record.
    ///
    /// # Errors
    /// [`Corrupt::MmpMagic`], [`Corrupt::MmpChecksum`], [`Corrupt::MmpSequence`].
    pub fn decode(raw: &[u8], geometry: &Geometry) -> Result<Self, Corrupt> {
        let raw = raw.get(..Self::SIZE).ok_or(Corrupt::TooShort {
            record: "multiple-mount block",
            needed: Self::SIZE,
            found: raw.len(),
        })?;
        if MAGIC.get(raw) != MMP_MAGIC {
            return Err(Corrupt::MmpMagic(MAGIC.get(raw)));
        }
        if geometry.metadata_csum {
            let (stored, computed) = (CHECKSUM.get(raw), checksum_of(raw, geometry));
            if stored != computed {
                return Err(Corrupt::MmpChecksum { stored, computed });
            }
        }
        Ok(Self {
            state: match SEQ.get(raw) {
                SEQ_CLEAN => MmpState::Clean,
                SEQ_FSCK => MmpState::Fsck,
                number @ ..=MMP_SEQ_MAX => MmpState::Mounted(number),
                other => return Err(Corrupt::MmpSequence(other)),
            },
            ..Self::read_fields(raw)
        })
    }

    /// Writes the record into the first [`SIZE`](Self::SIZE) bytes of a block. Bytes that belong to
    /// no field stay.
    ///
    /// # Panics
    /// When `raw` is shorter.
    pub fn encode_into(&self, raw: &mut [u8], geometry: &Geometry) {
        let raw = &mut raw[..Self::SIZE];
        MAGIC.put(raw, MMP_MAGIC);
        SEQ.put(
            raw,
            match self.state {
                MmpState::Clean => SEQ_CLEAN,
                MmpState::Fsck => SEQ_FSCK,
                MmpState::Mounted(number) => number.min(MMP_SEQ_MAX),
            },
        );
        self.write_fields(raw);
        if geometry.metadata_csum {
            CHECKSUM.put(raw, checksum_of(raw, geometry));
        }
    }
}

fn checksum_of(raw: &[u8], geometry: &Geometry) -> u32 {
    crc32c(geometry.csum_seed, &raw[..CHECKSUM.0])
}
