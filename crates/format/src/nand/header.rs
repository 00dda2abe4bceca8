//! The header of the file of a NAND part: what the part is, and under which boot of the host it was
//! left open.

use crate::checksum::crc32c;
use crate::layout::{Bytes, Le32, Le64, layout};
use crate::nand::error::NandCorrupt;
use crate::nand::part::{NandEcc, NandGeometry, NandPart, NandTiming, NandWear};
use crate::width::usize_as_u64;

const SIZE: usize = 0x100;
const MAGIC_BYTES: [u8; 8] = *b"stetNAND";
const VERSION_1: u32 = 1;

layout! {
    /// The header of the file of a NAND part.
    pub NAND_HEADER_LAYOUT = "NAND file header", SIZE, {
        0x00 Bytes<8>, MAGIC = "n_magic";
        0x08 Le32, VERSION = "n_version";
        0x0c Le32, CHECKSUM = "n_checksum";
        0x10 Bytes<16>, UUID = "n_uuid";
        0x20 Bytes<16>, BOOT = "n_boot";
        0x30 Le64, SEED = "n_seed";
        0x38 Le32, PAGE_BYTES = "n_page_bytes";
        0x3c Le32, SPARE_BYTES = "n_spare_bytes";
        0x40 Le32, PAGES_PER_BLOCK = "n_pages_per_block";
        0x44 Le32, BLOCKS = "n_blocks";
        0x48 Le32, PLANES = "n_planes";
        0x4c Le32, BAD_MARK = "n_bad_mark";
        0x50 Le32, READ_NS = "n_read_ns";
        0x54 Le32, PROGRAM_NS = "n_program_ns";
        0x58 Le32, ERASE_NS = "n_erase_ns";
        0x5c Le32, BUS = "n_bus_bytes_per_us";
        0x60 Le32, CODEWORD_BYTES = "n_codeword_bytes";
        0x64 Le32, STRENGTH_BITS = "n_strength_bits";
        0x68 Le32, ENDURANCE = "n_endurance_erases";
        0x6c Le32, FACTORY_BAD = "n_factory_bad_ppm";
        0x70 Le32, EARLY_BAD = "n_early_bad_ppm";
        0x78 Le64, FRESH_ERRORS = "n_fresh_errors_per_pbit";
        0x80 Le64, WORN_ERRORS = "n_worn_errors_per_pbit";
        0x88 Le64, DISTURB_ERRORS = "n_disturb_errors_per_pbit";
    }
}

/// The header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NandHeader {
    /// The file's UUID: block records are valid with this one only.
    pub uuid: [u8; 16],
    /// The boot of the host under which the file was opened, if it was not closed since: a crash of
    /// the host may have lost what was written. Zeros when the file was closed, or loses nothing in
    /// such a crash.
    pub boot: [u8; 16],
    /// The part.
    pub part: NandPart,
}

impl NandHeader {
    /// Bytes of the header.
    pub const SIZE: usize = SIZE;

    /// Reads the header, which is valid if and only if
    /// 1. `n_magic` is "stetNAND",
    /// 2. `n_version` is 1,
    /// 3. `n_checksum` fits,
    /// 4. the part's numbers are possible ([`NandPart::check`]).
    ///
    /// # Errors
    /// The variant of [`NandCorrupt`] that belongs to the check.
    pub fn decode(raw: &[u8]) -> Result<Self, NandCorrupt> {
        let Some(raw) = raw.get(..SIZE) else {
            return Err(NandCorrupt::TooShort {
                record: "NAND file header",
                needed: usize_as_u64(SIZE),
                found: usize_as_u64(raw.len()),
            });
        };
        if MAGIC.get(raw) != MAGIC_BYTES {
            return Err(NandCorrupt::Magic(MAGIC.get(raw)));
        }
        if VERSION.get(raw) != VERSION_1 {
            return Err(NandCorrupt::Version(VERSION.get(raw)));
        }
        let (stored, computed) = (CHECKSUM.get(raw), checksum_of(raw));
        if stored != computed {
            return Err(NandCorrupt::HeaderChecksum { stored, computed });
        }
        let part = NandPart {
            geometry: NandGeometry {
                page_bytes: PAGE_BYTES.get(raw),
                spare_bytes: SPARE_BYTES.get(raw),
                pages_per_block: PAGES_PER_BLOCK.get(raw),
                blocks: BLOCKS.get(raw),
                planes: PLANES.get(raw),
                bad_mark: BAD_MARK.get(raw),
            },
            timing: NandTiming {
                read_ns: READ_NS.get(raw),
                program_ns: PROGRAM_NS.get(raw),
                erase_ns: ERASE_NS.get(raw),
                bus_bytes_per_us: BUS.get(raw),
            },
            ecc: NandEcc {
                codeword_bytes: CODEWORD_BYTES.get(raw),
                strength_bits: STRENGTH_BITS.get(raw),
            },
            wear: NandWear {
                endurance_erases: ENDURANCE.get(raw),
                factory_bad_ppm: FACTORY_BAD.get(raw),
                early_bad_ppm: EARLY_BAD.get(raw),
                fresh_errors_per_pbit: FRESH_ERRORS.get(raw),
                worn_errors_per_pbit: WORN_ERRORS.get(raw),
                disturb_errors_per_pbit: DISTURB_ERRORS.get(raw),
            },
            seed: SEED.get(raw),
        };
        part.check()?;
        Ok(Self {
            uuid: UUID.get(raw),
            boot: BOOT.get(raw),
            part,
        })
    }

    /// The bytes of the header.
    pub fn encode(&self) -> [u8; SIZE] {
        let mut raw = [0; SIZE];
        MAGIC.put(&mut raw, MAGIC_BYTES);
        VERSION.put(&mut raw, VERSION_1);
        UUID.put(&mut raw, self.uuid);
        BOOT.put(&mut raw, self.boot);
        let NandPart {
            geometry,
            timing,
            ecc,
            wear,
            seed,
        } = &self.part;
        SEED.put(&mut raw, *seed);
        PAGE_BYTES.put(&mut raw, geometry.page_bytes);
        SPARE_BYTES.put(&mut raw, geometry.spare_bytes);
        PAGES_PER_BLOCK.put(&mut raw, geometry.pages_per_block);
        BLOCKS.put(&mut raw, geometry.blocks);
        PLANES.put(&mut raw, geometry.planes);
        BAD_MARK.put(&mut raw, geometry.bad_mark);
        READ_NS.put(&mut raw, timing.read_ns);
        PROGRAM_NS.put(&mut raw, timing.program_ns);
        ERASE_NS.put(&mut raw, timing.erase_ns);
        BUS.put(&mut raw, timing.bus_bytes_per_us);
        CODEWORD_BYTES.put(&mut raw, ecc.codeword_bytes);
        STRENGTH_BITS.put(&mut raw, ecc.strength_bits);
        ENDURANCE.put(&mut raw, wear.endurance_erases);
        FACTORY_BAD.put(&mut raw, wear.factory_bad_ppm);
        EARLY_BAD.put(&mut raw, wear.early_bad_ppm);
        FRESH_ERRORS.put(&mut raw, wear.fresh_errors_per_pbit);
        WORN_ERRORS.put(&mut raw, wear.worn_errors_per_pbit);
        DISTURB_ERRORS.put(&mut raw, wear.disturb_errors_per_pbit);
        let checksum = checksum_of(&raw);
        CHECKSUM.put(&mut raw, checksum);
        raw
    }
}

/// CRC-32C of the header with zeros for the checksum.
fn checksum_of(raw: &[u8]) -> u32 {
    let crc = crc32c(!0, &raw[..CHECKSUM.0]);
    let crc = crc32c(crc, &[0; Le32::SIZE]);
    crc32c(crc, &raw[CHECKSUM.end()..SIZE])
}
