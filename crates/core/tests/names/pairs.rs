//! Every pair of operations on one small tree, the one at each step of the other. What they return
//! and what they leave must be as if one had come after the other.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use stetfs::clock::Clock;
use stetfs::{
    Caller, Change, Error, FallocateMode, Fs, InUse, Kind, MountOptions, New, OpenFlags,
    RenameFlags, SetAttr, SetXattr, mode,
};
use stetfs_format::InodeNo;
use stetfs_media::RamDev;

use crate::image::{Volume, names_in};
use crate::steps::at_step;

/// What an operation returns, or what was wrong.
type Returned = Result<String, Kind>;

/// Files by path: type, links, length, content or target, and extended attribute.
type Tree = BTreeMap<String, (u16, u32, u64, String, String)>;

const ROOT: InodeNo = InodeNo(2);

/// The tree before:
///
/// | name | what it is |
/// |---|---|
/// | `a`, `c` | one file, which is open |
/// | `b` | a file |
/// | `d/x` | a file |
/// | `d/sub`, `e` | empty directories |
///
/// Two more files have lost their names and are open.
struct Place {
    fs: Fs,
    c: Caller,
    a: InodeNo,
    b: InodeNo,
    d: InodeNo,
    sub: InodeNo,
    e: InodeNo,
    unnamed: [InodeNo; 2],
}

/// Mounts with these files in use, without a thread of its own that commits.
fn mount(dev: &Arc<RamDev>, in_use: Option<Vec<InUse>>) -> Fs {
    let options = MountOptions {
        clock: Clock::still(1_600_000_000),
        commit: Duration::MAX,
        in_use,
        ..MountOptions::default()
    };
    Fs::mount(dev.clone(), options).unwrap().0
}

impl Place {
    /// Makes the tree on a volume.
    fn make(dev: &Arc<RamDev>) -> Self {
        let fs = mount(dev, None);
        let c = Caller::root();
        let file = |dir, name: &str, len: usize| {
            let ino = fs
                .create(&c, dir, name.as_bytes(), 0o644, OpenFlags::WRITE)
                .unwrap()
                .ino;
            fs.write(&c, ino, 0, &vec![name.as_bytes()[0]; len])
                .unwrap();
            ino
        };
        let dir = |at, name: &str| fs.mkdir(&c, at, name.as_bytes(), 0o755).unwrap().ino;
        let a = file(ROOT, "a", 3000);
        fs.link(&c, a, ROOT, b"c").unwrap();
        let b = file(ROOT, "b", 5000);
        fs.release(b).unwrap();
        let d = dir(ROOT, "d");
        fs.release(file(d, "x", 10)).unwrap();
        let (sub, e) = (dir(d, "sub"), dir(ROOT, "e"));
        let unnamed = ["o", "p"].map(|name| {
            let ino = file(ROOT, name, 2000);
            fs.unlink(&c, ROOT, name.as_bytes()).unwrap();
            ino
        });
        fs.sync().unwrap();
        Self {
            fs,
            c,
            a,
            b,
            d,
            sub,
            e,
            unnamed,
        }
    }

    /// Makes the same place on a copy of the volume.
    fn copy(&self, dev: &Arc<RamDev>) -> (Self, Arc<RamDev>) {
        let dev = Arc::new(dev.fork());
        let copy = Self {
            fs: mount(&dev, Some(self.fs.in_use())),
            c: self.c.clone(),
            ..*self
        };
        // What a file's first use prepares, it prepares under a lock that is not scheduled.
        copy.tree();
        (copy, dev)
    }

    fn change(&self, change: &Change<'_>) -> Returned {
        let changed = self.fs.change(&self.c, change);
        changed.map(|_| String::new()).map_err(|e| kind(&e))
    }

    fn resize(&self, ino: InodeNo, size: u64) -> Returned {
        let set = SetAttr {
            size: Some(size),
            ..SetAttr::default()
        };
        self.change(&Change::SetAttr(ino, &set))
    }

    fn read(&self, ino: InodeNo) -> Returned {
        let mut bytes = vec![0; 20_000];
        let n = self.fs.read(ino, 0, &mut bytes).map_err(|e| kind(&e))?;
        Ok(runs(&bytes[..n]))
    }

    fn tree(&self) -> Tree {
        let (mut tree, mut ways) = (Tree::new(), vec![(String::new(), ROOT)]);
        while let Some((way, dir)) = ways.pop() {
            for (name, ino) in names_in(&self.fs, dir).unwrap() {
                let path = format!("{way}/{}", name.escape_ascii());
                let attr = self.fs.getattr(ino).unwrap();
                let mut size = attr.size;
                let content = match attr.mode & mode::S_IFMT {
                    mode::S_IFREG => self.read(ino).unwrap(),
                    mode::S_IFLNK => runs(&self.fs.readlink(ino).unwrap()),
                    mode::S_IFDIR => {
                        self.fs.check_parent(ino, dir).unwrap();
                        ways.push((path.clone(), ino));
                        size = 0;
                        String::new()
                    }
                    _ => String::new(),
                };
                let value = self
                    .fs
                    .getxattr(&self.c, ino, b"user.x")
                    .unwrap_or_default();
                tree.insert(path, (attr.mode, attr.nlink, size, content, runs(&value)));
            }
        }
        tree
    }

    /// Returns everything that the operations have left.
    fn left(&self) -> (Tree, u64, u64) {
        let tree = self.tree();
        // The room that delayed data takes is known when it has its places.
        self.fs.sync().unwrap();
        let room = self.fs.statfs().unwrap();
        (tree, room.blocks_free, room.files_free)
    }
}

/// What was wrong. Whether a file that is being freed is still known is a matter of luck.
fn kind(error: &Error) -> Kind {
    match error.kind() {
        Kind::Stale => Kind::NotFound,
        kind => kind,
    }
}

/// Says in short which bytes these are.
fn runs(bytes: &[u8]) -> String {
    let runs = bytes.chunk_by(|a, b| a == b);
    runs.map(|run| format!("{}*{} ", run.len(), run[0].escape_ascii()))
        .collect()
}

type Operation = fn(&Place) -> Returned;

const OPERATIONS: [(&str, Operation); 36] = [
    ("mknod n", |p| {
        p.change(&Change::Make((ROOT, b"n"), New::File(0o644)))
    }),
    ("create a", |p| {
        let flags = OpenFlags::WRITE | OpenFlags::EXCLUSIVE;
        let made =
            p.fs.create(&p.c, ROOT, b"a", 0o644, flags)
                .map_err(|e| kind(&e))?;
        p.fs.release(made.ino).map_err(|e| kind(&e))?;
        Ok(String::new())
    }),
    ("open b by creating it", |p| {
        let made =
            p.fs.create(&p.c, ROOT, b"b", 0o644, OpenFlags::WRITE)
                .map_err(|e| kind(&e))?;
        p.fs.release(made.ino).map_err(|e| kind(&e))?;
        Ok(String::new())
    }),
    ("symlink e/s", |p| {
        p.change(&Change::Make((p.e, b"s"), New::Symlink(b"target")))
    }),
    ("mkdir e/m", |p| {
        p.change(&Change::Make((p.e, b"m"), New::Directory(0o755)))
    }),
    ("mkdir d/sub/m", |p| {
        p.change(&Change::Make((p.sub, b"m"), New::Directory(0o755)))
    }),
    ("unlink a", |p| p.change(&Change::Unlink((ROOT, b"a")))),
    ("unlink b", |p| p.change(&Change::Unlink((ROOT, b"b")))),
    ("unlink c", |p| p.change(&Change::Unlink((ROOT, b"c")))),
    ("unlink d/x", |p| p.change(&Change::Unlink((p.d, b"x")))),
    ("rmdir e", |p| p.change(&Change::Rmdir((ROOT, b"e")))),
    ("rmdir d/sub", |p| p.change(&Change::Rmdir((p.d, b"sub")))),
    ("link b as e/l", |p| {
        p.change(&Change::Link(p.b, (p.e, b"l")))
    }),
    ("link a as n", |p| {
        p.change(&Change::Link(p.a, (ROOT, b"n")))
    }),
    ("rename a to b", |p| {
        rename(p, (ROOT, b"a"), (ROOT, b"b"), RenameFlags::empty())
    }),
    ("rename b to a", |p| {
        rename(p, (ROOT, b"b"), (ROOT, b"a"), RenameFlags::empty())
    }),
    ("rename b to n", |p| {
        rename(p, (ROOT, b"b"), (ROOT, b"n"), RenameFlags::NOREPLACE)
    }),
    ("exchange a and b", |p| {
        rename(p, (ROOT, b"a"), (ROOT, b"b"), RenameFlags::EXCHANGE)
    }),
    ("exchange d/sub and e", |p| {
        rename(p, (p.d, b"sub"), (ROOT, b"e"), RenameFlags::EXCHANGE)
    }),
    ("rename b to w, with a whiteout", |p| {
        rename(p, (ROOT, b"b"), (ROOT, b"w"), RenameFlags::WHITEOUT)
    }),
    ("rename d to e", |p| {
        rename(p, (ROOT, b"d"), (ROOT, b"e"), RenameFlags::empty())
    }),
    ("rename e to d/sub", |p| {
        rename(p, (ROOT, b"e"), (p.d, b"sub"), RenameFlags::empty())
    }),
    ("rename d/sub to e/t", |p| {
        rename(p, (p.d, b"sub"), (p.e, b"t"), RenameFlags::empty())
    }),
    ("rename d/x to e/x", |p| {
        rename(p, (p.d, b"x"), (p.e, b"x"), RenameFlags::empty())
    }),
    ("close a", |p| {
        p.fs.release(p.a)
            .map(|()| String::new())
            .map_err(|e| kind(&e))
    }),
    ("close the older", |p| {
        p.fs.release(p.unnamed[0])
            .map(|()| String::new())
            .map_err(|e| kind(&e))
    }),
    ("close the newer", |p| {
        p.fs.release(p.unnamed[1])
            .map(|()| String::new())
            .map_err(|e| kind(&e))
    }),
    ("write a", |p| {
        let n =
            p.fs.write(&p.c, p.a, 100, &[b'w'; 6000])
                .map_err(|e| kind(&e))?;
        Ok(n.to_string())
    }),
    ("append to b", |p| {
        let (at, n) =
            p.fs.append(&p.c, p.b, &[b'+'; 2000])
                .map_err(|e| kind(&e))?;
        Ok(format!("{n} at {at}"))
    }),
    ("truncate a", |p| p.resize(p.a, 0)),
    ("extend b", |p| p.resize(p.b, 10_000)),
    ("punch b", |p| {
        let how = FallocateMode::PUNCH_HOLE | FallocateMode::KEEP_SIZE;
        let done = p.fs.fallocate(&p.c, p.b, how, 1024, 2048);
        done.map(|()| String::new()).map_err(|e| kind(&e))
    }),
    ("read a", |p| p.read(p.a)),
    ("list d", |p| {
        let names = names_in(&p.fs, p.d).map_err(|e| kind(&e))?;
        Ok(format!("{:?}", names.into_keys().collect::<Vec<_>>()))
    }),
    ("set an attribute of b", |p| {
        p.change(&Change::SetXattr(
            p.b,
            b"user.x",
            &[b'v'; 500],
            SetXattr::Any,
        ))
    }),
    ("fsync b", |p| {
        p.fs.fsync(p.b, false)
            .map(|()| String::new())
            .map_err(|e| kind(&e))
    }),
];

fn rename(p: &Place, from: (InodeNo, &[u8]), to: (InodeNo, &[u8]), flags: RenameFlags) -> Returned {
    p.change(&Change::Rename(from, to, flags))
}

/// What two operations have returned, and what they have left.
type Outcome = (Returned, Returned, (Tree, u64, u64));

/// Does both, the one at each step of the other. Returns the first outcome that is as if neither
/// had come first, with that step.
fn between(
    place: &dyn Fn() -> (Place, Arc<RamDev>),
    [this, other]: [Operation; 2],
    runs: &mut usize,
) -> Option<(usize, Outcome, [Outcome; 2])> {
    let in_turn = |first: Operation, second: Operation| {
        let (place, _) = place();
        (first(&place), second(&place), place.left())
    };
    let one = in_turn(this, other);
    let (by_other, by_this, left) = in_turn(other, this);
    let two = (by_this, by_other, left);
    for step in 0.. {
        let (place, dev) = place();
        let (by_this, by_other, has_step) = at_step(step, || this(&place), || other(&place));
        let is = (by_this, by_other, place.left());
        if is != one && is != two {
            return Some((step, is, [one, two]));
        }
        *runs += 1;
        if runs.is_multiple_of(500) {
            for ino in place.unnamed.iter().chain([&place.a]) {
                let _ = place.fs.release(*ino);
            }
            place.fs.unmount().unwrap();
            Volume::judge(&dev, &format!("run {runs}"));
        }
        if !has_step {
            break;
        }
    }
    None
}

#[test]
fn two_operations_at_each_step_of_each_other_are_as_one_after_the_other() {
    let dev = Volume::device(&Volume::image("-t ext4 -b 1024", 8));
    let made = Place::make(&dev);
    let place = || made.copy(&dev);
    let (mut runs, mut wrong) = (0, Vec::new());
    for (this_name, this) in OPERATIONS {
        for (other_name, other) in OPERATIONS {
            if let Some((step, is, not)) = between(&place, [this, other], &mut runs) {
                wrong.push(format!(
                    "{other_name} at step {step} of {this_name}:\n{is:?}\nneither\n{:?}\nnor\n{:?}",
                    not[0], not[1]
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(runs > 20_000, "{runs} runs");
}
