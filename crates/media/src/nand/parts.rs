//! Parts that exist, as their datasheets describe them.
//!
//! Datasheets do not tell error rates; these parts derive them from the promises. At the end of the
//! endurance, the demanded error correction fails once in 10^15 bits read (the limit of JESD218 for
//! client drives). A fresh block has a tenth of those errors. Half of the blocks that may go bad
//! are bad from the factory.

use stetfs_format::nand::{NandEcc, NandGeometry, NandPart, NandTiming, NandWear};

/// JFTL's part: 128 MiB in pages of 512 bytes and blocks of 16 KiB; 25 us to read, 100 us to
/// program, 2 ms to erase (Lim, Choi, Park, HPCC 2007, section 4).
///
/// For what the paper leaves open we take the single-level part with this geometry, NAND01G-A
/// (STMicroelectronics, also Numonyx, "528 Byte / 264 Word Page"): a spare area of 16 bytes with
/// the bad block mark in the sixth, 50 ns a byte on the bus, 100,000 cycles with one bit corrected
/// in 528 bytes, at least 8,032 of 8,192 blocks good to the end. The paper simulated it without bad
/// blocks and errors: [`NandPart::flawless`].
pub const JFTL: NandPart = NandPart {
    geometry: NandGeometry {
        page_bytes: 512,
        spare_bytes: 16,
        pages_per_block: 32,
        blocks: 8192,
        planes: 1,
        bad_mark: 5,
    },
    timing: NandTiming {
        read_ns: 25_000,
        program_ns: 100_000,
        erase_ns: 2_000_000,
        bus_bytes_per_us: 20,
    },
    ecc: NandEcc {
        codeword_bytes: 512,
        strength_bits: 1,
    },
    wear: NandWear {
        endurance_erases: 100_000,
        factory_bad_ppm: 9_700,
        early_bad_ppm: 9_700,
        // 4,224 bits, 1 corrected: at a rate of 7 in 10^10, 4.4 of 10^12 codewords have two wrong
        // bits.
        fresh_errors_per_pbit: 70_000,
        worn_errors_per_pbit: 700_000,
        disturb_errors_per_pbit: 0,
    },
    seed: 1,
};

/// A multi-level part of 8 GiB in pages of 8 KiB and blocks of 2 MiB: Micron MT29F64G08CBAA
/// ("L74A", datasheet revision G): 75 us to read, 1.3 ms to program, 3.8 ms to erase, 200 MB/s on
/// the bus, two planes, a spare area of 448 bytes, 3,000 cycles with 24 bits corrected in 1,080
/// bytes. Of 4,096 blocks such a part keeps 3,936 to the end. Times are those of the datasheet for
/// any page: in truth half of the pages are programmed faster and half slower. A read adds 1.63
/// errors in 10^9 bits to its block at 3,000 cycles (Cai and others, DSN 2015, figure 3).
pub const MLC: NandPart = NandPart {
    geometry: NandGeometry {
        page_bytes: 8192,
        spare_bytes: 448,
        pages_per_block: 256,
        blocks: 4096,
        planes: 2,
        bad_mark: 0,
    },
    timing: NandTiming {
        read_ns: 75_000,
        program_ns: 1_300_000,
        erase_ns: 3_800_000,
        bus_bytes_per_us: 200,
    },
    ecc: NandEcc {
        codeword_bytes: 1024,
        strength_bits: 24,
    },
    wear: NandWear {
        endurance_erases: 3000,
        factory_bad_ppm: 19_500,
        early_bad_ppm: 19_500,
        // 8,640 bits, 24 corrected: at a rate of 5 in 10^4, 8 of 10^12 codewords have more wrong
        // bits.
        fresh_errors_per_pbit: 50_000_000_000,
        worn_errors_per_pbit: 500_000_000_000,
        disturb_errors_per_pbit: 1_630_000,
    },
    seed: 1,
};
