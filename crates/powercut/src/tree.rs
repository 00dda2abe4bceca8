//! A tree of files and directories as a value: read from a volume, changed in memory, compared by a
//! hash, and written to a volume.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, OnceLock};

use serde::{Deserialize, Serialize};
use stetfs::mode::{S_IFDIR, S_IFLNK, S_IFMT, S_IFREG};
use stetfs::{Caller, Fs, OpenFlags, Result, SetAttr, SetTime, SetXattr};
use stetfs_format::{InodeNo, Time};

use crate::content::Content;

/// A file, directory or other inode, over a whole recording. An inode's number is used again; an
/// object's number is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Object(pub u32);

/// The root directory.
pub const ROOT: Object = Object(0);

/// The directory that mke2fs makes in every ext4 volume.
pub(crate) const LOST_FOUND: &[u8] = b"lost+found";

/// All about an object but its names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// Type and permissions.
    pub mode: u16,
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// The device number of a device file.
    pub rdev: (u32, u32),
    /// Modification time: seconds, nanoseconds. The check sees it; digests and differences leave it
    /// out.
    pub mtime: (i64, u32),
    /// Extended attributes.
    #[serde(with = "crate::content::pairs")]
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Content, names or target.
    pub body: Body,
}

impl Node {
    /// A node of root's, without extended attributes.
    pub fn plain(mode: u16, body: Body) -> Self {
        Self {
            mode,
            uid: 0,
            gid: 0,
            rdev: (0, 0),
            mtime: (0, 0),
            xattrs: BTreeMap::new(),
            body,
        }
    }
}

/// The content of an object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Body {
    /// A regular file.
    File(Content),
    /// A directory.
    Dir(#[serde(with = "crate::content::pairs")] BTreeMap<Vec<u8>, Object>),
    /// A symbolic link.
    Link(Vec<u8>),
    /// A device, pipe or socket.
    Special,
}

impl Node {
    /// Says what it is: `a file of 14 bytes`, with its permissions unless they are the usual ones.
    fn in_words(&self) -> String {
        let (what, usual) = match &self.body {
            Body::File(content) => (format!("a file of {} bytes", content.size()), 0o644),
            Body::Dir(_) => ("a directory".to_owned(), 0o755),
            Body::Link(target) => {
                let target = String::from_utf8_lossy(target);
                (format!("a link to {target}"), 0o777)
            }
            Body::Special => ("a device, pipe or socket".to_owned(), 0o644),
        };
        match self.mode & 0o7777 {
            mode if mode == usual => what,
            mode => format!("{what}, mode {mode:o}"),
        }
    }

    /// True for a directory.
    pub fn is_dir(&self) -> bool {
        matches!(self.body, Body::Dir(_))
    }
}

/// A node, and its hash once it was asked for. Most nodes are the same in all states.
#[derive(Debug, Serialize, Deserialize)]
#[serde(transparent)]
struct Hashed {
    node: Node,
    #[serde(skip)]
    hash: OnceLock<Digest>,
}

impl Hashed {
    fn new(node: Node) -> Self {
        Self {
            node,
            hash: OnceLock::new(),
        }
    }

    fn hash(&self) -> Digest {
        *self.hash.get_or_init(|| {
            let mut hashers = hashers();
            hashers.each_mut().map(|hasher| {
                node_hash(&self.node, hasher);
                hasher.finish()
            })
        })
    }

    /// The node, for a change: forgets the hash.
    fn node_mut(self: &mut Arc<Self>) -> &mut Node {
        let hashed = Arc::make_mut(self);
        hashed.hash.take();
        &mut hashed.node
    }
}

impl Clone for Hashed {
    /// Without the hash, since a clone is made to be changed.
    fn clone(&self) -> Self {
        Self::new(self.node.clone())
    }
}

impl PartialEq for Hashed {
    fn eq(&self, other: &Self) -> bool {
        self.node == other.node
    }
}

impl Eq for Hashed {}

/// A hash of 128 bits.
pub type Digest = [u64; 2];

/// Two hashers, whose results together are a [`Digest`].
pub(crate) fn hashers() -> [DefaultHasher; 2] {
    let mut hashers = [DefaultHasher::new(), DefaultHasher::new()];
    hashers[1].write_u8(1);
    hashers
}

/// A tree. Clones share their nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tree {
    nodes: BTreeMap<Object, Arc<Hashed>>,
}

impl Tree {
    /// Takes over equal nodes of another tree, so that many similar trees need little memory.
    pub fn share(&mut self, other: &Self) {
        for (object, node) in &mut self.nodes {
            if let Some(others) = other.nodes.get(object)
                && node == others
            {
                *node = others.clone();
            }
        }
    }

    /// Reads a volume. Also returns the object of each inode. Leaves out an empty `lost+found`.
    ///
    /// # Errors
    /// The volume cannot be read.
    pub fn read(fs: &Fs) -> Result<(Self, BTreeMap<InodeNo, Object>)> {
        let mut reader = Reader {
            fs,
            tree: Self {
                nodes: BTreeMap::new(),
            },
            objects: BTreeMap::new(),
        };
        let root = reader.object(fs.root())?;
        assert_eq!(root, ROOT, "the first object is the root");
        Ok((reader.tree, reader.objects))
    }

    /// Returns an object.
    pub fn get(&self, object: Object) -> Option<&Node> {
        self.nodes.get(&object).map(|hashed| &hashed.node)
    }

    /// Returns an object, for a change.
    pub fn get_mut(&mut self, object: Object) -> Option<&mut Node> {
        self.nodes.get_mut(&object).map(Hashed::node_mut)
    }

    /// Adds an object. It has no name yet.
    pub fn insert(&mut self, object: Object, node: Arc<Node>) {
        let node = Arc::unwrap_or_clone(node);
        self.nodes.insert(object, Arc::new(Hashed::new(node)));
    }

    /// Removes the bytes that were written behind the ends of files.
    pub(crate) fn forget_what_is_behind_the_ends(&mut self) {
        for hashed in self.nodes.values_mut() {
            if let Body::File(content) = &hashed.node.body
                && content.goes_beyond()
                && let Body::File(content) = &mut hashed.node_mut().body
            {
                content.cut(content.size());
            }
        }
    }

    /// Sets a name in a directory, or removes it.
    pub fn set_name(&mut self, dir: Object, name: &[u8], object: Option<Object>) {
        if let Some(Node {
            body: Body::Dir(names),
            ..
        }) = self.get_mut(dir)
        {
            match object {
                Some(object) => names.insert(name.to_owned(), object),
                None => names.remove(name),
            };
        }
    }

    /// Returns the object of a name in a directory.
    pub fn look_up(&self, dir: Object, name: &[u8]) -> Option<Object> {
        match &self.get(dir)?.body {
            Body::Dir(names) => names.get(name).copied(),
            _ => None,
        }
    }

    /// Returns every path with its object, in order, without the root.
    pub fn paths(&self) -> Vec<(String, Object)> {
        let mut found = Vec::new();
        let mut above = BTreeSet::from([ROOT]);
        self.walk(ROOT, "", &mut above, &mut |path, object| {
            found.push((path.to_owned(), object))
        });
        found
    }

    /// Walks in order. Enters no directory twice on one path.
    fn walk(
        &self,
        dir: Object,
        path: &str,
        above: &mut BTreeSet<Object>,
        each: &mut dyn FnMut(&str, Object),
    ) {
        let Some(Node {
            body: Body::Dir(names),
            ..
        }) = self.get(dir)
        else {
            return;
        };
        for (name, object) in names {
            let name = String::from_utf8_lossy(name);
            let path = match path {
                "" => name.into_owned(),
                _ => format!("{path}/{name}"),
            };
            each(&path, *object);
            if above.insert(*object) {
                self.walk(*object, &path, above, each);
                above.remove(object);
            }
        }
    }

    /// A hash of all names, types, modes, owners, extended attributes and contents, and of which
    /// names are one file. Times and inode numbers do not count.
    pub fn digest(&self) -> u128 {
        let mut seen = BTreeMap::new();
        let mut hashers = hashers();
        let mut add = |path: &str, object: Object| {
            let next = seen.len();
            let known = seen.contains_key(&object);
            let number = *seen.entry(object).or_insert(next);
            let node = self.nodes.get(&object).filter(|_| !known);
            let hashes = node.map(|node| node.hash());
            for (n, hasher) in hashers.iter_mut().enumerate() {
                (path, number, hashes.map(|hashes| hashes[n])).hash(hasher);
            }
        };
        add("", ROOT);
        let mut above = BTreeSet::from([ROOT]);
        self.walk(ROOT, "", &mut above, &mut add);
        let [a, b] = hashers.map(|hasher| u128::from(hasher.finish()));
        a << 64 | b
    }

    /// Returns what is at each path: a hash of all that [`digest`](Self::digest) covers but the
    /// names in a directory, and it in words.
    pub fn files(&self) -> BTreeMap<String, (Digest, String)> {
        let there = self.paths().into_iter().filter_map(|(path, object)| {
            let node = self.nodes.get(&object)?;
            Some((path, (node.hash(), node.node.in_words())))
        });
        there.collect()
    }

    /// Lines that say how `self` differs from `other`.
    pub fn differences(&self, other: &Self) -> Vec<String> {
        let mine: BTreeMap<_, _> = self.paths().into_iter().collect();
        let theirs: BTreeMap<_, _> = other.paths().into_iter().collect();
        let paths: BTreeSet<&String> = mine.keys().chain(theirs.keys()).collect();
        let node = |tree: &'_ Self, object: Option<&Object>| {
            object.and_then(|object| tree.get(*object).cloned())
        };
        let lines = paths.into_iter().filter_map(|path| {
            let (mine, theirs) = (node(self, mine.get(path)), node(other, theirs.get(path)));
            let what = match (mine, theirs) {
                (Some(_), None) => "is there".to_owned(),
                (None, Some(_)) => "is missing".to_owned(),
                (Some(a), Some(b)) => node_difference(&a, &b)?,
                (None, None) => return None,
            };
            Some(format!("{path}: {what}"))
        });
        lines.collect()
    }

    /// Writes the tree to an empty volume (with or without `lost+found`). Returns the inode of each
    /// object.
    ///
    /// # Errors
    /// The volume refused: it may be too small.
    pub fn write(&self, fs: &Fs) -> Result<BTreeMap<Object, InodeNo>> {
        let mut writer = Writer {
            fs,
            tree: self,
            caller: Caller::root(),
            inodes: BTreeMap::from([(ROOT, fs.root())]),
        };
        writer.fill(ROOT)?;
        Ok(writer.inodes)
    }
}

fn node_hash(node: &Node, hasher: &mut DefaultHasher) {
    (node.mode, node.uid, node.gid, node.rdev, &node.xattrs).hash(hasher);
    match &node.body {
        Body::File(content) => {
            content.size().hash(hasher);
            // A page of zeros counts as unwritten.
            let pieces = content.pieces();
            for piece in pieces.filter(|(_, bytes)| bytes.iter().any(|b| *b != 0)) {
                piece.hash(hasher);
            }
        }
        Body::Link(target) => target.hash(hasher),
        Body::Dir(_) | Body::Special => {}
    }
}

/// Says how two objects of one path differ, in those parts that the digest covers.
fn node_difference(a: &Node, b: &Node) -> Option<String> {
    let mut found = Vec::new();
    if a.mode & S_IFMT != b.mode & S_IFMT {
        return Some("is of another type".to_owned());
    }
    if a.mode != b.mode {
        found.push(format!(
            "mode {:o} instead of {:o}",
            a.mode & 0o7777,
            b.mode & 0o7777
        ));
    }
    if (a.uid, a.gid) != (b.uid, b.gid) {
        found.push(format!(
            "owner {}:{} instead of {}:{}",
            a.uid, a.gid, b.uid, b.gid
        ));
    }
    if a.xattrs != b.xattrs {
        found.push("different extended attributes".to_owned());
    }
    match (&a.body, &b.body) {
        (Body::File(a), Body::File(b)) => {
            if a.size() != b.size() {
                found.push(format!("{} bytes instead of {}", a.size(), b.size()));
            }
            if let Some(at) = a.first_difference(b) {
                found.push(format!("different content from byte {at} on"));
            }
        }
        (Body::Link(a), Body::Link(b)) if a != b => found.push("a different target".to_owned()),
        _ => {}
    }
    (!found.is_empty()).then(|| found.join(", "))
}

/// Reads a volume.
struct Reader<'a> {
    fs: &'a Fs,
    tree: Tree,
    objects: BTreeMap<InodeNo, Object>,
}

impl Reader<'_> {
    fn object(&mut self, ino: InodeNo) -> Result<Object> {
        if let Some(object) = self.objects.get(&ino) {
            return Ok(*object);
        }
        let object = Object(self.objects.len() as u32);
        self.objects.insert(ino, object);
        let node = node(self.fs, ino)?;
        let is_dir = node.is_dir();
        self.tree.insert(object, Arc::new(node));
        if is_dir {
            for (name, below) in names(self.fs, ino)? {
                let is_of_the_volume = ino == self.fs.root() && name == LOST_FOUND;
                if is_of_the_volume && names(self.fs, below)?.is_empty() {
                    continue;
                }
                let below = self.object(below)?;
                self.tree.set_name(object, &name, Some(below));
            }
        }
        Ok(object)
    }
}

/// The names in a directory, without `.` and `..`.
fn names(fs: &Fs, dir: InodeNo) -> Result<Vec<(Vec<u8>, InodeNo)>> {
    let mut found = Vec::new();
    fs.readdir(dir, 0, &mut |entry| {
        if !matches!(entry.name, b"." | b"..") {
            found.push((entry.name.to_owned(), entry.ino));
        }
        true
    })?;
    Ok(found)
}

/// Reads an inode. A directory comes without its names.
///
/// # Errors
/// The volume cannot be read.
pub fn node(fs: &Fs, ino: InodeNo) -> Result<Node> {
    let attr = fs.getattr(ino)?;
    let body = match attr.mode & S_IFMT {
        S_IFREG => {
            let mut content = Content::default();
            content.set_size(attr.size);
            let mut buffer = vec![0; 1 << 20];
            let mut at = 0;
            while at < attr.size {
                let read = fs.read(ino, at, &mut buffer)?;
                if read == 0 {
                    break;
                }
                for (n, page) in buffer[..read].chunks(4096).enumerate() {
                    if page.iter().any(|byte| *byte != 0) {
                        content.write(at + n as u64 * 4096, page);
                    }
                }
                at += read as u64;
            }
            Body::File(content)
        }
        S_IFDIR => Body::Dir(BTreeMap::new()),
        S_IFLNK => Body::Link(fs.readlink(ino)?),
        _ => Body::Special,
    };
    Ok(Node {
        mode: attr.mode,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
        mtime: (attr.mtime.sec, attr.mtime.nsec),
        xattrs: xattrs(fs, ino)?,
        body,
    })
}

/// The extended attributes of an inode, ACLs among them.
///
/// # Errors
/// The volume cannot be read.
pub fn xattrs(fs: &Fs, ino: InodeNo) -> Result<BTreeMap<Vec<u8>, Vec<u8>>> {
    let caller = Caller::root();
    let list = fs.listxattr(&caller, ino)?;
    let names = list.split(|b| *b == 0).filter(|name| !name.is_empty());
    let xattrs = names.map(|name| Ok((name.to_owned(), fs.getxattr(&caller, ino, name)?)));
    xattrs.collect()
}

/// Writes a tree to a volume.
struct Writer<'a> {
    fs: &'a Fs,
    tree: &'a Tree,
    caller: Caller,
    inodes: BTreeMap<Object, InodeNo>,
}

impl Writer<'_> {
    /// Makes all below a directory, then sets the directory's own attributes.
    fn fill(&mut self, dir: Object) -> Result<()> {
        let ino = self.inodes[&dir];
        let Some(node) = self.tree.get(dir) else {
            return Ok(());
        };
        if let Body::Dir(names) = &node.body {
            for (name, object) in names {
                self.make(ino, name, *object)?;
            }
        }
        self.set(ino, node)
    }

    fn make(&mut self, dir: InodeNo, name: &[u8], object: Object) -> Result<()> {
        let (fs, caller) = (self.fs, self.caller.clone());
        let Some(node) = self.tree.get(object) else {
            return Ok(());
        };
        if let Some(ino) = self.inodes.get(&object) {
            // A directory gets one name, even where an order of writes has left it two.
            if !node.is_dir() {
                fs.link(&caller, *ino, dir, name)?;
            }
            return Ok(());
        }
        let ino = match &node.body {
            Body::File(content) => {
                let mode = node.mode & 0o7777;
                let entry = fs.create(&caller, dir, name, mode, OpenFlags::WRITE)?;
                for (at, bytes) in content.pieces() {
                    let mut done = 0;
                    while done < bytes.len() {
                        done += fs.write(&caller, entry.ino, at + done as u64, &bytes[done..])?;
                    }
                }
                if fs.getattr(entry.ino)?.size != content.size() {
                    let size = Some(content.size());
                    let set = SetAttr {
                        size,
                        ..SetAttr::default()
                    };
                    fs.setattr(&caller, entry.ino, &set)?;
                }
                fs.release(entry.ino)?;
                entry.ino
            }
            Body::Dir(_) => fs.mkdir(&caller, dir, name, node.mode & 0o7777)?.ino,
            Body::Link(target) => fs.symlink(&caller, dir, name, target)?.ino,
            Body::Special => fs.mknod(&caller, dir, name, node.mode, node.rdev)?.ino,
        };
        self.inodes.insert(object, ino);
        if node.is_dir() {
            self.fill(object)
        } else {
            self.set(ino, node)
        }
    }

    fn set(&self, ino: InodeNo, node: &Node) -> Result<()> {
        // The owner first: changing it clears file capabilities and bits of the mode.
        let owner = SetAttr {
            uid: Some(node.uid),
            gid: Some(node.gid),
            ..SetAttr::default()
        };
        self.fs.setattr(&self.caller, ino, &owner)?;
        for (name, value) in &node.xattrs {
            let how = SetXattr::Any;
            self.fs.setxattr(&self.caller, ino, name, value, how)?;
        }
        let is_link = matches!(node.body, Body::Link(_));
        let (sec, nsec) = node.mtime;
        let set = SetAttr {
            mode: (!is_link).then_some(node.mode & 0o7777),
            mtime: Some(SetTime::At(Time { sec, nsec })),
            ..SetAttr::default()
        };
        self.fs.setattr(&self.caller, ino, &set).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(mode: u16, body: Body) -> Arc<Node> {
        Arc::new(Node::plain(mode, body))
    }

    fn tree(text: &[u8]) -> Tree {
        let mut tree = Tree {
            nodes: BTreeMap::new(),
        };
        let mut content = Content::default();
        content.write(0, text);
        content.set_size(text.len() as u64);
        tree.insert(ROOT, node(S_IFDIR | 0o755, Body::Dir(BTreeMap::new())));
        tree.insert(Object(1), node(S_IFREG | 0o644, Body::File(content)));
        tree.set_name(ROOT, b"file", Some(Object(1)));
        tree
    }

    /// A node keeps its hash and clones share nodes. A change must forget the hash.
    #[test]
    fn a_hash_is_of_what_is_there_now() {
        let before = tree(b"old");
        let digest = before.digest();
        let mut after = before.clone();
        if let Some(Body::File(content)) = after.get_mut(Object(1)).map(|node| &mut node.body) {
            content.write(0, b"new");
        }
        assert_eq!(after.digest(), tree(b"new").digest());
        assert_ne!(after.digest(), digest);
        assert_eq!(before.digest(), digest);
    }
}
