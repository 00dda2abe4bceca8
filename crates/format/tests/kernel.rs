//! We read what the kernel wrote with the meaning that it has there: times, device numbers, owners,
//! link counts, a directory that it indexed. Needs root and loop devices, and says so where they
//! are missing.

mod image;

use std::collections::BTreeMap;
use std::path::Path;

use image::{Image, Volume};
use rustix::fs::{AtFlags, CWD, FileType as Kind, Mode, Timespec, Timestamps};
use stetfs_format::{
    DirBlock, DxBlock, FileType, Hasher, Inode, InodeFlags, InodeNo, Superblock, Time,
};

const KINDS: [&[&str]; 3] = [
    &["-t", "ext4", "-b", "1024"],
    &["-t", "ext4", "-I", "128"],
    &["-t", "ext3", "-b", "1024"],
];

/// Returns all entries of a directory by a walk over its leaves.
fn entries(volume: &Volume, dir: InodeNo) -> BTreeMap<Vec<u8>, InodeNo> {
    let inode = volume.inode(dir);
    let indexed = inode.flags.contains(InodeFlags::INDEX);
    let mut found = BTreeMap::new();
    for (lblk, block) in volume.dir_blocks(dir).into_iter().enumerate() {
        let raw = volume.block(block);
        let is_interior = lblk == 0 || stetfs_format::htree::looks_like_node(raw);
        if indexed && is_interior && volume.sb.metadata_csum {
            continue;
        }
        let leaf = DirBlock::decode(raw, &volume.sb).expect("a block");
        leaf.check_checksum(inode.csum_seed(dir, &volume.sb))
            .expect("a checksum");
        for entry in leaf.entries().map(|entry| entry.expect("an entry")) {
            if !entry.is_free() && entry.name != b"." && entry.name != b".." {
                found.insert(entry.name.to_vec(), entry.inode);
            }
        }
    }
    found
}

/// Finds a name by the hash tree, as a lookup does. If the hash goes on in the next leaf, that leaf
/// is searched too.
fn look_up(volume: &Volume, dir: InodeNo, name: &[u8]) -> Option<InodeNo> {
    let sb: &Superblock = &volume.sb;
    let blocks = volume.dir_blocks(dir);
    let (root, info) = DxBlock::root(volume.block(blocks[0]), sb).expect("a root");
    let hasher = Hasher {
        version: info.hash_version,
        unsigned: sb.unsigned_hash(),
        seed: sb.hash_seed,
    };
    let hash = hasher.hash(name).major;
    let mut leaves = Vec::new();
    let index = root.search(hash);
    if info.indirect_levels == 0 {
        leaves.extend(
            (index..root.count())
                .take(2)
                .map(|index| root.entry(index).block),
        );
    } else {
        let raw = volume.block(blocks[root.entry(index).block.0 as usize]);
        let node = DxBlock::node(raw, sb).expect("a node");
        let index = node.search(hash);
        leaves.extend(
            (index..node.count())
                .take(2)
                .map(|index| node.entry(index).block),
        );
    }
    leaves.into_iter().find_map(|lblk| {
        let leaf = DirBlock::decode(volume.block(blocks[lblk.0 as usize]), sb).expect("a block");
        leaf.find(name).expect("entries").map(|entry| entry.inode)
    })
}

fn inode_of(volume: &Volume, names: &BTreeMap<Vec<u8>, InodeNo>, name: &str) -> Inode {
    volume.inode(names[name.as_bytes()])
}

/// At its limits, the kernel drops the nanoseconds itself.
const TIMES: [(i64, i64); 8] = [
    (0, 0),
    (-1, 999_999_999),
    (i32::MIN as i64, 0),
    (i32::MIN as i64 + 1, 7),
    (0x8000_0000, 123_456_789),
    (0x1_8000_0000, 5),
    (0x3_7fff_fffe, 999_999_999),
    (0x3_7fff_ffff, 0),
];

fn fill(root: &Path) {
    for (index, (tv_sec, tv_nsec)) in TIMES.into_iter().enumerate() {
        let file = root.join(format!("time{index}"));
        std::fs::write(&file, b"").expect("a file");
        let time = Timespec { tv_sec, tv_nsec };
        let times = Timestamps {
            last_access: time,
            last_modification: time,
        };
        rustix::fs::utimensat(CWD, &file, &times, AtFlags::empty()).expect("utimensat");
    }
    for (name, kind, major, minor) in [
        ("small", Kind::CharacterDevice, 5, 1),
        ("large", Kind::BlockDevice, 1000, 70_000),
        ("minor", Kind::BlockDevice, 8, 256),
    ] {
        let device = rustix::fs::makedev(major, minor);
        rustix::fs::mknodat(CWD, root.join(name), kind, Mode::RUSR, device).expect("mknod");
    }
    std::os::unix::fs::chown(root.join("time0"), Some(0x1_2345), Some(0x6_789a)).expect("chown");
    std::os::unix::fs::symlink("t".repeat(59), root.join("fast")).expect("a link");
    std::os::unix::fs::symlink("t".repeat(60), root.join("slow")).expect("a link");
    std::fs::hard_link(root.join("time1"), root.join("second")).expect("a link");
    let dir = root.join("dir");
    std::fs::create_dir(&dir).expect("a directory");
    for i in 0..3000 {
        std::fs::write(dir.join(format!("{i}-{}", "n".repeat(i % 50))), b"").expect("a file");
    }
    for i in (0..3000).step_by(3) {
        std::fs::remove_file(dir.join(format!("{i}-{}", "n".repeat(i % 50)))).expect("rm");
    }
}

#[test]
fn what_the_kernel_wrote_is_what_we_read() {
    for args in KINDS {
        let args = [args, &["-N", "8192"]].concat();
        let Some(image) = Image::make(&args, 64 * 1024) else {
            continue;
        };
        if !image.while_mounted(&[], fill) {
            continue;
        }
        let volume = image.read();
        let names = entries(&volume, stetfs_format::inode::ROOT_INO);
        for (index, (sec, nsec)) in TIMES.into_iter().enumerate() {
            let inode = inode_of(&volume, &names, &format!("time{index}"));
            let expected = if volume.sb.inode_size() > 128 {
                Time {
                    sec,
                    nsec: nsec as u32,
                }
            } else {
                Time {
                    sec: sec.clamp(i32::MIN.into(), i32::MAX.into()),
                    nsec: 0,
                }
            };
            assert_eq!(
                (inode.atime, inode.mtime),
                (expected, expected),
                "time {index}"
            );
        }
        for (name, device) in [
            ("small", (5, 1)),
            ("large", (1000, 70_000)),
            ("minor", (8, 256)),
        ] {
            let mut inode = inode_of(&volume, &names, name);
            assert_eq!(inode.rdev(), device);
            let block = inode.block;
            inode.set_rdev(device.0, device.1);
            assert_eq!(inode.block, block, "{name}");
        }
        let owned = inode_of(&volume, &names, "time0");
        assert_eq!((owned.uid, owned.gid), (0x1_2345, 0x6_789a));
        assert_eq!(inode_of(&volume, &names, "second").links_count, 2);
        for (name, fast, size) in [("fast", true, 59), ("slow", false, 60)] {
            let inode = inode_of(&volume, &names, name);
            assert_eq!(inode.file_type(), Some(FileType::Symlink));
            assert_eq!(
                (inode.is_fast_symlink(&volume.sb), inode.size),
                (fast, size)
            );
        }
        let dir = names[&b"dir"[..]];
        assert!(volume.inode(dir).flags.contains(InodeFlags::INDEX));
        let listed = entries(&volume, dir);
        for i in 0..3000 {
            let name = format!("{i}-{}", "n".repeat(i % 50));
            let expected = listed.get(name.as_bytes()).copied();
            assert_eq!(expected.is_some(), i % 3 != 0, "{name}");
            assert_eq!(look_up(&volume, dir, name.as_bytes()), expected, "{name}");
        }
        // Every inode that the kernel wrote encodes to the same bytes.
        for ino in volume.inodes_in_use() {
            let mut again = volume.inode_raw(ino).to_vec();
            volume.inode(ino).encode_into(&mut again, ino, &volume.sb);
            assert_eq!(again, volume.inode_raw(ino), "inode {ino}");
        }
    }
}
