//! A program keeps a log of what it does to a volume, dies at some moment, and does once more what
//! the volume has lost ([`Fs::redo`]). The judge is the mount that did not die: both must have the
//! same files, with the same numbers, generations, times, attributes and content.

use std::collections::BTreeMap;
use std::sync::Arc;

use smallvec::smallvec;
use stetfs::clock::Clock;
use stetfs::{
    Atime, Caller, Change, Changed, Error, Fs, InUse, MountOptions, New, OpenFlags, Past,
    RenameFlags, SetAttr, SetXattr, mode,
};
use stetfs_format::{InodeNo, Time};
use stetfs_media::RamDev;

use crate::image::{Random, Volume, names_in};

type Name = (InodeNo, Vec<u8>);

/// What was done, with all its arguments.
#[derive(Debug, Clone)]
enum Did {
    Create(Name),
    Unnamed(InodeNo),
    Mkdir(Name),
    Symlink(Name, Vec<u8>),
    Pipe(Name),
    Link(InodeNo, Name),
    Unlink(Name),
    Rmdir(Name),
    Rename(Name, Name, RenameFlags),
    Truncate(InodeNo, u64),
    Chmod(InodeNo, u16),
    SetXattr(InodeNo, Vec<u8>),
    Write(InodeNo, u64, Vec<u8>),
}

/// Does it. Returns the inode that it made, named, changed or removed. What is made here with
/// [`Did::Create`] and [`Did::Unnamed`] is open.
fn act(fs: &Fs, did: &Did) -> stetfs::Result<InodeNo> {
    let c = &Caller::root();
    let flags = OpenFlags::READ | OpenFlags::WRITE;
    let change = match did {
        Did::Create((dir, name)) => {
            let made = fs.create(c, *dir, name, 0o644, flags | OpenFlags::EXCLUSIVE);
            return made.map(|entry| entry.ino);
        }
        Did::Unnamed(dir) => {
            return fs
                .create_unnamed(c, *dir, 0o600, flags)
                .map(|entry| entry.ino);
        }
        Did::Write(ino, at, bytes) => {
            let mut done = 0;
            while done < bytes.len() {
                done += fs.write(c, *ino, at + done as u64, &bytes[done..])?;
            }
            return Ok(*ino);
        }
        Did::Mkdir((dir, name)) => Change::Make((*dir, name), New::Directory(0o755)),
        Did::Symlink((dir, name), to) => Change::Make((*dir, name), New::Symlink(to)),
        Did::Pipe((dir, name)) => {
            Change::Make((*dir, name), New::Node(mode::S_IFIFO | 0o600, (0, 0)))
        }
        Did::Link(ino, (dir, name)) => Change::Link(*ino, (*dir, name)),
        Did::Unlink((dir, name)) => Change::Unlink((*dir, name)),
        Did::Rmdir((dir, name)) => Change::Rmdir((*dir, name)),
        Did::Rename((dir, name), (to, new), flags) => {
            Change::Rename((*dir, name), (*to, new), *flags)
        }
        Did::Truncate(ino, size) => {
            let set = SetAttr {
                size: Some(*size),
                ..SetAttr::default()
            };
            return fs.setattr(c, *ino, &set).map(|_| *ino);
        }
        Did::Chmod(ino, mode) => {
            let set = SetAttr {
                mode: Some(*mode),
                ..SetAttr::default()
            };
            return fs.setattr(c, *ino, &set).map(|_| *ino);
        }
        Did::SetXattr(ino, value) => Change::SetXattr(*ino, b"user.x", value, SetXattr::Any),
    };
    fs.change(c, &change).map(|attr| attr.ino)
}

impl Did {
    fn is_made(&self) -> bool {
        use Did::{Create, Mkdir, Pipe, Rename, Symlink, Unnamed};
        let leaves_whiteout =
            matches!(self, Rename(.., flags) if flags.contains(RenameFlags::WHITEOUT));
        leaves_whiteout
            || matches!(
                self,
                Create(_) | Unnamed(_) | Mkdir(_) | Symlink(..) | Pipe(_)
            )
    }

    /// The directories whose names it changes, or the file that it changes.
    fn changes(&self) -> (Vec<InodeNo>, Option<InodeNo>) {
        match self {
            Did::Create((dir, _))
            | Did::Mkdir((dir, _))
            | Did::Symlink((dir, _), _)
            | Did::Pipe((dir, _))
            | Did::Link(_, (dir, _))
            | Did::Unlink((dir, _))
            | Did::Rmdir((dir, _)) => (vec![*dir], None),
            Did::Rename((dir, _), (to, _), _) => (vec![*dir, *to], None),
            Did::Unnamed(_) => (Vec::new(), None),
            Did::Truncate(ino, _)
            | Did::Chmod(ino, _)
            | Did::SetXattr(ino, _)
            | Did::Write(ino, ..) => (Vec::new(), Some(*ino)),
        }
    }
}

/// Everything that can be seen of a file; of a directory, with what is below.
type Seen = BTreeMap<Vec<u8>, (stetfs::Attr, Vec<u8>)>;

fn look(fs: &Fs, path: &[u8], ino: InodeNo, seen: &mut Seen) {
    let mut attr = fs
        .getattr(ino)
        .unwrap_or_else(|e| panic!("{}: {e}", path.escape_ascii()));
    // Where blocks lie, and how many of them a tree of blocks needs, is free.
    attr.blocks = 0;
    let mut content = match attr.mode & mode::S_IFMT {
        mode::S_IFREG => {
            let mut content = vec![0; attr.size as usize];
            assert_eq!(fs.read(ino, 0, &mut content).unwrap(), content.len());
            content
        }
        mode::S_IFLNK => fs.readlink(ino).unwrap(),
        _ => Vec::new(),
    };
    if let Ok(value) = fs.getxattr(&Caller::root(), ino, b"user.x") {
        content.extend(value);
    }
    if attr.is_dir() {
        attr.size = 0;
        for (name, below) in names_in(fs, ino).unwrap() {
            look(fs, &[path, b"/", &name].concat(), below, seen);
        }
    }
    seen.insert(path.to_vec(), (attr, content));
}

/// A program with its mount, its log, and the files that it has open.
struct Life {
    fs: Fs,
    dev: Arc<RamDev>,
    clock: Clock,
    now: u64,
    log: Vec<(Past, Did)>,
    open: BTreeMap<InodeNo, InUse>,
}

fn options(clock: &Clock, scheme: &str) -> MountOptions {
    MountOptions {
        clock: clock.clone(),
        redo: true,
        // The times of reads are not in the log.
        atime: Atime::Never,
        ..MountOptions::parse(scheme).unwrap()
    }
}

impl Life {
    /// Does something. What fails has left nothing behind.
    fn act(&mut self, did: Did) -> Option<InodeNo> {
        self.now += 1_000_000_000;
        self.clock.set(self.now);
        let about = |ino: InodeNo| self.fs.getattr(ino).unwrap();
        let (dirs, file) = did.changes();
        let file = file.map(|ino| Changed {
            ino,
            generation: about(ino).generation,
            version: None,
        });
        let ino = act(&self.fs, &did).ok()?;
        let dirs = dirs.into_iter().map(|ino| Changed {
            ino,
            generation: about(ino).generation,
            version: Some(about(ino).version),
        });
        let made = match &did {
            Did::Rename((dir, name), _, flags) if flags.contains(RenameFlags::WHITEOUT) => {
                Some(self.fs.lookup(&Caller::root(), *dir, name).unwrap().ino)
            }
            _ => did.is_made().then_some(ino),
        };
        let past = Past {
            at: Time {
                sec: (self.now / 1_000_000_000) as i64,
                nsec: 0,
            },
            made: made.map(|ino| (ino, about(ino).generation)),
            changed: dirs.chain(file).collect(),
        };
        if matches!(did, Did::Create(_) | Did::Unnamed(_)) {
            let is_nameable = matches!(did, Did::Unnamed(_));
            self.open.insert(
                ino,
                InUse {
                    ino: ino.0,
                    generation: about(ino).generation,
                    opens: 1,
                    is_held: false,
                    is_nameable,
                    places_on_close: false,
                },
            );
        }
        if let Did::Link(ino, _) = &did
            && let Some(open) = self.open.get_mut(ino)
        {
            open.is_nameable = false;
        }
        self.log.push((past, did));
        Some(ino)
    }

    fn seen(&self, fs: &Fs) -> Seen {
        let mut seen = Seen::new();
        look(fs, b"", fs.root(), &mut seen);
        for ino in self.open.keys() {
            look(fs, format!("open {ino}").as_bytes(), *ino, &mut seen);
        }
        seen
    }

    /// Goes on with a volume after a death, with the first `count` operations of the log. Returns
    /// how many of them the volume had lost.
    fn go_on(&self, dev: &Arc<RamDev>, count: usize, scheme: &str, what: &str) -> (Fs, usize) {
        let open: Vec<_> = self.open.values().copied().collect();
        // A file without a name may still have to get the one that it has.
        let nameable = |one: &InUse| InUse {
            is_nameable: true,
            ..*one
        };
        let options = MountOptions {
            in_use: Some(open.iter().map(nameable).collect()),
            ..options(&Clock::still(1), scheme)
        };
        let (fs, _) = Fs::mount(dev.clone(), options).unwrap();
        let (mut lost, mut closed) = (0, Vec::new());
        for (past, did) in &self.log[..count] {
            let made = past.made;
            let redone = fs.redo(past.clone(), |fs| act(fs, did));
            let redone = redone.unwrap_or_else(|e| panic!("{what}: {did:?}, {past:?}: {e}"));
            let Some(ino) = redone else { continue };
            lost += 1;
            if matches!(did, Did::Create(_) | Did::Unnamed(_)) {
                let is_it = |open: &&InUse| made == Some((ino, open.generation));
                match self.open.get(&ino).filter(is_it) {
                    Some(open) => fs.use_again(&[nameable(open)]).unwrap(),
                    // One without a name may get it yet.
                    None => closed.push(ino),
                }
            }
        }
        for ino in closed {
            fs.release(ino).unwrap();
        }
        fs.use_again(&open).unwrap();
        (fs, lost)
    }

    /// Lets the program die on a copy of the volume, and the one that goes on after `first`
    /// operations of the log, with some of them committed. Then another goes on and is compared.
    /// Returns how many operations the volume had lost.
    fn die(&self, first: usize, scheme: &str, what: &str) -> usize {
        let dev = Arc::new(self.dev.fork());
        let (fs, lost) = self.go_on(&dev, first, scheme, what);
        fs.commit().unwrap();
        let dev = Arc::new(dev.fork());
        drop(fs);
        let (fs, more) = self.go_on(&dev, self.log.len(), scheme, what);
        let (is, should_be) = (self.seen(&fs), self.seen(&self.fs));
        for (path, (attr, content)) in &should_be {
            let path_shown = path.escape_ascii();
            let found = is.get(path);
            assert_eq!(
                found.map(|found| &found.0),
                Some(attr),
                "{what}: {path_shown}"
            );
            let is_same = found.is_some_and(|found| found.1 == *content);
            assert!(is_same, "{what}: the content of {path_shown}");
        }
        assert_eq!(is.len(), should_be.len(), "{what}");
        for ino in self.open.keys() {
            fs.release(*ino).unwrap();
        }
        fs.unmount().unwrap();
        Volume::judge(&dev, what);
        lost + more
    }
}

const NAMES: [&[u8]; 6] = [b"a", b"b", b"c", b"d", b"e", &[b'n'; 200]];

fn some(random: &mut Random, all: &[InodeNo]) -> InodeNo {
    all[random.below(all.len())]
}

/// Draws what to do next among these directories and files.
fn draw(random: &mut Random, dirs: &[InodeNo], files: &[InodeNo]) -> Did {
    let name = |random: &mut Random| {
        let name = NAMES[random.below(NAMES.len())].to_vec();
        (some(random, dirs), name)
    };
    let file = some(random, files);
    match random.below(16) {
        0 | 1 => Did::Create(name(random)),
        2 => Did::Mkdir(name(random)),
        3 => {
            let len = [10, 200][random.below(2)];
            Did::Symlink(name(random), vec![b't'; len])
        }
        4 => Did::Pipe(name(random)),
        5 => Did::Link(file, name(random)),
        6 | 7 => Did::Unlink(name(random)),
        8 => Did::Rmdir(name(random)),
        9..12 => {
            let all = [
                RenameFlags::empty(),
                RenameFlags::NOREPLACE,
                RenameFlags::EXCHANGE,
                RenameFlags::WHITEOUT,
            ];
            let flags = all[random.below(all.len())];
            Did::Rename(name(random), name(random), flags)
        }
        12 => Did::Truncate(file, random.below(20_000) as u64),
        13 => match random.below(3) {
            0 => Did::Unnamed(some(random, dirs)),
            1 => Did::Chmod(file, random.below(0o1000) as u16),
            _ => Did::SetXattr(file, vec![b'v'; random.below(300)]),
        },
        _ => {
            let bytes = vec![random.next() as u8; 1 + random.below(9_000)];
            Did::Write(file, random.below(30_000) as u64, bytes)
        }
    }
}

fn run(mke2fs: &str, scheme: &str, seed: u64) {
    let dev = Volume::device(&Volume::image(mke2fs, 32));
    let clock = Clock::still(1_600_000_000);
    let (fs, _) = Fs::mount(dev.clone(), options(&clock, scheme)).unwrap();
    let mut life = Life {
        fs,
        dev,
        clock,
        now: 1_600_000_000_000_000_000,
        log: Vec::new(),
        open: BTreeMap::new(),
    };
    let random = &mut Random::new(seed);
    let first = life
        .act(Did::Create((life.fs.root(), b"first".to_vec())))
        .unwrap();
    let mut lost = 0;
    for at in 0..600 {
        let mut seen = Seen::new();
        look(&life.fs, b"", life.fs.root(), &mut seen);
        let of = |is_dir| {
            let is_so = move |attr: &&stetfs::Attr| attr.is_dir() == is_dir;
            let attrs = seen.values().map(|(attr, _)| attr).filter(is_so);
            attrs
                .filter(move |attr| is_dir || attr.mode & mode::S_IFMT == mode::S_IFREG)
                .map(|attr| attr.ino)
        };
        let dirs: Vec<_> = of(true).collect();
        let files: Vec<_> = of(false)
            .chain(life.open.keys().copied())
            .chain([first])
            .collect();
        life.act(draw(random, &dirs, &files));
        match random.below(60) {
            0 => {
                life.fs.sync().unwrap();
                life.log.clear();
            }
            1 => life.fs.commit().unwrap(),
            2 => life.fs.fsync(some(random, &files), false).unwrap(),
            3 if life.open.len() > 3 => {
                let ino = *life.open.keys().nth(1).unwrap();
                let is_unnamed =
                    life.fs.getattr(ino).unwrap().nlink == 0 && life.open[&ino].is_nameable;
                if ino != first && !is_unnamed {
                    life.open.remove(&ino);
                    life.fs.release(ino).unwrap();
                }
            }
            4..8 => {
                let first = random.below(life.log.len() + 1);
                let what = format!("{mke2fs}, {scheme}, seed {seed}, {at}");
                lost += life.die(first, scheme, &what);
            }
            _ => {}
        }
    }
    assert!(lost > 100, "{lost} operations were done once more");
}

#[test]
fn nothing_is_missing_after_a_death() {
    let kinds = [
        "-t ext4 -b 1024",
        "-t ext4 -b 4096 -O orphan_file",
        "-t ext3 -b 1024 -I 128",
        "-t ext4 -b 2048 -O ^metadata_csum,uninit_bg",
    ];
    for (mke2fs, scheme) in
        kinds
            .into_iter()
            .zip(["", "scheme=stet", "data=journal", "scheme=stet"])
    {
        for seed in 1..4 {
            run(mke2fs, scheme, seed);
        }
    }
}

/// Inodes of a new group are taken in another order than before: those between are free.
#[test]
fn inodes_are_taken_in_any_order() {
    let dev = Volume::device(&Volume::image("-t ext4 -b 1024 -E lazy_itable_init=1", 16));
    let (fs, _) = Fs::mount(dev.clone(), options(&Clock::still(1), "")).unwrap();
    let root = fs.getattr(fs.root()).unwrap();
    for (version, ino) in [(1, 300), (2, 13), (3, 299), (4, 301)] {
        let past = Past {
            at: Time {
                sec: 1_600_000_000,
                nsec: 5,
            },
            made: Some((InodeNo(ino), ino * 7)),
            changed: smallvec![Changed {
                ino: root.ino,
                generation: root.generation,
                version: Some(version),
            }],
        };
        let did = Did::Mkdir((root.ino, ino.to_string().into_bytes()));
        let made = fs.redo(past.clone(), |fs| act(fs, &did)).unwrap();
        assert_eq!(made, Some(InodeNo(ino)));
        assert_eq!(fs.getattr(InodeNo(ino)).unwrap().generation, ino * 7);
        assert_eq!(
            fs.redo(past, |fs| act(fs, &did)).unwrap(),
            None,
            "it is there"
        );
    }
    let next = fs.mkdir(&Caller::root(), root.ino, b"next", 0o755).unwrap();
    assert!(
        next.ino.0 < 299,
        "the free ones between are used: {}",
        next.ino
    );
    fs.unmount().unwrap();
    Volume::judge(&dev, "inodes in any order");
}

/// A number that another file has is an error, also where an existing file would be opened.
#[test]
fn a_number_in_use_is_told() {
    let dev = Volume::device(&Volume::image("-t ext4 -b 1024", 16));
    let (fs, _) = Fs::mount(dev, options(&Clock::still(1), "")).unwrap();
    let root = fs.getattr(fs.root()).unwrap();
    let made = fs.mkdir(&Caller::root(), root.ino, b"dir", 0o755).unwrap();
    let past = Past {
        made: Some((made.ino, 7)),
        changed: smallvec![Changed {
            ino: root.ino,
            generation: root.generation,
            version: Some(root.version + 2),
        }],
        ..Past::default()
    };
    let create = |fs: &Fs| {
        let c = Caller::root();
        fs.create(&c, root.ino, b"file", 0o644, OpenFlags::WRITE)
    };
    assert!(matches!(fs.redo(past, create), Err(Error::Exists)));
    fs.unmount().unwrap();
}
