//! Extent trees, block maps and orphan files that we write, judged by e2fsck and debugfs.

mod image;

use std::fmt::Write as _;

use image::{Image, Volume};
use stetfs_format::extent::{MAX_UNWRITTEN_LEN, MAX_WRITTEN_LEN, ROOT_SIZE, max_entries};
use stetfs_format::indirect::{self, Path, Pointers};
use stetfs_format::orphan::{self, OrphanBlock};
use stetfs_format::{BlockNo, Extent, ExtentNode, ExtentNodeMut, Index, Inode, InodeNo, LBlock};

fn named(image: &Image, name: &str) -> InodeNo {
    let output = image.debugfs(&format!("stat {name}"));
    let start = output.find("Inode: ").expect("an inode") + 7;
    let number = output[start..].split_whitespace().next().expect("a number");
    InodeNo(number.parse().expect("a number"))
}

/// Replaces the tree that debugfs made by one of our own: the same extents, spread over as many
/// leaves and levels as `per_leaf` and `per_node` demand.
fn replant(volume: &mut Volume, ino: InodeNo, per_leaf: usize, per_node: usize, spare: &[BlockNo]) {
    let sb = volume.sb.clone();
    let mut inode = volume.inode(ino);
    let seed = inode.csum_seed(ino, &sb);
    let extents = volume.map(ino);
    let mut spare = spare.iter().copied();
    let mut plant = |volume: &mut Volume, fill: &dyn Fn(&mut ExtentNodeMut<'_>), depth| {
        let home = spare.next().expect("a spare block");
        let mut node = ExtentNodeMut::init_block(volume.block_mut(home), depth, &sb);
        fill(&mut node);
        node.write_checksum(seed, &sb);
        home
    };
    let mut level: Vec<Index> = Vec::new();
    for chunk in extents.chunks(per_leaf) {
        let fill = |node: &mut ExtentNodeMut<'_>| {
            // Back to front, so that inserting has to move.
            chunk
                .iter()
                .rev()
                .for_each(|extent| node.insert_extent(0, *extent));
        };
        level.push(Index {
            lblk: chunk[0].lblk,
            pblk: plant(volume, &fill, 0),
        });
    }
    let mut depth = 1;
    while level.len() > 4 {
        let mut above = Vec::new();
        for chunk in level.chunks(per_node) {
            let fill = |node: &mut ExtentNodeMut<'_>| {
                (0..)
                    .zip(chunk)
                    .for_each(|(i, index)| node.insert_index(i, *index));
            };
            above.push(Index {
                lblk: chunk[0].lblk,
                pblk: plant(volume, &fill, depth),
            });
        }
        (level, depth) = (above, depth + 1);
    }
    let mut block = [0; ROOT_SIZE];
    let mut root = ExtentNodeMut::init_root(&mut block, depth);
    (0..)
        .zip(&level)
        .for_each(|(i, index)| root.insert_index(i, *index));
    inode.block = block;
    inode.encode_into(volume.inode_raw_mut(ino), ino, &sb);
}

/// Returns the blocks of a file that is not needed any more.
fn blocks_of(volume: &Volume, ino: InodeNo) -> Vec<BlockNo> {
    volume
        .map(ino)
        .iter()
        .flat_map(|extent| (0..extent.len).map(|i| extent.pblk.plus(i.into())))
        .collect()
}

#[test]
fn e2fsck_accepts_extent_trees_that_we_wrote() {
    for (args, per_leaf, per_node, depth) in [
        (&["-t", "ext4", "-b", "1024"][..], 40, 10, 2),
        (&["-t", "ext4", "-b", "4096", "-O", "^64bit"], 3, 7, 4),
        (
            &["-t", "ext4", "-b", "2048", "-O", "^metadata_csum"],
            100,
            2,
            2,
        ),
    ] {
        let Some(image) = Image::make(args, 64 * 1024) else {
            continue;
        };
        let spare = image.file("spare", &vec![7; 2 << 20]);
        let mut script = format!("write /dev/null fragments\nwrite {spare} spare\n");
        for i in (0..1600).step_by(2) {
            writeln!(script, "fallocate fragments {i} {i}").expect("a string");
        }
        image.change(&script);
        let spare = blocks_of(&image.read(), named(&image, "spare"));
        image.change("rm spare\n");
        let mut volume = image.read();
        let ino = named(&image, "fragments");
        let before = volume.map(ino);
        assert!(before.len() > 700);
        replant(&mut volume, ino, per_leaf, per_node, &spare);
        image.write(&volume);
        assert_eq!(volume.map(ino), before);
        let root = volume.inode(ino).block;
        assert_eq!(
            ExtentNode::root(&root, &volume.sb).expect("a root").depth(),
            depth
        );

        // e2fsck may complain of two things only: bitmaps and counts do not know of our blocks, and
        // the tree is wider than need be.
        let (_, output) = image.e2fsck("-fn");
        let complaints: Vec<&str> = output
            .lines()
            .filter(|line| line.ends_with("? no"))
            .collect();
        for complaint in complaints {
            let expected = complaint.contains("could be narrower")
                || complaint.contains("i_blocks")
                || complaint == "Fix? no";
            assert!(expected, "{output}");
        }
        let (status, output) = image.e2fsck("-fy");
        assert!(status < 4, "{output}");
        image.assert_clean(&format!("{args:?}"));
        let after = image.read();
        assert_eq!(after.map(ino), before);
    }
}

/// Nodes that are split, emptied and filled again keep what they should.
#[test]
fn node_edits_like_a_vector() {
    let Some(image) = Image::make(&["-t", "ext4", "-b", "1024"], 8 * 1024) else {
        return;
    };
    let sb = image.read().sb;
    let extent = |lblk: u32, unwritten: bool| {
        let len = if unwritten {
            MAX_UNWRITTEN_LEN
        } else {
            MAX_WRITTEN_LEN
        };
        Extent {
            lblk: LBlock(lblk),
            len: len / 32,
            pblk: BlockNo(1000),
            unwritten,
        }
    };
    let mut raw = vec![0xaa; 1024];
    let mut model = Vec::new();
    let mut node = ExtentNodeMut::init_block(&mut raw, 0, &sb);
    assert_eq!(node.max(), max_entries(&sb));
    for step in 0..max_entries(&sb) {
        // Every third goes before the others, so that the order comes from the index alone.
        let at = if step % 3 == 0 { 0 } else { model.len() };
        let new = extent(u32::from(step) * 2000, step % 2 == 0);
        node.insert_extent(at as u16, new);
        model.insert(at, new);
    }
    let mut other = vec![0; 1024];
    let mut right = ExtentNodeMut::init_block(&mut other, 0, &sb);
    node.move_tail(50, &mut right);
    let moved = model.split_off(50);
    node.remove(10, 5);
    model.drain(10..15);
    node.set_extent(3, extent(7, true));
    model[3] = extent(7, true);
    for (raw, model) in [(&raw, &model), (&other, &moved)] {
        let node = ExtentNode::view(raw, 0, &sb).expect("a node");
        let read: Vec<Extent> = node
            .extents()
            .map(|extent| extent.expect("an extent"))
            .collect();
        assert_eq!(&read, model);
    }
    // Removed entries are not left behind.
    let end = 12 + model.len() * 12;
    assert!(raw[end..1020].iter().all(|&byte| byte == 0));
}

/// The longest extents of each kind survive.
#[test]
fn lengths_at_the_limits() {
    let mut block = [0; ROOT_SIZE];
    let mut root = ExtentNodeMut::init_root(&mut block, 0);
    let long = |lblk, len, unwritten| Extent {
        lblk: LBlock(lblk),
        len,
        pblk: BlockNo(100),
        unwritten,
    };
    let extents = [
        long(0, MAX_WRITTEN_LEN, false),
        long(40_000, MAX_UNWRITTEN_LEN, true),
        long(80_000, 1, true),
        long(80_001, 1, false),
    ];
    (0..)
        .zip(extents)
        .for_each(|(i, extent)| root.insert_extent(i, extent));
    let Some(image) = Image::make(&["-t", "ext4"], 256 * 1024) else {
        return;
    };
    let sb = image.read().sb;
    let read: Vec<_> = ExtentNode::root(&block, &sb)
        .expect("a root")
        .extents()
        .collect();
    assert_eq!(read, extents.map(Ok));
}

/// debugfs finds the block at every step of a path.
#[test]
fn paths_lead_where_debugfs_goes() {
    for block_size in ["1024", "4096"] {
        let args = ["-t", "ext3", "-b", block_size];
        let Some(image) = Image::make(&args, 64 * 1024) else {
            continue;
        };
        let sparse = image.file("sparse", b"");
        let file = std::fs::OpenOptions::new()
            .write(true)
            .open(&sparse)
            .expect("a file");
        let size: u64 = block_size.parse().expect("a number");
        let per_block = size / 4;
        // The first and last block of each level.
        let lblks: Vec<u64> = [
            0,
            11,
            12,
            11 + per_block,
            12 + per_block,
            11 + per_block + per_block * per_block,
            12 + per_block + per_block * per_block,
            13 + 2 * per_block + per_block * per_block,
        ]
        .into();
        for lblk in &lblks {
            std::os::unix::fs::FileExt::write_all_at(&file, b"x", lblk * size).expect("a block");
        }
        image.change(&format!("write {sparse} sparse\n"));
        let volume = image.read();
        let ino = named(&image, "sparse");
        let inode: Inode = volume.inode(ino);
        for lblk in lblks {
            let path = Path::to(LBlock(lblk as u32), &volume.sb).expect("in reach");
            let (first, rest) = path.indexes().split_first().expect("a step");
            let mut block = Pointers::new(&inode.block, &volume.sb).get(*first);
            for index in rest {
                let raw = volume.block(block.expect("a pointer").expect("no hole"));
                block = Pointers::new(raw, &volume.sb).get(*index);
            }
            let found = block.expect("a pointer").expect("no hole");
            let theirs = image.debugfs(&format!("bmap <{ino}> {lblk}"));
            assert!(
                theirs.lines().any(|line| line.trim() == found.to_string()),
                "{lblk}: {theirs}"
            );
            assert_eq!(volume.find(ino, lblk as u32), found);
        }
        let beyond = indirect::max_blocks(&volume.sb);
        assert!(
            u32::try_from(beyond).is_err() || Path::to(LBlock(beyond as u32), &volume.sb).is_none()
        );
    }
}

/// We make the same blocks of the orphan file as mke2fs; e2fsck finds an orphan that we enter.
#[test]
fn orphan_files() {
    for features in ["orphan_file", "orphan_file,^metadata_csum"] {
        let args = ["-t", "ext4", "-b", "1024", "-O", features];
        let Some(image) = Image::make(&args, 64 * 1024) else {
            continue;
        };
        let mut volume = image.read();
        let sb = volume.sb.clone();
        let ino = InodeNo(sb.orphan_file_inum);
        let seed = volume.inode(ino).csum_seed(ino, &sb);
        let blocks = blocks_of(&volume, ino);
        assert!(!blocks.is_empty());
        for block in &blocks {
            let raw = volume.block(*block);
            let view = OrphanBlock::decode(raw, *block, seed, &sb).expect("an orphan block");
            assert_eq!(view.orphans().count(), 0);
            let mut made = vec![0xaa; sb.block_size()];
            orphan::init_block(&mut made, *block, seed, &sb);
            assert_eq!(made, raw);
        }
        image.change("write /dev/null gone\n");
        volume = image.read();
        let gone = named(&image, "gone");
        let last = orphan::entries_per_block(&sb) - 1;
        let home = blocks[0];
        orphan::set_orphan(volume.block_mut(home), last, gone, home, seed, &sb);
        let mut sb = volume.sb.clone();
        sb.feature_ro_compat |= stetfs_format::FeatureRoCompat::ORPHAN_PRESENT;
        sb.encode_into(&mut volume.bytes[stetfs_format::SUPERBLOCK_OFFSET as usize..]);
        let view = OrphanBlock::decode(volume.block(home), home, seed, &sb).expect("ours");
        assert_eq!(view.orphans().collect::<Vec<_>>(), [Ok((last, gone))]);
        image.write(&volume);
        // It still has its name, so that e2fsck truncates it and clears the entry.
        let (status, output) = image.e2fsck("-fy");
        assert!(status < 4, "{output}");
        assert!(output.contains(&format!("inode {gone}")), "{output}");
        image.assert_clean(features);
        let after = image.read();
        let view = OrphanBlock::decode(after.block(home), home, seed, &after.sb).expect("empty");
        assert_eq!(view.orphans().count(), 0);
    }
}
