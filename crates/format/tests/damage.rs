//! Each check of superblock, descriptor, inode and extent node has its own name, and the
//! name says which check it was.

mod decoders;

use stetfs_format::bytes::{write_u16le, write_u32le};
use stetfs_format::checksum::crc32c;
use stetfs_format::extent::{Expected, ROOT_SIZE};
use stetfs_format::indirect::Pointers;
use stetfs_format::{
    BlockNo, Corrupt, Extent, ExtentNode, ExtentNodeMut, Geometry, GroupDesc, GroupNo, Index,
    Inode, InodeFlags, InodeNo, LBlock, Place, Superblock,
};

/// A volume with `metadata_csum` and `64bit`, blocks of 1 KiB.
const CHOICE: u8 = 0b1100;

fn sound() -> Superblock {
    Superblock::decode(&decoders::superblock_bytes(CHOICE)).expect("a sound superblock")
}

fn unchecked() -> Geometry {
    Geometry {
        metadata_csum: false,
        ..*sound().geometry()
    }
}

/// Returns the error after `change`, with a right checksum.
fn damaged(change: impl Fn(&mut [u8])) -> Corrupt {
    let mut raw = decoders::superblock_bytes(CHOICE);
    change(&mut raw);
    let checksum = crc32c(!0, &raw[..1020]);
    write_u32le(&mut raw, 1020, checksum);
    Superblock::decode(&raw).expect_err("damage")
}

#[test]
fn superblocks() {
    let word = |offset, value| damaged(move |raw| write_u32le(raw, offset, value));
    let half = |offset, value| damaged(move |raw| write_u16le(raw, offset, value));
    assert_eq!(half(0x38, 0x1234), Corrupt::SuperMagic(0x1234));
    assert_eq!(word(0x4c, 2), Corrupt::SuperRevision(2));
    assert_eq!(word(0x60, 8), Corrupt::SuperIsJournal);
    assert_eq!(damaged(|raw| raw[0x175] = 2), Corrupt::SuperChecksumType(2));
    assert_eq!(word(0x18, 3), Corrupt::SuperBlockSize(3));
    assert_eq!(word(0x18, u32::MAX), Corrupt::SuperBlockSize(u32::MAX));
    assert_eq!(
        word(0x1c, 1),
        Corrupt::SuperClusterSize {
            cluster: 1,
            block: 0
        }
    );
    for size in [0, 64, 129, 192, 2048] {
        assert_eq!(half(0x58, size), Corrupt::SuperInodeSize(size));
    }
    assert_eq!(word(0x54, 10), Corrupt::SuperFirstInode(10));
    assert_eq!(
        word(0x54, 64 * 1024 + 1),
        Corrupt::SuperFirstInode(64 * 1024 + 1)
    );
    for size in [0, 32, 65, 2048] {
        assert_eq!(half(0xfe, size), Corrupt::SuperDescSize(size));
    }
    for blocks in [0, 4, 8193, 16384, u32::MAX] {
        assert_eq!(word(0x20, blocks), Corrupt::SuperBlocksPerGroup(blocks));
    }
    assert_eq!(
        word(0x24, 4096),
        Corrupt::SuperClustersPerGroup {
            clusters: 4096,
            blocks: 8192
        }
    );
    for inodes in [0, 1, 1026, 8200, u32::MAX] {
        assert_eq!(word(0x28, inodes), Corrupt::SuperInodesPerGroup(inodes));
    }
    assert_eq!(word(0x14, 0), Corrupt::SuperFirstDataBlock(0));
    assert_eq!(word(0x04, 0), Corrupt::SuperBlocksCount(0));
    assert_eq!(word(0x04, 1), Corrupt::SuperBlocksCount(1));
    let huge = 0xffff_ffff_0000_0000 | (64 * 8192 + 1);
    assert_eq!(word(0x150, u32::MAX), Corrupt::SuperBlocksCount(huge));
    assert_eq!(
        word(0x00, 1024),
        Corrupt::SuperInodesCount {
            stored: 1024,
            computed: 64 * 1024
        }
    );
    // One block more makes a last group that has no room for anything.
    let one_more = damaged(|raw| {
        write_u32le(raw, 0x04, 64 * 8192 + 2);
        write_u32le(raw, 0x00, 65 * 1024);
        write_u32le(raw, 0x64, 0x6a | 0x400);
    });
    assert_eq!(one_more, Corrupt::SuperLastGroup(1));
    assert_eq!(
        word(0x08, 64 * 8192 + 2),
        Corrupt::SuperReservedBlocks {
            reserved: 64 * 8192 + 2,
            blocks: 64 * 8192 + 1
        }
    );
    assert_eq!(half(0xce, 257), Corrupt::SuperReservedGdt(257));
    let meta_bg = damaged(|raw| {
        write_u32le(raw, 0x60, 0xd0);
        write_u32le(raw, 0x104, 5);
    });
    assert_eq!(
        meta_bg,
        Corrupt::SuperFirstMetaBg {
            first: 5,
            blocks: 4
        }
    );

    let mut raw = decoders::superblock_bytes(CHOICE);
    raw[0x78] = b'L';
    assert!(matches!(
        Superblock::decode(&raw),
        Err(Corrupt::SuperChecksum { .. })
    ));
    let (needed, found) = (1024, 1023);
    let short = Corrupt::TooShort {
        record: "superblock",
        needed,
        found,
    };
    assert_eq!(Superblock::decode(&raw[..1023]), Err(short));
}

#[test]
fn the_original_revision_has_its_own_sizes() {
    let mut raw = decoders::superblock_bytes(0);
    write_u32le(&mut raw, 0x4c, 0);
    write_u16le(&mut raw, 0x58, 77);
    write_u32le(&mut raw, 0x54, 3);
    let sb = Superblock::decode(&raw).expect("a superblock");
    assert_eq!(
        (sb.geometry().inode_size, sb.geometry().first_ino),
        (128, 11)
    );
}

#[test]
fn descriptors() {
    let (sb, g) = (sound(), GroupNo(2));
    let first = sb.group_first_block(g).0;
    let mut raw = vec![0; 64];
    for (offset, block) in [(0, 300), (4, 301), (8, 302)] {
        write_u32le(&mut raw, offset, first as u32 + block);
    }
    let plain = unchecked();
    let desc = GroupDesc::decode(&raw, g, &plain).expect("a descriptor");
    desc.encode_into(&mut raw, g, &sb);
    assert_eq!(GroupDesc::decode(&raw, g, &sb), Ok(desc));
    let other = GroupDesc::decode(&raw, GroupNo(3), &sb);
    assert!(matches!(
        other,
        Err(Corrupt::GroupChecksum {
            group: GroupNo(3),
            ..
        })
    ));

    let damaged = |offset, value: u32| {
        let mut bad = raw.clone();
        write_u32le(&mut bad, offset, value);
        GroupDesc::decode(&bad, g, &plain).expect_err("damage")
    };
    let outside = |what, block| Corrupt::GroupBlock {
        group: g,
        what,
        block: BlockNo(block),
    };
    // Without flex_bg nothing may lie in another group.
    assert_eq!(damaged(0, 5), outside("block bitmap", 5));
    assert_eq!(damaged(4, 0), outside("inode bitmap", 0));
    let last = first as u32 + 8191;
    assert_eq!(damaged(8, last), outside("inode table", last.into()));
    assert_eq!(
        damaged(0x20, 1),
        outside("block bitmap", 1 << 32 | (first + 300))
    );
    let count = |what, value, limit| Corrupt::GroupCount {
        group: g,
        what,
        value,
        limit,
    };
    assert_eq!(damaged(0xc, 8193), count("free blocks", 8193, 8192));
    assert_eq!(damaged(0xc, 1025 << 16), count("free inodes", 1025, 1024));
    assert_eq!(damaged(0x10, 1025), count("directories", 1025, 1024));
    assert_eq!(damaged(0x1c, 1025), count("unused inodes", 1025, 1024));
    let flex = Geometry {
        flex_bg: true,
        ..plain
    };
    assert!(GroupDesc::decode(&raw, GroupNo(9), &flex).is_ok());
}

#[test]
fn inodes() {
    let (plain, ino) = (unchecked(), InodeNo(50));
    let mut inode = Inode::new(0o100_600, InodeFlags::EXTENTS, 9, &plain);
    inode.size = 5;
    let mut raw = vec![0; 256];
    inode.encode_fresh(&mut raw, ino, &plain);
    assert_eq!(Inode::decode(&raw, ino, &plain), Ok(inode));
    let damaged = |offset: usize, bytes: &[u8]| {
        let mut bad = raw.clone();
        bad[offset..offset + bytes.len()].copy_from_slice(bytes);
        Inode::decode(&bad, ino, &plain).expect_err("damage")
    };
    for extra in [30, 132, u16::MAX] {
        let found = damaged(0x80, &extra.to_le_bytes());
        assert_eq!(
            found,
            Corrupt::InodeExtraSize {
                ino,
                extra,
                inode_size: 256
            }
        );
    }
    assert_eq!(
        damaged(1, &[0xf0]),
        Corrupt::InodeMode { ino, mode: 0xf080 }
    );
    assert_eq!(
        damaged(0x6f, &[0x80]),
        Corrupt::InodeSize {
            ino,
            size: 1 << 63 | 5
        }
    );
    for block in [1, 64 * 8192 + 1] {
        let found = damaged(0x68, &u32::to_le_bytes(block));
        assert_eq!(
            found,
            Corrupt::InodeFileAcl {
                ino,
                block: BlockNo(block.into())
            }
        );
    }
    let fast = |text: &[u8], size| {
        let mut link = Inode::new(0o120_777, InodeFlags::empty(), 0, &plain);
        link.block[..text.len()].copy_from_slice(text);
        link.size = size;
        link.fast_symlink(ino).map(<[u8]>::to_vec)
    };
    assert_eq!(fast(b"target", 6), Ok(b"target".to_vec()));
    for (text, size) in [
        (&b"target"[..], 5),
        (b"target", 7),
        (b"", 0),
        (&[b'x'; 60], 60),
    ] {
        assert_eq!(fast(text, size), Err(Corrupt::InodeSymlink { ino, size }));
    }
    let what = Corrupt::InodeMode {
        ino,
        mode: 0o170_000,
    };
    let place = what.at(Place::Block(BlockNo(7))).to_string();
    assert_eq!(
        place,
        "block 7: inode 50: mode 0o170000 has no known file type"
    );
}

fn extent(lblk: u32, len: u16, pblk: u64) -> Extent {
    Extent {
        lblk: LBlock(lblk),
        len,
        pblk: BlockNo(pblk),
        unwritten: false,
    }
}

#[test]
fn extent_nodes() {
    let (plain, csum, seed) = (unchecked(), *sound().geometry(), 5);
    let mut raw = vec![0; 1024];
    let mut node = ExtentNodeMut::init_block(&mut raw, 0, &plain);
    node.insert_extent(0, extent(8, 4, 1000));
    node.insert_extent(1, extent(12, 4, 2000));
    node.write_checksum(seed, &csum);
    let expected = Expected {
        depth: 0,
        lblk: LBlock(8),
    };
    assert!(ExtentNode::decode(&raw, expected, seed, &csum).is_ok());
    let wrong_seed = ExtentNode::decode(&raw, expected, seed + 1, &csum).map(drop);
    assert!(matches!(wrong_seed, Err(Corrupt::ExtentChecksum { .. })));
    let decode = |raw: &[u8], expected| ExtentNode::decode(raw, expected, 0, &plain).map(drop);
    let first = Expected {
        depth: 0,
        lblk: LBlock(7),
    };
    assert_eq!(
        decode(&raw, first),
        Err(Corrupt::ExtentFirst {
            found: LBlock(8),
            expected: LBlock(7)
        })
    );
    let deep = Expected {
        depth: 1,
        ..expected
    };
    assert_eq!(
        decode(&raw, deep),
        Err(Corrupt::ExtentDepth {
            found: 0,
            expected: Some(1)
        })
    );

    let damaged = |offset: usize, bytes: &[u8]| {
        let mut bad = raw.clone();
        bad[offset..offset + bytes.len()].copy_from_slice(bytes);
        decode(&bad, expected).expect_err("damage")
    };
    assert_eq!(damaged(0, &[0]), Corrupt::ExtentMagic(0xf300));
    assert_eq!(
        damaged(4, &[85]),
        Corrupt::ExtentMax {
            max: 85,
            possible: 84
        }
    );
    assert_eq!(
        damaged(4, &[0]),
        Corrupt::ExtentMax {
            max: 0,
            possible: 84
        }
    );
    assert_eq!(
        damaged(2, &[85]),
        Corrupt::ExtentEntries {
            entries: 85,
            max: 84
        }
    );
    assert_eq!(damaged(28, &[0, 0]), Corrupt::ExtentLength { index: 1 });
    assert_eq!(
        damaged(24, &[11]),
        Corrupt::ExtentOrder {
            index: 1,
            lblk: LBlock(11)
        }
    );
    let end = LBlock(u32::MAX - 3);
    assert_eq!(
        damaged(24, &end.0.to_le_bytes()),
        Corrupt::ExtentEnd {
            index: 1,
            lblk: end
        }
    );
    let blocks = |index, block, count| Corrupt::ExtentBlocks {
        index,
        block: BlockNo(block),
        count,
    };
    assert_eq!(damaged(32, &[1, 0, 0, 0]), blocks(1, 1, 4));
    assert_eq!(damaged(30, &[1, 0]), blocks(1, 1 << 32 | 2000, 4));
    let last = 64 * 8192 - 1u32;
    assert_eq!(damaged(32, &last.to_le_bytes()), blocks(1, last.into(), 4));

    let mut root = [0; ROOT_SIZE];
    let mut node = ExtentNodeMut::init_root(&mut root, 1);
    assert_eq!(
        ExtentNode::root(&[0; ROOT_SIZE], &plain).map(drop),
        Err(Corrupt::ExtentMagic(0))
    );
    node.insert_index(
        0,
        Index {
            lblk: LBlock(0),
            pblk: BlockNo(9),
        },
    );
    node.insert_index(
        1,
        Index {
            lblk: LBlock(u32::MAX),
            pblk: BlockNo(10),
        },
    );
    assert!(ExtentNode::root(&root, &plain).is_ok());
    let mut same = root;
    ExtentNodeMut::edit(&mut same).set_index(
        1,
        Index {
            lblk: LBlock(0),
            pblk: BlockNo(10),
        },
    );
    assert_eq!(
        ExtentNode::root(&same, &plain).map(drop),
        Err(Corrupt::ExtentOrder {
            index: 1,
            lblk: LBlock(0)
        })
    );
    ExtentNodeMut::edit(&mut root).remove(0, 2);
    assert_eq!(
        ExtentNode::root(&root, &plain).map(drop),
        Err(Corrupt::ExtentEntries { entries: 0, max: 4 })
    );
    ExtentNodeMut::edit(&mut root).set_depth(6);
    assert_eq!(
        ExtentNode::root(&root, &plain).map(drop),
        Err(Corrupt::ExtentDepth {
            found: 6,
            expected: None
        })
    );
}

#[test]
fn pointers() {
    let plain = unchecked();
    let mut raw = vec![0; 1024];
    write_u32le(&mut raw, 8, 64 * 8192 + 1);
    let bad = Corrupt::IndirectBlock {
        index: 2,
        block: BlockNo(64 * 8192 + 1),
    };
    assert_eq!(Pointers::new(&raw, &plain).check(), Err(bad));
    assert_eq!(Pointers::new(&raw, &plain).run(0, 99), Ok((None, 2)));
}
