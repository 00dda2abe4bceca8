//! Names in a group: the same result as the same operations one by one, whole or not at all.

use std::collections::BTreeMap;

use stetfs_format::acl::{Acl, AclEntry, Tag};
use stetfs_format::{InodeFlags, InodeNo};

use crate::mapping;
use crate::testing::Image;
use crate::types::mode;
use crate::{
    Caller, Change, Error, Fs, Group, Kind, New, OpenFlags, RenameFlags, SetAttr, SetXattr,
};

/// Extended attributes: names and values.
type Xattrs = BTreeMap<Vec<u8>, Vec<u8>>;

/// All files by path: mode, group, links, content or target, extended attributes.
type Tree = BTreeMap<Vec<u8>, (u16, u32, u32, Vec<u8>, Xattrs)>;

fn tree(fs: &Fs) -> Tree {
    let (mut out, mut ways) = (Tree::new(), vec![(Vec::new(), fs.root())]);
    while let Some((way, dir)) = ways.pop() {
        let mut entries = Vec::new();
        fs.readdir(dir, 0, &mut |entry| {
            if !matches!(entry.name, b"." | b".." | b"lost+found") {
                entries.push((entry.name.to_vec(), entry.ino));
            }
            true
        })
        .unwrap();
        for (name, ino) in entries {
            let path = [&way[..], b"/", &name].concat();
            let attr = fs.getattr(ino).unwrap();
            let content = match attr.mode & mode::S_IFMT {
                mode::S_IFREG => {
                    let mut content = vec![0; attr.size as usize];
                    assert_eq!(fs.read(ino, 0, &mut content).unwrap(), content.len());
                    content
                }
                mode::S_IFLNK => fs.readlink(ino).unwrap(),
                mode::S_IFDIR => {
                    fs.check_parent(ino, dir).unwrap();
                    ways.push((path.clone(), ino));
                    Vec::new()
                }
                _ => Vec::new(),
            };
            let xattrs = Maker::xattrs(&mut fs.clone(), ino);
            let about = (attr.mode, attr.gid, attr.nlink, content, xattrs);
            out.insert(path, about);
        }
    }
    out
}

/// A small generator of random numbers.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        let next = self.0.wrapping_mul(6_364_136_223_846_793_005);
        self.0 = next.wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }

    fn path(&mut self) -> Vec<&'static [u8]> {
        const NAMES: [&[u8]; 4] = [
            b"a",
            b"b",
            b"c",
            b"a name that is rather longer than others",
        ];
        let depth = [1, 1, 1, 2, 2, 3][self.below(6) as usize];
        (0..depth).map(|_| NAMES[self.below(4) as usize]).collect()
    }
}

/// Makes changes: a group, or its twin that makes them at once.
trait Maker {
    fn find(&mut self, c: &Caller, dir: InodeNo, name: &[u8]) -> Result<InodeNo, Error>;
    fn make(&mut self, c: &Caller, op: &Op, ends: [(InodeNo, &[u8]); 2]) -> Result<(), Error>;
    /// Carries out an operation on an existing inode.
    fn change_file(&mut self, c: &Caller, op: &Op, ino: InodeNo) -> Result<(), Error>;
    fn xattrs(&mut self, ino: InodeNo) -> Xattrs;
}

#[derive(Debug)]
enum Op {
    Create,
    Mkdir,
    Symlink(usize),
    Fifo,
    Link,
    Unlink,
    Rmdir,
    Rename(RenameFlags),
    Write(u64, usize, u8),
    Cut(u64),
    Chmod(u16),
    Chgrp(u32),
    Setxattr(&'static [u8], Vec<u8>, SetXattr),
    Removexattr(&'static [u8]),
}

fn truncated(size: u64) -> SetAttr {
    SetAttr {
        size: Some(size),
        ..SetAttr::default()
    }
}

fn of_group(gid: u32) -> SetAttr {
    SetAttr {
        gid: Some(gid),
        ..SetAttr::default()
    }
}

fn of_mode(bits: u16) -> SetAttr {
    SetAttr {
        mode: Some(bits),
        ..SetAttr::default()
    }
}

const FIFO: u16 = mode::S_IFIFO | 0o640;

/// Both have the same methods; only making a file differs.
macro_rules! maker {
    ($type:ty, |$it:ident, $c:ident, $dir:ident, $name:ident| $create:expr) => {
        impl Maker for $type {
            fn find(&mut self, c: &Caller, dir: InodeNo, name: &[u8]) -> Result<InodeNo, Error> {
                Ok(self.lookup(c, dir, name)?.ino)
            }

            fn make(
                &mut self,
                $c: &Caller,
                op: &Op,
                [($dir, $name), (to, new)]: [(InodeNo, &[u8]); 2],
            ) -> Result<(), Error> {
                let ($it, c, dir, name) = (self, $c, $dir, $name);
                let at = (dir, name);
                let target;
                let change = match op {
                    Op::Create => return $create,
                    Op::Mkdir => Change::Make(at, New::Directory(0o755)),
                    Op::Symlink(len) => {
                        target = vec![b't'; *len];
                        Change::Make(at, New::Symlink(&target))
                    }
                    Op::Fifo => Change::Make(at, New::Node(FIFO, (0, 0))),
                    Op::Unlink => Change::Unlink(at),
                    Op::Rmdir => Change::Rmdir(at),
                    Op::Rename(flags) => Change::Rename(at, (to, new), *flags),
                    Op::Link => Change::Link($it.find(c, dir, name)?, (to, new)),
                    _ => {
                        let ino = $it.find(c, dir, name)?;
                        return $it.change_file(c, op, ino);
                    }
                };
                $it.change(c, &change).map(drop)
            }

            fn change_file(&mut self, c: &Caller, op: &Op, ino: InodeNo) -> Result<(), Error> {
                let set;
                let change = match op {
                    Op::Write(at, len, byte) => {
                        let bytes = vec![*byte; *len];
                        return self.write(c, ino, *at, &bytes).map(|_| ());
                    }
                    Op::Cut(size) => {
                        set = truncated(*size);
                        Change::SetAttr(ino, &set)
                    }
                    Op::Chmod(bits) => {
                        set = of_mode(*bits);
                        Change::SetAttr(ino, &set)
                    }
                    Op::Chgrp(gid) => {
                        set = of_group(*gid);
                        Change::SetAttr(ino, &set)
                    }
                    Op::Setxattr(name, value, how) => Change::SetXattr(ino, name, value, *how),
                    Op::Removexattr(name) => Change::RemoveXattr(ino, name),
                    _ => unreachable!("the operations on names are done"),
                };
                self.change(c, &change).map(drop)
            }

            fn xattrs(&mut self, ino: InodeNo) -> Xattrs {
                let c = Caller::root();
                let names = self.listxattr(&c, ino).unwrap();
                let names = names
                    .split(|byte| *byte == 0)
                    .filter(|name| !name.is_empty());
                let value = |name| self.getxattr(&c, ino, name).unwrap();
                names.map(|name| (name.to_vec(), value(name))).collect()
            }
        }
    };
}

fn stage(group: &mut Group, change: Change<'_>) {
    group.change(&Caller::root(), &change).unwrap();
}

maker!(Group, |group, c, dir, name| {
    group
        .change(c, &Change::Make((dir, name), New::File(0o644)))
        .map(drop)
});
maker!(Fs, |fs, c, dir, name| {
    let made = fs.create(c, dir, name, 0o644, OpenFlags::EXCLUSIVE)?;
    fs.release(made.ino)
});

/// Carries out an operation on two paths from the root.
fn run(maker: &mut dyn Maker, c: &Caller, op: &Op, paths: [&[&[u8]]; 2]) -> Result<(), Error> {
    let mut ends = [(InodeNo(2), &b""[..]); 2];
    for (end, path) in ends.iter_mut().zip(paths) {
        let (last, way) = path.split_last().unwrap();
        *end = (walk(maker, c, way)?, last);
    }
    maker.make(c, op, ends)
}

fn walk(maker: &mut dyn Maker, c: &Caller, way: &[&[u8]]) -> Result<InodeNo, Error> {
    way.iter()
        .try_fold(InodeNo(2), |dir, name| maker.find(c, dir, name))
}

/// The extended attributes of the file at a path.
fn xattrs_at(maker: &mut dyn Maker, path: &[&[u8]]) -> Option<Xattrs> {
    let ino = walk(maker, &Caller::root(), path).ok()?;
    Some(maker.xattrs(ino))
}

/// Makes an ACL for an owner, a group, one more user, and others.
fn random_acl(random: &mut Random) -> Vec<u8> {
    let mut perm = || random.below(8) as u8;
    let entries = [
        (Tag::UserObj, perm()),
        (Tag::User(1000), perm()),
        (Tag::GroupObj, perm()),
        (Tag::Mask, perm()),
        (Tag::Other, perm()),
    ];
    let is_plain = perm() == 0;
    let entries = entries
        .iter()
        .filter(|(tag, _)| !is_plain || matches!(tag, Tag::UserObj | Tag::GroupObj | Tag::Other));
    let entries = entries.map(|&(tag, perm)| AclEntry { tag, perm });
    Acl::new(entries).unwrap().encode_xattr()
}

const LISTS: [&[u8]; 2] = [b"system.posix_acl_access", b"system.posix_acl_default"];

fn set_xattr(maker: &mut dyn Maker, ino: InodeNo, name: &'static [u8], value: &[u8]) {
    let op = Op::Setxattr(name, value.to_vec(), SetXattr::Any);
    maker.change_file(&Caller::root(), &op, ino).unwrap();
}

/// Makes a change of an extended attribute or an ACL.
fn random_xattr(random: &mut Random) -> Op {
    const NAMES: [&[u8]; 4] = [b"user.a", b"user.bb", b"trusted.c", b"security.d"];
    let name = NAMES[random.below(4) as usize];
    let list = LISTS[random.below(2) as usize];
    match random.below(8) {
        0 => Op::Removexattr(list),
        1 | 2 => Op::Setxattr(list, random_acl(random), SetXattr::Any),
        3 => Op::Removexattr(name),
        _ => {
            let most = [20, 20, 80, 600, 3500][random.below(5) as usize];
            let value = vec![random.below(256) as u8; random.below(most) as usize];
            let how = [SetXattr::Any, SetXattr::Create, SetXattr::Replace];
            Op::Setxattr(name, value, how[random.below(3) as usize])
        }
    }
}

fn random_op(random: &mut Random) -> Op {
    match random.below(24) {
        0..3 => Op::Create,
        3 | 4 => Op::Mkdir,
        5 => Op::Symlink(10 + 80 * random.below(2) as usize),
        6 => Op::Fifo,
        7 => Op::Link,
        8 => Op::Unlink,
        9 => Op::Rmdir,
        10..13 => Op::Rename(match random.below(4) {
            0 => RenameFlags::EXCHANGE,
            1 => RenameFlags::NOREPLACE,
            _ => RenameFlags::empty(),
        }),
        13 => {
            let (at, len) = (random.below(30_000), 1 + random.below(9000) as usize);
            Op::Write(at, len, random.below(255) as u8 + 1)
        }
        14 => Op::Cut(random.below(40_000)),
        15 | 16 => Op::Chmod(0o600 + random.below(64) as u16),
        17 => Op::Chgrp(random.below(3) as u32),
        _ => random_xattr(random),
    }
}

/// Whether the operation changes what a directory's new files inherit.
fn is_inherited(op: &Op) -> bool {
    matches!(op, Op::Setxattr(name, ..) | Op::Removexattr(name) if *name == LISTS[1])
}

/// Whether the operation changes permissions.
fn is_of_rights(op: &Op) -> bool {
    match op {
        Op::Chmod(_) | Op::Chgrp(_) => true,
        Op::Setxattr(name, ..) | Op::Removexattr(name) => name.starts_with(b"system."),
        _ => false,
    }
}

#[test]
fn a_group_of_names_is_what_its_operations_would_be_one_by_one() {
    for args in [
        "-t ext4 -b 4096 -J size=8",
        "-t ext3 -b 1024 -J size=8",
        "-t ext4 -b 1024 -J size=8 -O ^dir_index,^metadata_csum",
    ] {
        let words: Vec<&str> = args.split(' ').collect();
        let (image, other) = (Image::new(48, &words), Image::new(48, &words));
        let fs = image.mount("data=journal");
        let mut twin = other.mount("data=journal");
        let free = fs.stats().blocks_free;
        let users = [Caller::root(), Caller::user(1000, 1000)];
        for fs in [&fs, &twin] {
            let all = of_mode(0o1777);
            fs.setattr(&users[0], fs.root(), &all).unwrap();
        }
        let (mut random, mut done_in_all) = (Random(333), 0);
        for round in 0..400 {
            let before = tree(&fs);
            let is_kept = round % 3 != 0;
            let c = &users[round / 4 % 2];
            let mut group = fs.begin();
            let mut told = Vec::new();
            for _ in 0..1 + random.below(40) {
                let mut op = random_op(&mut random);
                // A group's changes of permissions and of inherited ACLs take effect at its commit.
                let makes = matches!(op, Op::Create | Op::Mkdir | Op::Symlink(_) | Op::Fifo);
                if !c.privileged && is_of_rights(&op) || round % 4 != 3 && is_inherited(&op) {
                    op = Op::Create;
                } else if c.privileged && round % 4 == 3 && makes {
                    op = Op::Setxattr(LISTS[1], random_acl(&mut random), SetXattr::Any);
                }
                let (from, to) = (random.path(), random.path());
                let done = run(&mut group, c, &op, [&from, &to]);
                done_in_all += u32::from(done.is_ok());
                let [a, b] = [&from, &to]
                    .map(|path| String::from_utf8_lossy(&path.join(&b'/')).into_owned());
                told.push(format!("{op:?} {a} {b}: {done:?}"));
                if is_kept {
                    let expected = run(&mut twin, c, &op, [&from, &to]);
                    let kinds =
                        [&done, &expected].map(|r| r.as_ref().map_err(Error::kind).copied());
                    assert_eq!(kinds[0], kinds[1], "{args}, round {round}: {told:#?}");
                    let [now, expected] =
                        [&mut group as &mut dyn Maker, &mut twin].map(|it| xattrs_at(it, &from));
                    assert_eq!(now, expected, "{args}, round {round}: {told:#?}");
                }
            }
            assert!(tree(&fs) == before, "{args}, round {round}: seen by others");
            match round % 3 {
                0 => group.abort(),
                1 => group.commit(c).unwrap(),
                _ => group.commit_lazy(c).unwrap(),
            }
            assert!(group.is_empty());
            let (now, expected) = (tree(&fs), tree(&twin));
            for path in now.keys().chain(expected.keys()) {
                let name = String::from_utf8_lossy(path);
                let same = now.get(path) == expected.get(path);
                assert!(same, "{args}, round {round}: {name}: {told:#?}");
            }
        }
        assert!(done_in_all > 500, "{args}: {done_in_all}");
        for fs in [&fs, &twin] {
            fs.unmount().unwrap();
        }
        image.assert_clean();
        other.assert_clean();
        // The volumes hold the same: no inode is left over.
        let fs = image.mount("data=journal");
        let twin = other.mount("data=journal");
        assert_eq!(fs.stats().inodes_free, twin.stats().inodes_free, "{args}");
        assert!(fs.stats().blocks_free <= free);
        fs.unmount().unwrap();
        twin.unmount().unwrap();
    }
}

fn create(fs: &Fs, dir: InodeNo, name: &[u8]) -> InodeNo {
    let made = fs
        .create(&Caller::root(), dir, name, 0o644, OpenFlags::EXCLUSIVE)
        .unwrap();
    fs.release(made.ino).unwrap();
    made.ino
}

/// When others change names that an uncommitted group changes, its commit is a conflict, and
/// nothing happens.
#[test]
fn what_others_change_under_a_group_is_a_conflict_and_nothing_happens() {
    type Step = fn(&mut Group, InodeNo);
    type Disturbance = fn(&Fs, InodeNo);
    let cases: [(&str, Step, Disturbance); 11] = [
        (
            "an attribute that is to be another",
            |group, dir| set_xattr(group, dir, b"user.a", b"ours"),
            |fs, dir| set_xattr(&mut fs.clone(), dir, b"user.a", b"theirs"),
        ),
        (
            "an attribute that is to go",
            |group, dir| stage(group, Change::RemoveXattr(dir, b"user.b")),
            |fs, dir| fs.removexattr(&Caller::root(), dir, b"user.b").unwrap(),
        ),
        (
            "a list of who may do what",
            |group, dir| set_xattr(group, dir, LISTS[0], &random_acl(&mut Random(1))),
            |fs, dir| set_xattr(&mut fs.clone(), dir, LISTS[0], &random_acl(&mut Random(2))),
        ),
        (
            "a name that is to be made",
            |group, dir| {
                stage(group, Change::Make((dir, b"new"), New::File(0o644)));
            },
            |fs, dir| {
                create(fs, dir, b"new");
            },
        ),
        (
            "a name that is to go",
            |group, dir| stage(group, Change::Unlink((dir, b"file"))),
            |fs, dir| fs.unlink(&Caller::root(), dir, b"file").unwrap(),
        ),
        (
            "another file of the same name",
            |group, dir| stage(group, Change::Unlink((dir, b"file"))),
            |fs, dir| {
                fs.unlink(&Caller::root(), dir, b"file").unwrap();
                create(fs, dir, b"file");
            },
        ),
        (
            "a directory that is to go",
            |group, dir| stage(group, Change::Rmdir((dir, b"empty"))),
            |fs, dir| {
                let empty = fs.lookup(&Caller::root(), dir, b"empty").unwrap().ino;
                create(fs, empty, b"not any more");
            },
        ),
        (
            "the directory that something is made in",
            |group, dir| {
                let empty = group.lookup(&Caller::root(), dir, b"empty").unwrap().ino;
                stage(group, Change::Make((empty, b"new"), New::Directory(0o755)));
            },
            |fs, dir| fs.rmdir(&Caller::root(), dir, b"empty").unwrap(),
        ),
        (
            "the way to the root",
            |group, dir| {
                let c = Caller::root();
                let empty = group.lookup(&c, dir, b"empty").unwrap().ino;
                group
                    .change(
                        &c,
                        &Change::Rename((dir, b"other"), (empty, b"other"), RenameFlags::empty()),
                    )
                    .unwrap();
            },
            |fs, dir| {
                let c = Caller::root();
                let other = fs.lookup(&c, dir, b"other").unwrap().ino;
                fs.rename(&c, dir, b"empty", other, b"empty", RenameFlags::empty())
                    .unwrap();
            },
        ),
        (
            "the names of a file that gets one",
            |group, dir| {
                let file = group.lookup(&Caller::root(), dir, b"file").unwrap().ino;
                stage(group, Change::Link(file, (dir, b"more")));
            },
            |fs, dir| fs.unlink(&Caller::root(), dir, b"file").unwrap(),
        ),
        (
            "a file that must not be changed any more",
            |group, dir| stage(group, Change::Unlink((dir, b"file"))),
            |fs, dir| {
                let c = Caller::root();
                let file = fs.lookup(&c, dir, b"file").unwrap().ino;
                let flags = fs.get_flags(file).unwrap() | InodeFlags::IMMUTABLE;
                fs.set_flags(&c, file, flags).unwrap();
            },
        ),
    ];
    let c = Caller::root();
    for (what, step, disturbance) in cases {
        let image = Image::new(32, &["-t", "ext4", "-b", "4096"]);
        let fs = image.mount("");
        let inodes = fs.stats().inodes_free;
        let dir = fs.mkdir(&c, fs.root(), b"dir", 0o755).unwrap().ino;
        create(&fs, dir, b"file");
        set_xattr(&mut fs.clone(), dir, b"user.b", b"before");
        for name in [&b"empty"[..], b"other"] {
            fs.mkdir(&c, dir, name, 0o755).unwrap();
        }
        let mut group = fs.begin();
        group
            .change(&c, &Change::Make((dir, b"beside"), New::File(0o600)))
            .unwrap();
        step(&mut group, dir);
        disturbance(&fs, dir);
        let before = tree(&fs);
        let told = group.commit(&c).unwrap_err();
        assert!(matches!(told, Error::Conflict(_)), "{what}: {told}");
        assert!(tree(&fs) == before, "{what}");
        group.abort();
        assert!(tree(&fs) == before, "{what}");
        let used = inodes - fs.stats().inodes_free;
        assert_eq!(used as usize, before.len(), "{what}: what was made is gone");
        fs.unmount().unwrap();
        image.assert_clean();
    }
}

/// The credits are those of the blocks that change, not the most that each operation may need.
#[test]
fn a_thousand_names_are_one_transaction_and_too_many_are_refused_at_the_step() {
    let c = Caller::root();
    for args in [
        "-t ext4 -b 4096 -J size=16",
        "-t ext4 -b 1024 -J size=8",
        "-t ext3 -b 1024 -O ^dir_index -J size=8",
    ] {
        let words: Vec<&str> = args.split(' ').collect();
        let image = Image::new(64, &words);
        let fs = image.mount("data=journal");
        let dirs: Vec<_> = (0..10)
            .map(|n| {
                fs.mkdir(&c, fs.root(), format!("d{n}").as_bytes(), 0o755)
                    .unwrap()
                    .ino
            })
            .collect();
        let mut group = fs.begin();
        for n in 0..1000 {
            let (dir, name) = (dirs[n % 10], format!("file number {n}"));
            let made = group
                .change(&c, &Change::Make((dir, name.as_bytes()), New::File(0o644)))
                .unwrap();
            group.write(&c, made.ino, 0, name.as_bytes()).unwrap();
        }
        // What the group made is made at once, without a name.
        fs.sync().unwrap();
        let before = fs.stats().journal.commits;
        group.commit(&c).unwrap();
        assert_eq!(fs.stats().journal.commits, before + 1, "{args}");
        let made = tree(&fs);
        assert_eq!(made.len(), 1010);
        let mut group = fs.begin();
        for n in 0..1000 {
            let name = format!("file number {n}");
            let to = format!("{n} instead");
            let (dir, new) = (dirs[n % 10], dirs[(n + 1) % 10]);
            match n % 2 {
                0 => group
                    .change(&c, &Change::Unlink((dir, name.as_bytes())))
                    .unwrap(),
                _ => group
                    .change(
                        &c,
                        &Change::Rename(
                            (dir, name.as_bytes()),
                            (new, to.as_bytes()),
                            RenameFlags::empty(),
                        ),
                    )
                    .unwrap(),
            };
        }
        group.commit(&c).unwrap();
        assert_eq!(tree(&fs).len(), 510, "{args}");

        let before = tree(&fs);
        let mut group = fs.begin();
        let refused = (0..100_000).find_map(|n| {
            let name = format!("{n:0200}");
            group
                .change(
                    &c,
                    &Change::Make((dirs[0], name.as_bytes()), New::Directory(0o755)),
                )
                .err()
        });
        let refused = refused.unwrap();
        let is_told = matches!(refused, Error::GroupTooBig { wanted, limit } if wanted > limit);
        assert!(
            is_told || matches!(refused, Error::NoSpace),
            "{args}: {refused}"
        );
        // What was staged before can still be committed.
        group.commit(&c).unwrap();
        assert!(tree(&fs).len() > before.len() + 100, "{args}");
        fs.unmount().unwrap();
        image.assert_clean();
    }
}

#[test]
fn nobody_sees_half_of_a_group_while_it_is_committed() {
    let c = Caller::root();
    let image = Image::new(64, &["-t", "ext4", "-b", "4096", "-J", "size=16"]);
    let fs = image.mount("");
    let sides = [&b"left"[..], b"right"].map(|name| {
        let made = fs.mkdir(&c, fs.root(), name, 0o755);
        made.unwrap().ino
    });
    for n in 0..64 {
        create(&fs, sides[0], format!("{n}").as_bytes());
    }
    let count = |dir| {
        let mut names = 0;
        fs.readdir(dir, 0, &mut |_| {
            names += 1;
            true
        })
        .unwrap();
        names - 2
    };
    std::thread::scope(|scope| {
        let mover = scope.spawn(|| {
            for round in 0..200 {
                let (from, to) = (sides[round % 2], sides[(round + 1) % 2]);
                let mut group = fs.begin();
                for n in 0..64 {
                    let name = format!("{n}");
                    let name = name.as_bytes();
                    group
                        .change(
                            &c,
                            &Change::Rename((from, name), (to, name), RenameFlags::empty()),
                        )
                        .unwrap();
                }
                group.commit_lazy(&c).unwrap();
            }
        });
        while !mover.is_finished() {
            let seen = count(sides[0]);
            assert!(seen == 0 || seen == 64, "{seen} of 64 names");
            // Others may work beside it.
            create(&fs, fs.root(), b"beside");
            fs.unlink(&c, fs.root(), b"beside").unwrap();
        }
        mover.join().unwrap();
    });
    fs.unmount().unwrap();
    image.assert_clean();
}

/// A group wrote to a file beyond its end, and then truncated it to more than its size outside.
/// Once, the commit left the file with the size that it had outside.
#[test]
fn what_is_cut_to_more_than_there_is_outside_is_that_long() {
    let c = Caller::root();
    let image = Image::new(32, &["-t", "ext4", "-b", "1024"]);
    let fs = image.mount("data=journal");
    let ino = create(&fs, fs.root(), b"f");
    fs.write(&c, ino, 0, &[1; 5000]).unwrap();
    let mut group = fs.begin();
    group.write(&c, ino, 20_000, &[2; 1500]).unwrap();
    for size in [9000, 7000, 8000] {
        group
            .change(&c, &Change::SetAttr(ino, &truncated(size)))
            .unwrap();
        assert_eq!(group.size(ino).unwrap(), size);
    }
    group.commit(&c).unwrap();
    assert_eq!(fs.getattr(ino).unwrap().size, 8000);
    fs.unmount().unwrap();
    image.assert_clean();
}

/// Once, each truncation was counted with the most that its last step may ask for, though only one
/// step is the last. So a group on a short log could not truncate at all.
#[test]
fn a_short_log_takes_cuts_of_several_files() {
    let c = Caller::root();
    let image = Image::new(32, &["-t", "ext4", "-b", "1024", "-J", "size=1"]);
    let fs = image.mount("");
    let files: Vec<_> = (0..8)
        .map(|n| create(&fs, fs.root(), format!("{n}").as_bytes()))
        .collect();
    for ino in &files {
        fs.write(&c, *ino, 0, &[1; 30_000]).unwrap();
    }
    fs.sync().unwrap();
    let mut group = fs.begin();
    for ino in &files {
        group
            .change(&c, &Change::SetAttr(*ino, &truncated(100)))
            .unwrap();
    }
    group.commit(&c).unwrap();
    for ino in files {
        assert_eq!(fs.getattr(ino).unwrap().size, 100);
    }
    fs.unmount().unwrap();
    image.assert_clean();
}

/// Once, a truncation was counted when it was staged, but not again at the commit. If others had
/// added blocks meanwhile, it did not fit into the transaction, and the journal stopped.
#[test]
fn a_cut_of_what_others_made_since_fits_or_is_refused() {
    let c = Caller::root();
    let image = Image::new(64, &["-t", "ext3", "-b", "1024", "-J", "size=1"]);
    let fs = image.mount("");
    let ino = create(&fs, fs.root(), b"f");
    fs.write(&c, ino, 0, &[1; 5000]).unwrap();
    for (runs, size) in [(50, 1000), (1000, 100)] {
        let mut group = fs.begin();
        group
            .change(&c, &Change::SetAttr(ino, &truncated(size)))
            .unwrap();
        for n in 0..runs {
            fs.write(&c, ino, n * 100 * 1024, &[2; 1024]).unwrap();
        }
        fs.sync().unwrap();
        let before = fs.getattr(ino).unwrap().size;
        match group.commit(&c) {
            Ok(()) => assert_eq!(fs.getattr(ino).unwrap().size, size),
            Err(Error::GroupTooBig { .. }) => assert_eq!(fs.getattr(ino).unwrap().size, before),
            Err(error) => panic!("{runs} runs: {error}"),
        }
        drop(group);
        create(&fs, fs.root(), format!("after {runs}").as_bytes());
    }
    fs.unmount().unwrap();
    image.assert_clean();
}

/// Changes by others to other attributes are no conflict, unless there is no room for both.
#[test]
fn attributes_of_others_stay_and_may_take_the_room() {
    let c = Caller::root();
    let image = Image::new(32, &["-t", "ext4", "-b", "1024"]);
    let fs = image.mount("");
    for (theirs, expected) in [(100, Ok(())), (700, Err(Kind::NoSpace))] {
        let ino = create(&fs, fs.root(), format!("{theirs}").as_bytes());
        let mut group = fs.begin();
        set_xattr(&mut group, ino, b"user.ours", &[1; 700]);
        set_xattr(&mut fs.clone(), ino, b"user.theirs", &vec![2; theirs]);
        assert_eq!(group.commit(&c).map_err(|e| e.kind()), expected);
        let found = Maker::xattrs(&mut fs.clone(), ino);
        assert_eq!(found.contains_key(&b"user.ours"[..]), expected.is_ok());
        assert_eq!(found[&b"user.theirs"[..]], vec![2; theirs]);
        // After the error, everything is still staged.
        assert_eq!(group.is_empty(), expected.is_ok());
        let mut room = fs.begin();
        let told = room.change(
            &c,
            &Change::SetXattr(ino, b"user.much", &[3; 1000], SetXattr::Any),
        );
        assert_eq!(told.unwrap_err().kind(), Kind::NoSpace);
    }
    fs.unmount().unwrap();
    image.assert_clean();
}

#[test]
fn staged_attributes_have_room_when_others_fill_the_volume() {
    let c = Caller::root();
    let image = Image::new(16, &["-t", "ext4", "-b", "1024", "-J", "size=1"]);
    let fs = image.mount("");
    let files: Vec<_> = (0..20)
        .map(|n| create(&fs, fs.root(), format!("{n}").as_bytes()))
        .collect();
    let full = create(&fs, fs.root(), b"full");
    let most = (0..)
        .find(|n| fs.write(&c, full, n * 1024, &[1; 1024]).is_err())
        .unwrap();
    fs.setattr(&c, full, &truncated((most - 8) * 1024)).unwrap();
    fs.sync().unwrap();
    let mut group = fs.begin();
    let value = |n: usize| [&[n as u8; 600][..], b"of this file alone"].concat();
    let refused = files.iter().enumerate().find_map(|(n, ino)| {
        let told = group.change(
            &c,
            &Change::SetXattr(*ino, b"user.x", &value(n), SetXattr::Any),
        );
        Some((n, told.err()?.kind()))
    });
    let (staged, kind) = refused.unwrap();
    assert_eq!(kind, Kind::NoSpace);
    assert!(staged >= 8, "{staged}");
    let told = fs.setxattr(&c, files[19], b"user.x", &value(19), SetXattr::Any);
    assert_eq!(told.unwrap_err().kind(), Kind::NoSpace);
    group.commit(&c).unwrap();
    for (n, ino) in files[..staged].iter().enumerate() {
        assert_eq!(fs.getxattr(&c, *ino, b"user.x").unwrap(), value(n));
    }
    fs.unmount().unwrap();
    image.assert_clean();
}

/// A change of owner takes capabilities away, also those that an earlier step of the group has set.
#[test]
fn a_change_of_the_group_takes_capabilities_away() {
    let c = Caller::root();
    let image = Image::new(32, &["-t", "ext4", "-b", "1024"]);
    let fs = image.mount("");
    let ino = create(&fs, fs.root(), b"f");
    let name = b"security.capability";
    for is_staged in [false, true] {
        let mut group = fs.begin();
        if is_staged {
            set_xattr(&mut group, ino, name, &[7; 20]);
        } else {
            set_xattr(&mut fs.clone(), ino, name, &[7; 20]);
        }
        group
            .change(&c, &Change::SetAttr(ino, &of_group(5)))
            .unwrap();
        let told = group.getxattr(&c, ino, name).unwrap_err();
        assert_eq!(told.kind(), Kind::NoData);
        group.commit(&c).unwrap();
        let told = fs.getxattr(&c, ino, name).unwrap_err();
        assert_eq!(told.kind(), Kind::NoData);
    }
    fs.unmount().unwrap();
    image.assert_clean();
}

/// Once, each directory that got two names was counted as one that grows. So a step was refused
/// when a transaction held a hundred blocks.
#[test]
fn few_names_are_few_blocks() {
    let c = Caller::root();
    let image = Image::new(32, &["-t", "ext4", "-b", "1024", "-J", "size=1"]);
    let fs = image.mount("");
    let dirs: Vec<_> = (0..20)
        .map(|n| {
            let made = fs.mkdir(&c, fs.root(), format!("d{n}").as_bytes(), 0o755);
            made.unwrap().ino
        })
        .collect();
    let limit = fs.volume().journal.max_credits();
    let mut group = fs.begin();
    for dir in &dirs {
        for name in [b"first", b"other"] {
            group
                .change(&c, &Change::Make((*dir, name), New::File(0o644)))
                .unwrap();
        }
    }
    // One block for each directory, those of the inode table, and the superblock.
    let counted = group.credits_of_names();
    assert!((21..=40).contains(&counted), "{counted} of {limit}");
    // Names that do not fit into a directory's block are counted with new blocks.
    for n in 0..30 {
        let name = format!("a name that is longer {n}");
        group
            .change(
                &c,
                &Change::Make((dirs[0], name.as_bytes()), New::File(0o644)),
            )
            .unwrap();
    }
    let grown = group.credits_of_names();
    assert!(grown > counted + 8, "{grown} of {limit}");
    let before = fs.stats().journal.commits;
    group.commit(&c).unwrap();
    assert!(fs.stats().journal.commits <= before + 2);
    assert_eq!(tree(&fs).len(), 20 + 40 + 30);
    fs.unmount().unwrap();
    image.assert_clean();
}

/// The credits of a truncation in a group never fall when more is truncated. They suffice for the
/// nodes that it changes. They are not so many that a group is refused that would fit.
#[test]
fn a_cut_is_counted_as_what_it_changes() {
    let c = Caller::root();
    for kind in ["ext4", "ext3"] {
        let image = Image::new(64, &["-t", kind, "-b", "1024"]);
        let fs = image.mount("");
        let ino = create(&fs, fs.root(), b"f");
        fs.write(&c, ino, 0, b"content").unwrap();
        fs.sync().unwrap();
        let vol = fs.volume();
        let inode = vol.icache.get(ino).unwrap();
        let (st, groups) = (inode.state.read(), vol.geo.groups_count());
        let mut before = 0;
        for runs in 0..5000 {
            let counted = mapping::credits_for_cut(vol, &st, runs, 2 * runs);
            assert!(counted >= before, "{kind}: {runs} runs");
            before = counted;
            // A tree's node has a head of 12 bytes, and 12 for each entry; a block pointer has 4.
            let (least, most) = match kind {
                "ext4" => (runs.div_ceil((1024 - 12) / 12), runs / 16 + 4),
                _ => (2 * runs / (1024 / 4), runs + 2 * runs / (1024 / 4) + 4),
            };
            let bitmaps = 2 * groups.min(runs);
            assert!(counted >= least + bitmaps, "{kind}: {runs} runs: {counted}");
            let freed = (2 * runs + most) / 100;
            let most = most + 2 * groups + freed + 16;
            assert!(counted <= most, "{kind}: {runs} runs: {counted} of {most}");
        }
    }
}
