//! Damaged directories: an error that names inode, block and check; never a panic, a hang or a
//! wrong name.

use std::os::unix::fs::FileExt;

use stetfs::{Caller, Change, Error, Kind, OpenFlags, RenameFlags};
use stetfs_format::InodeNo;

use crate::image::{Random, Volume, byte_at, patch, physical_block};

const ROOT: InodeNo = InodeNo(2);

/// A volume with a large directory `/d` of two index levels; unmounted.
fn image(mke2fs: &str) -> tempfile::TempDir {
    let v = Volume::make(mke2fs, 32);
    let c = Caller::root();
    let d = v.fs.mkdir(&c, ROOT, b"d", 0o755).unwrap().ino;
    let file =
        v.fs.create(&c, ROOT, b"file", 0o644, OpenFlags::WRITE)
            .unwrap()
            .ino;
    for i in 0..6000 {
        v.fs.link(&c, file, d, format!("some-name-{i}").as_bytes())
            .unwrap();
    }
    v.fs.release(file).unwrap();
    v.checked()
}

const PLAIN: &str = "-t ext4 -b 1024 -O ^metadata_csum";
const SUMS: &str = "-t ext4 -b 1024 -O metadata_csum";

/// Looks up and lists everything. Returns the first error.
fn walk(v: &Volume) -> Result<(), Error> {
    let c = Caller::root();
    let d = v.fs.lookup(&c, ROOT, b"d")?.ino;
    for i in 0..6000 {
        v.fs.lookup(&c, d, format!("some-name-{i}").as_bytes())?;
    }
    v.fs.readdir(d, 0, &mut |_| true)
}

/// Each check has its own error.
#[test]
fn every_check_names_what_is_wrong() {
    // Logical block of /d, offset in it, bytes to write there, and what the message must contain.
    let root: &[(u32, usize, &[u8], &str)] = &[
        (0, 16, &[0xf0], "DxDots"),
        (0, 8, b"x", "DxDots"),
        (0, 18, &[1], "DxDots"),
        (0, 20, b"/", "DxDots"),
        (0, 24, &[1], "DxInfoLength"),
        (0, 28, &[9], "DxHashVersion"),
        (0, 29, &[7], "DxInfoLength"),
        (0, 30, &[2], "DxLevels"),
        (0, 31, &[1], "DxFlags"),
        (0, 32, &[0, 0], "DxLimit"),
        (0, 34, &[0, 0], "DxCount"),
        (0, 34, &[0xff, 0xff], "DxCount"),
        (0, 36, &[0xff, 0xff, 0xff, 0x0f], "DirectoryHole"),
        (1, 4, &[6, 0], "Dirent"),
        (1, 4, &[0xff, 0xff], "Dirent"),
        (1, 4, &[0, 0], "Dirent"),
        (1, 6, &[255], "Dirent"),
        (1, 0, &[0xff, 0xff, 0xff, 0xff], "DirentInode"),
        (1, 6, &[0], "DirentNameEmpty"),
        (1, 8, b"/", "DirentName {"),
        (1, 12, &[0], "DirentName {"),
        (1, 6, &[1, 1, b'.'], "DirentDots"),
        (1, 6, &[2, 1, b'.', b'.'], "DirentDots"),
    ];
    let plain = image(PLAIN);
    for (lblk, at, bytes, want) in root {
        let copy = patch(
            &plain,
            physical_block(&plain, "/d", *lblk) * 1024 + *at as u64,
            bytes,
        );
        let v = Volume::again(copy);
        let error = walk(&v).expect_err(want);
        let text = format!("{error:?}");
        assert!(text.contains(want), "block {lblk} offset {at}: {text}");
        assert_eq!(error.kind(), Kind::Corrupted);
        assert!(error.to_string().contains("inode"), "{error}");
        v.abandon();
    }
}

#[test]
fn checksums_find_any_change() {
    let sums = image(SUMS);
    for (lblk, at, want) in [
        (0, 41, "DxChecksum"),
        (1, 500, "DirentChecksum"),
        (1, 1020, "DirentChecksum"),
    ] {
        let place = physical_block(&sums, "/d", lblk) * 1024 + at;
        let v = Volume::again(patch(&sums, place, &[!byte_at(&sums, place)]));
        let text = format!("{:?}", walk(&v).unwrap_err());
        assert!(text.contains(want), "{text}");
        v.abandon();
    }
    let place = physical_block(&sums, "/d", 1) * 1024 + 1019;
    let v = Volume::again(patch(&sums, place, &[0]));
    assert!(format!("{:?}", walk(&v).unwrap_err()).contains("DirentTail"));
    v.abandon();
}

/// Damages random bytes in random directory blocks of a volume without checksums, and then tries
/// every call.
#[test]
fn random_damage_never_hangs_or_panics() {
    let plain = image(PLAIN);
    let blocks: Vec<u64> = (0..30).map(|l| physical_block(&plain, "/d", l)).collect();
    let c = Caller::root();
    let mut random = Random::new(3);
    let mut damaged = 0;
    for round in 0..60 {
        let mut copy = patch(&plain, blocks[0] * 1024, &[]);
        for _ in 0..1 + random.below(6) {
            let block = blocks[random.below(if round % 2 == 0 { 2 } else { blocks.len() })];
            // Most of the damage hits the heads of records and pairs.
            let at = if random.below(2) == 0 {
                random.below(64)
            } else {
                random.below(1024)
            };
            let byte = [0, 1, 0xff, 0x80, random.below(256) as u8][random.below(5)];
            copy = patch(&copy, block * 1024 + at as u64, &[byte]);
        }
        let v = Volume::again(copy);
        damaged += u32::from(walk(&v).is_err());
        let Ok(d) = v.fs.lookup(&c, ROOT, b"d") else {
            continue;
        };
        for i in 0..200 {
            let name = format!("some-name-{}", random.below(7000)).into_bytes();
            let new = format!("new-{i}-{}", "z".repeat(random.below(200))).into_bytes();
            let _ = v.fs.mkdir(&c, d.ino, &new, 0o755);
            let _ = v.fs.unlink(&c, d.ino, &name);
            let _ =
                v.fs.rename(&c, d.ino, &new, d.ino, &name, RenameFlags::empty());
            let _ =
                v.fs.rename(&c, d.ino, &name, ROOT, &new, RenameFlags::EXCHANGE);
        }
        let mut cookie = 0;
        for _ in 0..20_000 {
            let mut more = false;
            let listed = v.fs.readdir(d.ino, cookie, &mut |e| {
                more = cookie != e.next;
                cookie = e.next;
                false
            });
            if listed.is_err() || !more {
                break;
            }
        }
        let _ = v.fs.rmdir(&c, ROOT, b"d");
        v.abandon();
    }
    assert!(damaged > 20, "only {damaged} damaged images were noticed");
}

/// A name that, as part of a path, would lead out of its directory. No call returns it, nothing
/// changes in the directory that has it, and other directories work as before.
#[test]
fn names_that_lead_elsewhere_reach_nobody() {
    let c = Caller::root();
    let bad: &[&[u8]] = &[
        b"../../7",
        b"/etc/07",
        b"file-0/",
        b"file\0-7",
        b"..",
        b".",
        b"",
    ];
    for mke2fs in [PLAIN, "-t ext4 -b 1024 -O ^metadata_csum,^dir_index"] {
        let v = Volume::make(mke2fs, 16);
        let d = v.fs.mkdir(&c, ROOT, b"d", 0o755).unwrap().ino;
        let file =
            v.fs.create(&c, ROOT, b"file", 0o644, OpenFlags::WRITE)
                .unwrap();
        v.fs.release(file.ino).unwrap();
        // One block that an index could replace, or several blocks without an index.
        let files = if mke2fs == PLAIN { 40 } else { 150 };
        for i in 0..files {
            let name = format!("file-{i:02}");
            v.fs.link(&c, file.ino, d, name.as_bytes()).unwrap();
        }
        let made = v.checked();
        let lblk = if mke2fs == PLAIN { 0 } else { 1 };
        let at = physical_block(&made, "/d", lblk) * 1024;
        let block = bytes_at(&made, at);
        let name = block.windows(5).position(|w| w == b"file-").unwrap() as u64;
        let victim = block[name as usize..][..7].to_vec();
        for bad in bad {
            let mut entry = vec![bad.len() as u8, 1];
            entry.extend_from_slice(bad);
            let v = Volume::again(patch(&made, at + name - 2, &entry));
            let shown = format!("{mke2fs}, {}", bad.escape_ascii());
            let d = v.fs.lookup(&c, ROOT, b"d").unwrap().ino;
            let mut listed = Vec::new();
            let end = v.fs.readdir(d, 0, &mut |e| {
                listed.push(e.name.to_vec());
                true
            });
            let none = RenameFlags::empty();
            let other = |name: &[u8]| v.fs.lookup(&c, d, name).map(|_| ());
            let results = [
                end,
                other(&victim),
                v.fs.unlink(&c, d, &victim),
                v.fs.rmdir(&c, d, &victim),
                v.fs.mkdir(&c, d, b"new", 0o755).map(|_| ()),
                v.fs.link(&c, file.ino, d, b"new").map(|_| ()),
                v.fs.rename(&c, d, &victim, ROOT, b"moved", none),
                v.fs.rename(&c, ROOT, b"file", d, b"moved", none),
                v.fs.rename(&c, ROOT, b"file", d, &victim, RenameFlags::EXCHANGE),
                v.fs.rmdir(&c, ROOT, b"d"),
            ];
            for (i, result) in results.into_iter().enumerate() {
                // With several blocks, the directory is known not to be empty before the bad block
                // is read.
                let is_known = i == 9 && lblk > 0;
                match result {
                    Err(Error::NotEmpty) if is_known => {}
                    Err(e) => assert_eq!(e.kind(), Kind::Corrupted, "{shown}, call {i}: {e:?}"),
                    Ok(()) => panic!("{shown}: call {i} took no notice"),
                }
            }
            listed.retain(|name| name != b"." && name != b"..");
            let legal = |name: &Vec<u8>| name.starts_with(b"file-") && name.len() >= 7;
            assert!(listed.iter().all(legal), "{shown}: {listed:?}");
            v.fs.mkdir(&c, ROOT, b"beside", 0o755).unwrap();
            v.fs.unlink(&c, ROOT, b"file").unwrap();
            v.fs.unmount().unwrap();
            let now = bytes_at(&v.cut(), at);
            let mut before = block.clone();
            before[name as usize - 2..][..entry.len()].copy_from_slice(&entry);
            assert_eq!(now, before, "{shown}: the directory was written");
        }
    }
}

/// A directory has one block twice. As its first block it may hold "." and "..", as another one it
/// may not.
#[test]
fn a_first_block_that_comes_again() {
    let v = Volume::make(
        "-t ext4 -b 1024 -O ^metadata_csum,^dir_index,^64bit,^extent",
        16,
    );
    let c = Caller::root();
    let d = v.fs.mkdir(&c, ROOT, b"d", 0o755).unwrap().ino;
    for i in 0..100 {
        v.fs.mkdir(&c, d, format!("a-longer-name-{i}").as_bytes(), 0o755)
            .unwrap();
    }
    let made = v.checked();
    let first = physical_block(&made, "/d", 0) as u32;
    let second = physical_block(&made, "/d", 1) as u32;
    // The map of /d names its blocks one after the other.
    let mut map = first.to_le_bytes().to_vec();
    map.extend(second.to_le_bytes());
    let image = std::fs::read(made.path().join("image")).unwrap();
    let at = image.windows(8).position(|w| w == map).unwrap() as u64;
    let v = Volume::again(patch(&made, at + 4, &first.to_le_bytes()));
    let error = v.fs.readdir(d, 0, &mut |_| true).unwrap_err();
    assert!(format!("{error:?}").contains("DirentDots"), "{error:?}");
    v.abandon();
}

/// Returns the 1024 bytes of an image at `at`.
fn bytes_at(image: &tempfile::TempDir, at: u64) -> Vec<u8> {
    let mut bytes = vec![0; 1024];
    let file = std::fs::File::open(image.path().join("image")).unwrap();
    file.read_exact_at(&mut bytes, at).unwrap();
    bytes
}

/// Entries that point where none may: to the directory itself, to the journal, to no inode.
#[test]
fn entries_of_inodes_that_have_no_name() {
    let plain = image(PLAIN);
    let leaf = physical_block(&plain, "/d", 1) * 1024;
    for (ino, want) in [(8u32, "InodeNumber"), (7_000, "UnusedInode"), (12, "")] {
        let v = Volume::again(patch(&plain, leaf, &ino.to_le_bytes()));
        let c = Caller::root();
        let d = v.fs.lookup(&c, ROOT, b"d").unwrap().ino;
        assert!(!want.is_empty() || d.0 == ino, "/d is inode {}", d.0);
        let mut name = None;
        v.fs.readdir(d, 0, &mut |e| {
            if e.ino.0 == ino && e.name != b"." {
                name = Some(e.name.to_vec());
            }
            true
        })
        .unwrap();
        let name = name.expect("the changed entry");
        let results = [
            v.fs.unlink(&c, d, &name),
            v.fs.rmdir(&c, d, &name),
            v.fs.rename(&c, d, &name, ROOT, b"moved", RenameFlags::empty()),
            // Fails when it is staged, not at the commit.
            (v.fs.begin())
                .change(
                    &c,
                    &Change::Rename((d, &name), (ROOT, b"moved"), RenameFlags::empty()),
                )
                .map(drop),
        ];
        for result in results {
            let error = result.unwrap_err();
            assert_eq!(error.kind(), Kind::Corrupted, "{error:?}");
            assert!(format!("{error:?}").contains(want), "{error:?}");
        }
        v.abandon();
    }
}

/// A directory has an entry in another one below it. A call that took the locks from there
/// downwards would take them in the opposite order of all others, so every call refuses.
#[test]
fn a_directory_below_itself() {
    let v = Volume::make(PLAIN, 32);
    let c = Caller::root();
    let a = v.fs.mkdir(&c, ROOT, b"a", 0o755).unwrap().ino;
    let b = v.fs.mkdir(&c, a, b"b", 0o755).unwrap().ino;
    let up = v.fs.create(&c, b, b"up", 0o644, OpenFlags::WRITE);
    v.fs.release(up.unwrap().ino).unwrap();
    let made = v.checked();
    // The third record of the first block, behind "." and "..".
    let at = physical_block(&made, "/a/b", 0) * 1024 + 24;
    let v = Volume::again(patch(&made, at, &a.0.to_le_bytes()));
    let results = [
        v.fs.unlink(&c, b, b"up"),
        v.fs.rmdir(&c, b, b"up"),
        v.fs.rename(&c, b, b"up", ROOT, b"moved", RenameFlags::empty()),
        v.fs.rename(&c, a, b"b", b, b"up", RenameFlags::EXCHANGE),
    ];
    for result in results {
        let error = result.unwrap_err();
        assert!(
            format!("{error:?}").contains("DirectoryElsewhere"),
            "{error:?}"
        );
    }
    v.abandon();
}

/// Two directories, each with the other as its parent: the path from them to the root has no end.
#[test]
fn parents_in_a_circle() {
    let v = Volume::make(PLAIN, 32);
    let c = Caller::root();
    let make = |dir, name: &[u8]| v.fs.mkdir(&c, dir, name, 0o755).unwrap().ino;
    let a = make(ROOT, b"a");
    let b = make(a, b"b");
    let other = make(ROOT, b"other");
    let made = v.checked();
    // ".." is the second record of the first block.
    let at = physical_block(&made, "/a", 0) * 1024 + 12;
    let v = Volume::again(patch(&made, at, &b.0.to_le_bytes()));
    let moved =
        v.fs.rename(&c, ROOT, b"other", b, b"moved", RenameFlags::empty());
    let error = moved.unwrap_err();
    assert!(format!("{error:?}").contains("NotBelowRoot"), "{error:?}");
    assert_eq!(v.fs.lookup(&c, ROOT, b"other").unwrap().ino, other);
    v.abandon();
}
