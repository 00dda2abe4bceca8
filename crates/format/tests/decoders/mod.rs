//! One function per decoder. It takes any bytes and does what a caller may do with them: decode,
//! look at everything, edit, encode. The property tests and the fuzz targets in `fuzz/` use it. A
//! panic is the only failure.
//!
//! The first byte chooses the volume (block size, features). The second says whether the rest are
//! the record itself or edits of a sound one.
#![allow(dead_code, unreachable_pub)]

use stetfs_format::acl::{Acl, AclEntry, Tag};
use stetfs_format::bytes::{write_u16le, write_u32le};
use stetfs_format::checksum::crc32c;
use stetfs_format::extent::{Expected, ROOT_SIZE};
use stetfs_format::group::{init_block_bitmap, init_inode_bitmap};
use stetfs_format::indirect::{Path, Pointers};
use stetfs_format::jbd2::{
    ChecksumVersion, CommitBlock, DescriptorBlock, DescriptorWriter, Header, JournalIncompat,
    JournalSuperblock, LogFormat, RevokeBlock, RevokeWriter,
};
use stetfs_format::nand::{
    BlockCondition, NandBlock, NandEcc, NandGeometry, NandHeader, NandPart, NandTiming, NandWear,
    PageState,
};
use stetfs_format::orphan::OrphanBlock;
use stetfs_format::{
    BlockAddr, BlockNo, DirBlock, DxBlock, DxBlockMut, DxEntry, Extent, ExtentNode, ExtentNodeMut,
    FileType, Geometry, GroupDesc, GroupNo, HashVersion, Hasher, Index, Inode, InodeFlags, InodeNo,
    LBlock, Superblock, Tid, Xattr, XattrArea, XattrBlock, dirent, orphan, xattr,
};

/// The superblock of a volume of 64 groups. The bits of `choice`: 0-1 block size, 2
/// `metadata_csum`, 3 `64bit`, 4 `flex_bg`, 5 `large_dir`, 6 inodes of 128 bytes, 7
/// `meta_bg` without `filetype`.
pub fn superblock_bytes(choice: u8) -> Vec<u8> {
    let bit = |n: u8| u32::from(choice >> n & 1);
    let log_block_size = u32::from(choice & 3).min(2);
    let blocks_per_group = 8192 << log_block_size;
    let first_data_block = u32::from(log_block_size == 0);
    let mut raw = vec![0; 1024];
    for (offset, value) in [
        (0x00, 64 * 1024),
        (0x04, 64 * blocks_per_group + first_data_block),
        (0x14, first_data_block),
        (0x18, log_block_size),
        (0x1c, log_block_size),
        (0x20, blocks_per_group),
        (0x24, blocks_per_group),
        (0x28, 1024),
        (0x4c, 1),
        (0x54, 11),
        (0x5c, 0x3c),
        (
            0x60,
            0x40 | bit(3) << 7 | bit(4) << 9 | bit(5) << 14 | bit(7) << 4 | (1 - bit(7)) << 1,
        ),
        (0x64, 0x6b | bit(2) << 10),
        (0x104, 0),
    ] {
        write_u32le(&mut raw, offset, value);
    }
    for (offset, value) in [
        (0x38, 0xef53),
        (0x3a, 1),
        (0x58, if bit(6) == 1 { 128 } else { 256 }),
        (0xfe, 64),
        (0x15c, 32),
        (0x15e, 32),
    ] {
        write_u16le(&mut raw, offset, value);
    }
    raw[0x174] = 4;
    raw[0x175] = 1;
    let checksum = crc32c(!0, &raw[..1020]);
    write_u32le(&mut raw, 1020, checksum);
    raw
}

fn volume(choice: u8) -> Superblock {
    Superblock::decode(&superblock_bytes(choice)).expect("a sound superblock")
}

/// The volume, and the record: the rest of `data`, or `sound` changed by triples of offset
/// (two bytes) and value.
fn input(data: &[u8], sound: impl Fn(&Superblock) -> Vec<u8>) -> (Superblock, Vec<u8>) {
    let (&choice, rest) = data.split_first().unwrap_or((&0, &[]));
    let (&mode, rest) = rest.split_first().unwrap_or((&0, &[]));
    let volume = volume(choice);
    if mode & 1 == 0 {
        return (volume, rest.to_vec());
    }
    let mut record = sound(&volume);
    for edit in rest.chunks_exact(3) {
        let offset = usize::from(u16::from_le_bytes([edit[0], edit[1]])) % record.len();
        record[offset] ^= edit[2];
    }
    (volume, record)
}

/// `raw` cut or filled with zeros to a block.
fn block_of(raw: &[u8], geometry: &Geometry) -> Vec<u8> {
    let mut block = raw.to_vec();
    block.resize(geometry.block_size(), 0);
    block
}

pub fn superblock(data: &[u8]) {
    let (_, mut raw) = input(data, |volume| {
        let mut raw = superblock_bytes(0);
        volume.encode_into(&mut raw);
        raw
    });
    // With a right checksum, the checks behind it are reached.
    if raw.len() >= 1024 && raw[0x65] & 4 != 0 {
        let checksum = crc32c(!0, &raw[..1020]);
        write_u32le(&mut raw, 1020, checksum);
    }
    let Ok(sb) = Superblock::decode(&raw) else {
        return;
    };
    let mut again = raw.clone();
    sb.encode_into(&mut again);
    assert_eq!(Superblock::decode(&again).as_ref(), Ok(&sb));
    let _ = (
        sb.check_features(),
        sb.features().count(),
        sb.label(),
        sb.unsigned_hash(),
    );
    let last = sb.groups_count() - 1;
    for g in [0, 1, last / 2, last].map(|g| GroupNo(g.min(last))) {
        let blocks = sb.group_blocks(g);
        assert!(blocks > 0 && blocks <= sb.blocks_per_group());
        assert_eq!(sb.group_of_block(sb.group_first_block(g)), (g, 0));
        assert_eq!(sb.group_of_inode(sb.inode_at(g, 0)), (g, 0));
        let _ = (sb.has_super(g), sb.base_meta_blocks(g), sb.flex_group(g));
        let (_, offset) = sb.desc_position(g);
        assert!(offset + sb.desc_size() <= sb.block_size());
    }
    let (_, offset) = sb.inode_position(sb.inodes_per_group() - 1);
    assert!(offset + sb.inode_size() <= sb.block_size());
    let _ = (
        sb.inode_table_blocks(),
        sb.desc_blocks(),
        sb.is_valid_range(BlockNo(u64::MAX), 1),
    );
}

pub fn group_desc(data: &[u8]) {
    let g = GroupNo(3);
    let (sb, raw) = input(data, |sb| {
        let first = sb.group_first_block(g);
        let mut raw = vec![0; sb.desc_size()];
        for (offset, block) in [(0, 300), (4, 301), (8, 302)] {
            write_u32le(&mut raw, offset, first.0 as u32 + block);
        }
        let desc = GroupDesc::decode(&raw, g, &unchecked(sb)).expect("a sound descriptor");
        desc.encode_into(&mut raw, g, sb);
        raw
    });
    for geometry in [*sb.geometry(), unchecked(&sb)] {
        let Ok(mut desc) = GroupDesc::decode(&raw, g, &geometry) else {
            continue;
        };
        let mut again = raw[..geometry.desc_size()].to_vec();
        desc.encode_into(&mut again, g, &geometry);
        assert_eq!(again, raw[..geometry.desc_size()]);
        let mut bitmap = vec![0; geometry.block_size()];
        init_block_bitmap(&mut bitmap, g, &desc, &geometry);
        desc.set_block_bitmap_csum(&bitmap, &geometry);
        desc.check_block_bitmap(&bitmap, g, &geometry)
            .expect("our own bitmap");
        init_inode_bitmap(&mut bitmap, &geometry);
        desc.set_inode_bitmap_csum(&bitmap, &geometry);
        desc.check_inode_bitmap(&bitmap, g, &geometry)
            .expect("our own bitmap");
    }
}

/// The same volume without checksums, so that damage gets past them.
fn unchecked(sb: &Superblock) -> Geometry {
    Geometry {
        metadata_csum: false,
        gdt_csum: false,
        ..*sb.geometry()
    }
}

const INO: InodeNo = InodeNo(1234);

pub fn inode(data: &[u8]) {
    let (sb, raw) = input(data, |sb| {
        let mut inode = Inode::new(0o100_644, InodeFlags::EXTENTS, 7, sb);
        inode.links_count = 1;
        let mut root = ExtentNodeMut::init_root(&mut inode.block, 0);
        root.insert_extent(0, extent(5, 3, 1000));
        let mut raw = vec![0; sb.inode_size()];
        let list = xattrs();
        if xattr::fits_inode(list.iter().copied(), &inode, sb) {
            xattr::encode_inode(&mut raw, &list, &inode, sb);
        }
        inode.encode_into(&mut raw, INO, sb);
        raw
    });
    for geometry in [*sb.geometry(), unchecked(&sb)] {
        let Ok(mut inode) = Inode::decode(&raw, INO, &geometry) else {
            continue;
        };
        let mut again = raw[..geometry.inode_size()].to_vec();
        inode.encode_into(&mut again, INO, &geometry);
        assert_eq!(Inode::decode(&again, INO, &geometry).as_ref(), Ok(&inode));
        let _ = (
            inode.file_type(),
            inode.is_fast_symlink(&geometry),
            inode.rdev(),
        );
        if let Ok(target) = inode.fast_symlink(INO) {
            assert_eq!(target.len() as u64, inode.size);
        }
        let blocks = inode.blocks_512(&geometry);
        let stored = inode.set_blocks_512(blocks, &geometry);
        assert!(!stored || inode.blocks_512(&geometry) == blocks);
        if let Ok(root) = ExtentNode::root(&inode.block, &geometry) {
            look_at_node(&root);
        }
        let _ = Pointers::new(&inode.block, &geometry).check();
        look_at_xattrs(XattrArea::in_inode(&raw, &inode, &geometry));
    }
}

fn extent(lblk: u32, len: u16, pblk: u64) -> Extent {
    Extent {
        lblk: LBlock(lblk),
        len,
        pblk: BlockNo(pblk),
        unwritten: lblk % 2 == 1,
    }
}

fn look_at_node(node: &ExtentNode<'_>) {
    if node.is_leaf() {
        assert!(node.extents().all(|extent| extent.is_ok()));
    } else {
        assert!(node.indexes().all(|index| index.is_ok()));
    }
    for lblk in [0, 5, 1000, u32::MAX].map(LBlock) {
        let found = node.search(lblk);
        assert!(found.is_none_or(|index| node.lblk(index) <= lblk));
    }
}

pub fn extent_node(data: &[u8]) {
    let depth = u16::from(data.first().copied().unwrap_or(0) >> 7);
    let seed = 99;
    let (sb, raw) = input(data, |sb| {
        let mut raw = vec![0; sb.block_size()];
        let mut node = ExtentNodeMut::init_block(&mut raw, depth, sb);
        for i in 0..20u16 {
            let (lblk, pblk) = (u32::from(i) * 10, 1000 + u64::from(i) * 16);
            if depth == 0 {
                node.insert_extent(i, extent(lblk, 5, pblk));
            } else {
                node.insert_index(
                    i,
                    Index {
                        lblk: LBlock(lblk),
                        pblk: BlockNo(pblk),
                    },
                );
            }
        }
        node.write_checksum(seed, sb);
        raw
    });
    for geometry in [*sb.geometry(), unchecked(&sb)] {
        let raw = block_of(&raw, &geometry);
        if let Ok(node) = ExtentNode::view(&raw, depth, &geometry) {
            for index in 0..node.entries() {
                let _ = if depth == 0 {
                    node.extent(index).err()
                } else {
                    node.index(index).err()
                };
            }
            let _ = node.search(LBlock(77));
        }
        let expected = Expected {
            depth,
            lblk: LBlock(0),
        };
        let Ok(node) = ExtentNode::decode(&raw, expected, seed, &geometry) else {
            continue;
        };
        look_at_node(&node);
        let (entries, max) = (node.entries(), node.max());
        let mut scratch = raw.clone();
        let mut other = vec![0; raw.len()];
        let mut edit = ExtentNodeMut::edit(&mut scratch);
        let mut right = ExtentNodeMut::init_block(&mut other, depth, &geometry);
        edit.move_tail(entries / 2, &mut right);
        assert_eq!(edit.entries() + right.entries(), entries);
        if depth == 0 && right.entries() < right.max() {
            right.insert_extent(right.entries(), extent(u32::MAX - 9, 1, 1000));
        }
        right.remove(0, right.entries());
        edit.write_checksum(seed, &geometry);
        assert_eq!(edit.max(), max);
    }
    let mut root = [0; ROOT_SIZE];
    let length = raw.len().min(ROOT_SIZE);
    root[..length].copy_from_slice(&raw[..length]);
    if let Ok(node) = ExtentNode::root(&root, &sb) {
        look_at_node(&node);
    }
}

pub fn indirect(data: &[u8]) {
    let (sb, raw) = input(data, |sb| {
        (0..sb.block_size() as u32 / 4)
            .flat_map(|i| (500 + i).to_le_bytes())
            .collect()
    });
    let raw = block_of(&raw, &sb);
    let pointers = Pointers::new(&raw, &sb);
    let mut index = 0;
    while index < pointers.count() {
        match pointers.run(index, 50) {
            Ok((_, length)) => {
                assert!((1..=50).contains(&length));
                index += length;
            }
            Err(_) => index += 1,
        }
    }
    let _ = (pointers.check(), pointers.is_empty());
    for word in raw.chunks_exact(4).take(8) {
        let lblk = LBlock(u32::from_le_bytes(word.try_into().expect("4 bytes")));
        let path = Path::to(lblk, &sb);
        let reached = stetfs_format::indirect::max_blocks(&sb);
        assert_eq!(path.is_some(), u64::from(lblk.0) < reached);
        let fits = |path: Path| {
            path.indexes()[1..]
                .iter()
                .all(|index| *index < pointers.count())
        };
        assert!(path.is_none_or(fits));
    }
}

pub fn dirent_block(data: &[u8]) {
    let seed = 99;
    let (sb, raw) = input(data, |sb| {
        let mut raw = vec![0; sb.block_size()];
        dirent::init_dot_dotdot(&mut raw, INO, InodeNo(2), sb);
        for length in [1, 20, 255, 7] {
            let block = DirBlock::decode(&raw, sb).expect("our own block");
            let slot = block.find_room(length).expect("entries").expect("room");
            let name = vec![b'n'; length];
            dirent::insert(&mut raw, slot, INO, FileType::Regular, &name, sb);
        }
        dirent::write_checksum(&mut raw, seed, sb);
        raw
    });
    let raw = block_of(&raw, &sb);
    let Ok(block) = DirBlock::decode(&raw, &sb) else {
        return;
    };
    let _ = (
        block.check_checksum(seed),
        block.is_empty(),
        block.check_entries(true),
        block.find(b"n"),
    );
    let mut entries = Vec::new();
    for entry in block.entries() {
        match entry {
            Ok(entry) => entries.push(entry),
            Err(_) => break,
        }
    }
    let whole = block.entries().all(|entry| entry.is_ok());
    for name in entries
        .iter()
        .map(|entry| entry.name)
        .chain([&b"absent"[..]])
    {
        let first = entries
            .iter()
            .find(|entry| entry.name == name && !entry.is_free());
        assert!(!whole || name.is_empty() || block.find(name) == Ok(first.copied()));
    }
    for length in [1, 30, 255] {
        let fits = |entry: &&dirent::Entry<'_>| {
            let used = if entry.is_free() {
                0
            } else {
                dirent::rec_len(entry.name.len())
            };
            entry.rec_len - used >= dirent::rec_len(length)
        };
        let first = entries.iter().find(fits).map(|entry| entry.offset);
        let found = block
            .find_room(length)
            .map(|slot| slot.map(|slot| slot.offset));
        assert!(!whole || found == Ok(first));
    }
    for entry in entries.iter().filter(|entry| !entry.is_free()) {
        assert_eq!(dirent::check_name(entry.name, entry.offset), Ok(()));
        let mut scratch = raw.clone();
        let range = dirent::remove(&mut scratch, entry);
        assert!(range.end <= scratch.len());
        let _ = dirent::set_inode(&mut scratch, entry.offset, INO, FileType::Directory, &sb);
        if whole {
            let after = DirBlock::decode(&scratch, &sb).expect("still a block");
            assert!(after.entries().all(|entry| entry.is_ok()));
        }
    }
    for length in [1, 30, 255] {
        let Ok(Some(slot)) = block.find_room(length) else {
            continue;
        };
        let mut scratch = raw.clone();
        let name = vec![b'q'; length];
        dirent::insert(&mut scratch, slot, INO, FileType::Regular, &name, &sb);
        let after = DirBlock::decode(&scratch, &sb).expect("still a block");
        // Damage may already have made an entry of that name.
        if whole && block.find(&name) == Ok(None) {
            let found = after.find(&name).expect("entries").expect("the new one");
            assert_eq!(found.inode, INO);
        }
    }
}

pub fn htree(data: &[u8]) {
    let seed = 99;
    let is_root = data.len().is_multiple_of(2);
    let (sb, raw) = input(data, |sb| {
        let mut raw = vec![0; sb.block_size()];
        let mut block = if is_root {
            let version = HashVersion::HalfMd4;
            DxBlockMut::init_root(&mut raw, INO, InodeNo(2), version, LBlock(1), sb)
        } else {
            DxBlockMut::init_node(&mut raw, LBlock(1), sb)
        };
        for i in 1..20 {
            let entry = DxEntry {
                hash: u32::from(i) << 16,
                block: LBlock(u32::from(i) + 1),
            };
            block.insert(i, entry);
        }
        block.write_checksum(seed, sb);
        raw
    });
    for version in [HashVersion::Legacy, HashVersion::HalfMd4, HashVersion::Tea] {
        let name = &raw[..raw.len().min(255)];
        let hash = Hasher {
            version,
            unsigned: is_root,
            seed: [1, 2, 3, 4],
        }
        .hash(name);
        assert!(hash.major & 1 == 0 && hash.major < 0xffff_fffe);
    }
    let mut raw = block_of(&raw, &sb);
    let decoded = if is_root {
        DxBlock::root(&raw, &sb).map(|(block, _)| block)
    } else {
        DxBlock::node(&raw, &sb)
    };
    let Ok(block) = decoded else { return };
    let ordered = block.check_order().is_ok();
    let _ = (block.check_checksum(seed, &sb), block.entries().count());
    for hash in [0, 1, 0x8000_0000, u32::MAX] {
        let index = block.search(hash);
        assert!(!ordered || block.entry(index).hash <= hash);
    }
    let (count, full) = (block.count(), block.is_full());
    let mut other = vec![0; raw.len()];
    let mut edit = if is_root {
        DxBlockMut::edit_root(&mut raw)
    } else {
        DxBlockMut::edit_node(&mut raw)
    };
    if !full {
        edit.insert(
            count,
            DxEntry {
                hash: u32::MAX,
                block: LBlock(3),
            },
        );
    }
    if edit.count() > 1 {
        let mut right = DxBlockMut::init_node(&mut other, LBlock(0), &sb);
        let whole = edit.count();
        edit.split_off(whole / 2, &mut right);
        assert_eq!(edit.count() + right.count(), whole);
    }
    edit.write_checksum(seed, &sb);
}

fn xattrs() -> [Xattr<'static>; 3] {
    [
        Xattr {
            index: 1,
            name: b"a",
            value: b"one",
        },
        Xattr {
            index: 1,
            name: b"bb",
            value: b"",
        },
        Xattr {
            index: 6,
            name: b"selinux",
            value: b"label\0",
        },
    ]
}

fn look_at_xattrs(area: Result<XattrArea<'_>, stetfs_format::Corrupt>) {
    let Ok(area) = area else { return };
    assert_eq!(area.is_empty(), area.iter().count() == 0);
    for xattr in area.iter() {
        assert!(area.get(xattr.index, xattr.name).is_some());
        let full = [xattr::prefix(xattr.index).unwrap_or(b"?"), xattr.name].concat();
        let _ = xattr::split_name(&full);
        let _ = (
            Acl::decode_disk(xattr.value),
            Acl::decode_xattr(xattr.value),
        );
    }
}

pub fn xattr_block(data: &[u8]) {
    let home = BlockNo(4321);
    let (sb, raw) = input(data, |sb| {
        let mut raw = vec![0; sb.block_size()];
        xattr::encode_block(&mut raw, &xattrs(), 2, home, sb);
        raw
    });
    let raw = block_of(&raw, &sb);
    for geometry in [*sb.geometry(), unchecked(&sb)] {
        let Ok(block) = XattrBlock::decode(&raw, home, &geometry) else {
            continue;
        };
        let _ = block.check_hashes();
        look_at_xattrs(Ok(block.area()));
        let mut list: Vec<Xattr<'_>> = block.area().iter().collect();
        list.sort_by(|a, b| a.order(b.index, b.name));
        list.dedup_by(|a, b| a.order(b.index, b.name).is_eq());
        // Values may overlap in a damaged block, so the list need not fit.
        if xattr::fits_block(list.iter().copied(), &geometry) {
            let mut again = vec![0; raw.len()];
            xattr::encode_block(&mut again, &list, block.refcount, home, &geometry);
            let back = XattrBlock::decode(&again, home, &geometry).expect("our own block");
            assert!(back.area().iter().eq(list));
            xattr::set_refcount(&mut again, 7, home, &geometry);
            XattrBlock::decode(&again, home, &geometry).expect("our own block");
        }
    }
}

pub fn acl(data: &[u8]) {
    let (_, raw) = input(data, |_| {
        let entry = |tag, perm| AclEntry { tag, perm };
        let list = [
            entry(Tag::UserObj, 7),
            entry(Tag::User(9), 5),
            entry(Tag::GroupObj, 4),
            entry(Tag::Mask, 5),
            entry(Tag::Other, 0),
        ];
        Acl::new(list).expect("a sound list").encode_disk()
    });
    for decoded in [Acl::decode_disk(&raw), Acl::decode_xattr(&raw)] {
        let Ok(Some(acl)) = decoded else { continue };
        assert_eq!(Acl::decode_disk(&acl.encode_disk()), Ok(Some(acl.clone())));
        assert_eq!(
            Acl::decode_xattr(&acl.encode_xattr()),
            Ok(Some(acl.clone()))
        );
        assert_eq!(Acl::new(acl.entries().iter().copied()), Ok(acl));
    }
}

fn log_format(choice: u8, sb: &Superblock) -> LogFormat {
    let versions = [
        ChecksumVersion::None,
        ChecksumVersion::V1,
        ChecksumVersion::V2,
        ChecksumVersion::V3,
    ];
    LogFormat {
        block_size: sb.block,
        checksum: versions[usize::from(choice >> 4 & 3)],
        is_64bit: choice >> 3 & 1 == 1,
        uuid: [3; 16],
        seed: 77,
    }
}

pub fn jbd2(data: &[u8]) {
    let choice = data.first().copied().unwrap_or(0);
    let tid = Tid(5);
    let (sb, raw) = input(data, |sb| {
        let format = log_format(choice, sb);
        let mut raw = vec![0; sb.block_size()];
        match choice >> 6 {
            0 => {
                let mut writer = DescriptorWriter::new(&mut raw, tid, &format);
                (0..9).for_each(|i| writer.push(BlockNo(i * 3), i % 2 == 0, 1));
                writer.finish();
            }
            1 => {
                let mut writer = RevokeWriter::new(&mut raw, tid, &format);
                (0..9).for_each(|i| writer.push(BlockNo(i * 3)));
                writer.finish();
            }
            2 => {
                let time = stetfs_format::Time { sec: 5, nsec: 6 };
                CommitBlock {
                    tid,
                    time,
                    transaction_crc: Some(7),
                }
                .encode(&mut raw, &format);
            }
            _ => return journal_superblock(sb),
        }
        raw
    });
    if let Ok(journal) = JournalSuperblock::decode(&raw, sb.block) {
        let mut again = raw.clone();
        journal.encode_into(&mut again);
        assert_eq!(
            JournalSuperblock::decode(&again, sb.block).as_ref(),
            Ok(&journal)
        );
        assert!(journal.log_end() > journal.first);
    }
    let format = log_format(choice, &sb);
    let _ = Header::decode(&raw).map(|header| header.known_type());
    let raw = block_of(&raw, &sb);
    if let Ok(descriptor) = DescriptorBlock::decode(&raw, &format) {
        assert!(descriptor.tags().count() <= format.block_size.bytes() / format.tag_size());
    }
    if let Ok(revoke) = RevokeBlock::decode(&raw, &format) {
        assert!(revoke.blocks().count() <= format.revokes_per_block());
    }
    if let Ok(commit) = CommitBlock::decode(&raw, &format) {
        let _ = commit.check_transaction(5);
    }
}

fn journal_superblock(sb: &Superblock) -> Vec<u8> {
    use stetfs_format::bytes::write_u32be;
    let mut raw = vec![0; 1024];
    for (offset, value) in [
        (0, stetfs_format::jbd2::JBD2_MAGIC),
        (4, 4),
        (0xc, sb.block_size() as u32),
        (0x10, 1024),
        (0x14, 1),
        (0x18, 9),
        (0x1c, 17),
        (0x28, JournalIncompat::REVOKE.bits()),
    ] {
        write_u32be(&mut raw, offset, value);
    }
    raw
}

pub fn orphan_block(data: &[u8]) {
    let (home, seed) = (BlockNo(600), 99);
    let (sb, raw) = input(data, |sb| {
        let mut raw = vec![0; sb.block_size()];
        orphan::init_block(&mut raw, home, seed, sb);
        orphan::set_orphan(&mut raw, 3, INO, home, seed, sb);
        raw
    });
    for geometry in [*sb.geometry(), unchecked(&sb)] {
        let raw = block_of(&raw, &geometry);
        let Ok(block) = OrphanBlock::decode(&raw, home, seed, &geometry) else {
            continue;
        };
        for (index, ino) in block.orphans().flatten() {
            assert!(index < orphan::entries_per_block(&geometry));
            assert!(geometry.is_valid_inode(ino));
        }
    }
}

/// A part of 8 blocks of 16 pages.
pub fn nand_header() -> NandHeader {
    NandHeader {
        uuid: [7; 16],
        boot: [0; 16],
        part: NandPart {
            geometry: NandGeometry {
                page_bytes: 512,
                spare_bytes: 16,
                pages_per_block: 16,
                blocks: 8,
                planes: 2,
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
                factory_bad_ppm: 10_000,
                early_bad_ppm: 9_000,
                fresh_errors_per_pbit: 1,
                worn_errors_per_pbit: 700_000,
                disturb_errors_per_pbit: 3,
            },
            seed: 99,
        },
    }
}

/// Block 3 of that part, with three programmed pages.
pub fn nand_block() -> NandBlock {
    let mut block = NandBlock::erased(&nand_header().part.geometry);
    block.erases = 12;
    block.next_page = 3;
    block.pages[..3].copy_from_slice(&[
        PageState::Programmed,
        PageState::Torn,
        PageState::Marginal,
    ]);
    block
}

/// Returns `raw`, with the right checksum when its last byte is even: so the checks behind the
/// checksum are reached.
fn with_checksum(mut raw: Vec<u8>, at: usize, sum: impl Fn(&[u8]) -> u32) -> Vec<u8> {
    if raw.len() > at + 4 && raw.last().is_some_and(|last| last % 2 == 0) {
        write_u32le(&mut raw, at, 0);
        let checksum = sum(&raw);
        write_u32le(&mut raw, at, checksum);
    }
    raw
}

pub fn nand_header_page(data: &[u8]) {
    let (_, raw) = input(data, |_| nand_header().encode().to_vec());
    let raw = with_checksum(raw, 0x0c, |raw| {
        crc32c(!0, raw.get(..NandHeader::SIZE).unwrap_or(raw))
    });
    let Ok(header) = NandHeader::decode(&raw) else {
        return;
    };
    assert_eq!(NandHeader::decode(&header.encode()), Ok(header));
    let geometry = header.part.geometry;
    let last = geometry.page_at(BlockAddr(geometry.blocks - 1), geometry.pages_per_block - 1);
    assert_eq!(last.0 + 1, geometry.pages());
    assert_eq!(geometry.block_of(last).0 + 1, geometry.blocks);
    let end = geometry.cell_offset(last) + geometry.cell_bytes() as u64;
    assert!(end <= geometry.file_bytes());
    let record = geometry.record_offset(BlockAddr(geometry.blocks));
    assert!(record <= geometry.cell_offset(geometry.page_at(BlockAddr(0), 0)));
}

pub fn nand_block_record(data: &[u8]) {
    let (header, home) = (nand_header(), BlockAddr(3));
    let geometry = header.part.geometry;
    let encode = |block: &NandBlock| {
        let mut raw = Vec::new();
        block.encode(home, &header.uuid, &geometry, &mut raw);
        assert_eq!(raw.len(), geometry.record_stride());
        raw
    };
    let (_, raw) = input(data, |_| encode(&nand_block()));
    let raw = with_checksum(raw, 0, |raw| {
        let seed = crc32c(crc32c(!0, &header.uuid), &home.0.to_le_bytes());
        let record = raw.get(..geometry.record_bytes()).unwrap_or(raw);
        crc32c(seed, &record[4..])
    });
    let Ok(block) = NandBlock::decode(&raw, home, &header.uuid, &geometry) else {
        return;
    };
    let again = encode(&block);
    assert_eq!(
        NandBlock::decode(&again, home, &header.uuid, &geometry).as_ref(),
        Ok(&block)
    );
    let programmed = block.pages.iter().filter(|p| **p != PageState::Erased);
    assert!(programmed.count() <= block.next_page as usize);
    assert!(block.condition <= BlockCondition::FactoryBad);
}

type Decoder = fn(&[u8]);

/// Every function of this module, by the name of its fuzz target.
pub const DECODERS: [(&str, Decoder); 13] = [
    ("superblock", superblock),
    ("group_desc", group_desc),
    ("inode", inode),
    ("extent", extent_node),
    ("indirect", indirect),
    ("dirent", dirent_block),
    ("htree", htree),
    ("xattr", xattr_block),
    ("acl", acl),
    ("jbd2", jbd2),
    ("orphan", orphan_block),
    ("nand_header", nand_header_page),
    ("nand_block", nand_block_record),
];
