//! One thread of the stress test: random operations in its own directory, of which it has a model,
//! and in the shared one.

use std::collections::BTreeMap;
use std::sync::Arc;

use stetfs::{
    Caller, Error, FallocateMode, Fs, Kind, OpenFlags, RenameFlags, SetAttr, SetXattr, WriteFlags,
};
use stetfs_format::InodeNo;

use crate::volume::Random;

const RW: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);

/// The number of names in a thread's own directory: in a run that is cut, and in a quiet run, where
/// inodes leave memory and are loaded again.
const NAMES: [u64; 2] = [10, 60];
/// The largest file, in bytes.
const SIZE_MAX: u64 = 300_000;
/// The longest write in a run that is cut, in bytes: one handle must hold it.
const CUT_WRITE_MAX: u64 = 12_000;

/// What a run does, and how it is judged.
#[derive(Clone, Copy)]
pub(crate) struct Rules {
    /// The power goes off: only operations of one handle, and an error ends the run.
    pub(crate) cut: bool,
    /// Data survives with its transaction.
    pub(crate) atomic_data: bool,
    /// The volume is unmounted meanwhile, which frees open files without names.
    pub(crate) unmounted: bool,
}

impl Rules {
    pub(crate) const QUIET: Self = Self {
        cut: false,
        atomic_data: false,
        unmounted: false,
    };
    pub(crate) const CUT: Self = Self {
        cut: true,
        atomic_data: false,
        unmounted: false,
    };
}

/// A file as the thread knows it; `version` changes with every change.
#[derive(Clone)]
struct File {
    ino: InodeNo,
    content: Arc<Vec<u8>>,
    version: u64,
    /// The version that a sync of this file has confirmed.
    synced: Option<u64>,
}

/// The files of the directory at one moment, by name.
type State = BTreeMap<Vec<u8>, File>;

/// The files after a mount, by name: inode and content.
type Found = BTreeMap<Vec<u8>, (InodeNo, Vec<u8>)>;

/// In what a [`State`] differs from what was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Difference {
    Names,
    /// The length of this inode; in the state it is this many bytes.
    Length(InodeNo, usize),
    /// The content of this inode, from this byte on.
    Byte(InodeNo, usize),
}

pub(crate) struct Worker {
    fs: Fs,
    c: Caller,
    rules: Rules,
    random: Random,
    name: Vec<u8>,
    dir: InodeNo,
    shared: InodeNo,
    files: State,
    /// Unlinked files that are still open.
    open: Vec<(InodeNo, Arc<Vec<u8>>)>,
    /// Every state that a cut may leave, oldest first, and the index of the first that is still
    /// possible.
    history: Vec<State>,
    possible: usize,
    versions: u64,
    /// The last random operation (from 1000 on: in the shared directory) and its file, for the
    /// message of a failure.
    drawn: (u64, Option<InodeNo>),
}

impl Worker {
    pub(crate) fn new(fs: &Fs, n: u64, seed: u64, rules: Rules) -> Self {
        let c = Caller::root();
        let name = format!("own{n}").into_bytes();
        let dir = fs.mkdir(&c, fs.root(), &name, 0o755).unwrap().ino;
        let shared = match fs.mkdir(&c, fs.root(), b"shared", 0o755) {
            Ok(entry) => entry.ino,
            Err(_) => fs.lookup(&c, fs.root(), b"shared").unwrap().ino,
        };
        Self {
            fs: fs.clone(),
            c,
            rules,
            random: Random::new(seed * 1000 + n),
            name,
            dir,
            shared,
            files: State::new(),
            open: Vec::new(),
            history: vec![State::new()],
            possible: 0,
            versions: 0,
            drawn: (0, None),
        }
    }

    /// Does one operation. Returns false when the power is off.
    pub(crate) fn step(&mut self) -> bool {
        let result = match self.random.below(8) {
            0..2 => self.quarrel(),
            _ => self.work(),
        };
        if self.rules.cut {
            self.history.push(self.files.clone());
        }
        match result {
            Ok(()) => true,
            Err(Error::NoSpace) => true,
            Err(e)
                if self.rules.cut
                    && matches!(e.kind(), Kind::Io | Kind::ReadOnly | Kind::ShutDown) =>
            {
                // The operation may have happened or not.
                false
            }
            Err(Error::Stale) if self.rules.unmounted => false,
            // Once the journal has stopped, the state in memory does not matter.
            Err(Error::Stale) if self.rules.cut && self.fs.sync().is_err() => false,
            Err(e) => {
                let (choice, ino) = self.drawn;
                let synced = self.fs.sync();
                panic!("{e} ({e:?}): choice {choice}, inode {ino:?}; and a sync: {synced:?}")
            }
        }
    }

    fn some_name(&mut self) -> Vec<u8> {
        let n = self.random.below(NAMES[usize::from(!self.rules.cut)]);
        let long = if n.is_multiple_of(3) {
            "-with-a-long-name".repeat(8)
        } else {
            String::new()
        };
        format!("{n}{long}").into_bytes()
    }

    fn some_file(&mut self) -> Option<(Vec<u8>, File)> {
        if self.files.is_empty() {
            return None;
        }
        let n = self.random.below(self.files.len() as u64) as usize;
        let (name, file) = self.files.iter().nth(n)?;
        Some((name.clone(), file.clone()))
    }

    fn bytes(&mut self, len: u64) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(len as usize + 8);
        let stamp = self.random.next() | 1;
        while (bytes.len() as u64) < len {
            bytes.extend_from_slice(&(stamp ^ bytes.len() as u64).to_le_bytes());
        }
        bytes.truncate(len as usize);
        bytes
    }

    fn work(&mut self) -> Result<(), Error> {
        let choice = self.random.below(100);
        self.drawn = (choice, None);
        let Some((name, file)) = self.some_file().filter(|_| choice >= 8) else {
            return self.create();
        };
        self.drawn = (choice, Some(file.ino));
        match choice {
            8..40 => self.write(name, file),
            40..46 => self.truncate(name, file),
            46..58 => self.sync(&name, &file, choice.is_multiple_of(2)),
            58..64 => self.unlink(name, file),
            64..72 => self.rename(name, file),
            72..78 => self.read(&file),
            78..80 => self.close_one(),
            80..82 => {
                self.fs.sync()?;
                self.possible = self.history.len();
                self.files
                    .values_mut()
                    .for_each(|f| f.synced = Some(f.version));
                Ok(())
            }
            82..85 => self.xattr(&file),
            85..88 => self.link(name, file),
            88..90 => self.list(),
            _ if self.rules.cut => self.keep_size(&file),
            90..94 => self.punch(name, file),
            94..96 => self.zero(name, file),
            96..98 => self.keep_size(&file),
            _ => self.copy(name, file),
        }
    }

    fn changed(&mut self, name: Vec<u8>, ino: InodeNo, content: Vec<u8>) {
        self.versions += 1;
        // A file's other names change with it.
        let content = Arc::new(content);
        let version = self.versions;
        let file = File {
            ino,
            content: content.clone(),
            version,
            synced: None,
        };
        self.files.insert(name, file);
        for other in self.files.values_mut().filter(|f| f.ino == ino) {
            other.content = content.clone();
            other.version = version;
        }
        for open in self.open.iter_mut().filter(|open| open.0 == ino) {
            open.1 = content.clone();
        }
    }

    fn create(&mut self) -> Result<(), Error> {
        let name = self.some_name();
        let entry = match self
            .fs
            .create(&self.c, self.dir, &name, 0o644, RW | OpenFlags::EXCLUSIVE)
        {
            Err(Error::Exists) if self.files.contains_key(&name) => return Ok(()),
            result => result?,
        };
        assert!(!self.files.contains_key(&name), "made twice");
        self.changed(name, entry.ino, Vec::new());
        self.fs.release(entry.ino)
    }

    fn write(&mut self, name: Vec<u8>, file: File) -> Result<(), Error> {
        let most = if self.rules.cut {
            CUT_WRITE_MAX
        } else {
            60_000
        };
        let len = match self.random.below(4) {
            0 => 1 + self.random.below(100),
            1 => 4096,
            _ => 1 + self.random.below(most),
        };
        let bytes = self.bytes(len);
        let size = file.content.len() as u64;
        let append = self.random.below(3) == 0;
        let at = match (append, self.random.below(6)) {
            (true, _) => size,
            (_, 0) => self.random.below(SIZE_MAX - len),
            _ => self.random.below(size + 1),
        };
        if at + len > SIZE_MAX {
            return Ok(());
        }
        let flags = if append {
            WriteFlags::APPEND
        } else {
            WriteFlags::empty()
        };
        let mut content = file.content.to_vec();
        let before = self.files.clone();
        let wrote = self.fs.write_with(&self.c, file.ino, at, &bytes, flags);
        let n = match &wrote {
            Ok((where_, n)) => {
                assert_eq!(*where_, at);
                *n
            }
            Err(e) if self.rules.cut && !matches!(e, Error::NoSpace) => bytes.len(),
            Err(_) => 0,
        };
        if n > 0 {
            if self.rules.cut {
                // A write may take several handles, each of which ends at the end of a block.
                let ends = (1..=n as u64).filter(|i| (at + i) % 1024 == 0);
                for end in ends.collect::<Vec<_>>() {
                    let mut part = content.clone();
                    put(&mut part, at as usize, &bytes[..end as usize]);
                    self.changed(name.clone(), file.ino, part);
                    self.history.push(self.files.clone());
                }
                self.files = before;
            }
            put(&mut content, at as usize, &bytes[..n]);
            self.changed(name, file.ino, content);
        }
        wrote.map(|_| ())
    }

    fn truncate(&mut self, name: Vec<u8>, file: File) -> Result<(), Error> {
        let size = self.random.below(SIZE_MAX / 3);
        let set = SetAttr {
            size: Some(size),
            ..SetAttr::default()
        };
        let result = self.fs.setattr(&self.c, file.ino, &set);
        if result.is_ok() || self.rules.cut {
            let mut content = file.content.to_vec();
            content.resize(size as usize, 0);
            self.changed(name, file.ino, content);
        }
        result.map(|_| ())
    }

    fn sync(&mut self, name: &[u8], file: &File, datasync: bool) -> Result<(), Error> {
        self.fs.fsync(file.ino, datasync)?;
        let version = file.version;
        if let Some(file) = self.files.get_mut(name) {
            file.synced = Some(version);
        }
        Ok(())
    }

    fn unlink(&mut self, name: Vec<u8>, file: File) -> Result<(), Error> {
        let keep = self.random.below(3) == 0;
        if keep {
            self.fs.open(&self.c, file.ino, RW)?;
        }
        self.files.remove(&name);
        if keep {
            self.open.push((file.ino, file.content));
        }
        self.fs.unlink(&self.c, self.dir, &name)
    }

    fn close_one(&mut self) -> Result<(), Error> {
        let Some((ino, content)) = self.open.pop() else {
            return Ok(());
        };
        self.compare(&self.fs, ino, &content, "an open file")?;
        self.fs.release(ino)
    }

    fn rename(&mut self, name: Vec<u8>, file: File) -> Result<(), Error> {
        let to = self.some_name();
        if to == name {
            return Ok(());
        }
        let there = self.files.get(&to).cloned();
        let exchange = there.is_some() && self.random.below(3) == 0;
        let flags = if exchange {
            RenameFlags::EXCHANGE
        } else {
            RenameFlags::empty()
        };
        let result = self
            .fs
            .rename(&self.c, self.dir, &name, self.dir, &to, flags);
        if result.is_err() && !self.rules.cut {
            return result;
        }
        if there.as_ref().is_some_and(|t| t.ino == file.ino) {
            return result;
        }
        self.files.remove(&name);
        // An earlier sync of the file has not confirmed its new name.
        self.files.insert(
            to,
            File {
                synced: None,
                ..file
            },
        );
        if let (true, Some(there)) = (exchange, there) {
            self.files.insert(
                name,
                File {
                    synced: None,
                    ..there
                },
            );
        }
        result
    }

    fn link(&mut self, _: Vec<u8>, file: File) -> Result<(), Error> {
        let to = self.some_name();
        match self.fs.link(&self.c, file.ino, self.dir, &to) {
            Err(Error::Exists) if self.files.contains_key(&to) => Ok(()),
            Err(e) if !self.rules.cut => Err(e),
            result => {
                self.files.insert(
                    to,
                    File {
                        synced: None,
                        ..file
                    },
                );
                result.map(|_| ())
            }
        }
    }

    fn compare(&self, fs: &Fs, ino: InodeNo, content: &[u8], what: &str) -> Result<(), Error> {
        let mut out = vec![0xEE; content.len() + 100];
        let n = fs.read(ino, 0, &mut out)?;
        out.truncate(n);
        if out != content {
            let first = out.iter().zip(content).position(|(a, b)| a != b);
            let (found, wanted) = (out.len(), content.len());
            panic!(
                "{what}, inode {ino}: {found} of {wanted} bytes, the first other one at {first:?}"
            );
        }
        Ok(())
    }

    fn read(&mut self, file: &File) -> Result<(), Error> {
        let len = file.content.len() as u64;
        let at = self.random.below(len + 1);
        let mut out = vec![0xEE; self.random.below(20_000) as usize];
        let n = self.fs.read(file.ino, at, &mut out)?;
        assert_eq!(n as u64, (out.len() as u64).min(len - at));
        let wanted = &file.content[at as usize..at as usize + n];
        assert!(out[..n] == *wanted, "inode {} at {at}, {n} bytes", file.ino);
        Ok(())
    }

    fn xattr(&mut self, file: &File) -> Result<(), Error> {
        let len = [10, 100, 600][self.random.below(3) as usize];
        let value = vec![self.random.below(2) as u8; len];
        match self.random.below(4) {
            0 => match self.fs.removexattr(&self.c, file.ino, b"user.x") {
                Err(Error::NoData) => Ok(()),
                result => result,
            },
            _ => self
                .fs
                .setxattr(&self.c, file.ino, b"user.x", &value, SetXattr::Any),
        }
    }

    fn list(&mut self) -> Result<(), Error> {
        let names = listed(&self.fs, self.dir)?;
        assert_eq!(names, self.files.keys().cloned().collect::<Vec<_>>());
        Ok(())
    }

    fn range(&mut self) -> (u64, u64) {
        let at = self.random.below(SIZE_MAX / 2);
        (at, 1 + self.random.below(50_000))
    }

    fn keep_size(&mut self, file: &File) -> Result<(), Error> {
        let (at, len) = self.range();
        self.fs
            .fallocate(&self.c, file.ino, FallocateMode::KEEP_SIZE, at, len)
            .or_else(unsupported)
    }

    fn punch(&mut self, name: Vec<u8>, file: File) -> Result<(), Error> {
        let (at, len) = self.range();
        let mode = FallocateMode::PUNCH_HOLE | FallocateMode::KEEP_SIZE;
        let result = self.fs.fallocate(&self.c, file.ino, mode, at, len);
        self.zeroed(name, file, at, len, false, result)
    }

    fn zero(&mut self, name: Vec<u8>, file: File) -> Result<(), Error> {
        let (at, len) = self.range();
        let mode = FallocateMode::ZERO_RANGE;
        let result = self.fs.fallocate(&self.c, file.ino, mode, at, len);
        if let Err(Error::NotSupported) = result {
            return Ok(());
        }
        self.zeroed(name, file, at, len, true, result)
    }

    fn zeroed(
        &mut self,
        name: Vec<u8>,
        file: File,
        at: u64,
        len: u64,
        grows: bool,
        result: Result<(), Error>,
    ) -> Result<(), Error> {
        let mut content = file.content.to_vec();
        if result.is_err() {
            // The operation may have done a part.
            content.resize(SIZE_MAX as usize, 0);
            let n = self.fs.read(file.ino, 0, &mut content)?;
            content.truncate(n);
        } else {
            if grows && content.len() < (at + len) as usize {
                content.resize((at + len) as usize, 0);
            }
            let end = ((at + len) as usize).min(content.len());
            if (at as usize) < end {
                content[at as usize..end].fill(0);
            }
        }
        self.changed(name, file.ino, content);
        result
    }

    fn copy(&mut self, name: Vec<u8>, file: File) -> Result<(), Error> {
        let Some((_, from)) = self.some_file().filter(|(_, from)| from.ino != file.ino) else {
            return Ok(());
        };
        let at = self.random.below(from.content.len() as u64 + 1);
        let to = self.random.below(SIZE_MAX / 2);
        let len = self.random.below(SIZE_MAX / 2);
        let n = self
            .fs
            .copy_range(&self.c, (from.ino, at), (file.ino, to), len);
        let mut content = vec![0; SIZE_MAX as usize];
        match n {
            Ok(n) => {
                content = file.content.to_vec();
                let bytes = from.content[at as usize..(at + n) as usize].to_vec();
                if n > 0 {
                    put(&mut content, to as usize, &bytes);
                }
            }
            Err(_) => {
                let n = self.fs.read(file.ino, 0, &mut content)?;
                content.truncate(n);
            }
        }
        self.changed(name, file.ino, content);
        n.map(|_| ())
    }

    /// Does something in the shared directory, which others change at the same time.
    fn quarrel(&mut self) -> Result<(), Error> {
        let (fs, c, dir) = (self.fs.clone(), self.c.clone(), self.shared);
        let name = |random: &mut Random| format!("s{}", random.below(6)).into_bytes();
        let (x, y) = (name(&mut self.random), name(&mut self.random));
        let len = self.random.below(30_000);
        let bytes = self.bytes(len);
        let choice = self.random.below(12);
        self.drawn = (1000 + choice, None);
        let done = (|| match choice {
            0..4 => {
                let entry = fs.create(&c, dir, &x, 0o644, RW)?;
                let wrote = fs.append(&c, entry.ino, &bytes).map(|_| ());
                if choice == 0 {
                    let _ = fs.fsync(entry.ino, false);
                }
                if choice == 1 {
                    let _ = fs.unlink(&c, dir, &x);
                }
                fs.release(entry.ino)?;
                wrote
            }
            4 => fs.unlink(&c, dir, &x),
            5 => fs.rename(&c, dir, &x, dir, &y, RenameFlags::empty()),
            6 => fs.rename(&c, dir, &x, dir, &y, RenameFlags::EXCHANGE),
            // Opened by name: by now, the number alone could be another file's.
            _ => {
                let ino = fs.create(&c, dir, &x, 0o644, RW)?.ino;
                let done = match choice {
                    7 => {
                        let set = SetAttr {
                            size: Some(len),
                            ..SetAttr::default()
                        };
                        fs.setattr(&c, ino, &set).map(|_| ())
                    }
                    8 => {
                        let mode = FallocateMode::PUNCH_HOLE | FallocateMode::KEEP_SIZE;
                        fs.fallocate(&c, ino, mode, len / 2, len + 1)
                    }
                    9 => fs
                        .fallocate(&c, ino, FallocateMode::empty(), len / 2, len + 1)
                        .or_else(unsupported),
                    10 => fs.link(&c, ino, dir, &y).map(|_| ()),
                    _ => fs.read(ino, 0, &mut vec![0; 40_000]).map(|_| ()),
                };
                fs.release(ino)?;
                done
            }
        })();
        match done {
            Err(Error::NotFound | Error::Exists | Error::Stale | Error::BadFile) => Ok(()),
            result => result,
        }
    }

    /// Closes what is still open.
    pub(crate) fn close(&mut self) {
        while !self.open.is_empty() {
            self.close_one().unwrap();
        }
    }

    /// Panics unless the directory is as the thread left it.
    pub(crate) fn check(&self, fs: &Fs, what: &str) {
        let dir = fs.lookup(&self.c, fs.root(), &self.name).unwrap().ino;
        let names = listed(fs, dir).unwrap();
        assert_eq!(
            names,
            self.files.keys().cloned().collect::<Vec<_>>(),
            "{what}"
        );
        for (name, file) in &self.files {
            let entry = fs.lookup(&self.c, dir, name).unwrap();
            assert_eq!(entry.ino, file.ino, "{what}");
            self.compare(fs, file.ino, &file.content, what).unwrap();
        }
    }

    /// How a state differs from what was found: in the best case, in the first differing byte of a
    /// file.
    fn differs(&self, state: &State, found: &Found) -> Option<Difference> {
        let same_names = state.len() == found.len()
            && state
                .iter()
                .zip(found)
                .all(|((name, file), (other, (ino, _)))| name == other && file.ino == *ino);
        if !same_names {
            return Some(Difference::Names);
        }
        for (file, (ino, content)) in state.values().zip(found.values()) {
            let was_so_small = || {
                let had = self.history.iter().flat_map(State::values);
                let had = had.filter(|other| other.ino == *ino);
                had.map(|other| other.content.len()).min() <= Some(content.len())
            };
            // The stored size does not include delayed data.
            let delays =
                !self.rules.atomic_data && content.len() < file.content.len() && was_so_small();
            if file.content.len() != content.len() && !delays {
                return Some(Difference::Length(*ino, file.content.len()));
            }
            let same = |(a, b): (&u8, &u8)| a == b;
            if self.rules.atomic_data
                && let Some(at) = file
                    .content
                    .iter()
                    .zip(content)
                    .position(|pair| !same(pair))
            {
                return Some(Difference::Byte(*ino, at));
            }
        }
        None
    }

    /// Names the moments whose state is most like what was found, and the first moment that is
    /// still possible.
    fn nearest(&self, possible: usize, found: &Found) -> String {
        let differences = self.history.iter().map(|state| self.differs(state, found));
        let all: Vec<_> = differences.enumerate().collect();
        let best = all.iter().map(|(_, d)| *d).max_by_key(|d| match d {
            None => (3, 0),
            Some(Difference::Byte(_, at)) => (2, *at),
            Some(Difference::Length(..)) => (1, 0),
            Some(Difference::Names) => (0, 0),
        });
        let like = all.iter().filter(|(_, d)| Some(*d) == best).map(|(i, _)| i);
        let like: Vec<_> = like.take(9).collect();
        format!("from moment {possible} on it counts; most like {like:?}, but for {best:?}")
    }

    /// Panics unless the directory is as it was at one moment since the last sync.
    pub(crate) fn check_cut(&self, fs: &Fs, what: &str) {
        let dir = fs.lookup(&self.c, fs.root(), &self.name).unwrap().ino;
        let mut found = BTreeMap::new();
        for name in listed(fs, dir).unwrap_or_else(|e| panic!("{what}: {e}")) {
            let entry = fs.lookup(&self.c, dir, &name).unwrap();
            let mut content = vec![0; entry.attr.size as usize];
            fs.read(entry.ino, 0, &mut content)
                .unwrap_or_else(|e| panic!("{what}: inode {}: {e}", entry.ino));
            found.insert(name, (entry.ino, content));
        }
        let possible = self.possible.min(self.history.len() - 1);
        let moments = &self.history[possible..];
        let fits = moments
            .iter()
            .any(|state| self.differs(state, &found).is_none());
        let summary: BTreeMap<_, _> = found
            .iter()
            .map(|(name, (ino, content))| (String::from_utf8_lossy(name), (ino.0, content.len())))
            .collect();
        assert!(
            fits,
            "{what}: {} was never so in {} moments: {summary:?}; {}; last {:?}",
            String::from_utf8_lossy(&self.name),
            moments.len(),
            self.nearest(possible, &found),
            self.files
                .iter()
                .map(|(n, f)| (String::from_utf8_lossy(n), (f.ino.0, f.content.len())))
                .collect::<BTreeMap<_, _>>(),
        );
        // A file that has not changed since its sync is there, byte for byte.
        for (name, file) in &self.files {
            if file.synced != Some(file.version) {
                continue;
            }
            let (ino, content) = found
                .get(name)
                .unwrap_or_else(|| panic!("{what}: {} is lost", String::from_utf8_lossy(name)));
            assert_eq!(*ino, file.ino, "{what}");
            let same = *content == *file.content;
            assert!(
                same,
                "{what}: a synced file (inode {ino}) has another content"
            );
        }
    }
}

/// Accepts that ext3's maps have no preallocation.
pub(crate) fn unsupported(e: Error) -> Result<(), Error> {
    match e {
        Error::NotSupported => Ok(()),
        e => Err(e),
    }
}

fn put(content: &mut Vec<u8>, at: usize, bytes: &[u8]) {
    let end = at + bytes.len();
    if content.len() < end {
        content.resize(end, 0);
    }
    content[at..end].copy_from_slice(bytes);
}

/// Returns the names of a directory, sorted, without "." and "..".
fn listed(fs: &Fs, dir: InodeNo) -> Result<Vec<Vec<u8>>, Error> {
    let mut names = Vec::new();
    fs.readdir(dir, 0, &mut |entry| {
        if !matches!(entry.name, b"." | b"..") {
            names.push(entry.name.to_vec());
        }
        true
    })?;
    names.sort();
    Ok(names)
}
