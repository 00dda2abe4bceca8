//! A group of changes is one call of the recording. Every scheme repeats it as a group. After each
//! power cut, the group is there as a whole or not at all. The explorer finds a planted bug that
//! commits a group in one transaction per file.

mod volume;

use stetfs::{Caller, Change, Kind, OpenFlags, RenameFlags, Result, SetAttr, WriteFlags};
use stetfs_format::InodeNo;
use stetfs_format::inode::InodeFlags;
use stetfs_fuse::Backend;
use stetfs_media::sim::Keep;
use stetfs_planted::{Bug, plant};
use stetfs_powercut::call::{Call, Recording, What};
use stetfs_powercut::marks::Marks;
use stetfs_powercut::player::Pace;
use stetfs_powercut::recorder::Recorder;
use stetfs_powercut::scheme::{FLASH_BYTES, Scheme};
use stetfs_powercut::system::System;
use stetfs_powercut::tree::{Body, Tree};
use volume::{fresh, mounted};

/// Two marked files get the same content by each group. One more group changes names and attributes
/// of both.
fn program(on: &impl Backend) -> Result<()> {
    let (c, root) = (&Caller::root(), InodeNo(2));
    let mut files = Vec::new();
    for name in [b"a", b"b"] {
        let ino = on.create(c, root, name, 0o644, OpenFlags::WRITE)?.ino;
        let flags = InodeFlags::EXTENTS | InodeFlags::JOURNAL_DATA;
        on.change(c, &Change::SetFlags(ino, flags))?;
        on.write_with(c, ino, 0, &[b'0'; 9000], WriteFlags::empty())?;
        files.push(ino);
    }
    on.sync()?;
    let staged = |digit: u8| {
        assert!(on.can_group(files[0]));
        let mut group = on.new_group().expect("a group");
        for ino in &files {
            group.write(c, *ino, 0, &[digit; 9000])?;
        }
        Ok::<_, stetfs::Error>(group)
    };
    staged(b'1')?.commit(c)?;
    drop(staged(b'8')?);
    // Of two groups side by side, the second has a conflict.
    let (mut first, mut second) = (staged(b'2')?, staged(b'9')?);
    first.commit(c)?;
    assert_eq!(second.commit(c).unwrap_err().kind(), Kind::Busy);
    let mut names = on.new_group().expect("a group of names");
    names.change(c, &Change::Unlink((root, b"a")))?;
    let none = RenameFlags::empty();
    names.change(c, &Change::Rename((root, b"b"), (root, b"c"), none))?;
    let mode = Some(0o600);
    let set = SetAttr {
        mode,
        ..SetAttr::default()
    };
    names.change(c, &Change::SetAttr(files[1], &set))?;
    names.commit(c)
}

fn recording() -> Recording {
    let recorder = Recorder::new(mounted(&fresh(16)), Marks::new()).with_groups();
    recorder.begin().unwrap();
    program(&recorder).unwrap();
    recorder.end()
}

/// The digit that fills a file. `None` if its bytes differ or there is no such file.
fn digit(tree: &Tree, name: &str) -> Option<u8> {
    let paths = tree.paths();
    let (_, object) = paths.iter().find(|(path, _)| path == name)?;
    let Body::File(content) = &tree.get(*object)?.body else {
        return None;
    };
    let mut bytes = vec![0; content.size() as usize];
    content.read(0, &mut bytes);
    let is_one = bytes.iter().all(|byte| *byte == bytes[0]);
    is_one.then(|| bytes[0])
}

/// Says what is torn in a tree after the program's sync.
fn torn(tree: &Tree) -> Option<String> {
    let [a, b, c] = ["a", "b", "c"].map(|name| digit(tree, name));
    let is_whole = match (a, b, c) {
        (None, None, Some(c)) => c == b'2',
        (Some(a), Some(b), None) => a == b,
        _ => false,
    };
    (!is_whole).then(|| format!("a {a:?}, b {b:?}, c {c:?}"))
}

/// Returns the first torn state of a scheme, and how many states were explored.
fn explored(scheme: &Scheme, recording: &Recording, pace: Pace) -> (Option<String>, usize) {
    let size = if scheme.is_on_flash() {
        FLASH_BYTES >> 20
    } else {
        16
    };
    let played = scheme.play(&fresh(size), recording, pace);
    let played = played.unwrap_or_else(|e| panic!("{scheme}, {pace}: {e:#}"));
    let is_sync = |call: &Call| matches!(call.what, What::Sync);
    let synced = recording.calls.iter().position(is_sync).unwrap();
    let from = played.returned[synced + 1];
    let mut looked_at = 0;
    for moment in played.tapes.moments(from..=played.tapes.changes()) {
        for keep in [Keep::None, Keep::All] {
            looked_at += 1;
            let (_, tree) = scheme.recover(&moment.contents(&keep)).unwrap();
            if let Some(why) = torn(&tree) {
                return (
                    Some(format!("{keep} after {}: {why}", moment.at())),
                    looked_at,
                );
            }
        }
    }
    (None, looked_at)
}

#[test]
fn groups_are_calls_and_each_is_whole_on_every_scheme() {
    let recording = recording();
    let groups = recording.calls.iter();
    let groups = groups.filter(|call| matches!(call.what, What::Group { .. }));
    let shown: Vec<_> = groups.map(|call| call.text()).collect();
    let writes = "commit of a group: write(a), 9,000 bytes at 0; write(b), 9,000 bytes at 0";
    let names = "commit of a group: unlink(a); rename(b, c); set mode 600 of c";
    assert_eq!(shown, [writes, writes, names]);
    let text = serde_json::to_string(&recording).unwrap();
    let read: Recording = serde_json::from_str(&text).unwrap();
    assert!(read.has_groups && read.line(recording.calls.len() - 1).contains(names));
    let modes = ["jbd2-ordered", "dj-ordered", "jftl-ordered"];
    for name in Scheme::names().chain(modes) {
        let scheme: Scheme = name.parse().unwrap();
        for pace in Pace::ALL {
            let (torn, looked_at) = explored(&scheme, &recording, pace);
            assert_eq!(torn, None, "{name}, {pace}");
            assert!(looked_at > 10, "{name}, {pace}: {looked_at}");
        }
    }
    // The judge can fail.
    let scheme: Scheme = "stet".parse().unwrap();
    plant(Some(Bug::TornGroup));
    let (torn, _) = explored(&scheme, &recording, Pace::EachCall);
    plant(None);
    println!("found as it must be: {}", torn.expect("a torn group"));
}

#[test]
fn without_the_option_there_are_no_groups() {
    let recorder = Recorder::new(mounted(&fresh(16)), Marks::new());
    recorder.begin().unwrap();
    let (c, root) = (&Caller::root(), InodeNo(2));
    let made = recorder.create(c, root, b"a", 0o644, OpenFlags::WRITE);
    let ino = made.unwrap().ino;
    let flags = InodeFlags::EXTENTS | InodeFlags::JOURNAL_DATA;
    recorder.change(c, &Change::SetFlags(ino, flags)).unwrap();
    assert!(!recorder.has_groups() && !recorder.is_atomic(ino));
    assert!(!recorder.can_group(ino) && recorder.new_group().is_none());
    assert!(!recorder.end().has_groups);
}
