//! Files, directories and links that lie in their inode (`inline_data`). The kernel makes them; we
//! read them and change them at random, in turn with the kernel, and after crashes. The judges are
//! a model in memory, the kernel and e2fsck. Needs root and loop devices.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;
use std::sync::Arc;

use stetfs::{
    Caller, FallocateMode, FiemapFlags, Fs, MountOptions, OpenFlags, RenameFlags, SetAttr,
    SetXattr, Whence,
};
use stetfs_format::xattr::{Xattr, encode_block, encode_inode};
use stetfs_format::{BlockNo, Inode, InodeFlags, InodeNo, Superblock};
use tempfile::TempDir;

use crate::image::{Random, Volume, names_in};
use crate::kernel::Kernel;

const ROOT: InodeNo = InodeNo(2);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Node {
    File(Vec<u8>),
    Link(String),
    Dir,
}

/// What lies where; the root has no entry.
type Tree = BTreeMap<String, Node>;

/// A change of the tree.
#[derive(Debug, Clone)]
enum Op {
    Create(String),
    Mkdir(String),
    Symlink(String, String),
    Write(String, u64, Vec<u8>),
    Truncate(String, u64),
    Punch(String, u64, u64),
    Attribute(String, usize),
    Remove(String),
    Rename(String, String),
}

fn is_below(path: &str, dir: &str) -> bool {
    path.strip_prefix(dir)
        .is_some_and(|rest| rest.starts_with('/'))
}

/// Draws a change that can be made.
fn draw(tree: &Tree, random: &mut Random, is_kernel: bool) -> Option<Op> {
    let pick = |random: &mut Random, want: fn(&Node) -> bool| {
        let all: Vec<&String> = tree
            .iter()
            .filter(|(_, n)| want(n))
            .map(|(p, _)| p)
            .collect();
        (!all.is_empty()).then(|| all[random.below(all.len())].clone())
    };
    let file = |random: &mut Random| pick(random, |n| matches!(n, Node::File(_)));
    let fresh = |random: &mut Random| {
        let dir = pick(random, |n| *n == Node::Dir).unwrap_or_default();
        let length = [1, 3, 12, 40][random.below(4)];
        let path = format!("{dir}/{:x<length$}", random.below(30));
        (!tree.contains_key(&path)).then_some(path)
    };
    let length = |random: &mut Random| [1, 20, 59, 60, 61, 100, 150, 700, 5000][random.below(9)];
    Some(match random.below(16) {
        0..3 => Op::Create(fresh(random)?),
        3..5 => Op::Mkdir(fresh(random)?),
        5 => Op::Symlink(fresh(random)?, "t".repeat(1 + random.below(200))),
        6..10 => {
            let bytes = (0..length(random)).map(|_| random.next() as u8).collect();
            Op::Write(file(random)?, random.below(130) as u64, bytes)
        }
        10 => {
            let path = file(random)?;
            let size = length(random) as u64 - 1;
            // Linux 6.18 loses what is written to a file that truncate(2) has made longer than its
            // inode can hold: the page cache has it, the next mount has zeros.
            let Node::File(bytes) = &tree[&path] else {
                unreachable!("picked as a file")
            };
            let most = if is_kernel { bytes.len() as u64 } else { size };
            Op::Truncate(path, size.min(most))
        }
        11 if !is_kernel => Op::Punch(
            file(random)?,
            random.below(100) as u64,
            1 + random.next() % 80,
        ),
        11..13 => Op::Attribute(
            pick(random, |n| !matches!(n, Node::Link(_)))?,
            length(random) / 4,
        ),
        13 => {
            let path = pick(random, |_| true)?;
            let is_used = tree.keys().any(|other| is_below(other, &path));
            (!is_used).then_some(Op::Remove(path))?
        }
        _ => {
            let (from, to) = (pick(random, |_| true)?, fresh(random)?);
            (!is_below(&to, &from)).then_some(Op::Rename(from, to))?
        }
    })
}

/// Makes a change of the model.
fn on_model(tree: &mut Tree, op: &Op) {
    let content =
        |tree: &mut Tree, path: &str, change: &dyn Fn(&mut Vec<u8>)| match tree.get_mut(path) {
            Some(Node::File(bytes)) => change(bytes),
            other => panic!("{path} is {other:?}"),
        };
    match op {
        Op::Create(path) => drop(tree.insert(path.clone(), Node::File(Vec::new()))),
        Op::Mkdir(path) => drop(tree.insert(path.clone(), Node::Dir)),
        Op::Symlink(path, to) => drop(tree.insert(path.clone(), Node::Link(to.clone()))),
        Op::Write(path, offset, new) => content(tree, path, &|bytes| {
            let (from, to) = (*offset as usize, *offset as usize + new.len());
            bytes.resize(bytes.len().max(to), 0);
            bytes[from..to].copy_from_slice(new);
        }),
        Op::Truncate(path, size) => content(tree, path, &|bytes| bytes.resize(*size as usize, 0)),
        Op::Punch(path, offset, len) => content(tree, path, &|bytes| {
            let to = bytes.len().min((offset + len) as usize);
            bytes[to.min(*offset as usize)..to].fill(0);
        }),
        Op::Attribute(..) => {}
        Op::Remove(path) => drop(tree.remove(path)),
        Op::Rename(from, to) => {
            let moved: Vec<String> = tree
                .keys()
                .filter(|path| *path == from || is_below(path, from))
                .cloned()
                .collect();
            for path in moved {
                let node = tree.remove(&path).unwrap();
                tree.insert(format!("{to}{}", &path[from.len()..]), node);
            }
        }
    }
}

fn by_kernel(at: &Path, op: &Op) {
    let full = |path: &String| at.join(&path[1..]);
    match op {
        Op::Create(path) => drop(fs::File::create_new(full(path)).unwrap()),
        Op::Mkdir(path) => fs::create_dir(full(path)).unwrap(),
        Op::Symlink(path, to) => symlink(to, full(path)).unwrap(),
        Op::Write(path, offset, bytes) => {
            let file = fs::File::options().write(true).open(full(path)).unwrap();
            file.write_all_at(bytes, *offset).unwrap();
        }
        Op::Truncate(path, size) => {
            let file = fs::File::options().write(true).open(full(path)).unwrap();
            file.set_len(*size).unwrap();
        }
        Op::Punch(..) => unreachable!("only ours punches"),
        // No room for it is no error of ours.
        Op::Attribute(path, len) => {
            let (value, flags) = (vec![b'v'; *len], rustix::fs::XattrFlags::empty());
            let _ = rustix::fs::setxattr(full(path), "user.a", &value, flags);
        }
        Op::Remove(path) => {
            let path = full(path);
            let is_dir = fs::symlink_metadata(&path).unwrap().is_dir();
            if is_dir {
                fs::remove_dir(path)
            } else {
                fs::remove_file(path)
            }
            .unwrap();
        }
        Op::Rename(from, to) => fs::rename(full(from), full(to)).unwrap(),
    }
}

fn by_us(fs: &Fs, random: &mut Random, op: &Op) {
    let c = Caller::root();
    let found = |path: &String| fs.resolve(&c, path.as_bytes(), false).unwrap();
    let parent = |path: &String| {
        let (dir, name) = path.rsplit_once('/').unwrap();
        let dir = fs.resolve(
            &c,
            if dir.is_empty() { b"/" } else { dir.as_bytes() },
            false,
        );
        (dir.unwrap().ino, name.as_bytes().to_vec())
    };
    // Some changes are made by a group.
    let mut group = (random.below(4) == 0).then(|| fs.begin());
    match op {
        Op::Create(path) => {
            let (dir, name) = parent(path);
            let flags = OpenFlags::WRITE | OpenFlags::EXCLUSIVE;
            let file = fs.create(&c, dir, &name, 0o644, flags).unwrap();
            fs.release(file.ino).unwrap();
        }
        Op::Mkdir(path) => {
            let (dir, name) = parent(path);
            fs.mkdir(&c, dir, &name, 0o755).unwrap();
        }
        Op::Symlink(path, to) => {
            let (dir, name) = parent(path);
            fs.symlink(&c, dir, &name, to.as_bytes()).unwrap();
        }
        Op::Write(path, offset, bytes) => {
            let ino = found(path).ino;
            match &mut group {
                Some(group) => group.write(&c, ino, *offset, bytes).unwrap(),
                None => assert_eq!(fs.write(&c, ino, *offset, bytes).unwrap(), bytes.len()),
            }
        }
        Op::Truncate(path, size) => {
            let set = SetAttr {
                size: Some(*size),
                ..SetAttr::default()
            };
            let change = stetfs::Change::SetAttr(found(path).ino, &set);
            match &mut group {
                Some(group) => group.change(&c, &change).unwrap(),
                None => fs.change(&c, &change).unwrap(),
            };
        }
        Op::Punch(path, offset, len) => {
            let mode = FallocateMode::PUNCH_HOLE | FallocateMode::KEEP_SIZE;
            fs.fallocate(&c, found(path).ino, mode, *offset, *len)
                .unwrap();
        }
        Op::Attribute(path, len) => {
            let (ino, value) = (found(path).ino, vec![b'v'; *len]);
            if fs
                .setxattr(&c, ino, b"user.a", &value, SetXattr::Any)
                .is_ok()
            {
                assert_eq!(fs.getxattr(&c, ino, b"user.a").unwrap(), value);
            }
            assert!(fs.getxattr(&c, ino, b"system.data").is_err());
            let names = fs.listxattr(&c, ino).unwrap();
            assert!(!names.starts_with(b"system."), "{names:?}");
        }
        Op::Remove(path) => {
            let (dir, name) = parent(path);
            if found(path).attr.is_dir() {
                fs.rmdir(&c, dir, &name).unwrap();
            } else {
                fs.unlink(&c, dir, &name).unwrap();
            }
        }
        Op::Rename(from, to) => {
            let ((old, from), (new, to)) = (parent(from), parent(to));
            match &mut group {
                Some(group) => {
                    let ends = ((old, &from[..]), (new, &to[..]));
                    let change = stetfs::Change::Rename(ends.0, ends.1, RenameFlags::empty());
                    group.change(&c, &change).map(drop).unwrap();
                }
                None => fs
                    .rename(&c, old, &from, new, &to, RenameFlags::empty())
                    .unwrap(),
            }
        }
    }
    if let Some(mut group) = group {
        group.commit_lazy(&c).unwrap();
    }
}

/// Fails at the first difference.
fn check(seen: &Tree, expected: &Tree, what: &str) {
    for path in seen.keys().chain(expected.keys()) {
        let (seen, expected) = (seen.get(path), expected.get(path));
        let at = match (seen, expected) {
            _ if seen == expected => continue,
            (Some(Node::File(a)), Some(Node::File(b))) => {
                let at = a.iter().zip(b).position(|(a, b)| a != b);
                format!(
                    "{} bytes, {} expected, other from {at:?} on",
                    a.len(),
                    b.len()
                )
            }
            others => format!("{others:?}"),
        };
        panic!("{what}, {path}: {at}");
    }
}

fn seen_by_kernel(at: &Path) -> Tree {
    let mut tree = Tree::new();
    let mut todo = vec![String::new()];
    while let Some(dir) = todo.pop() {
        for entry in fs::read_dir(at.join(dir.trim_start_matches('/'))).unwrap() {
            let entry = entry.unwrap();
            let path = format!("{dir}/{}", entry.file_name().into_string().unwrap());
            let kind = entry.file_type().unwrap();
            let node = if kind.is_dir() {
                todo.push(path.clone());
                Node::Dir
            } else if kind.is_symlink() {
                Node::Link(
                    fs::read_link(entry.path())
                        .unwrap()
                        .to_str()
                        .unwrap()
                        .to_owned(),
                )
            } else {
                Node::File(fs::read(entry.path()).unwrap())
            };
            tree.insert(path, node);
        }
    }
    tree.remove("/lost+found");
    tree
}

/// Returns the tree as we see it, and how many inodes hold their content themselves.
fn seen_by_us(fs: &Fs) -> (Tree, usize) {
    let (mut tree, mut inline) = (Tree::new(), 0);
    let mut todo = vec![(String::new(), ROOT)];
    while let Some((dir, ino)) = todo.pop() {
        for (name, child) in names_in(fs, ino).unwrap() {
            let path = format!("{dir}/{}", String::from_utf8(name.clone()).unwrap());
            let c = Caller::root();
            assert_eq!(fs.lookup(&c, ino, &name).unwrap().ino, child, "{path}");
            let attr = fs.getattr(child).unwrap();
            let is_inline = attr.flags.contains(InodeFlags::INLINE_DATA);
            inline += usize::from(is_inline);
            let node = if attr.is_dir() {
                fs.check_parent(child, ino).unwrap();
                todo.push((path.clone(), child));
                Node::Dir
            } else if attr.mode & 0o170_000 == 0o120_000 {
                let to = fs.readlink(child).unwrap();
                Node::Link(String::from_utf8(to).unwrap())
            } else {
                Node::File(read(fs, child, is_inline))
            };
            tree.insert(path, node);
        }
    }
    (tree, inline)
}

/// Reads a file as a whole, and in pieces.
fn read(fs: &Fs, ino: InodeNo, is_inline: bool) -> Vec<u8> {
    let attr = fs.getattr(ino).unwrap();
    let mut bytes = vec![1; attr.size as usize + 10];
    let len = fs.read(ino, 0, &mut bytes).unwrap();
    bytes.truncate(len);
    for (at, part) in bytes.chunks(7).enumerate() {
        let mut piece = vec![1; part.len()];
        assert_eq!(fs.read(ino, at as u64 * 7, &mut piece).unwrap(), part.len());
        assert_eq!(piece, part);
    }
    if is_inline && len > 0 {
        assert!(attr.blocks > 0, "tar(1) would take it for a hole");
        assert_eq!(fs.seek(ino, 0, Whence::Data).unwrap(), 0);
        assert_eq!(fs.seek(ino, 0, Whence::Hole).unwrap(), attr.size);
        let mut extents = Vec::new();
        fs.fiemap(ino, 0, u64::MAX, &mut |extent| {
            extents.push(extent);
            true
        })
        .unwrap();
        assert_eq!(extents.len(), 1);
        assert!(extents[0].flags.contains(FiemapFlags::INLINE));
        assert!(extents[0].length <= attr.size);
    }
    bytes
}

/// The kernel makes changes of a tree. Returns the image; `None` without root.
fn kernels_turn(
    image: TempDir,
    tree: &mut Tree,
    random: &mut Random,
    steps: usize,
) -> Option<TempDir> {
    {
        let kernel = Kernel::mount(&image)?;
        check(&seen_by_kernel(&kernel.at), tree, "the kernel");
        for _ in 0..steps {
            if let Some(op) = draw(tree, random, true) {
                by_kernel(&kernel.at, &op);
                on_model(tree, &op);
            }
        }
    }
    Some(image)
}

/// We make changes of a tree, with crashes in between: what is there afterwards is what some prefix
/// of the changes since the last sync has left.
fn our_turn(image: TempDir, tree: &mut Tree, random: &mut Random, steps: usize) -> TempDir {
    let mut v = Volume::again(image);
    let (seen, inline) = seen_by_us(&v.fs);
    check(&seen, tree, "at first");
    assert!(inline >= 10, "{inline} inodes hold their content");
    let mut since_sync = vec![tree.clone()];
    for step in 1..=steps {
        if let Some(op) = draw(tree, random, false) {
            by_us(&v.fs, random, &op);
            on_model(tree, &op);
            since_sync.push(tree.clone());
        }
        match step % 40 {
            13 => {
                v.fs.sync().unwrap();
                since_sync = vec![tree.clone()];
            }
            27 => {
                v = v.crash();
                let (seen, _) = seen_by_us(&v.fs);
                if !since_sync.contains(&seen) {
                    check(&seen, tree, &format!("after a crash at step {step}"));
                }
                *tree = seen;
                since_sync = vec![tree.clone()];
            }
            _ => {}
        }
    }
    check(&seen_by_us(&v.fs).0, tree, "in the end");
    v.checked()
}

fn in_turn(mke2fs: &str, seed: u64) {
    let mut image = Volume::image(mke2fs, 32);
    let (mut tree, mut random) = (Tree::new(), Random::new(seed));
    for round in 0..4 {
        let steps = if round == 0 { 300 } else { 60 };
        image = match kernels_turn(image, &mut tree, &mut random, steps) {
            Some(image) => our_turn(image, &mut tree, &mut random, 200),
            None => return,
        };
    }
    kernels_turn(image, &mut tree, &mut random, 0);
}

#[test]
fn in_turn_with_the_kernel() {
    in_turn("-t ext4 -b 4096 -O inline_data", 1);
}

#[test]
fn in_turn_with_large_inodes_and_small_blocks() {
    in_turn("-t ext4 -b 1024 -I 1024 -O inline_data", 2);
}

#[test]
fn in_turn_by_pointers_without_checksums() {
    let features = "inline_data,^extent,^64bit,^metadata_csum,^dir_index,^filetype";
    in_turn(&format!("-t ext4 -b 2048 -I 512 -O {features}"), 3);
}

/// In every mode, the content of an inode is as durable outside of it as it was inside.
#[test]
fn what_moves_out_is_not_lost() {
    let image = Volume::image("-t ext4 -b 1024 -O inline_data", 16);
    {
        let Some(kernel) = Kernel::mount(&image) else {
            return;
        };
        fs::write(kernel.at.join("file"), [7; 100]).unwrap();
    }
    for mode in ["journal", "ordered", "writeback"] {
        let dev = Volume::device(&image);
        let options = MountOptions {
            data: Some(mode.to_owned()),
            ..MountOptions::default()
        };
        let (fs, _) = Fs::mount(dev.clone(), options).unwrap();
        let c = Caller::root();
        let file = fs.lookup(&c, ROOT, b"file").unwrap().ino;
        fs.write(&c, file, 5000, b"more").unwrap();
        let other = fs.mkdir(&c, ROOT, b"other", 0o755).unwrap().ino;
        fs.fsync(other, false).unwrap();
        let cut = Arc::new(dev.fork());
        let _ = fs.unmount();
        let (fs, _) = Fs::mount(cut, MountOptions::default()).unwrap();
        let attr = fs.getattr(file).unwrap();
        assert!(!attr.flags.contains(InodeFlags::INLINE_DATA));
        let mut bytes = [0; 100];
        assert_eq!(fs.read(file, 0, &mut bytes).unwrap(), 100);
        assert_eq!(bytes, [7; 100], "data={mode}");
        fs.unmount().unwrap();
    }
}

/// A file may be longer than the content that its inode holds: zeros follow, for the kernel too.
#[test]
fn a_file_is_longer_than_its_content() {
    let image = Volume::image("-t ext4 -b 1024 -I 1024 -O inline_data", 16);
    let mut expected = vec![7; 19];
    {
        let Some(kernel) = Kernel::mount(&image) else {
            return;
        };
        ["a", "b", "c"]
            .iter()
            .for_each(|name| fs::write(kernel.at.join(name), &expected).unwrap());
    }
    expected.resize(500, 0);
    for name in ["a", "b", "c"] {
        Volume::debugfs_write(&image, &format!("set_inode_field {name} size 500"));
    }
    let v = Volume::again(image);
    let c = Caller::root();
    let found = |name: &[u8]| v.fs.lookup(&c, ROOT, name).unwrap().ino;
    assert_eq!(read(&v.fs, found(b"a"), true), expected);
    v.fs.write(&c, found(b"b"), 200, b"written").unwrap();
    let set = SetAttr {
        size: Some(250),
        ..SetAttr::default()
    };
    v.fs.setattr(&c, found(b"c"), &set).unwrap();
    let image = v.checked();
    let kernel = Kernel::mount(&image).unwrap();
    let seen = ["a", "b", "c"].map(|name| fs::read(kernel.at.join(name)).unwrap());
    assert_eq!(seen[0], expected);
    assert_eq!(seen[2], expected[..250]);
    expected[200..207].copy_from_slice(b"written");
    assert_eq!(seen[1], expected);
}

/// Returns where an inode lies in an image with blocks of 1 KiB.
fn inode_at(image: &TempDir, path: &str) -> u64 {
    let text = Volume::debugfs(image, &format!("imap {path}"));
    let word = |name: &str| {
        let (_, rest) = text.split_once(name).unwrap();
        let digits = rest.trim_start().trim_start_matches("0x");
        let end = digits.find(|c: char| !c.is_ascii_hexdigit()).unwrap();
        digits[..end].to_owned()
    };
    let block: u64 = word("located at block").parse().unwrap();
    block * 1024 + u64::from_str_radix(&word("offset"), 16).unwrap()
}

/// Damaged content is an error, never a panic.
#[test]
fn damage_is_told() {
    let image = Volume::image("-t ext4 -b 1024 -O inline_data,^metadata_csum", 16);
    {
        let Some(kernel) = Kernel::mount(&image) else {
            return;
        };
        let dir = kernel.at.join("dir");
        fs::create_dir(&dir).unwrap();
        for name in ["one", "two", "three", "four", "five", "six", "seven"] {
            fs::write(dir.join(name), vec![b'x'; 100]).unwrap();
        }
    }
    let bytes = fs::read(image.path().join("image")).unwrap();
    let c = Caller::root();
    let mut random = Random::new(5);
    for path in ["dir", "dir/seven"] {
        let at = inode_at(&image, path);
        for _ in 0..150 {
            let offset = at + random.below(256) as u64;
            let byte = bytes[offset as usize] ^ 1 << random.below(8);
            let patched = crate::image::patch(&image, offset, &[byte]);
            let Ok((fs, _)) = Volume::try_mount(&patched) else {
                continue;
            };
            let Ok(dir) = fs.lookup(&c, ROOT, b"dir") else {
                continue;
            };
            let _ = names_in(&fs, dir.ino);
            for name in [&b"one"[..], b"seven"] {
                if let Ok(file) = fs.lookup(&c, dir.ino, name) {
                    let _ = fs.read(file.ino, 0, &mut [0; 200]);
                    let _ = fs.write(&c, file.ino, 10, b"text");
                    let _ = fs.unlink(&c, dir.ino, name);
                }
            }
            let _ = fs.mkdir(&c, dir.ino, &[b'n'; 100], 0o755);
            let _ = fs.unmount();
        }
    }
}

/// The second part of a directory is in a block of attributes, and longer than any inode.
#[test]
fn what_no_block_could_hold_is_told() {
    let image = Volume::image("-t ext4 -b 1024 -O inline_data", 16);
    {
        let Some(kernel) = Kernel::mount(&image) else {
            return;
        };
        fs::create_dir(kernel.at.join("dir")).unwrap();
    }
    let file = image.path().join("image");
    let mut bytes = fs::read(&file).unwrap();
    let sb = Superblock::decode(&bytes[1024..2048]).unwrap();
    let number = |request: &str, behind: &str| -> u64 {
        let said = Volume::debugfs(&image, request);
        let (_, rest) = said.split_once(behind).unwrap();
        rest.split_whitespace().next().unwrap().parse().unwrap()
    };
    let ino = InodeNo(number("stat dir", "Inode: ") as u32);
    let block = BlockNo(number("ffb", "found: "));
    let at = inode_at(&image, "dir") as usize;
    let mut inode = Inode::decode(&bytes[at..], ino, &sb).unwrap();
    // Records of twelve bytes, packed tight: one more than the block of a directory holds.
    let mut value = vec![0; 1024 - 80];
    let last = value.len() / 12 - 1;
    for (n, record) in value.chunks_mut(12).enumerate().take(last + 1) {
        record[0] = 11;
        record[4] = if n == last { 12 + 8 } else { 12 };
        record[6] = 4;
        record[8..12].copy_from_slice(format!("{n:04}").as_bytes());
    }
    let data = Xattr {
        index: 7,
        name: b"data",
        value: &value,
    };
    let raw = &mut bytes[block.0 as usize * 1024..][..1024];
    encode_block(raw, &[data], 1, block, &sb);
    encode_inode(&mut bytes[at..], &[], &inode, &sb);
    inode.file_acl = block;
    inode.encode_into(&mut bytes[at..], ino, &sb);
    fs::write(&file, &bytes).unwrap();
    let (fs, _) = Volume::try_mount(&image).unwrap();
    let c = Caller::root();
    let dir = fs.lookup(&c, ROOT, b"dir").unwrap().ino;
    let made = fs.mkdir(&c, dir, &[b'n'; 100], 0o755);
    assert!(made.is_err_and(|e| e.to_string().contains("does not hold the content")));
    let _ = fs.unmount();
}

/// A name can be removed from a full volume, and a file truncated to nothing.
#[test]
fn a_full_volume_can_be_emptied() {
    let image = Volume::image("-t ext4 -b 1024 -O inline_data", 8);
    let (mut tree, mut random) = (Tree::new(), Random::new(4));
    let Some(image) = kernels_turn(image, &mut tree, &mut random, 200) else {
        return;
    };
    let v = Volume::again(image);
    let c = Caller::root();
    let filler = v.fs.create(&c, ROOT, b"filler", 0o644, OpenFlags::WRITE);
    let filler = filler.unwrap().ino;
    let mut at = 0;
    while let Ok(n @ 1..) = v.fs.write(&c, filler, at, &[1; 1024]) {
        at += n as u64;
    }
    let mut paths: Vec<&String> = tree.keys().collect();
    paths.sort_by_key(|path| std::cmp::Reverse(path.len()));
    for path in paths {
        let (dir, name) = v.fs.resolve_parent(&c, path.as_bytes()).unwrap();
        let set = SetAttr {
            size: Some(0),
            ..SetAttr::default()
        };
        match &tree[path] {
            Node::Dir => v.fs.rmdir(&c, dir.ino, name).unwrap(),
            Node::File(bytes) if bytes.len() % 2 == 0 => {
                let file = v.fs.lookup(&c, dir.ino, name).unwrap().ino;
                v.fs.setattr(&c, file, &set).map(drop).unwrap();
                v.fs.unlink(&c, dir.ino, name).unwrap();
            }
            _ => v.fs.unlink(&c, dir.ino, name).unwrap(),
        }
    }
    v.fs.release(filler).unwrap();
    v.check();
}
