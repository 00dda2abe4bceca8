//! After each call of a long random stream, the tree from the recorder's calls equals the tree that
//! the mount shows, attribute by attribute.
//!
//! A call may change more than it names. After `setfacl`, and after `sed -i`, which copies ACLs,
//! explored states once showed mode 600 where the mount had 644.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FileType, Mode, RenameFlags, Timespec, Timestamps, XattrFlags,
};
use rustix::process::{Gid, Uid, geteuid};
use rustix::thread::set_thread_res_uid;
use stetfs::{Caller, OpenFlags};
use stetfs_format::InodeNo;
use stetfs_fuse::{Backend, OnBlock};
use stetfs_powercut::call::{Attribute, What};
use stetfs_powercut::marks::Marks;
use stetfs_powercut::model::Had;
use stetfs_powercut::mounted::Mounted;
use stetfs_powercut::player::Pace;
use stetfs_powercut::recorder::Recorder;
use stetfs_powercut::scheme::Scheme;
use stetfs_powercut::system::System;
use stetfs_powercut::tree::{Body, Node, Object, ROOT, Tree};
use stetfs_testkit::host::needs;
use stetfs_testkit::rng::Rng;
use stetfs_testkit::skip_unless;

mod volume;

const SEEDS: u64 = 4;
const CALLS: usize = 300;

/// An ordinary user, who may write most files.
const USER: u32 = 12_345;

/// What stat(2), listxattr(2) and read(2) say about a path.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Facts {
    mode: u32,
    owner: (u32, u32),
    device: u64,
    modified: (i64, i64),
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    content: Vec<u8>,
    /// The first path of the same file.
    same: String,
}

fn xattrs(path: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut buffer = [0; 4096];
    let len = rustix::fs::llistxattr(path, &mut buffer[..]).unwrap();
    let names = buffer[..len].split(|byte| *byte == 0);
    let names = names.filter(|name| !name.is_empty()).map(<[u8]>::to_vec);
    let value = |name: Vec<u8>| {
        let mut buffer = [0; 4096];
        let len = rustix::fs::lgetxattr(path, &name[..], &mut buffer[..]).unwrap();
        (name, buffer[..len].to_vec())
    };
    names.map(value).collect()
}

/// Reads the tree that the mount shows.
fn shown(root: &Path) -> BTreeMap<String, Facts> {
    let (mut found, mut same) = (BTreeMap::new(), BTreeMap::new());
    let mut todo = vec![(String::new(), root.to_owned())];
    while let Some((name, path)) = todo.pop() {
        let meta = fs::symlink_metadata(&path).unwrap();
        let content = match meta.mode() & 0o170_000 {
            0o100_000 => fs::read(&path).unwrap(),
            0o120_000 => fs::read_link(&path)
                .unwrap()
                .as_os_str()
                .as_bytes()
                .to_vec(),
            _ => Vec::new(),
        };
        if meta.is_dir() {
            for entry in fs::read_dir(&path).unwrap().flatten() {
                let below = entry.file_name().into_string().unwrap();
                if below != "lost+found" {
                    let below = format!("{name}/{below}");
                    todo.push((below, entry.path()));
                }
            }
        }
        let known = same.entry(meta.ino()).or_insert_with(|| name.clone());
        *known = known.clone().min(name.clone());
        let facts = Facts {
            mode: meta.mode(),
            owner: (meta.uid(), meta.gid()),
            device: meta.rdev(),
            modified: (meta.mtime(), meta.mtime_nsec()),
            xattrs: xattrs(&path),
            content,
            same: meta.ino().to_string(),
        };
        found.insert(name, facts);
    }
    for facts in found.values_mut() {
        facts.same = same[&facts.same.parse::<u64>().unwrap()].clone();
    }
    found
}

/// The facts of a recorded tree.
fn told(tree: &Tree) -> BTreeMap<String, Facts> {
    let mut paths: Vec<(String, Object)> = vec![(String::new(), ROOT)];
    let below = tree.paths().into_iter();
    paths.extend(below.map(|(path, object)| (format!("/{path}"), object)));
    let mut same: BTreeMap<Object, String> = BTreeMap::new();
    for (path, object) in &paths {
        let known = same.entry(*object).or_insert_with(|| path.clone());
        *known = known.clone().min(path.clone());
    }
    let facts = |object: &Object| {
        let node: &Node = tree.get(*object).unwrap();
        let content = match &node.body {
            Body::File(content) => {
                let mut bytes = vec![0; content.size() as usize];
                content.read(0, &mut bytes);
                bytes
            }
            Body::Link(target) => target.clone(),
            Body::Dir(_) | Body::Special => Vec::new(),
        };
        Facts {
            mode: node.mode.into(),
            owner: (node.uid, node.gid),
            device: rustix::fs::makedev(node.rdev.0, node.rdev.1),
            modified: (node.mtime.0, node.mtime.1.into()),
            xattrs: node.xattrs.clone(),
            content,
            same: same[object].clone(),
        }
    };
    paths
        .iter()
        .map(|(path, object)| (path.clone(), facts(object)))
        .collect()
}

/// A random ACL in the kernel's form (include/uapi/linux/posix_acl_xattr.h), with one named user.
fn acl(rng: &mut Rng) -> Vec<u8> {
    let mut bits = || rng.below(8) as u16;
    let entries = [
        (0x01_u16, bits(), u32::MAX),
        (0x02, bits(), 1),
        (0x04, bits(), u32::MAX),
        (0x10, bits(), u32::MAX),
        (0x20, bits(), u32::MAX),
    ];
    let mut out = 2_u32.to_le_bytes().to_vec();
    for (tag, bits, id) in entries {
        out.extend(tag.to_le_bytes());
        out.extend(bits.to_le_bytes());
        out.extend(id.to_le_bytes());
    }
    out
}

/// File capabilities (include/uapi/linux/capability.h, VFS_CAP_REVISION_2): CAP_CHOWN.
const CAPABILITY: [u8; 20] = [0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// Runs `op` as another user.
fn as_user<T>(op: impl FnOnce() -> T) -> T {
    let ids = |euid: u32| {
        set_thread_res_uid(Uid::ROOT, Uid::from_raw(euid), Uid::ROOT).unwrap();
    };
    ids(USER);
    let done = op();
    ids(0);
    done
}

/// Makes one random call. Many are refused, which must change nothing. Returns the call, for the
/// report of a failure.
fn call(root: &Path, rng: &mut Rng) -> String {
    let names = ["a", "b", "c", "d/a", "d/b", "e/a", "d", "e"];
    let any = |rng: &mut Rng| -> PathBuf { root.join(rng.pick(&names)) };
    let (path, other) = (any(rng), any(rng));
    let by_user = rng.chance(30);
    let number = rng.below(26);
    let mode = rng.below(0o10000) as u32;
    let mode = if rng.chance(50) { mode | 0o666 } else { mode };
    let (offset, len) = (rng.below(9000), rng.below(6000) + 1);
    let id = rng.below(3) as u32 * USER;
    let list = acl(rng);
    let seconds = rng.below(1 << 32) as i64;
    let open = || File::options().write(true).open(&path);
    let setxattr = |name: &str, value: &[u8]| {
        rustix::fs::lsetxattr(&path, name, value, XattrFlags::empty()).ok()
    };
    let does = || -> Option<()> {
        match number {
            0..=2 => {
                let options = File::options().write(true).create(true).mode(mode).clone();
                options.open(&path).ok().map(drop)
            }
            3 => rustix::fs::mkdir(&path, Mode::from_raw_mode(mode | 0o777)).ok(),
            4 => fs::remove_file(&path)
                .or_else(|_| fs::remove_dir(&path))
                .ok(),
            5 => fs::rename(&path, &other).ok(),
            6 => {
                let flags = RenameFlags::EXCHANGE;
                rustix::fs::renameat_with(CWD, &path, CWD, &other, flags).ok()
            }
            7 => fs::hard_link(&path, &other).ok(),
            8 => std::os::unix::fs::symlink("target", &path).ok(),
            9 => {
                let mode = Mode::from_raw_mode(mode & 0o7777);
                rustix::fs::mknodat(CWD, &path, FileType::CharacterDevice, mode, 0x0105).ok()
            }
            10..=12 => open()
                .ok()?
                .write_all_at(&vec![b'x'; len as usize], offset)
                .ok(),
            13 => {
                let file = File::options().append(true).open(&path).ok();
                file?.write_all(b"appended").ok()
            }
            14 => open().ok()?.set_len(offset).ok(),
            15 => File::options()
                .write(true)
                .truncate(true)
                .open(&path)
                .ok()
                .map(drop),
            16 => {
                let all = [
                    FallocateFlags::empty(),
                    FallocateFlags::KEEP_SIZE,
                    FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
                    FallocateFlags::ZERO_RANGE,
                ];
                let flags = all[(len % 4) as usize];
                rustix::fs::fallocate(open().ok()?, flags, offset, len).ok()
            }
            17 | 18 => fs::set_permissions(&path, fs::Permissions::from_mode(mode)).ok(),
            19 => {
                let (uid, gid) = (Uid::from_raw(id), Gid::from_raw(id));
                let flags = AtFlags::SYMLINK_NOFOLLOW;
                rustix::fs::chownat(CWD, &path, Some(uid), Some(gid), flags).ok()
            }
            20 => setxattr("system.posix_acl_access", &list),
            21 => setxattr("system.posix_acl_default", &list),
            22 => {
                let names = ["system.posix_acl_access", "user.a", "security.capability"];
                rustix::fs::lremovexattr(&path, names[(len % 3) as usize]).ok()
            }
            23 => setxattr("user.a", &list[..offset as usize % 20]),
            24 => setxattr("security.capability", &CAPABILITY),
            _ => {
                let time = Timespec {
                    tv_sec: seconds,
                    tv_nsec: 7,
                };
                let times = Timestamps {
                    last_access: time,
                    last_modification: time,
                };
                rustix::fs::utimensat(CWD, &path, &times, AtFlags::SYMLINK_NOFOLLOW).ok()
            }
        }
    };
    let done = if by_user { as_user(does) } else { does() };
    let who = if by_user { "the user" } else { "root" };
    format!(
        "operation {number} on {} and {} by {who}, mode {mode:o}, {len} at {offset}: {done:?}",
        path.display(),
        other.display()
    )
}

/// The kernel does not wait until a file is closed: what was open before the program began may be
/// closed while it runs.
#[test]
fn a_late_close_is_none_of_the_programs() {
    let recorder = Recorder::new(volume::mounted(&volume::fresh(16)), Marks::new());
    let c = &Caller::root();
    let make = |name| recorder.create(c, InodeNo(2), name, 0o644, OpenFlags::WRITE);
    let early = make(b"early").unwrap().ino;
    recorder.begin().unwrap();
    recorder.writer_closes(early);
    assert_eq!(recorder.so_far().calls.len(), 0);
    let late = make(b"late").unwrap().ino;
    for ino in [late, early] {
        recorder.open(c, ino, OpenFlags::WRITE).unwrap();
    }
    for ino in [late, early, late] {
        recorder.writer_closes(ino);
    }
    let calls = recorder.so_far().calls;
    let is_close = |what: &What| matches!(what, What::Close { .. });
    let closes: Vec<_> = calls.iter().map(|call| is_close(&call.what)).collect();
    assert_eq!(closes, [false, true, true, true]);
}

#[test]
fn the_tree_of_the_calls_is_what_the_mount_shows() {
    skip_unless!(needs(true, true, &[]));
    assert!(geteuid().is_root());
    rustix::process::umask(Mode::empty());
    let mut follows = 0;
    for seed in 1..=SEEDS {
        let scratch = tempfile::tempdir().unwrap();
        let (image, dir) = (scratch.path().join("image"), scratch.path().join("dir"));
        File::create(&image).unwrap().set_len(16 << 20).unwrap();
        fs::create_dir(&dir).unwrap();
        let fresh = volume::fresh(16);
        let recorder = Recorder::new(volume::mounted(&fresh), Marks::new());
        let mounted = Mounted::new(recorder.clone(), &image, &dir, OnBlock::Never).unwrap();
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o777)).unwrap();
        for name in ["d", "e"] {
            fs::create_dir(dir.join(name)).unwrap();
        }
        recorder.begin().unwrap();
        let mut rng = Rng::new(seed);
        for number in 0..CALLS {
            let was = call(&dir, &mut rng);
            let recording = recorder.so_far();
            let (told, shown) = (told(&Had::new(&recording).at_the_end()), shown(&dir));
            for path in told.keys().chain(shown.keys()) {
                assert_eq!(
                    told.get(path),
                    shown.get(path),
                    "{path}, told and shown, seed {seed}, call {number}: {was}"
                );
            }
        }
        mounted.unmount().unwrap();
        let recording = recorder.end();
        // The stream contains what this test is about.
        let sets = recording.calls.iter().filter_map(|call| match &call.what {
            What::Set { attributes, .. } => Some(attributes.as_slice()),
            _ => None,
        });
        let sets: Vec<_> = sets.collect();
        let is_acl = |set: &&[Attribute]| matches!(set, [Attribute::Xattr(..), Attribute::Mode(_)]);
        let is_chown =
            |set: &&[Attribute]| matches!(set, [Attribute::Owner(..), Attribute::Mode(_)]);
        follows += sets
            .iter()
            .copied()
            .filter(|set| is_acl(set))
            .count()
            .min(1);
        follows += sets
            .iter()
            .copied()
            .filter(|set| is_chown(set))
            .count()
            .min(1);
        let at_the_end = Had::new(&recording).at_the_end();
        // Written to a volume, as states are for the check, the tree is the same.
        let other = volume::mounted(&fresh);
        at_the_end.write(&other).unwrap();
        let (read, _) = Tree::read(&other).unwrap();
        assert_eq!(
            read.differences(&at_the_end),
            Vec::<String>::new(),
            "seed {seed}"
        );
        // The tree is also the same when a scheme plays the calls again.
        let scheme: Scheme = "jbd2-ordered".parse().unwrap();
        let played = scheme.play(&fresh, &recording, Pace::AtSyncs);
        played
            .map(drop)
            .unwrap_or_else(|why| panic!("seed {seed}: {why:#}"));
    }
    assert!(follows > 3, "hardly a mode has followed an ACL or an owner");
}
