//! Groups of writes: only their owner sees them, and they survive whole or not at all.

use stetfs_format::{InodeFlags, InodeNo};

use crate::testing::Image;
use crate::{Caller, Error, FallocateMode, Fs, MountOptions, OpenFlags, SetAttr};

const RW: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);

fn make(fs: &Fs, name: &[u8]) -> InodeNo {
    fs.create(&Caller::root(), fs.root(), name, 0o666, RW)
        .unwrap()
        .ino
}

/// Unmounts, and checks that the volume is clean and has as many free blocks as the mount said: all
/// reservations were given back.
fn unmount_with_all_given_back(image: &Image, fs: &Fs) {
    let free = fs.stats().blocks_free;
    fs.unmount().unwrap();
    image.assert_clean();
    let fs = image.mount("data=journal");
    assert_eq!(fs.stats().blocks_free, free, "reservations are given back");
    fs.unmount().unwrap();
}

fn content(fs: &Fs, ino: InodeNo) -> Vec<u8> {
    let mut out = vec![0; fs.getattr(ino).unwrap().size as usize];
    assert_eq!(fs.read(ino, 0, &mut out).unwrap(), out.len());
    out
}

/// A small generator of random places.
fn random(seed: &mut u64) -> u64 {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
    *seed >> 33
}

#[test]
fn a_group_is_what_its_writes_would_be_and_nobody_else_sees_it_before() {
    let c = Caller::root();
    for args in ["-t ext4 -b 4096 -J size=8", "-t ext3 -b 1024 -J size=4"] {
        let words: Vec<&str> = args.split(' ').collect();
        let image = Image::new(48, &words);
        let fs = image.mount("data=journal");
        let files = [make(&fs, b"a"), make(&fs, b"b")];
        fs.fallocate(&c, files[1], FallocateMode::empty(), 20_000, 60_000)
            .or_else(|e| {
                if args.contains("ext3") {
                    Ok(())
                } else {
                    Err(e)
                }
            })
            .unwrap();
        let mut seed = 7;
        for round in 0..40 {
            let before = files.map(|ino| content(&fs, ino));
            let mut model = before.clone();
            let mut group = fs.begin();
            for number in 0..12 {
                let which = (random(&mut seed) % 2) as usize;
                let (at, len) = (random(&mut seed) % 90_000, 1 + random(&mut seed) % 9000);
                let bytes = vec![(round * 12 + number) as u8; len as usize];
                group.write(&c, files[which], at, &bytes).unwrap();
                let (file, end) = (&mut model[which], (at + len) as usize);
                file.resize(file.len().max(end), 0);
                file[at as usize..end].copy_from_slice(&bytes);
                let size = group.size(files[which]).unwrap();
                assert_eq!(size, file.len() as u64);
                let from = random(&mut seed) % size;
                let mut seen = vec![0xEE; 5000];
                let n = group.read(files[which], from, &mut seen).unwrap();
                let expected = &file[from as usize..];
                assert_eq!(n, expected.len().min(5000));
                assert!(seen[..n] == expected[..n], "round {round}, read at {from}");
            }
            assert!(
                files.map(|ino| content(&fs, ino)) == before,
                "seen by others"
            );
            match round % 3 {
                0 => group.abort(),
                1 => group.commit(&c).unwrap(),
                _ => group.commit_lazy(&c).unwrap(),
            }
            assert!(group.is_empty());
            let expected = if round % 3 == 0 { before } else { model };
            assert!(
                files.map(|ino| content(&fs, ino)) == expected,
                "round {round}"
            );
        }
        unmount_with_all_given_back(&image, &fs);
    }
}

#[test]
fn the_second_of_two_groups_on_a_file_is_told_and_loses_nothing() {
    let (image, c) = (
        Image::new(32, &["-t", "ext4", "-b", "4096"]),
        Caller::root(),
    );
    let fs = image.mount("");
    let (a, b) = (make(&fs, b"a"), make(&fs, b"b"));
    let (mut first, mut second) = (fs.begin(), fs.begin());
    first.write(&c, a, 0, b"first").unwrap();
    second.write(&c, b, 0, b"second").unwrap();
    second.write(&c, a, 3, b"second").unwrap();
    first.commit(&c).unwrap();
    let told = second.commit(&c).unwrap_err();
    assert!(matches!(told, Error::Conflict(ino) if ino == a), "{told}");
    assert_eq!(
        (content(&fs, a), content(&fs, b)),
        (b"first".to_vec(), vec![])
    );
    let mut seen = [0; 6];
    second.read(b, 0, &mut seen).unwrap();
    assert_eq!(&seen, b"second");
    second.abort();
    // Two writes in succession are no conflict, in one group or in two.
    for text in [b"one", b"two"] {
        second.write(&c, a, 0, text).unwrap();
        second.commit(&c).unwrap();
    }
    assert_eq!(content(&fs, a), b"twost");
    fs.unmount().unwrap();
    image.assert_clean();
}

#[test]
fn what_cannot_be_is_refused_at_the_write() {
    let (image, c) = (
        Image::new(24, &["-t", "ext4", "-b", "4096", "-J", "size=4"]),
        Caller::root(),
    );
    let fs = image.mount("data=journal");
    let ino = make(&fs, b"file");
    let free = fs.stats().blocks_free;
    let mut group = fs.begin();
    group.write(&c, ino, 0, b"kept").unwrap();
    // More than a transaction holds: first scattered pages, then one long write.
    let told = (1..).find_map(|i| group.write(&c, ino, i * 8192, &[1; 4096]).err());
    let Some(Error::GroupTooBig { wanted, limit }) = told else {
        panic!("{told:?}");
    };
    assert!(wanted > limit && limit > 50, "{wanted} of {limit}");
    let told = group.write(&c, ino, 0, &vec![0; 8 << 20]).unwrap_err();
    assert!(matches!(told, Error::GroupTooBig { .. }), "{told}");
    assert_eq!(content(&fs, ino), b"");
    group.commit(&c).unwrap();
    assert!(content(&fs, ino).starts_with(b"kept"));
    fs.setattr(
        &c,
        ino,
        &SetAttr {
            size: Some(0),
            ..SetAttr::default()
        },
    )
    .unwrap();
    fs.sync().unwrap();
    assert_eq!(fs.stats().blocks_free, free);
    // The user fills the volume; root still has blocks in reserve.
    let (user, other) = (Caller::user(1000, 1000), make(&fs, b"other"));
    let mut at = 0;
    while let Ok(n) = fs.write(&user, other, at, &[2; 65_536]) {
        at += n as u64;
    }
    let told = group.write(&user, ino, 0, &[3; 65_536]).unwrap_err();
    assert!(matches!(told, Error::NoSpace), "{told}");
    assert!(group.is_empty());
    // Data that has a place can still be overwritten.
    group.write(&user, other, 5000, &[4; 65_536]).unwrap();
    group.commit(&user).unwrap();
    assert_eq!(content(&fs, other)[5000..5000 + 65_536], [4; 65_536]);
    fs.unmount().unwrap();
    image.assert_clean();
}

#[test]
fn data_that_is_not_journaled_is_refused() {
    let (image, c) = (
        Image::new(32, &["-t", "ext4", "-b", "4096"]),
        Caller::root(),
    );
    let fs = image.mount("data=ordered");
    let ino = make(&fs, b"file");
    let mut group = fs.begin();
    assert!(!fs.can_group(ino).unwrap());
    let told = group.write(&c, ino, 0, b"x").unwrap_err();
    assert!(matches!(told, Error::NotSupported), "{told}");
    let flags = fs.get_flags(ino).unwrap();
    fs.set_flags(&c, ino, flags | InodeFlags::JOURNAL_DATA)
        .unwrap();
    group.write(&c, ino, 0, b"x").unwrap();
    // The flag is removed before the commit.
    fs.set_flags(&c, ino, flags).unwrap();
    assert!(matches!(group.commit(&c), Err(Error::NotSupported)));
    assert_eq!(content(&fs, ino), b"");
    group.abort();
    fs.unmount().unwrap();
    image.assert_clean();
}

#[test]
fn groups_outlive_names_and_not_the_volume() {
    let (image, c) = (
        Image::new(32, &["-t", "ext4", "-b", "4096"]),
        Caller::root(),
    );
    let fs = image.mount("");
    let free = |fs: &Fs| (fs.stats().blocks_free, fs.stats().inodes_free);
    let before = free(&fs);
    let ino = make(&fs, b"file");
    let (mut group, mut dropped) = (fs.begin(), fs.begin());
    group.write(&c, ino, 100_000, &[1; 10_000]).unwrap();
    dropped.write(&c, ino, 0, &[2; 10_000]).unwrap();
    fs.unlink(&c, fs.root(), b"file").unwrap();
    fs.release(ino).unwrap();
    drop(dropped);
    group.commit(&c).unwrap();
    assert!(
        matches!(fs.getattr(ino), Err(Error::Stale)),
        "freed with the group"
    );
    fs.sync().unwrap();
    assert_eq!(free(&fs), before);
    // Others truncate a file. The group still has it open at the unmount.
    let ino = make(&fs, b"again");
    fs.write(&c, ino, 0, &[3; 50_000]).unwrap();
    group.write(&c, ino, 40_000, &[4; 1000]).unwrap();
    let cut = SetAttr {
        size: Some(10),
        ..SetAttr::default()
    };
    fs.setattr(&c, ino, &cut).unwrap();
    group.commit(&c).unwrap();
    let mut expected = vec![0; 41_000];
    expected[..10].fill(3);
    expected[40_000..].fill(4);
    assert!(content(&fs, ino) == expected);
    group.write(&c, ino, 0, &[5; 50_000]).unwrap();
    fs.unmount().unwrap();
    assert!(matches!(
        group.write(&c, ino, 0, b"x"),
        Err(Error::ShutDown)
    ));
    assert!(matches!(group.commit(&c), Err(Error::ShutDown)));
    drop(group);
    image.assert_clean();
}

/// Bytes that another system left behind the end of a file in its last block do not become content.
#[test]
fn what_lies_behind_the_end_does_not_come_with_a_later_piece() {
    let (image, c) = (
        Image::new(32, &["-t", "ext4", "-b", "4096"]),
        Caller::root(),
    );
    let fs = image.mount("");
    let ino = make(&fs, b"file");
    fs.write(&c, ino, 0, &[7; 4096]).unwrap();
    fs.unmount().unwrap();
    let dev = image.with_file(|path| {
        let shorter = ["-w", "-R", "set_inode_field file size 10"];
        let mut debugfs = std::process::Command::new("debugfs");
        assert!(debugfs.args(shorter).arg(path).status().unwrap().success());
        stetfs_media::RamDev::from_file(path).unwrap()
    });
    let fs = Fs::mount(std::sync::Arc::new(dev), MountOptions::default())
        .unwrap()
        .0;
    assert_eq!(content(&fs, ino), [7; 10]);
    let mut group = fs.begin();
    group.write(&c, ino, 0, &[8; 5]).unwrap();
    group.write(&c, ino, 5000, &[9; 5]).unwrap();
    group.commit(&c).unwrap();
    let mut expected = vec![0; 5005];
    expected[..10].copy_from_slice(&[8, 8, 8, 8, 8, 7, 7, 7, 7, 7]);
    expected[5000..].fill(9);
    assert!(content(&fs, ino) == expected);
    assert_eq!(group.read(ino, u64::MAX, &mut [0]).unwrap(), 0);
    group.write(&c, ino, 0, b"x").unwrap();
    assert_eq!(group.read(ino, u64::MAX, &mut [0]).unwrap(), 0);
    group.abort();
    fs.unmount().unwrap();
}

/// Writes until the volume is full, at last in small pieces.
fn fill(fs: &Fs, name: &[u8]) -> InodeNo {
    let (c, ino) = (Caller::root(), make(fs, name));
    let mut at = 0;
    for len in [65_536, 1024] {
        while let Ok(n) = fs.write(&c, ino, at, &vec![2; len]) {
            at += n as u64;
        }
    }
    ino
}

/// A full volume fails the write that stages. What was staged can be committed, even if the file's
/// map grows by it.
#[test]
fn what_is_staged_has_room_when_others_fill_the_volume() {
    let c = Caller::root();
    for args in ["-t ext4 -b 1024 -J size=4", "-t ext3 -b 1024 -J size=4"] {
        let words: Vec<&str> = args.split(' ').collect();
        let image = Image::new(24, &words);
        let fs = image.mount("data=journal");
        let ino = make(&fs, b"file");
        let mut group = fs.begin();
        // On ext3, each write needs its own block of the map.
        let places = (0..40).map(|n| n * 300_000);
        for at in places.clone() {
            group.write(&c, ino, at, &[7; 1500]).unwrap();
        }
        let other = fill(&fs, b"other");
        assert!(matches!(
            group.write(&c, ino, 25_000, &[8; 50_000]),
            Err(Error::NoSpace)
        ));
        group.commit(&c).unwrap_or_else(|e| panic!("{args}: {e}"));
        let seen = content(&fs, ino);
        for at in places {
            assert_eq!(seen[at as usize..][..1500], [7; 1500]);
        }
        assert!(seen[25_000..40_000].iter().all(|b| *b == 0));
        fs.sync().unwrap();
        fs.release(other).unwrap();
        fs.unmount().unwrap();
        image.assert_clean();
    }
}

/// Only somebody who punches holes where a group writes can take its room away. Then the commit
/// fails, and nothing has happened.
#[test]
fn a_hole_that_others_make_may_cost_the_commit_its_room() {
    let (image, c) = (
        Image::new(24, &["-t", "ext4", "-b", "1024", "-J", "size=4"]),
        Caller::root(),
    );
    let fs = image.mount("data=journal");
    let ino = make(&fs, b"file");
    fs.write(&c, ino, 0, &[1; 40_960]).unwrap();
    fs.sync().unwrap();
    let mut group = fs.begin();
    group.write(&c, ino, 0, &[5; 40_960]).unwrap();
    let punch = FallocateMode::PUNCH_HOLE | FallocateMode::KEEP_SIZE;
    fs.fallocate(&c, ino, punch, 0, 30_720).unwrap();
    fs.sync().unwrap();
    let other = fill(&fs, b"other");
    let before = content(&fs, ino);
    let told = group.commit(&c).unwrap_err();
    assert!(matches!(told, Error::NoSpace), "{told}");
    assert!(content(&fs, ino) == before, "half of a group");
    let mut seen = [0; 10];
    group.read(ino, 0, &mut seen).unwrap();
    assert_eq!(seen, [5; 10], "what is staged stays");
    let cut = SetAttr {
        size: Some(0),
        ..SetAttr::default()
    };
    fs.setattr(&c, other, &cut).unwrap();
    fs.sync().unwrap();
    group.commit(&c).unwrap();
    assert!(content(&fs, ino) == [5; 40_960]);
    unmount_with_all_given_back(&image, &fs);
}

/// A group that is left open gives everything back. Others truncate one of its files. Another has
/// lost its last name, and only the group uses it, also at the unmount.
#[test]
fn a_group_that_is_left_open_leaves_nothing() {
    let (image, c) = (
        Image::new(32, &["-t", "ext4", "-b", "4096"]),
        Caller::root(),
    );
    let fs = image.mount("");
    let free = |fs: &Fs| {
        fs.sync().unwrap();
        (fs.stats().blocks_free, fs.stats().inodes_free)
    };
    let before = free(&fs);
    for ends_with_volume in [false, true] {
        let [cut, gone] = [make(&fs, b"cut"), make(&fs, b"gone")];
        let mut group = fs.begin();
        for ino in [cut, gone] {
            fs.write(&c, ino, 0, &[1; 50_000]).unwrap();
            group.write(&c, ino, 30_000, &[2; 90_000]).unwrap();
        }
        let to_nothing = SetAttr {
            size: Some(0),
            ..SetAttr::default()
        };
        fs.setattr(&c, cut, &to_nothing).unwrap();
        fs.unlink(&c, fs.root(), b"gone").unwrap();
        fs.release(gone).unwrap();
        fs.sync().unwrap();
        fs.getattr(gone).expect("the group has it open");
        if ends_with_volume {
            fs.unmount().unwrap();
            drop(group);
            image.assert_clean();
            continue;
        }
        drop(group);
        assert_eq!(content(&fs, cut), b"");
        assert!(matches!(fs.getattr(gone), Err(Error::Stale)));
        fs.unlink(&c, fs.root(), b"cut").unwrap();
        fs.release(cut).unwrap();
        assert_eq!(free(&fs), before);
    }
    let fs = image.mount("");
    let cut = fs.lookup(&c, fs.root(), b"cut").unwrap().ino;
    assert_eq!(content(&fs, cut), b"");
    fs.unlink(&c, fs.root(), b"cut").unwrap();
    assert_eq!(free(&fs), before);
    fs.unmount().unwrap();
    image.assert_clean();
}

/// A write that was staged fits at the commit: many pieces in few blocks count as these blocks.
#[test]
fn many_pieces_in_few_blocks_are_few_blocks() {
    let (image, c) = (
        Image::new(32, &["-t", "ext4", "-b", "4096", "-J", "size=4"]),
        Caller::root(),
    );
    let fs = image.mount("data=journal");
    let ino = make(&fs, b"file");
    fs.write(&c, ino, 0, &[1; 4096]).unwrap();
    fs.sync().unwrap();
    let mut group = fs.begin();
    for at in (0..40_000).step_by(20) {
        group.write(&c, ino, at, &[2; 10]).unwrap();
    }
    group.commit(&c).unwrap();
    let seen = content(&fs, ino);
    for (at, bytes) in (0..).step_by(20).zip(seen.chunks(20)) {
        let between = u8::from(at < 4096);
        assert_eq!(bytes[..10], [2; 10], "at {at}");
        assert!(bytes[10..].iter().all(|b| *b <= between), "at {at}");
    }
    unmount_with_all_given_back(&image, &fs);
}

/// A write by an unprivileged caller takes set-user-ID away, whoever commits.
#[test]
fn a_file_loses_its_privileges_by_who_wrote() {
    let image = Image::new(32, &["-t", "ext4", "-b", "4096"]);
    let fs = image.mount("data=journal");
    let (root, user) = (Caller::root(), Caller::user(1000, 1000));
    for (writer, mode) in [(&root, 0o4755), (&user, 0o755)] {
        let ino = make(&fs, format!("of{mode:o}").as_bytes());
        let set = SetAttr {
            mode: Some(0o4755),
            ..SetAttr::default()
        };
        fs.setattr(&root, ino, &set).unwrap();
        let mut group = fs.begin();
        group.write(writer, ino, 0, b"new").unwrap();
        group.commit(&root).unwrap();
        assert_eq!(fs.getattr(ino).unwrap().mode & 0o7777, mode);
    }
    fs.unmount().unwrap();
}
