//! Every scheme can repeat a program's calls. The model of its mode allows every tree that the
//! scheme recovers after a power cut.

mod volume;

use stetfs::{
    Caller, Change, FallocateMode, New, OpenFlags, RenameFlags, Result, SetAttr, SetXattr,
    WriteFlags,
};
use stetfs_format::InodeNo;
use stetfs_fuse::Backend;
use stetfs_media::Image;
use stetfs_media::sim::Keep;
use stetfs_powercut::call::{Call, Recording, What};
use stetfs_powercut::kernel::Kernel;
use stetfs_powercut::marks::Marks;
use stetfs_powercut::recorder::Recorder;
use stetfs_powercut::scheme::{FLASH_BYTES, Scheme};
use stetfs_powercut::system::System;
use stetfs_testkit::host::needs;
use stetfs_testkit::skip_unless;
use volume::{fresh, mounted};

const NONE: WriteFlags = WriteFlags::empty();

/// Calls of every kind. Some files lose their names while they are open.
fn program(on: &impl Backend) -> Result<()> {
    let (c, root) = (&Caller::root(), InodeNo(2));
    let user = &Caller {
        uid: 1000,
        gid: 1000,
        ..Caller::root()
    };
    let create = |name: &str| -> Result<InodeNo> {
        let made = on.create(user, root, name.as_bytes(), 0o640, OpenFlags::WRITE)?;
        Ok(made.ino)
    };
    let write = |ino, at, len: usize| {
        let bytes: Vec<u8> = (0..len).map(|n| b'a' + (n % 23) as u8).collect();
        on.write_with(c, ino, at, &bytes, NONE).map(drop)
    };
    let rename = |from: &str, to: &str, flags| {
        let (from, to) = ((root, from.as_bytes()), (root, to.as_bytes()));
        on.change(c, &Change::Rename(from, to, flags))
    };
    let a = create("a")?;
    write(a, 0, 9000)?;
    on.fsync(a, false)?;
    on.fallocate(
        c,
        a,
        FallocateMode::PUNCH_HOLE | FallocateMode::KEEP_SIZE,
        100,
        5000,
    )?;
    on.release(a)?;
    let b = create("b")?;
    write(b, 4000, 200)?;
    rename("b", "a", RenameFlags::EXCHANGE)?;
    rename("a", "c", RenameFlags::WHITEOUT)?;
    let dir = on
        .change(c, &Change::Make((root, b"d"), New::Directory(0o755)))?
        .ino;
    on.change(c, &Change::Link(b, (dir, b"second")))?;
    on.change(c, &Change::Make((dir, b"link"), New::Symlink(b"../c")))?;
    let pipe = New::Node(stetfs::mode::S_IFIFO | 0o600, (0, 0));
    on.change(c, &Change::Make((dir, b"pipe"), pipe))?;
    on.change(
        c,
        &Change::SetXattr(b, b"user.colour", b"blue", SetXattr::Any),
    )?;
    on.change(
        c,
        &Change::SetXattr(b, b"user.taste", b"sweet", SetXattr::Any),
    )?;
    on.change(c, &Change::RemoveXattr(b, b"user.colour"))?;
    let set = SetAttr {
        mode: Some(0o604),
        uid: Some(7),
        size: Some(4100),
        ..SetAttr::default()
    };
    on.change(c, &Change::SetAttr(b, &set))?;
    // These are used after their names are gone.
    on.change(c, &Change::Unlink((root, b"c")))?;
    on.change(c, &Change::Unlink((dir, b"second")))?;
    write(b, 0, 300)?;
    on.release(b)?;
    let unnamed = on.create_unnamed(c, root, 0o600, OpenFlags::WRITE)?.ino;
    write(unnamed, 0, 700)?;
    on.change(c, &Change::Link(unnamed, (dir, b"named")))?;
    // It replaces a file that is used later.
    let over = create("over")?;
    let old = create("old")?;
    write(old, 0, 50)?;
    rename("over", "old", RenameFlags::empty())?;
    write(old, 50, 50)?;
    write(over, 0, 10)?;
    on.change(c, &Change::Make((root, b"empty"), New::Directory(0o755)))?;
    on.change(c, &Change::Rmdir((root, b"empty")))?;
    on.sync()?;
    write(over, 10, 10)?;
    let cut = SetAttr {
        size: Some(15),
        ..SetAttr::default()
    };
    on.change(c, &Change::SetAttr(over, &cut)).map(drop)
}

fn recording(fresh: &Image) -> Recording {
    let fs = mounted(fresh);
    let (c, root) = (&Caller::root(), fs.root());
    let old = fs
        .create(c, root, b"before", 0o644, OpenFlags::WRITE)
        .unwrap();
    fs.write(c, old.ino, 0, b"it was there").unwrap();
    let recorder = Recorder::new(fs, Marks::new());
    recorder.begin().unwrap();
    program(&recorder).unwrap();
    recorder.end()
}

#[test]
fn what_a_program_did_is_done_again_on_every_scheme() {
    let recording = recording(&fresh(16));
    let modes = [
        "jbd2-ordered",
        "jbd2-writeback",
        "dj-ordered",
        "jftl-ordered",
    ];
    let is_sync = |call: &Call| matches!(call.what, What::Sync);
    let synced = recording.calls.iter().position(is_sync).unwrap();
    for name in Scheme::names().chain(modes) {
        let scheme: Scheme = name.parse().unwrap();
        let size = if scheme.is_on_flash() {
            FLASH_BYTES >> 20
        } else {
            16
        };
        for pace in scheme.paces() {
            // The constructor compares the result with the program's.
            let played = scheme.play(&fresh(size), &recording, *pace);
            let played = played.unwrap_or_else(|e| panic!("{name}, {pace}: {e:#}"));
            let (last, at_sync) = (played.tapes.changes(), played.returned[synced + 1]);
            for at in [at_sync, last] {
                let moment = played.tapes.moment(at).unwrap();
                let (_, tree) = scheme.recover(&moment.contents(&Keep::None)).unwrap();
                let paths: Vec<_> = tree.paths().into_iter().map(|(path, _)| path).collect();
                let there = [
                    "a", "b", "before", "d", "d/link", "d/named", "d/pipe", "old",
                ];
                assert_eq!(paths, there, "{name}, {pace}, {at} of {last} changes");
            }
        }
    }
}

#[test]
fn what_a_program_did_is_done_again_on_the_kernels_ext4() {
    skip_unless!(needs(true, true, &["losetup", "mount", "e2fsck"]));
    let fresh = fresh(16);
    let recording = recording(&fresh);
    for name in ["kernel", "kernel-journal", "kernel/stet", "kernel/tinca"] {
        let kernel: Kernel = name.parse().unwrap();
        for pace in kernel.paces() {
            // It compares the result with the program's.
            let played = kernel.play(&fresh, &recording, *pace);
            let played = played.unwrap_or_else(|e| panic!("{name}, {pace}: {e:#}"));
            assert_eq!(played.returned.len(), recording.calls.len() + 1);
        }
    }
}

#[test]
fn names_that_are_no_kernels_are_refused() {
    for (name, why) in [
        (
            "kernel-atomic",
            "the modes ordered, dioread-lock, writeback",
        ),
        ("kernel/null", "no scheme null"),
        ("kernel-journal/jbd2", "take kernel-journal"),
        ("kernel/", "no scheme"),
        ("kernels", "is not kernel"),
    ] {
        let error = name.parse::<Kernel>().unwrap_err();
        assert!(error.contains(why), "{name}: {error}");
    }
}

#[test]
fn names_that_are_no_schemes_are_refused() {
    for (name, why) in [
        ("ext5", "no scheme ext5"),
        ("null", "no scheme null"),
        ("jbd2-atomic", "no mode atomic"),
        ("stet-ordered", "no mode ordered"),
    ] {
        let error = name.parse::<Scheme>().unwrap_err();
        assert!(error.contains(why), "{name}: {error}");
    }
}
