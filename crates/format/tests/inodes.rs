//! Inodes and their maps in real images, judged by debugfs; what we write back, by e2fsck.

mod image;

use std::collections::HashMap;
use std::fmt::Write as _;

use image::{Image, Volume, on_every_kind};
use stetfs_format::inode::INODE_LAYOUT;
use stetfs_format::{Corrupt, FileType, Inode, InodeFlags, InodeNo, Time};

/// The section of `debugfs stat` for each inode.
fn stats(image: &Image, inodes: &[InodeNo]) -> HashMap<u32, String> {
    let mut script = String::new();
    for ino in inodes {
        writeln!(script, "stat <{ino}>").expect("a string");
    }
    let output = image.debugfs_all(&script);
    output
        .split("\nInode: ")
        .skip(1)
        .map(|section| {
            let number = section.split_whitespace().next().expect("a number");
            (number.parse().expect("a number"), section.to_owned())
        })
        .collect()
}

/// The word behind `label`.
fn word<'a>(section: &'a str, label: &str) -> Option<&'a str> {
    section[section.find(label)? + label.len()..]
        .split_whitespace()
        .next()
}

fn expect<T: std::str::FromStr + PartialEq + std::fmt::Debug>(section: &str, label: &str, ours: T)
where
    T::Err: std::fmt::Debug,
{
    let text = word(section, label).unwrap_or_else(|| panic!("no {label} in {section}"));
    assert_eq!(
        text.parse::<T>().expect("a number"),
        ours,
        "{label} in {section}"
    );
}

/// The two words of a time as debugfs prints them: seconds and extra, both as stored.
fn stored(time: Time, has_extra: bool) -> String {
    let epoch = ((time.sec - i64::from(time.sec as i32)) >> 32) as u32 & 3;
    let base = time.sec as u32;
    if has_extra {
        format!("0x{base:08x}:{:08x}", time.nsec << 2 | epoch)
    } else {
        format!("0x{base:08x}")
    }
}

fn type_name(inode: &Inode) -> &'static str {
    match inode.file_type() {
        Some(FileType::Regular) => "regular",
        Some(FileType::Directory) => "directory",
        Some(FileType::CharDevice) => "character",
        Some(FileType::BlockDevice) => "block",
        Some(FileType::Fifo) => "FIFO",
        Some(FileType::Symlink) => "symlink",
        Some(FileType::Socket) => "socket",
        None => "bad",
    }
}

#[test]
fn inodes_are_what_debugfs_says() {
    on_every_kind(|_, image| {
        let volume = image.read();
        let inodes = volume.inodes_in_use();
        assert!(inodes.len() > 700);
        let stats = stats(image, &inodes);
        let mut devices = 0;
        for ino in inodes {
            let (inode, text) = (volume.inode(ino), &stats[&ino.0]);
            assert_eq!(word(text, "Type: "), Some(type_name(&inode)));
            assert_eq!(
                word(text, "Mode:  "),
                Some(&*format!("{:04o}", inode.mode & 0o7777))
            );
            assert_eq!(
                word(text, "Flags: "),
                Some(&*format!("{:#x}", inode.flags.bits()))
            );
            expect(text, "Generation: ", inode.generation);
            expect(text, "User: ", inode.uid);
            expect(text, "Group: ", inode.gid);
            expect(text, "Size: ", inode.size);
            expect(text, "File ACL: ", inode.file_acl.0);
            expect(text, "Links: ", inode.links_count);
            expect(text, "Blockcount: ", inode.blocks);
            let has_extra = inode.extra_isize >= 24;
            assert_eq!(
                word(text, "ctime: "),
                Some(&*stored(inode.ctime, has_extra))
            );
            assert_eq!(
                word(text, "atime: "),
                Some(&*stored(inode.atime, has_extra))
            );
            assert_eq!(
                word(text, "mtime: "),
                Some(&*stored(inode.mtime, has_extra))
            );
            if let Some(theirs) = word(text, "crtime: ") {
                assert_eq!(theirs, stored(inode.crtime, true));
                expect(text, "Project: ", inode.projid);
                expect(text, "Size of extra inode fields: ", inode.extra_isize);
            }
            if let Some(rest) = text.find("Device major/minor number: ") {
                let (major, minor) = inode.rdev();
                let theirs = &text[rest + 27..];
                assert!(
                    theirs.starts_with(&format!("{major:02}:{minor:02}")),
                    "{theirs}"
                );
                devices += 1;
            }
            if inode.is_symlink() {
                let fast = text.contains("Fast link dest: ");
                assert_eq!(inode.is_fast_symlink(&volume.sb), fast, "{text}");
                if fast {
                    let target = inode.fast_symlink(ino).expect("a target");
                    assert!(text.contains(&format!(
                        "Fast link dest: \"{}\"",
                        String::from_utf8_lossy(target)
                    )));
                }
            }
        }
        assert_eq!(devices, 2);
    });
}

#[test]
fn inodes_encode_to_the_same_bytes() {
    on_every_kind(|_, image| {
        let volume = image.read();
        for ino in volume.inodes_in_use() {
            let raw = volume.inode_raw(ino);
            let mut again = raw.to_vec();
            volume.inode(ino).encode_into(&mut again, ino, &volume.sb);
            assert_eq!(again, raw, "inode {ino}");
            let mut damaged = raw.to_vec();
            damaged[4] ^= 1;
            let decoded = Inode::decode(&damaged, ino, &volume.sb);
            if volume.sb.metadata_csum {
                assert!(
                    matches!(decoded, Err(Corrupt::InodeChecksum { .. })),
                    "{decoded:?}"
                );
                // The checksum includes the inode's number.
                let other = InodeNo(ino.0 ^ 1);
                assert!(Inode::decode(raw, other, &volume.sb).is_err());
            }
        }
    });
}

/// What `debugfs ex` says of a file's leaves: logical, physical, length, unwritten.
fn extents_by_debugfs(image: &Image, ino: InodeNo) -> Vec<(u32, u64, u32, bool)> {
    let output = image.debugfs(&format!("ex <{ino}>"));
    let mut found = Vec::new();
    for line in output.lines().filter(|line| line.contains('/')) {
        let clean = line.replace(['/', '-'], " ");
        let words: Vec<&str> = clean.split_whitespace().collect();
        let number = |index: usize| words[index].parse::<u64>().expect("a number");
        // The fields are: level, of levels, entry, of entries, first, last, ...
        if number(0) != number(1) {
            continue;
        }
        let length = number(5) - number(4) + 1;
        found.push((
            number(4) as u32,
            number(6),
            length as u32,
            line.contains("Uninit"),
        ));
    }
    found
}

/// What `debugfs bmap` says of these logical blocks.
fn blocks_by_debugfs(image: &Image, ino: InodeNo, lblks: &[u32]) -> Vec<u64> {
    let mut script = String::new();
    for lblk in lblks {
        writeln!(script, "bmap <{ino}> {lblk}").expect("a string");
    }
    let output = image.debugfs_all(&script);
    let numbers = output
        .lines()
        .filter_map(|line| line.split_whitespace().next()?.parse().ok());
    numbers.collect()
}

fn named(image: &Image, name: &str) -> InodeNo {
    let output = image.debugfs(&format!("stat {name}"));
    InodeNo(
        word(&output, "Inode: ")
            .expect("an inode")
            .parse()
            .expect("a number"),
    )
}

#[test]
fn maps_are_what_debugfs_says() {
    on_every_kind(|_, image| {
        let volume = image.read();
        for name in ["big", "sparse", "slow", "d", "lost+found", "fragments"] {
            if name == "fragments" && !volume.sb.geometry().extents {
                continue;
            }
            let ino = named(image, name);
            let ours = volume.map(ino);
            if volume.inode(ino).flags.contains(InodeFlags::EXTENTS) {
                let ours: Vec<_> = ours
                    .iter()
                    .map(|e| (e.lblk.0, e.pblk.0, e.len.into(), e.unwritten))
                    .collect();
                assert_eq!(ours, extents_by_debugfs(image, ino), "{name}");
            }
            // The first and last block of runs, and their neighbours.
            let around = |e: &stetfs_format::Extent| {
                [e.lblk.0.saturating_sub(1), e.lblk.0, e.end() - 1, e.end()]
            };
            let lblks: Vec<u32> = ours
                .iter()
                .take(100)
                .chain(ours.last())
                .flat_map(around)
                .collect();
            let expected: Vec<u64> = lblks
                .iter()
                .map(|lblk| {
                    let found = ours
                        .iter()
                        .find(|e| e.contains(stetfs_format::LBlock(*lblk)));
                    found.map_or(0, |e| e.pblk.0 + u64::from(lblk - e.lblk.0))
                })
                .collect();
            let theirs = blocks_by_debugfs(image, ino, &lblks);
            assert_eq!(expected, theirs, "{name}");
        }
        let depth = |name| {
            let inode = volume.inode(named(image, name));
            u16::from_le_bytes([inode.block[6], inode.block[7]])
        };
        if volume.sb.geometry().extents {
            assert!(depth("fragments") >= 1, "the test needs a tree with blocks");
        }
    });
}

/// Times far from today, ids above 16 bits, a project, a version: written by us, read
/// by debugfs, found in order by e2fsck.
#[test]
fn e2fsck_accepts_what_we_write() {
    for args in [
        &["-t", "ext4"][..],
        &["-t", "ext4", "-I", "128"],
        &["-t", "ext3", "-I", "1024", "-b", "1024"],
    ] {
        let Some(image) = Image::make(args, 64 * 1024) else {
            continue;
        };
        image.populate();
        let mut volume = image.read();
        let (ino, sb) = (named(&image, "big"), volume.sb.clone());
        let mut inode = volume.inode(ino);
        inode.mode = 0o104_751;
        (inode.uid, inode.gid) = (0x0012_3456, 0x0065_4321);
        inode.atime = Time {
            sec: -1,
            nsec: 999_999_999,
        };
        inode.mtime = Time {
            sec: 0x3_7fff_ffff,
            nsec: 1,
        };
        inode.ctime = Time {
            sec: 0x1_0000_0000,
            nsec: 5,
        };
        inode.flags |= InodeFlags::IMMUTABLE | InodeFlags::NOATIME;
        inode.generation = 0xdead_beef;
        inode.version = 0x1_0000_0007;
        // The generation seeds the checksums of the file's extent blocks: "big" has none.
        inode.encode_into(volume.inode_raw_mut(ino), ino, &sb);
        image.write(&volume);
        image.assert_clean(&format!("{args:?}"));
        let text = image.debugfs("stat big");
        assert_eq!(word(&text, "Mode:  "), Some("04751"));
        expect(&text, "User: ", 0x0012_3456);
        expect(&text, "Group: ", 0x0065_4321);
        expect(&text, "Generation: ", 0xdead_beef_u32);
        let back = image.read().inode(ino);
        if sb.inode_size() > 128 {
            assert_eq!(back, inode);
            assert_eq!(word(&text, "ctime: "), Some("0x00000000:00000015"));
            assert_eq!(word(&text, "mtime: "), Some("0x7fffffff:00000007"));
            assert_eq!(word(&text, "atime: "), Some("0xffffffff:ee6b27fc"));
            assert_eq!(word(&text, "Version: "), Some("0x00000001:00000007"));
        } else {
            // Times that do not fit become the nearest that do.
            assert_eq!(
                back.mtime,
                Time {
                    sec: i32::MAX.into(),
                    nsec: 0
                }
            );
            assert_eq!(back.atime, Time { sec: -1, nsec: 0 });
        }
    }
}

#[test]
fn device_numbers_like_the_kernel() {
    let volume = Image::make(&["-t", "ext4"], 8 * 1024).map(|image| image.read());
    let Some(Volume { sb, .. }) = volume else {
        return;
    };
    let mut inode = Inode::new(0o020_600, InodeFlags::empty(), 0, &sb);
    for (major, minor, words) in [
        (5, 1, [0x0501, 0]),
        (255, 255, [0xffff, 0]),
        (8, 256, [0, 0x0010_0800]),
        (259, 0, [0, 0x0001_0300]),
        (0xfff, 0xf_ffff, [0, 0xffff_ffff]),
    ] {
        inode.set_rdev(major, minor);
        assert_eq!(inode.rdev(), (major, minor));
        let word = |at: usize| u32::from_le_bytes(inode.block[at..at + 4].try_into().expect("4"));
        assert_eq!([word(0), word(4)], words, "{major}:{minor}");
    }
}

#[test]
fn space_in_the_unit_that_holds_it() {
    let volume = Image::make(&["-t", "ext4", "-b", "4096"], 8 * 1024).map(|image| image.read());
    let Some(Volume { sb, .. }) = volume else {
        return;
    };
    let mut inode = Inode::new(0o100_600, InodeFlags::empty(), 0, &sb);
    for (blocks, huge) in [
        (8, false),
        (1 << 32, false),
        ((1 << 48) - 8, false),
        (1 << 48, true),
    ] {
        assert!(inode.set_blocks_512(blocks, &sb));
        assert_eq!(
            inode.flags.contains(InodeFlags::HUGE_FILE),
            huge,
            "{blocks}"
        );
        assert_eq!(inode.blocks_512(&sb), blocks);
    }
    assert!(!inode.set_blocks_512(1 << 52, &sb));
    assert_eq!(inode.blocks_512(&sb), 1 << 48);
    let mut no_huge = *sb.geometry();
    no_huge.huge_file = false;
    assert!(!inode.set_blocks_512(1 << 32, &no_huge));
}

/// An older kernel gave inodes less room: a field counts if it ends where `i_extra_isize` says, or
/// before (the kernel's `EXT4_FITS_IN_INODE`).
#[test]
fn extra_fields_are_those_that_fit() {
    let volume = Image::make(&["-t", "ext4"], 8 * 1024).map(|image| image.read());
    let Some(Volume { sb, .. }) = volume else {
        return;
    };
    let (ino, time) = (InodeNo(11), Time { sec: -1, nsec: 1 });
    for extra_isize in (0..=32).step_by(4) {
        let inode = Inode {
            version: u64::MAX,
            projid: 7,
            extra_isize,
            atime: time,
            ctime: time,
            mtime: time,
            crtime: time,
            ..Inode::new(0o100_600, InodeFlags::empty(), 0, &sb)
        };
        let mut raw = vec![0; sb.inode_size()];
        inode.encode_fresh(&mut raw, ino, &sb);
        for field in INODE_LAYOUT.fields {
            let (end, is_extra) = (field.offset + field.size, field.offset >= 0x84);
            let is_there = raw[field.offset..end].iter().any(|&byte| byte != 0);
            let fits = end <= 128 + usize::from(extra_isize);
            assert!(
                !is_extra || is_there == fits,
                "{} {extra_isize}",
                field.name
            );
        }
        let back = Inode::decode(&raw, ino, &sb).expect("it was encoded");
        let has = |fits| extra_isize >= fits;
        assert_eq!(back.version == u64::MAX, has(28), "{extra_isize}");
        assert_eq!(back.projid == 7, has(32), "{extra_isize}");
        assert_eq!(back.crtime == time, has(24), "{extra_isize}");
    }
}
