//! Each check of the file of a NAND part has its own name, and the name says which check it was.

mod decoders;

use stetfs_format::bytes::write_u32le;
use stetfs_format::checksum::crc32c;
use stetfs_format::nand::{
    BlockCondition, NandBlock, NandCorrupt, NandEcc, NandGeometry, NandHeader, NandPart, NandWear,
    PageState,
};
use stetfs_format::{BlockAddr, PageNo};

const BLOCK: BlockAddr = BlockAddr(3);

/// Returns the error after `change`, with a right checksum.
fn damaged_header(change: impl Fn(&mut [u8])) -> NandCorrupt {
    let mut raw = decoders::nand_header().encode();
    change(&mut raw);
    write_u32le(&mut raw, 0x0c, 0);
    let checksum = crc32c(!0, &raw);
    write_u32le(&mut raw, 0x0c, checksum);
    NandHeader::decode(&raw).expect_err("damage")
}

/// Returns the error of a header with `value` at `offset`.
fn number(offset: usize, value: u32) -> NandCorrupt {
    damaged_header(|raw| write_u32le(raw, offset, value))
}

#[test]
fn headers() {
    let sound = decoders::nand_header();
    let raw = sound.encode();
    assert_eq!(NandHeader::decode(&raw), Ok(sound));
    assert_eq!(
        NandHeader::decode(&raw[..255]),
        Err(NandCorrupt::TooShort {
            record: "NAND file header",
            needed: 256,
            found: 255
        })
    );
    assert_eq!(
        damaged_header(|raw| raw[7] = b'd'),
        NandCorrupt::Magic(*b"stetNANd")
    );
    assert_eq!(number(0x08, 2), NandCorrupt::Version(2));
    for at in 0x10..NandHeader::SIZE {
        let mut raw = raw;
        raw[at] ^= 1;
        let error = NandHeader::decode(&raw).expect_err("damage");
        assert!(matches!(error, NandCorrupt::HeaderChecksum { .. }), "{at}");
    }
}

#[test]
fn impossible_parts() {
    for bytes in [0, 256, 513, 131_072] {
        assert_eq!(number(0x38, bytes), NandCorrupt::PageBytes(bytes));
    }
    for spare in [0, 513] {
        let expected = NandCorrupt::SpareBytes { spare, page: 512 };
        assert_eq!(number(0x3c, spare), expected);
    }
    for pages in [0, 4081, u32::MAX] {
        assert_eq!(number(0x40, pages), NandCorrupt::PagesPerBlock(pages));
    }
    for blocks in [0, 1 << 28, u32::MAX] {
        let expected = NandCorrupt::Blocks { blocks, pages: 16 };
        assert_eq!(number(0x44, blocks), expected);
    }
    for planes in [0, 3, 16] {
        assert_eq!(
            number(0x48, planes),
            NandCorrupt::Planes { planes, blocks: 8 }
        );
    }
    assert_eq!(
        number(0x4c, 16),
        NandCorrupt::BadMark {
            mark: 16,
            spare: 16
        }
    );
    for codeword in [0, 511, 1024] {
        let expected = NandCorrupt::Ecc {
            codeword,
            strength: 1,
            page: 512,
        };
        assert_eq!(number(0x60, codeword), expected);
    }
    assert_eq!(
        number(0x64, 4096),
        NandCorrupt::Ecc {
            codeword: 512,
            strength: 4096,
            page: 512
        }
    );
    assert_eq!(number(0x68, 0), NandCorrupt::Endurance);
    assert_eq!(
        number(0x70, 990_001),
        NandCorrupt::BadShare {
            factory: 10_000,
            early: 990_001
        }
    );
    let rate = (500_000_000_000_001_u64).to_le_bytes();
    for at in [0x78, 0x80, 0x88] {
        let error = damaged_header(|raw| raw[at..at + 8].copy_from_slice(&rate));
        assert_eq!(error, NandCorrupt::ErrorRate(500_000_000_000_001));
    }
}

/// With the largest accepted numbers, no sum exceeds 64 bits.
#[test]
fn the_largest_part() {
    let part = NandPart {
        geometry: NandGeometry {
            page_bytes: 65_536,
            spare_bytes: 65_536,
            pages_per_block: 4080,
            blocks: u32::MAX / 4080,
            planes: 1,
            bad_mark: 0,
        },
        ecc: NandEcc {
            codeword_bytes: 1,
            strength_bits: 7,
        },
        wear: NandWear {
            endurance_erases: u32::MAX,
            ..decoders::nand_header().part.wear
        },
        ..decoders::nand_header().part
    };
    part.check().expect("it can be");
    let geometry = part.geometry;
    assert_eq!(geometry.record_stride(), 4096);
    let cells = u64::from(geometry.pages()) * 131_072;
    assert_eq!(
        geometry.file_bytes(),
        4096 * (1 + u64::from(geometry.blocks)) + cells
    );
    part.flawless().check().expect("it can be without flaws");
}

fn encoded(block: &NandBlock) -> Vec<u8> {
    let header = decoders::nand_header();
    let mut raw = Vec::new();
    block.encode(BLOCK, &header.uuid, &header.part.geometry, &mut raw);
    raw
}

fn decoded(raw: &[u8]) -> Result<NandBlock, NandCorrupt> {
    let header = decoders::nand_header();
    NandBlock::decode(raw, BLOCK, &header.uuid, &header.part.geometry)
}

/// Returns the error after `change` of the bytes, with a right checksum.
fn damaged_block(change: impl Fn(&mut [u8])) -> NandCorrupt {
    let mut raw = encoded(&decoders::nand_block());
    change(&mut raw);
    let seed = crc32c(crc32c(!0, &[7; 16]), &BLOCK.0.to_le_bytes());
    let checksum = crc32c(seed, &raw[4..32]);
    write_u32le(&mut raw, 0, checksum);
    decoded(&raw).expect_err("damage")
}

#[test]
fn block_records() {
    let header = decoders::nand_header();
    let sound = decoders::nand_block();
    let raw = encoded(&sound);
    assert_eq!(decoded(&raw).as_ref(), Ok(&sound));
    assert_eq!(
        decoded(&raw[..31]),
        Err(NandCorrupt::TooShort {
            record: "NAND block record",
            needed: 32,
            found: 31
        })
    );
    for at in 0..32 {
        let mut raw = raw.clone();
        raw[at] ^= 0x10;
        let error = decoded(&raw).expect_err("damage");
        assert!(matches!(error, NandCorrupt::BlockChecksum { .. }), "{at}");
    }
    // A record of another block, or of another file.
    let geometry = &header.part.geometry;
    for (block, uuid) in [(BlockAddr(4), [7; 16]), (BLOCK, [8; 16])] {
        let error = NandBlock::decode(&raw, block, &uuid, geometry).expect_err("not here");
        assert!(matches!(error, NandCorrupt::BlockChecksum { .. }));
    }
    assert_eq!(
        damaged_block(|raw| raw[0x0c] = 5),
        NandCorrupt::Condition {
            block: BLOCK,
            condition: 5
        }
    );
    assert_eq!(
        damaged_block(|raw| raw[0x08] = 17),
        NandCorrupt::NextPage {
            block: BLOCK,
            next: 17,
            pages: 16
        }
    );
    assert_eq!(
        damaged_block(|raw| raw[0x11] = 6),
        NandCorrupt::PageState {
            block: BLOCK,
            page: PageNo(49),
            state: 6
        }
    );
    assert_eq!(
        damaged_block(|raw| raw[0x13] = 1),
        NandCorrupt::PageOrder {
            block: BLOCK,
            page: PageNo(51),
            state: PageState::Programmed,
            next: 3
        }
    );
    assert_eq!(
        damaged_block(|raw| raw[0x10] = 0),
        NandCorrupt::PageOrder {
            block: BLOCK,
            page: PageNo(48),
            state: PageState::Erased,
            next: 3
        }
    );
}

/// In a block whose erase was interrupted some of the pages are erased.
#[test]
fn half_erased_blocks() {
    let mut block = decoders::nand_block();
    block.condition = BlockCondition::HalfErased;
    block.pages[1] = PageState::Erased;
    assert_eq!(decoded(&encoded(&block)), Ok(block));
}
