//! Random operations on a tree, compared with a model in memory. e2fsck and ext4-view judge the
//! outcome.

use std::collections::{BTreeMap, BTreeSet};

use ext4_view::{Ext4, PathBuf};
use stetfs::{Caller, Error, Fs, OpenFlags, RenameFlags, mode};
use stetfs_format::InodeNo;
use tempfile::TempDir;

use crate::image::{Random, Volume};

#[derive(Debug, Clone, PartialEq, Eq)]
enum Kind {
    File,
    Link(Vec<u8>),
    Dir(BTreeMap<Vec<u8>, u32>),
}

/// The expected tree, by inode number.
struct Model {
    nodes: BTreeMap<u32, (Kind, u32)>,
}

const ROOT: u32 = 2;

impl Model {
    fn dir(&self, ino: u32) -> &BTreeMap<Vec<u8>, u32> {
        match &self.nodes[&ino].0 {
            Kind::Dir(names) => names,
            other => panic!("{ino} is {other:?}"),
        }
    }

    fn dir_mut(&mut self, ino: u32) -> &mut BTreeMap<Vec<u8>, u32> {
        match &mut self.nodes.get_mut(&ino).unwrap().0 {
            Kind::Dir(names) => names,
            other => panic!("{ino} is {other:?}"),
        }
    }

    fn is_dir(&self, ino: u32) -> bool {
        matches!(self.nodes[&ino].0, Kind::Dir(_))
    }

    fn drop_link(&mut self, ino: u32) {
        let node = self.nodes.get_mut(&ino).unwrap();
        node.1 -= 1;
        if node.1 == 0 || matches!(node.0, Kind::Dir(_)) {
            self.nodes.remove(&ino);
        }
    }

    fn is_below(&self, below: u32, above: u32) -> bool {
        below == above
            || matches!(&self.nodes[&above].0, Kind::Dir(names) if names.values().any(|&n| {
                self.is_dir(n) && self.is_below(below, n)
            }))
    }

    /// The number of links. A directory has its own ".", its name, and ".." of each subdirectory.
    fn links(&self, ino: u32) -> u32 {
        match &self.nodes[&ino] {
            (Kind::Dir(names), _) => 2 + names.values().filter(|&&n| self.is_dir(n)).count() as u32,
            (_, links) => *links,
        }
    }
}

struct Run<'a> {
    fs: &'a Fs,
    c: Caller,
    model: Model,
    random: Random,
    names: Vec<Vec<u8>>,
}

impl Run<'_> {
    fn name(&mut self) -> Vec<u8> {
        let i = self.random.below(self.names.len());
        self.names[i].clone()
    }

    fn some_dir(&mut self) -> u32 {
        let dirs: Vec<u32> = self
            .model
            .nodes
            .keys()
            .copied()
            .filter(|&n| self.model.is_dir(n))
            .collect();
        // A few directories get most of the names, so that trees grow and split.
        let few = if self.random.below(4) == 0 {
            dirs.len()
        } else {
            dirs.len().min(3)
        };
        dirs[self.random.below(few)]
    }

    fn expect<T>(&self, what: &str, got: Result<T, Error>, want: Result<(), &str>) -> Option<T> {
        match (got, want) {
            (Ok(got), Ok(())) => Some(got),
            (Err(e), Err(want)) if format!("{:?}", e.kind()) == want => None,
            (got, want) => panic!("{what}: {:?}, expected {want:?}", got.map(|_| ())),
        }
    }

    fn make(&mut self, dir: u32, name: Vec<u8>) {
        let exists = self.model.dir(dir).contains_key(&name);
        let want = if exists { Err("Exists") } else { Ok(()) };
        let parent = InodeNo(dir);
        let (kind, got) = match self.random.below(10) {
            0..6 => {
                let got = self.fs.create(
                    &self.c,
                    parent,
                    &name,
                    0o644,
                    OpenFlags::WRITE | OpenFlags::EXCLUSIVE,
                );
                if let Ok(entry) = &got {
                    self.fs.release(entry.ino).unwrap();
                }
                (Kind::File, got)
            }
            6 => (
                Kind::Dir(BTreeMap::new()),
                self.fs.mkdir(&self.c, parent, &name, 0o755),
            ),
            7 => (
                Kind::File,
                self.fs
                    .mknod(&self.c, parent, &name, mode::S_IFIFO | 0o600, (0, 0)),
            ),
            _ => {
                let length = [1, 59, 60, 200, 900][self.random.below(5)];
                let target: Vec<u8> = (0..length)
                    .map(|i| {
                        if i % 50 == 49 {
                            b'/'
                        } else {
                            b'a' + (i % 23) as u8
                        }
                    })
                    .collect();
                let got = self.fs.symlink(&self.c, parent, &name, &target);
                (Kind::Link(target), got)
            }
        };
        if let Some(entry) = self.expect("make", got, want) {
            let ino = entry.ino.0;
            assert!(
                self.model.nodes.insert(ino, (kind, 1)).is_none(),
                "inode {ino} was given out twice"
            );
            self.model.dir_mut(dir).insert(name, ino);
        }
    }

    fn remove(&mut self, dir: u32, name: &[u8]) {
        let ino = self.model.dir(dir).get(name).copied();
        let is_dir = ino.is_some_and(|i| self.model.is_dir(i));
        let full = is_dir && !self.model.dir(ino.unwrap()).is_empty();
        let as_dir = if self.random.below(8) == 0 {
            !is_dir
        } else {
            is_dir
        };
        let (got, want) = if as_dir {
            let want = match ino {
                None => Err("NotFound"),
                Some(_) if !is_dir => Err("NotDirectory"),
                Some(_) if full => Err("NotEmpty"),
                Some(_) => Ok(()),
            };
            (self.fs.rmdir(&self.c, InodeNo(dir), name), want)
        } else {
            let want = match ino {
                None => Err("NotFound"),
                Some(_) if is_dir => Err("IsDirectory"),
                Some(_) => Ok(()),
            };
            (self.fs.unlink(&self.c, InodeNo(dir), name), want)
        };
        if self.expect("remove", got, want).is_some() {
            self.model.dir_mut(dir).remove(name);
            self.model.drop_link(ino.unwrap());
        }
    }

    fn link(&mut self, from: u32, name: &[u8], to: u32, new: Vec<u8>) {
        let Some(&ino) = self.model.dir(from).get(name) else {
            return;
        };
        let want = match () {
            () if self.model.dir(to).contains_key(&new) => Err("Exists"),
            () if self.model.is_dir(ino) => Err("NotPermitted"),
            () => Ok(()),
        };
        let got = self.fs.link(&self.c, InodeNo(ino), InodeNo(to), &new);
        if self.expect("link", got, want).is_some() {
            self.model.dir_mut(to).insert(new, ino);
            self.model.nodes.get_mut(&ino).unwrap().1 += 1;
        }
    }

    fn rename(&mut self, from: u32, old: &[u8], to: u32, new: Vec<u8>) {
        let flags = match self.random.below(4) {
            0 => RenameFlags::EXCHANGE,
            1 => RenameFlags::NOREPLACE,
            _ => RenameFlags::empty(),
        };
        let source = self.model.dir(from).get(old).copied();
        let target = self.model.dir(to).get(&new).copied();
        let want = self.rename_want(source, target, from, to, flags);
        let got = self
            .fs
            .rename(&self.c, InodeNo(from), old, InodeNo(to), &new, flags);
        if self.expect("rename", got, want).is_none() || source == target {
            return;
        }
        let source = source.unwrap();
        if flags.contains(RenameFlags::EXCHANGE) {
            self.model
                .dir_mut(from)
                .insert(old.to_vec(), target.unwrap());
        } else {
            self.model.dir_mut(from).remove(old);
            if let Some(target) = target {
                self.model.drop_link(target);
            }
        }
        self.model.dir_mut(to).insert(new, source);
    }

    fn rename_want(
        &self,
        source: Option<u32>,
        target: Option<u32>,
        from: u32,
        to: u32,
        flags: RenameFlags,
    ) -> Result<(), &'static str> {
        let exchange = flags.contains(RenameFlags::EXCHANGE);
        let Some(source) = source else {
            return Err("NotFound");
        };
        if target.is_some() && flags.contains(RenameFlags::NOREPLACE) {
            return Err("Exists");
        }
        if target.is_none() && exchange {
            return Err("NotFound");
        }
        if target == Some(source) {
            return Ok(());
        }
        let source_dir = self.model.is_dir(source);
        if source_dir && self.model.is_below(to, source) {
            return Err("Invalid");
        }
        let Some(target) = target else { return Ok(()) };
        let target_dir = self.model.is_dir(target);
        if target_dir && self.model.is_below(from, target) {
            return Err(if exchange { "Invalid" } else { "NotEmpty" });
        }
        match (source_dir, target_dir) {
            _ if exchange => Ok(()),
            (true, false) => Err("NotDirectory"),
            (false, true) => Err("IsDirectory"),
            (true, true) if !self.model.dir(target).is_empty() => Err("NotEmpty"),
            _ => Ok(()),
        }
    }

    fn step(&mut self) {
        let (a, b) = (self.some_dir(), self.some_dir());
        let (x, y) = (self.name(), self.name());
        match self.random.below(20) {
            0..10 => self.make(a, x),
            10..14 => self.remove(a, &x),
            14..16 => self.link(a, &x, b, y),
            _ => self.rename(a, &x, b, y),
        }
    }

    /// Compares the whole tree with the model: names, inodes, types, link counts, targets.
    fn compare(&self) {
        for (&ino, (kind, _)) in &self.model.nodes {
            let attr = self
                .fs
                .getattr(InodeNo(ino))
                .unwrap_or_else(|e| panic!("inode {ino}: {e}"));
            let lost_and_found = u32::from(ino == ROOT);
            assert_eq!(
                attr.nlink,
                self.model.links(ino) + lost_and_found,
                "links of inode {ino}"
            );
            match kind {
                Kind::File => assert!(!attr.is_dir()),
                Kind::Link(target) => assert_eq!(self.fs.readlink(InodeNo(ino)).unwrap(), *target),
                Kind::Dir(names) => self.compare_dir(ino, names),
            }
        }
    }

    fn compare_dir(&self, ino: u32, names: &BTreeMap<Vec<u8>, u32>) {
        let mut listed = BTreeMap::new();
        self.fs
            .readdir(InodeNo(ino), 0, &mut |e| {
                assert!(
                    listed.insert(e.name.to_vec(), e.ino.0).is_none(),
                    "listed twice"
                );
                true
            })
            .unwrap();
        assert_eq!(listed.remove(b".".as_slice()), Some(ino));
        assert!(listed.remove(b"..".as_slice()).is_some());
        listed.remove(b"lost+found".as_slice());
        assert_eq!(listed, *names, "listing of inode {ino}");
        for (name, &child) in names {
            let found = self.fs.lookup(&self.c, InodeNo(ino), name).unwrap().ino.0;
            assert_eq!(found, child);
            if self.model.is_dir(child) {
                let parent = self
                    .fs
                    .lookup(&self.c, InodeNo(child), b"..")
                    .unwrap()
                    .ino
                    .0;
                assert_eq!(parent, ino, "parent of {child}");
            }
        }
    }
}

fn names(random: &mut Random, count: usize, longest: usize) -> Vec<Vec<u8>> {
    let mut names = BTreeSet::new();
    while names.len() < count {
        let length = 1 + random.below(longest);
        // Bytes above 127 distinguish signed hashes from unsigned ones.
        let name: Vec<u8> = (0..length)
            .map(|_| match random.below(250) as u8 + 1 {
                b'/' | b'.' => b'x',
                byte => byte,
            })
            .collect();
        names.insert(name);
    }
    names.into_iter().collect()
}

/// Runs `steps` random operations on a volume made with `mke2fs`, and judges the outcome.
fn run(mke2fs: &str, seed: u64, steps: usize, name_count: usize) {
    let mut volume = Volume::make(mke2fs, 32);
    let mut random = Random::new(seed);
    let names = names(&mut random, name_count, 255);
    let root = (Kind::Dir(BTreeMap::new()), 2);
    let mut model = Model {
        nodes: BTreeMap::from([(ROOT, root)]),
    };
    for _ in 0..2 {
        let mut run = Run {
            fs: &volume.fs,
            c: Caller::root(),
            model,
            random,
            names: names.clone(),
        };
        for step in 0..steps {
            run.step();
            if step % (steps / 4) == 0 {
                run.compare();
            }
        }
        run.compare();
        (model, random) = (run.model, run.random);
        volume = volume.check();
        let run = Run {
            fs: &volume.fs,
            c: Caller::root(),
            model,
            random,
            names: names.clone(),
        };
        run.compare();
        (model, random) = (run.model, run.random);
    }
    if mke2fs.contains("-I 128") || mke2fs.contains("hash_alg") {
        eprintln!("SKIPPED: ext4-view reads neither inodes of 128 bytes nor hashes but half MD4");
    } else {
        compare_with_reader(&volume.checked(), &model);
    }
}

/// Checks that an independent reader finds every name and target by path.
fn compare_with_reader(image: &TempDir, model: &Model) {
    let reader = match Ext4::load(Box::new(std::fs::read(image.path().join("image")).unwrap())) {
        Ok(reader) => reader,
        Err(e) => return eprintln!("SKIPPED: ext4-view cannot read this kind of volume: {e}"),
    };
    let mut todo = vec![(PathBuf::new("/"), ROOT)];
    while let Some((path, ino)) = todo.pop() {
        let mut names = BTreeSet::new();
        for entry in reader.read_dir(&path).unwrap() {
            names.insert(entry.unwrap().file_name().as_ref().to_vec());
        }
        for more in [&b"."[..], b"..", b"lost+found"] {
            names.remove(more);
        }
        let want = model.dir(ino);
        assert!(
            names.iter().eq(want.keys()),
            "ext4-view lists {path:?} otherwise"
        );
        for (name, &child) in want {
            let path = path.join(name);
            match &model.nodes[&child].0 {
                Kind::File => assert!(!reader.symlink_metadata(&path).unwrap().is_dir()),
                Kind::Link(target) => {
                    assert_eq!(reader.read_link(&path).unwrap().as_ref(), &target[..])
                }
                Kind::Dir(_) => todo.push((path, child)),
            }
        }
    }
}

#[test]
fn random_trees_with_checksums() {
    run("-t ext4 -b 1024 -O metadata_csum,64bit", 1, 3000, 400);
}

#[test]
fn random_trees_on_ext3() {
    run("-t ext3 -b 1024", 2, 3000, 400);
}

#[test]
fn random_trees_without_index() {
    run("-t ext4 -b 1024 -O ^dir_index,^metadata_csum", 3, 1500, 200);
}

#[test]
fn random_trees_without_file_types() {
    run("-t ext4 -b 2048 -O ^filetype", 4, 1500, 200);
}

#[test]
fn random_trees_with_large_blocks_and_inodes_of_128_bytes() {
    run("-t ext4 -b 4096 -I 128 -O metadata_csum", 5, 3000, 600);
}

#[test]
fn random_trees_by_legacy_hash() {
    run("-t ext4 -b 1024 hash_alg=legacy", 6, 3000, 400);
}

#[test]
fn random_trees_by_tea_hash_with_large_dir() {
    run(
        "-t ext4 -b 1024 hash_alg=tea -O large_dir,metadata_csum",
        7,
        3000,
        400,
    );
}
