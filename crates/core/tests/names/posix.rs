//! What POSIX and the kernel's ext4 demand of each call on names: errors, permissions, links,
//! times.

use stetfs::{Access, Caller, Error, Fs, Kind, OpenFlags, RenameFlags, SetAttr, mode};
use stetfs_format::{InodeFlags, InodeNo};

use crate::image::Volume;

const ROOT: InodeNo = InodeNo(2);

struct At<'a> {
    fs: &'a Fs,
    c: Caller,
}

impl At<'_> {
    fn root(fs: &Fs) -> At<'_> {
        At {
            fs,
            c: Caller::root(),
        }
    }

    fn user(fs: &Fs, uid: u32) -> At<'_> {
        At {
            fs,
            c: Caller::user(uid, uid),
        }
    }

    fn file(&self, dir: InodeNo, name: &str, mode: u16) -> Result<InodeNo, Kind> {
        let flags = OpenFlags::WRITE | OpenFlags::EXCLUSIVE;
        let entry = self
            .fs
            .create(&self.c, dir, name.as_bytes(), mode, flags)
            .map_err(kind)?;
        self.fs.release(entry.ino).unwrap();
        Ok(entry.ino)
    }

    fn dir(&self, dir: InodeNo, name: &str, mode: u16) -> Result<InodeNo, Kind> {
        self.fs
            .mkdir(&self.c, dir, name.as_bytes(), mode)
            .map(|e| e.ino)
            .map_err(kind)
    }

    fn link(&self, ino: InodeNo, dir: InodeNo, name: &str) -> Result<(), Kind> {
        self.fs
            .link(&self.c, ino, dir, name.as_bytes())
            .map(|_| ())
            .map_err(kind)
    }

    fn unlink(&self, dir: InodeNo, name: &str) -> Result<(), Kind> {
        self.fs.unlink(&self.c, dir, name.as_bytes()).map_err(kind)
    }

    fn rmdir(&self, dir: InodeNo, name: &str) -> Result<(), Kind> {
        self.fs.rmdir(&self.c, dir, name.as_bytes()).map_err(kind)
    }

    fn rename(&self, a: InodeNo, x: &str, b: InodeNo, y: &str) -> Result<(), Kind> {
        self.rename_with(a, x, b, y, RenameFlags::empty())
    }

    fn rename_with(
        &self,
        a: InodeNo,
        x: &str,
        b: InodeNo,
        y: &str,
        flags: RenameFlags,
    ) -> Result<(), Kind> {
        self.fs
            .rename(&self.c, a, x.as_bytes(), b, y.as_bytes(), flags)
            .map_err(kind)
    }

    fn find(&self, dir: InodeNo, name: &str) -> Result<InodeNo, Kind> {
        self.fs
            .lookup(&self.c, dir, name.as_bytes())
            .map(|e| e.ino)
            .map_err(kind)
    }

    fn nlink(&self, ino: InodeNo) -> u32 {
        self.fs.getattr(ino).unwrap().nlink
    }

    fn set_flags(&self, ino: InodeNo, flags: InodeFlags) {
        let kept = self.fs.get_flags(ino).unwrap() & (InodeFlags::EXTENTS | InodeFlags::INDEX);
        self.fs.set_flags(&self.c, ino, kept | flags).unwrap();
    }
}

fn kind(e: Error) -> Kind {
    e.kind()
}

fn volume() -> Volume {
    Volume::make("-t ext4 -b 1024 -O metadata_csum,dir_nlink", 32)
}

#[test]
fn names_that_cannot_be() {
    let v = volume();
    let at = At::root(&v.fs);
    let long = "n".repeat(256);
    at.file(ROOT, &long[..255], 0o644).unwrap();
    for (name, want) in [
        (long.as_str(), Kind::NameTooLong),
        ("", Kind::NotFound),
        ("a/b", Kind::Invalid),
        ("a\0b", Kind::Invalid),
        (".", Kind::Exists),
        ("..", Kind::Exists),
    ] {
        assert_eq!(at.file(ROOT, name, 0o644), Err(want), "create {name:?}");
        assert_eq!(at.dir(ROOT, name, 0o755), Err(want), "mkdir {name:?}");
    }
    assert_eq!(at.find(ROOT, &long), Err(Kind::NameTooLong));
    assert_eq!(at.find(ROOT, "."), Ok(ROOT));
    assert_eq!(at.find(ROOT, ".."), Ok(ROOT));
    let d = at.dir(ROOT, "d", 0o755).unwrap();
    assert_eq!(at.rmdir(d, "."), Err(Kind::Invalid));
    assert_eq!(at.rmdir(d, ".."), Err(Kind::NotEmpty));
    assert_eq!(at.unlink(d, "."), Err(Kind::IsDirectory));
    assert_eq!(at.rename(ROOT, ".", ROOT, "x"), Err(Kind::Busy));
    assert_eq!(at.rename(ROOT, "d", d, ".."), Err(Kind::Busy));
    v.check();
}

#[test]
fn wrong_kinds() {
    let v = volume();
    let at = At::root(&v.fs);
    let f = at.file(ROOT, "f", 0o644).unwrap();
    let d = at.dir(ROOT, "d", 0o755).unwrap();
    assert_eq!(at.find(f, "x"), Err(Kind::NotDirectory));
    assert_eq!(at.file(f, "x", 0o644), Err(Kind::NotDirectory));
    assert_eq!(at.unlink(ROOT, "d"), Err(Kind::IsDirectory));
    assert_eq!(at.rmdir(ROOT, "f"), Err(Kind::NotDirectory));
    assert_eq!(at.link(d, ROOT, "e"), Err(Kind::NotPermitted));
    assert_eq!(at.rename(ROOT, "d", ROOT, "f"), Err(Kind::NotDirectory));
    assert_eq!(at.rename(ROOT, "f", ROOT, "d"), Err(Kind::IsDirectory));
    assert_eq!(at.rename(ROOT, "d", d, "e"), Err(Kind::Invalid));
    let e = at.dir(d, "e", 0o755).unwrap();
    assert_eq!(at.rename(ROOT, "d", e, "x"), Err(Kind::Invalid));
    assert_eq!(at.rename(d, "e", ROOT, "d"), Err(Kind::NotEmpty));
    at.file(e, "g", 0o644).unwrap();
    assert_eq!(
        at.rename(e, "g", ROOT, "d"),
        Err(Kind::NotEmpty),
        "above the file's directory"
    );
    assert_eq!(at.rmdir(d, "e"), Err(Kind::NotEmpty));
    let both = RenameFlags::NOREPLACE | RenameFlags::EXCHANGE;
    assert_eq!(
        at.rename_with(ROOT, "f", ROOT, "g", both),
        Err(Kind::Invalid)
    );
    assert_eq!(
        at.rename_with(
            ROOT,
            "f",
            ROOT,
            "g",
            RenameFlags::WHITEOUT | RenameFlags::EXCHANGE
        ),
        Err(Kind::Invalid)
    );
    assert_eq!(
        at.rename_with(ROOT, "f", ROOT, "d", RenameFlags::NOREPLACE),
        Err(Kind::Exists)
    );
    assert_eq!(
        at.rename_with(ROOT, "f", ROOT, "no", RenameFlags::EXCHANGE),
        Err(Kind::NotFound)
    );
    assert_eq!(at.rename(ROOT, "no", ROOT, "f"), Err(Kind::NotFound));
    at.link(f, ROOT, "same").unwrap();
    at.rename(ROOT, "f", ROOT, "same").unwrap();
    assert_eq!(
        (at.find(ROOT, "f"), at.find(ROOT, "same")),
        (Ok(f), Ok(f)),
        "one inode: nothing happens"
    );
    assert_eq!(at.nlink(f), 2);
    v.check();
}

#[test]
fn link_counts_of_directories() {
    let v = volume();
    let at = At::root(&v.fs);
    let (a, b) = (
        at.dir(ROOT, "a", 0o755).unwrap(),
        at.dir(ROOT, "b", 0o755).unwrap(),
    );
    let x = at.dir(a, "x", 0o755).unwrap();
    at.file(b, "f", 0o644).unwrap();
    assert_eq!((at.nlink(a), at.nlink(b), at.nlink(x)), (3, 2, 2));
    at.rename(a, "x", b, "x").unwrap();
    assert_eq!((at.nlink(a), at.nlink(b), at.find(x, "..")), (2, 3, Ok(b)));
    at.dir(a, "y", 0o755).unwrap();
    at.rename(b, "x", a, "y").unwrap();
    assert_eq!((at.nlink(a), at.nlink(b), at.find(x, "..")), (3, 2, Ok(a)));
    at.rename_with(a, "y", b, "f", RenameFlags::EXCHANGE)
        .unwrap();
    assert_eq!((at.nlink(a), at.nlink(b), at.find(x, "..")), (2, 3, Ok(b)));
    at.dir(b, "z", 0o755).unwrap();
    at.rename(b, "f", b, "z").unwrap();
    assert_eq!(at.nlink(b), 3);
    at.rmdir(b, "z").unwrap();
    assert_eq!(at.nlink(b), 2);
    v.check();
}

#[test]
fn permissions_sticky_and_flags() {
    let v = volume();
    let root = At::root(&v.fs);
    let (ann, bob) = (At::user(&v.fs, 1000), At::user(&v.fs, 1001));
    let shared = root.dir(ROOT, "shared", 0o1777).unwrap();
    let closed = root.dir(ROOT, "closed", 0o755).unwrap();
    ann.file(shared, "anns", 0o644).unwrap();
    bob.file(shared, "bobs", 0o644).unwrap();
    assert_eq!(ann.file(closed, "x", 0o644), Err(Kind::Access));
    root.file(closed, "x", 0o644).unwrap();
    assert_eq!(
        ann.file(closed, "x", 0o644),
        Err(Kind::Exists),
        "EEXIST comes before EACCES"
    );
    assert_eq!(ann.unlink(closed, "x"), Err(Kind::Access));
    assert_eq!(
        bob.unlink(shared, "anns"),
        Err(Kind::NotPermitted),
        "sticky"
    );
    assert_eq!(
        bob.rename(shared, "anns", shared, "mine"),
        Err(Kind::NotPermitted)
    );
    assert_eq!(
        bob.rename(shared, "bobs", shared, "anns"),
        Err(Kind::NotPermitted)
    );
    ann.rename(shared, "anns", shared, "other").unwrap();
    let hidden = root.dir(ROOT, "hidden", 0o700).unwrap();
    root.file(hidden, "x", 0o644).unwrap();
    assert_eq!(ann.find(hidden, "x"), Err(Kind::Access));
    assert_eq!(
        v.fs.access(&ann.c, hidden, Access::READ).map_err(kind),
        Err(Kind::Access)
    );

    // A directory whose parent changes must be writable itself.
    let (p, q) = (
        root.dir(ROOT, "p", 0o777).unwrap(),
        root.dir(ROOT, "q", 0o777).unwrap(),
    );
    root.dir(p, "roots", 0o755).unwrap();
    assert_eq!(ann.rename(p, "roots", q, "roots"), Err(Kind::Access));
    ann.rename(p, "roots", p, "renamed").unwrap();

    let still = root.file(ROOT, "still", 0o644).unwrap();
    root.set_flags(still, InodeFlags::IMMUTABLE);
    assert_eq!(root.unlink(ROOT, "still"), Err(Kind::NotPermitted));
    assert_eq!(root.link(still, ROOT, "more"), Err(Kind::NotPermitted));
    assert_eq!(
        root.rename(ROOT, "still", ROOT, "x"),
        Err(Kind::NotPermitted)
    );
    root.set_flags(still, InodeFlags::empty());
    root.unlink(ROOT, "still").unwrap();
    let log = root.dir(ROOT, "log", 0o777).unwrap();
    root.set_flags(log, InodeFlags::APPEND);
    root.file(log, "x", 0o644).unwrap();
    assert_eq!(
        root.unlink(log, "x"),
        Err(Kind::NotPermitted),
        "append-only: names are only added"
    );
    root.set_flags(log, InodeFlags::IMMUTABLE);
    assert_eq!(root.file(log, "y", 0o644), Err(Kind::NotPermitted));
    v.check();
}

#[test]
fn what_a_new_file_inherits() {
    let v = volume();
    let root = At::root(&v.fs);
    let mut ann = At::user(&v.fs, 1000);
    ann.c.umask = 0o027;
    let dir = root.dir(ROOT, "team", 0o777).unwrap();
    let set = SetAttr {
        mode: Some(0o2777),
        gid: Some(77),
        ..SetAttr::default()
    };
    v.fs.setattr(&root.c, dir, &set).unwrap();
    let get = |ino| {
        let a = v.fs.getattr(ino).unwrap();
        (a.mode, a.uid, a.gid)
    };
    assert_eq!(
        get(ann.file(dir, "f", 0o666).unwrap()),
        (mode::S_IFREG | 0o640, 1000, 77)
    );
    assert_eq!(
        get(ann.file(dir, "g", 0o2777).unwrap()),
        (mode::S_IFREG | 0o750, 1000, 77),
        "set-group-ID is lost"
    );
    assert_eq!(
        get(ann.dir(dir, "d", 0o777).unwrap()),
        (mode::S_IFDIR | 0o2750, 1000, 77)
    );
    let link = v.fs.symlink(&ann.c, dir, b"l", b"target").unwrap().ino;
    assert_eq!(
        get(link).0,
        mode::S_IFLNK | 0o777,
        "no umask on symbolic links"
    );
    root.set_flags(
        dir,
        InodeFlags::NODUMP | InodeFlags::DIRSYNC | InodeFlags::TOPDIR,
    );
    let f = ann.file(dir, "flags", 0o666).unwrap();
    assert!(v.fs.get_flags(f).unwrap().contains(InodeFlags::NODUMP));
    assert!(
        !v.fs
            .get_flags(f)
            .unwrap()
            .intersects(InodeFlags::DIRSYNC | InodeFlags::TOPDIR)
    );
    let dev =
        v.fs.mknod(&ann.c, dir, b"dev", mode::S_IFCHR | 0o600, (1, 3));
    assert_eq!(dev.map(|e| e.ino).map_err(kind), Err(Kind::NotPermitted));
    let dev = v.fs.mknod(&ann.c, dir, b"dev", mode::S_IFBLK, (0, 0));
    assert_eq!(dev.map(|e| e.ino).map_err(kind), Err(Kind::NotPermitted));
    // A whiteout, as in the kernel's vfs_mknod.
    v.fs.mknod(&ann.c, dir, b"gone", mode::S_IFCHR, (0, 0))
        .unwrap();
    let dev =
        v.fs.mknod(&root.c, dir, b"dev", mode::S_IFBLK | 0o600, (259, 70_000))
            .unwrap();
    assert_eq!(v.fs.getattr(dev.ino).unwrap().rdev, (259, 70_000));
    v.check();
}

#[test]
fn symlink_targets() {
    let v = volume();
    let root = At::root(&v.fs);
    for length in [1, 59, 60, 61, 1023] {
        let name = format!("l{length}");
        let target = "t".repeat(length);
        let entry =
            v.fs.symlink(&root.c, ROOT, name.as_bytes(), target.as_bytes())
                .unwrap();
        assert_eq!(entry.attr.size, length as u64);
        assert_eq!(entry.attr.blocks > 0, length >= 60, "length {length}");
    }
    let make = |target: &[u8]| {
        v.fs.symlink(&root.c, ROOT, b"l", target)
            .map(|_| ())
            .map_err(kind)
    };
    assert_eq!(make(&[b't'; 1024]), Err(Kind::NameTooLong));
    assert_eq!(make(b""), Err(Kind::NotFound));
    let v = v.check();
    for length in [1, 59, 60, 61, 1023] {
        let entry =
            v.fs.lookup(&Caller::root(), ROOT, format!("l{length}").as_bytes())
                .unwrap();
        assert_eq!(
            v.fs.readlink(entry.ino).unwrap(),
            "t".repeat(length).into_bytes()
        );
        v.fs.unlink(&Caller::root(), ROOT, format!("l{length}").as_bytes())
            .unwrap();
    }
    v.check();
}

#[test]
fn times_change_as_they_must() {
    let v = volume();
    let at = At::root(&v.fs);
    let (a, b) = (
        at.dir(ROOT, "a", 0o755).unwrap(),
        at.dir(ROOT, "b", 0o755).unwrap(),
    );
    let f = at.file(a, "f", 0o644).unwrap();
    // (mtime, ctime) of each file. The clock advances at every reading, so a changed file's times
    // grow.
    let times = || [a, b, f].map(|i| v.fs.getattr(i).map(|t| (t.mtime, t.ctime)).unwrap());
    let changed = |op: &dyn Fn()| {
        let before = times();
        op();
        let after = times();
        std::array::from_fn(|i| (after[i].0 > before[i].0, after[i].1 > before[i].1))
    };
    let (both, none, inode) = ((true, true), (false, false), (false, true));
    assert_eq!(
        changed(&|| at.link(f, b, "g").unwrap()),
        [none, both, inode]
    );
    assert_eq!(
        changed(&|| at.rename(b, "g", b, "h").unwrap()),
        [none, both, inode]
    );
    assert_eq!(
        changed(&|| at.rename(b, "h", a, "h").unwrap()),
        [both, both, inode]
    );
    assert_eq!(changed(&|| at.unlink(a, "h").unwrap()), [both, none, inode]);
    assert_eq!(
        changed(&|| at.dir(b, "d", 0o755).map(|_| ()).unwrap()),
        [none, both, none]
    );
    assert_eq!(changed(&|| at.rmdir(b, "d").unwrap()), [none, both, none]);
    at.file(b, "x", 0o644).unwrap();
    let exchange = || {
        at.rename_with(a, "f", b, "x", RenameFlags::EXCHANGE)
            .unwrap()
    };
    assert_eq!(changed(&exchange), [both, both, inode]);
    assert_eq!(
        changed(&|| assert!(at.unlink(a, "no").is_err())),
        [none, none, none]
    );
    v.check();
}

#[test]
fn a_removed_directory_takes_no_names() {
    let v = volume();
    let at = At::root(&v.fs);
    let d = at.dir(ROOT, "d", 0o755).unwrap();
    v.fs.open(&at.c, d, OpenFlags::READ).unwrap();
    at.rmdir(ROOT, "d").unwrap();
    assert_eq!(at.file(d, "x", 0o644), Err(Kind::NotFound));
    assert_eq!(at.dir(d, "x", 0o755), Err(Kind::NotFound));
    let f = at.file(ROOT, "f", 0o644).unwrap();
    assert_eq!(at.link(f, d, "x"), Err(Kind::NotFound));
    assert_eq!(at.rename(ROOT, "f", d, "x"), Err(Kind::NotFound));
    assert_eq!(
        v.fs.readdir(d, 0, &mut |_| true).map_err(kind),
        Err(Kind::NotFound)
    );
    v.fs.release(d).unwrap();
    v.check();
}

/// A file has at most 65,000 links. A directory with `dir_nlink` may have more subdirectories, and
/// then reports 1 link.
#[test]
fn the_most_links() {
    let v = Volume::make("-t ext4 -b 1024 -N 66000 -O metadata_csum,dir_nlink", 128);
    let at = At::root(&v.fs);
    let d = at.dir(ROOT, "d", 0o755).unwrap();
    let f = at.file(ROOT, "f", 0o644).unwrap();
    for i in 1..65_000 {
        at.link(f, d, &format!("l{i}")).unwrap();
    }
    assert_eq!(at.nlink(f), 65_000);
    assert_eq!(at.link(f, d, "more"), Err(Kind::TooManyLinks));
    let many = at.dir(ROOT, "many", 0o755).unwrap();
    for i in 0..65_100 {
        at.dir(many, &format!("d{i}"), 0o755).unwrap();
    }
    assert_eq!(at.nlink(many), 1);
    let v = v.check();
    let at = At::root(&v.fs);
    for i in 0..65_100 {
        at.rmdir(many, &format!("d{i}")).unwrap();
    }
    assert_eq!(at.nlink(many), 1, "too many to count stays so");
    at.rmdir(ROOT, "many").unwrap();
    v.check();
}

#[test]
fn the_most_subdirectories_without_dir_nlink() {
    let v = Volume::make("-t ext4 -b 1024 -N 66000 -O metadata_csum,^dir_nlink", 128);
    let at = At::root(&v.fs);
    let d = at.dir(ROOT, "d", 0o755).unwrap();
    let other = at.dir(ROOT, "other", 0o755).unwrap();
    at.dir(other, "x", 0o755).unwrap();
    for i in 0..64_998 {
        at.dir(d, &format!("d{i}"), 0o755).unwrap();
    }
    assert_eq!(at.dir(d, "more", 0o755), Err(Kind::TooManyLinks));
    assert_eq!(at.rename(other, "x", d, "x"), Err(Kind::TooManyLinks));
    at.file(d, "file", 0o644).unwrap();
    assert_eq!(
        at.rename_with(other, "x", d, "file", RenameFlags::EXCHANGE),
        Err(Kind::TooManyLinks)
    );
    at.rename(other, "x", d, "d7").unwrap();
    v.check();
}
