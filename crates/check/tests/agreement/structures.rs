//! The structures of a volume: their places, their fields, and how to renew their checksums.

use stetfs_format::checksum::{crc16, crc32c};
use stetfs_format::extent::Expected;
use stetfs_format::features::FeatureCompat;
use stetfs_format::layout::Layout;
use stetfs_format::{
    BlockNo, DxBlock, ExtentNode, FileType, GroupFlags, GroupNo, InodeFlags, InodeNo, LAYOUTS,
    htree, superblock, xattr,
};

use crate::image::Volume;

/// The kind of a structure's checksum.
#[derive(Clone, Copy, Debug)]
pub enum Seal {
    None,
    Superblock,
    Group(GroupNo),
    BlockBitmap(GroupNo),
    InodeBitmap(GroupNo),
    Inode(InodeNo),
    Extents(u32),
    Leaf(u32),
    /// The second number is the offset of its pairs.
    HashTree(u32, usize),
    Xattrs(BlockNo),
    Journal,
    Orphans(u32, BlockNo),
}

/// A field to damage.
#[derive(Clone, Debug)]
pub struct Field {
    pub name: String,
    /// Offset in the volume.
    pub offset: usize,
    pub size: usize,
}

#[derive(Clone, Debug)]
pub struct Structure {
    pub name: String,
    pub start: usize,
    pub size: usize,
    pub seal: Seal,
    pub fields: Vec<Field>,
}

fn layout(name: &str) -> &'static Layout {
    LAYOUTS
        .iter()
        .find(|layout| layout.name == name)
        .expect("a layout")
}

impl Structure {
    fn new(name: String, start: usize, size: usize, seal: Seal) -> Self {
        let fields = Vec::new();
        Self {
            name,
            start,
            size,
            seal,
            fields,
        }
    }

    fn field(&mut self, name: &str, offset: usize, size: usize) {
        assert!(offset + size <= self.size, "{name}");
        let name = name.to_owned();
        self.fields.push(Field {
            name,
            offset: self.start + offset,
            size,
        });
    }

    /// Adds the fields of a record at `offset`.
    fn record(&mut self, layout_name: &str, what: &str, offset: usize) {
        for field in layout(layout_name).fields {
            if offset + field.offset + field.size <= self.size {
                self.field(
                    &format!("{what}{}", field.name),
                    offset + field.offset,
                    field.size,
                );
            }
        }
    }
}

/// Returns one file of each kind: by type, kind of map, attributes and other differences.
fn interesting_inodes(volume: &Volume) -> Vec<InodeNo> {
    let mut seen = std::collections::BTreeSet::new();
    let mut found = Vec::new();
    let reserved = (1..volume.sb.first_ino).map(InodeNo);
    let others = volume.inodes_in_use().into_iter();
    for ino in reserved.chain(others.filter(|ino| ino.0 >= volume.sb.first_ino)) {
        let inode = volume.inode(ino);
        let raw = volume.inode_raw(ino);
        let has_xattrs = raw.len() > 128
            && inode.xattr_offset() + 4 <= raw.len()
            && raw[inode.xattr_offset()..][..4] == xattr::XATTR_MAGIC.to_le_bytes();
        let depth = inode
            .flags
            .contains(InodeFlags::EXTENTS)
            .then(|| inode.block[6]);
        let kind = (
            inode.file_type().map(FileType::dirent_code),
            depth.map_or(u32::MAX, u32::from),
            inode.flags.contains(InodeFlags::INDEX),
            inode.size > 60,
            inode.size > 1 << 20,
            inode.links_count > 1,
            inode.file_acl.0 != 0,
            has_xattrs,
            inode.block[52..60].iter().any(|&b| b != 0),
        );
        if ino.0 <= 12 || seen.insert(kind) {
            found.push(ino);
        }
    }
    found
}

/// Returns all structures of a volume that are worth damaging.
pub fn of(volume: &Volume) -> Vec<Structure> {
    let g = *volume.sb.geometry();
    let size = g.block_size();
    let mut found = Vec::new();
    let mut sb = Structure::new("superblock".into(), 1024, 1024, Seal::Superblock);
    sb.record("Superblock", "", 0);
    found.push(sb);
    let groups = g.groups_count();
    for group in [0, 1, groups / 2, groups - 1] {
        if group < groups
            && found
                .iter()
                .all(|s| s.name != format!("descriptor {group}"))
        {
            of_group(volume, GroupNo(group), &mut found);
        }
    }
    for ino in interesting_inodes(volume) {
        of_inode(volume, ino, &mut found);
    }
    if volume.sb.journal_inum != 0 {
        let block = volume.find(InodeNo(volume.sb.journal_inum), 0);
        let mut journal = Structure::new(
            "journal".into(),
            block.0 as usize * size,
            size,
            Seal::Journal,
        );
        journal.record("Journal superblock", "", 0);
        found.push(journal);
    }
    if volume
        .sb
        .feature_compat
        .contains(FeatureCompat::ORPHAN_FILE)
    {
        let ino = InodeNo(volume.sb.orphan_file_inum);
        let block = volume.find(ino, 1);
        let seed = volume.inode(ino).csum_seed(ino, &g);
        let seal = Seal::Orphans(seed, block);
        let mut orphans = Structure::new("orphan file".into(), block.0 as usize * size, size, seal);
        orphans.field("entry 0", 0, 4);
        orphans.field("entry 7", 28, 4);
        orphans.field("ob_magic", size - 8, 4);
        orphans.field("ob_checksum", size - 4, 4);
        found.push(orphans);
    }
    found
}

fn of_group(volume: &Volume, g: GroupNo, found: &mut Vec<Structure>) {
    let geometry = *volume.sb.geometry();
    let size = geometry.block_size();
    let (block, offset) = geometry.desc_position(g);
    let start = block.0 as usize * size + offset;
    let mut desc = Structure::new(
        format!("descriptor {g}"),
        start,
        geometry.desc_size(),
        Seal::Group(g),
    );
    desc.record("Group descriptor", "", 0);
    found.push(desc);
    let desc = volume.desc(g);
    let flags = desc.flags(&geometry);
    if !flags.contains(GroupFlags::BLOCK_UNINIT) {
        let start = desc.block_bitmap.0 as usize * size;
        let mut bitmap = Structure::new(
            format!("block bitmap {g}"),
            start,
            size,
            Seal::BlockBitmap(g),
        );
        let blocks = geometry.group_blocks(g) as usize;
        for (name, at) in [
            ("first", 0),
            ("middle", blocks / 16),
            ("last", (blocks - 1) / 8),
        ] {
            bitmap.field(name, at, 1);
        }
        if blocks < size * 8 {
            bitmap.field("end", blocks / 8, 1);
            bitmap.field("padding", size - 1, 1);
        }
        found.push(bitmap);
    }
    if !flags.contains(GroupFlags::INODE_UNINIT) {
        let start = desc.inode_bitmap.0 as usize * size;
        let mut bitmap = Structure::new(
            format!("inode bitmap {g}"),
            start,
            size,
            Seal::InodeBitmap(g),
        );
        let inodes = geometry.inodes_per_group() as usize / 8;
        for (name, at) in [("first", 0), ("second", 1), ("last", inodes - 1)] {
            bitmap.field(name, at, 1);
        }
        if inodes < size {
            bitmap.field("padding", inodes, 1);
            bitmap.field("end", size - 1, 1);
        }
        found.push(bitmap);
    }
}

fn of_inode(volume: &Volume, ino: InodeNo, found: &mut Vec<Structure>) {
    let g = *volume.sb.geometry();
    let inode = volume.inode(ino);
    let kind = inode
        .file_type()
        .map_or("no".to_owned(), |t| format!("{t:?}"));
    let name = format!("inode {ino} ({kind})");
    let start = volume.inode_offset(ino);
    let mut own = Structure::new(name.clone(), start, g.inode_size(), Seal::Inode(ino));
    own.record("Inode", "", 0);
    own.fields.retain(|field| field.name != "i_block");
    // Fields that belong to other systems and must be zero.
    own.field("i_faddr", 0x70, 4);
    let is_mapped = matches!(
        inode.file_type(),
        Some(FileType::Regular | FileType::Directory)
    );
    if inode.flags.contains(InodeFlags::EXTENTS) {
        node_fields(&mut own, 0x28, 4, &inode.block);
    } else {
        for i in [0, 1, 5, 12, 13, 14] {
            own.field(&format!("i_block[{i}]"), 0x28 + 4 * i, 4);
        }
    }
    let xattrs = inode.xattr_offset();
    if g.inode_size() > 128 && xattrs + 24 <= g.inode_size() {
        own.field("xattr magic", xattrs, 4);
        xattr_fields(&mut own, &volume.inode_raw(ino)[xattrs..], xattrs + 4, 4);
    }
    found.push(own);
    let seed = inode.csum_seed(ino, &g);
    if inode.flags.contains(InodeFlags::EXTENTS) && is_mapped {
        extent_blocks(volume, &name, seed, &inode.block, found);
    } else if is_mapped || ino.0 == 7 {
        pointer_blocks(volume, &name, &inode.block, found);
    }
    if inode.is_dir() {
        directory_blocks(volume, &name, ino, seed, found);
    }
    if inode.file_acl.0 != 0 {
        let block = inode.file_acl;
        let start = block.0 as usize * g.block_size();
        let mut own = Structure::new(
            format!("attributes of {name}"),
            start,
            g.block_size(),
            Seal::Xattrs(block),
        );
        own.record("Extended attribute block header", "", 0);
        xattr_fields(&mut own, volume.block(block), 32, 32);
        found.push(own);
    }
}

/// Adds the first entries of a list of attributes; offset `at` in the structure is `start` in
/// `area`.
fn xattr_fields(structure: &mut Structure, area: &[u8], at: usize, start: usize) {
    let mut offset = start;
    for i in 0..3 {
        if offset + 16 > area.len() || area[offset..offset + 4] == [0; 4] {
            break;
        }
        let here = at + offset - start;
        structure.record("Extended attribute entry", &format!("entry {i} "), here);
        let name_len = usize::from(area[offset]);
        if name_len > 0 {
            structure.field(&format!("entry {i} name"), here + 16, 1);
        }
        offset += (16 + name_len + 3) & !3;
    }
}

fn node_fields(structure: &mut Structure, at: usize, most: usize, raw: &[u8]) {
    structure.record("Extent header", "", at);
    let entries = usize::from(u16::from_le_bytes([raw[2], raw[3]])).min(most);
    let is_leaf = raw[6] == 0;
    let mut chosen = vec![0, 1, entries / 2, entries.saturating_sub(1)];
    chosen.sort_unstable();
    chosen.dedup();
    for i in chosen.into_iter().filter(|&i| i < entries) {
        let layout = if is_leaf { "Extent" } else { "Extent index" };
        structure.record(layout, &format!("entry {i} "), at + 12 + 12 * i);
    }
}

fn extent_blocks(volume: &Volume, name: &str, seed: u32, raw: &[u8], found: &mut Vec<Structure>) {
    let g = *volume.sb.geometry();
    let size = g.block_size();
    let entries = usize::from(u16::from_le_bytes([raw[2], raw[3]]));
    let depth = u16::from_le_bytes([raw[6], raw[7]]);
    if depth == 0 {
        return;
    }
    let mut chosen = vec![0, entries / 2, entries - 1];
    chosen.dedup();
    for i in chosen {
        let entry = &raw[12 + 12 * i..][..12];
        let low = u32::from_le_bytes(entry[4..8].try_into().expect("four bytes"));
        let block = BlockNo(low.into());
        let below = volume.block(block);
        let lblk = stetfs_format::LBlock(u32::from_le_bytes(
            entry[..4].try_into().expect("four bytes"),
        ));
        let expected = Expected {
            depth: depth - 1,
            lblk,
        };
        ExtentNode::decode(below, expected, seed, &g).expect("a node");
        let level = depth - 1;
        let start = block.0 as usize * size;
        let mut own = Structure::new(
            format!("extents {i} at depth {level} of {name}"),
            start,
            size,
            Seal::Extents(seed),
        );
        node_fields(&mut own, 0, usize::MAX, below);
        found.push(own);
        extent_blocks(volume, name, seed, below, found);
    }
}

fn pointer_blocks(volume: &Volume, name: &str, raw: &[u8; 60], found: &mut Vec<Structure>) {
    let size = volume.sb.block_size();
    let pointer = |raw: &[u8], i: usize| {
        u32::from_le_bytes(raw[4 * i..4 * i + 4].try_into().expect("four bytes"))
    };
    for (i, levels) in [(12, 1), (13, 2)] {
        let mut block = pointer(raw, i) as usize;
        for level in 0..levels {
            if block == 0 {
                break;
            }
            let start = block * size;
            let mut own = Structure::new(
                format!("pointers {i}.{level} of {name}"),
                start,
                size,
                Seal::None,
            );
            for at in [0, 1, size / 8, size / 4 - 1] {
                own.field(&format!("pointer {at}"), at * 4, 4);
            }
            found.push(own);
            block = pointer(volume.block(BlockNo(block as u64)), 0) as usize;
        }
    }
}

fn directory_blocks(
    volume: &Volume,
    name: &str,
    ino: InodeNo,
    seed: u32,
    found: &mut Vec<Structure>,
) {
    let g = *volume.sb.geometry();
    let size = g.block_size();
    let indexed = volume.inode(ino).flags.contains(InodeFlags::INDEX);
    let blocks = volume.dir_blocks(ino);
    let count = blocks.len();
    let mut leaves = 0;
    for (lblk, block) in blocks.into_iter().enumerate() {
        let raw = volume.block(block);
        let start = block.0 as usize * size;
        let is_node = indexed && lblk > 0 && htree::looks_like_node(raw);
        if indexed && (lblk == 0 || is_node) {
            let (pairs, limit, used) = if lblk == 0 {
                let (root, _) = DxBlock::root(raw, &g).expect("a root");
                (32, root.limit(), root.count())
            } else {
                let node = DxBlock::node(raw, &g).expect("a node");
                (8, node.limit(), node.count())
            };
            let seal = Seal::HashTree(seed, pairs);
            let mut own = Structure::new(
                format!("hash tree block {lblk} of {name}"),
                start,
                size,
                seal,
            );
            let layout = if lblk == 0 {
                "Hash tree root"
            } else {
                "Hash tree node"
            };
            own.record(layout, "", 0);
            let mut chosen = vec![1, 2, used / 2, used - 1];
            chosen.sort_unstable();
            chosen.dedup();
            for i in chosen.into_iter().filter(|&i| i > 0 && i < used) {
                own.record(
                    "Hash tree entry",
                    &format!("pair {i} "),
                    pairs + 8 * usize::from(i),
                );
            }
            if g.metadata_csum {
                own.record("Hash tree tail", "", pairs + 8 * usize::from(limit));
            }
            found.push(own);
            continue;
        }
        // Takes only the first leaves and the last.
        leaves += 1;
        if leaves > 2 && lblk + 1 < count {
            continue;
        }
        let seal = Seal::Leaf(seed);
        let mut own = Structure::new(
            format!("directory block {lblk} of {name}"),
            start,
            size,
            seal,
        );
        let body = if g.metadata_csum { size - 12 } else { size };
        let (mut offset, mut i) = (0, 0);
        while offset < body {
            let rec_len = usize::from(u16::from_le_bytes([raw[offset + 4], raw[offset + 5]]));
            let is_last = offset + rec_len >= body;
            if i < 4 || is_last {
                own.record("Directory entry", &format!("entry {i} "), offset);
                let name_len = usize::from(raw[offset + 6]);
                for at in [0, name_len / 2, name_len]
                    .into_iter()
                    .filter(|at| offset + 8 + at < body)
                {
                    own.field(&format!("entry {i} name[{at}]"), offset + 8 + at, 1);
                }
            }
            offset += rec_len;
            i += 1;
        }
        if g.metadata_csum {
            own.record("Directory block tail", "", body);
        }
        found.push(own);
    }
}

/// Renews the checksum of a structure in the bytes of the whole volume. Returns the ranges that it
/// wrote.
pub fn reseal(
    structure: &Structure,
    volume: &Volume,
    bytes: &mut [u8],
) -> Vec<std::ops::Range<usize>> {
    let g = *volume.sb.geometry();
    let range = structure.start..structure.start + structure.size;
    let raw = &mut bytes[range.clone()];
    match structure.seal {
        Seal::None => return Vec::new(),
        Seal::Superblock if g.metadata_csum => superblock::reseal(raw),
        Seal::Group(group) => seal_group(raw, group, volume),
        Seal::BlockBitmap(group) | Seal::InodeBitmap(group) => {
            return seal_bitmap(structure.seal, group, volume, bytes);
        }
        Seal::Inode(ino) if g.metadata_csum => seal_inode(raw, ino, g.csum_seed),
        Seal::Extents(seed) if g.metadata_csum => {
            // The block itself says where its checksum lies.
            let tail = 12 + 12 * usize::from(u16::from_le_bytes([raw[4], raw[5]]));
            if tail + 4 <= raw.len() {
                let sum = crc32c(seed, &raw[..tail]);
                raw[tail..tail + 4].copy_from_slice(&sum.to_le_bytes());
            }
        }
        Seal::Leaf(seed) if g.metadata_csum => {
            let tail = raw.len() - 4;
            let sum = crc32c(seed, &raw[..tail - 8]);
            raw[tail..].copy_from_slice(&sum.to_le_bytes());
        }
        Seal::HashTree(seed, pairs) if g.metadata_csum => {
            let limit = usize::from(u16::from_le_bytes([raw[pairs], raw[pairs + 1]]));
            let count = usize::from(u16::from_le_bytes([raw[pairs + 2], raw[pairs + 3]]));
            let tail = pairs + 8 * limit;
            if tail + 8 <= raw.len() && pairs + 8 * count <= raw.len() {
                let mut sum = crc32c(seed, &raw[..pairs + 8 * count]);
                sum = crc32c(sum, &raw[tail..tail + 4]);
                sum = crc32c(sum, &[0; 4]);
                raw[tail + 4..tail + 8].copy_from_slice(&sum.to_le_bytes());
            }
        }
        Seal::Xattrs(block) if g.metadata_csum => {
            raw[0x10..0x14].fill(0);
            let sum = crc32c(crc32c(g.csum_seed, &block.0.to_le_bytes()), raw);
            raw[0x10..0x14].copy_from_slice(&sum.to_le_bytes());
        }
        Seal::Journal => {
            let incompat = u32::from_be_bytes(raw[0x28..0x2c].try_into().expect("four bytes"));
            if incompat & 0x18 != 0 {
                raw[0xfc..0x100].fill(0);
                let sum = crc32c(!0, &raw[..1024]);
                raw[0xfc..0x100].copy_from_slice(&sum.to_be_bytes());
            }
        }
        Seal::Orphans(seed, block) if g.metadata_csum => {
            let tail = raw.len() - 8;
            let sum = crc32c(crc32c(seed, &block.0.to_le_bytes()), &raw[..tail]);
            raw[tail + 4..].copy_from_slice(&sum.to_le_bytes());
        }
        _ => return Vec::new(),
    }
    vec![range]
}

fn seal_group(raw: &mut [u8], group: GroupNo, volume: &Volume) {
    let g = volume.sb.geometry();
    let number = group.0.to_le_bytes();
    raw[0x1e..0x20].fill(0);
    let sum = if g.metadata_csum {
        crc32c(crc32c(g.csum_seed, &number), raw) as u16
    } else if g.gdt_csum {
        let sum = crc16(crc16(crc16(!0, &g.uuid), &number), &raw[..0x1e]);
        crc16(sum, &raw[0x20..])
    } else {
        0
    };
    raw[0x1e..0x20].copy_from_slice(&sum.to_le_bytes());
}

fn seal_bitmap(
    seal: Seal,
    group: GroupNo,
    volume: &Volume,
    bytes: &mut [u8],
) -> Vec<std::ops::Range<usize>> {
    let g = *volume.sb.geometry();
    if !g.metadata_csum {
        return Vec::new();
    }
    let mut desc = volume.desc(group);
    let block =
        |block: BlockNo| block.0 as usize * g.block_size()..(block.0 as usize + 1) * g.block_size();
    match seal {
        Seal::BlockBitmap(_) => desc.set_block_bitmap_csum(&bytes[block(desc.block_bitmap)], &g),
        _ => desc.set_inode_bitmap_csum(&bytes[block(desc.inode_bitmap)], &g),
    }
    let (at, offset) = g.desc_position(group);
    let start = at.0 as usize * g.block_size() + offset;
    let range = start..start + g.desc_size();
    desc.encode_into(&mut bytes[range.clone()], group, &g);
    vec![range]
}

fn seal_inode(raw: &mut [u8], ino: InodeNo, seed: u32) {
    let extra = if raw.len() > 128 {
        u16::from_le_bytes([raw[0x80], raw[0x81]])
    } else {
        0
    };
    raw[0x7c..0x7e].fill(0);
    if extra >= 4 {
        raw[0x82..0x84].fill(0);
    }
    let seed = crc32c(crc32c(seed, &ino.0.to_le_bytes()), &raw[0x64..0x68]);
    let sum = crc32c(seed, raw).to_le_bytes();
    raw[0x7c..0x7e].copy_from_slice(&sum[..2]);
    if extra >= 4 {
        raw[0x82..0x84].copy_from_slice(&sum[2..]);
    }
}
