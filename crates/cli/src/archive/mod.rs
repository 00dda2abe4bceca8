//! A tar archive, or a container image, as a tree that is only read.
//!
//! Opening it reads all headers; contents stay in the archive, or in a file without a name if it is
//! compressed (`packed.rs`). A container image (`container.rs`) is several archives, laid one over
//! the other (`layers.rs`). What an archive says is hostile:
//! - a name may not have a part `..`; slashes at its beginning are left out, as tar(1) does;
//! - no name leads through a file that is no directory; through a symbolic link only in layers, and
//!   never out of the tree;
//! - a hard link names a member that came before, and no directory.
//!
//! Nothing of this reaches the host: the tree lives in memory, and its root is its boundary.

mod acl;
mod container;
mod layers;
mod members;
mod pack;
mod packed;
mod sparse;

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;

use stetfs_format::width::{low16, u64_as_usize, usize_as_u64};
use tar::EntryType;

use crate::failure::{Failure, Result};
use crate::place::join;
use crate::shown::shown;
use crate::tree::{FileKind, Item, Meta, Source, Stamp, Tree, check_part};
use container::Inside;
use members::{Entries, Entry};
use sparse::Piece;

pub(crate) use container::Which;
pub(crate) use pack::Packer;
pub(crate) use packed::Spool;

/// Returns the path of an archive as messages show it.
pub(crate) fn shown_path(path: &Path) -> String {
    if path.as_os_str() == "-" {
        "standard input".to_owned()
    } else {
        path.display().to_string()
    }
}

const ROOT: usize = 0;

/// The most symbolic links on the way of one name, as Linux has it.
const LINKS_MAX: u32 = 40;

pub(crate) struct Archive {
    path: String,
    /// The archive, or all layers of an image; what is added comes from the last one.
    files: Vec<File>,
    is_layered: bool,
    nodes: Vec<Node>,
    /// The members whose ACLs are left out, and somebody whom they name.
    without_acl: Option<(u64, String)>,
}

struct Node {
    meta: Meta,
    /// The file of [`Archive::files`] that it comes from.
    layer: usize,
    /// Of a directory.
    names: BTreeMap<Vec<u8>, usize>,
    /// Of a symbolic link.
    target: Vec<u8>,
    /// Of a file: its bytes, in ascending order; what is between is a hole.
    pieces: Vec<Piece>,
    xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Node {
    fn new(kind: FileKind, mode: u16, mtime: Stamp) -> Self {
        Self {
            meta: Meta {
                kind,
                mode,
                uid: 0,
                gid: 0,
                nlink: 1,
                size: 0,
                blocks: 0,
                id: (0, 0),
                atime: mtime,
                mtime,
                rdev: (0, 0),
            },
            layer: 0,
            names: BTreeMap::new(),
            target: Vec::new(),
            pieces: Vec::new(),
            xattrs: Vec::new(),
        }
    }
}

/// Where names lead.
struct Reached {
    /// The last file on the way, and its name.
    node: usize,
    name: Vec<u8>,
    /// The names behind it, of which there is nothing.
    missing: VecDeque<Vec<u8>>,
}

impl Archive {
    /// Opens an archive, or the archive of a container image: a file, or the standard input (`-`).
    /// Directories that have no header are root's, and as old as `time`.
    pub(crate) fn open(path: &Path, spool: &Spool, which: &Which, time: Stamp) -> Result<Self> {
        let mut archive = Self::empty(path, time);
        let file = spool.open(path)?;
        let reader = file.try_clone()?;
        archive.files.push(file);
        let mut members = Entries::of(&reader)?;
        while let Some(member) = members.next()? {
            let added = archive.add(&member, time);
            added.map_err(|e| e.context(format!("member {}", shown(&member.name))))?;
        }
        let image = Self::image(&Inside::of(&archive, b"/"), path, spool, which, time)?;
        let archive = image.unwrap_or(archive);
        archive.tell();
        Ok(archive)
    }

    /// Opens the container image in a directory; `None` if there is none.
    pub(crate) fn open_dir(
        tree: &dyn Tree,
        path: &Path,
        spool: &Spool,
        which: &Which,
        time: Stamp,
    ) -> Result<Option<Self>> {
        let inside = Inside::of(tree, path.as_os_str().as_bytes());
        let image = Self::image(&inside, path, spool, which, time)?;
        Ok(image.inspect(Self::tell))
    }

    /// Tells what of the archive does not count.
    fn tell(&self) {
        if let Some((members, who)) = &self.without_acl {
            let path = &self.path;
            eprintln!(
                "stetfs: {path}: ACLs are left out, of {members} of its files: they name users or \
                 groups, such as {who}, without their numbers"
            );
        }
    }

    fn image(
        inside: &Inside<'_>,
        path: &Path,
        spool: &Spool,
        which: &Which,
        time: Stamp,
    ) -> Result<Option<Self>> {
        let Some(layers) = container::layers(inside, spool, which)? else {
            which.check_any()?;
            return Ok(None);
        };
        let mut image = Self::empty(path, time);
        image.lay_all(layers, time)?;
        Ok(Some(image))
    }

    fn empty(path: &Path, time: Stamp) -> Self {
        let mut archive = Self {
            path: shown_path(path),
            files: Vec::new(),
            is_layered: false,
            nodes: Vec::new(),
            without_acl: None,
        };
        archive.push(Node::new(FileKind::Dir, 0o755, time));
        archive
    }

    fn push(&mut self, mut node: Node) -> usize {
        node.meta.id = (0, usize_as_u64(self.nodes.len()));
        node.layer = self.layer();
        self.nodes.push(node);
        self.nodes.len() - 1
    }

    /// What is added now comes from this file.
    fn layer(&self) -> usize {
        self.files.len().saturating_sub(1)
    }

    fn add(&mut self, member: &Entry, time: Stamp) -> Result<()> {
        if let Some(who) = &member.acl_of {
            self.without_acl.get_or_insert((0, who.clone())).0 += 1;
        }
        let parts = parts(&member.name)?;
        let kind = match member.header.entry_type() {
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => FileKind::File,
            EntryType::Directory => FileKind::Dir,
            EntryType::Symlink => FileKind::Symlink,
            EntryType::Fifo => FileKind::Fifo,
            EntryType::Char => FileKind::Char,
            EntryType::Block => FileKind::Block,
            EntryType::Link => return self.add_link(&member.target, &parts, time),
            other => {
                let letter = char::from(other.as_byte());
                return Err(Failure::new(format!("is of the unknown type `{letter}`")));
            }
        };
        let mut node = described(member, kind)?;
        match kind {
            FileKind::File => {
                node.meta.size = member.content.size;
                node.pieces.clone_from(&member.content.pieces);
            }
            FileKind::Symlink => {
                node.target.clone_from(&member.target);
                node.meta.size = usize_as_u64(node.target.len());
            }
            _ => {}
        }
        self.place(&parts, node, time)
    }

    /// Puts a node where the name says.
    fn place(&mut self, parts: &[&[u8]], mut node: Node, time: Stamp) -> Result<()> {
        let Some((name, dirs)) = parts.split_last() else {
            // The root itself.
            if node.meta.kind != FileKind::Dir {
                return Err(Failure::new("would be the root, and is no directory"));
            }
            return self.describe_dir(ROOT, node);
        };
        let dir = self.make_dirs(dirs, time)?;
        match self.nodes[dir].names.get(*name).copied() {
            Some(there) if self.is_dir(there) && node.meta.kind == FileKind::Dir => {
                self.describe_dir(there, node)
            }
            there => {
                // As tar(1): the later member counts.
                there.map_or(Ok(()), |there| self.replace(there))?;
                node.meta.nlink = 1;
                let node = self.push(node);
                self.nodes[dir].names.insert(name.to_vec(), node);
                Ok(())
            }
        }
    }

    fn describe_dir(&mut self, dir: usize, node: Node) -> Result<()> {
        let layer = self.layer();
        let there = &mut self.nodes[dir];
        there.meta = Meta {
            id: there.meta.id,
            ..node.meta
        };
        there.xattrs = node.xattrs;
        there.layer = layer;
        Ok(())
    }

    fn is_dir(&self, node: usize) -> bool {
        self.nodes[node].meta.kind == FileKind::Dir
    }

    /// Makes room for another file of the same name. A directory only makes room for what comes
    /// from another layer.
    fn replace(&mut self, there: usize) -> Result<()> {
        if self.is_dir(there) && self.nodes[there].layer == self.layer() {
            return Err(Failure::new("would replace a directory"));
        }
        self.drop_name(there);
        Ok(())
    }

    /// Notes that a file has lost a name. A directory is gone with all that is in it.
    fn drop_name(&mut self, node: usize) {
        let mut gone = vec![node];
        while let Some(node) = gone.pop() {
            let node = &mut self.nodes[node];
            match node.meta.kind {
                FileKind::Dir => gone.extend(std::mem::take(&mut node.names).into_values()),
                _ => node.meta.nlink -= 1,
            }
        }
    }

    /// Follows names from the root, as far as there is something; through symbolic links, if
    /// `follows`, as for a program whose root directory this is.
    fn reach(&self, names: &[&[u8]], follows: bool) -> Result<Reached> {
        let mut missing: VecDeque<Vec<u8>> = names.iter().map(|name| name.to_vec()).collect();
        // The directories on the way, for `..` in the target of a link.
        let mut way = vec![ROOT];
        let mut last = Vec::new();
        let mut links = 0;
        while let Some(name) = missing.front() {
            let here = *way.last().unwrap_or(&ROOT);
            if name == b".." && self.is_dir(here) {
                way.truncate((way.len() - 1).max(1));
                missing.pop_front();
                continue;
            }
            let Some(&there) = self.nodes[here].names.get(name) else {
                break;
            };
            last = missing.pop_front().unwrap_or_default();
            let node = &self.nodes[there];
            if !follows || node.meta.kind != FileKind::Symlink {
                way.push(there);
                continue;
            }
            links += 1;
            if links > LINKS_MAX {
                return Err(Failure::new("leads through too many symbolic links"));
            }
            if node.target.starts_with(b"/") {
                way.truncate(1);
            }
            let parts = node.target.rsplit(|byte| *byte == b'/');
            for part in parts.filter(|part| !matches!(*part, b"" | b".")) {
                missing.push_front(part.to_vec());
            }
        }
        Ok(Reached {
            node: *way.last().unwrap_or(&ROOT),
            name: last,
            missing,
        })
    }

    /// Returns the file to which the names lead, or the last of them; `None` if there is none.
    fn find(&self, names: &[&[u8]], follows: bool) -> Result<Option<usize>> {
        let reached = self.reach(names, follows)?;
        Ok(reached.missing.is_empty().then_some(reached.node))
    }

    /// Returns the file of these names, which may itself be a symbolic link.
    fn find_link(&self, names: &[&[u8]], follows: bool) -> Result<Option<usize>> {
        let Some((name, dirs)) = names.split_last() else {
            return Ok(Some(ROOT));
        };
        let dir = self.find(dirs, follows)?;
        Ok(dir.and_then(|dir| self.nodes[dir].names.get(*name).copied()))
    }

    /// Returns the directory of these names; makes those that are missing.
    fn make_dirs(&mut self, parts: &[&[u8]], time: Stamp) -> Result<usize> {
        let Reached {
            mut node,
            name,
            missing,
        } = self.reach(parts, self.is_layered)?;
        if !self.is_dir(node) {
            let kind = self.nodes[node].meta.kind.word();
            let name = shown(&name);
            return Err(Failure::new(format!(
                "leads through {name}, which is a {kind}"
            )));
        }
        for name in missing {
            check_part(&name)?;
            let made = self.push(Node::new(FileKind::Dir, 0o755, time));
            self.nodes[node].names.insert(name, made);
            node = made;
        }
        Ok(node)
    }

    fn add_link(&mut self, target: &[u8], name: &[&[u8]], time: Stamp) -> Result<()> {
        let wrong =
            |why: &str| Failure::new(format!("is a link to {}, which {why}", shown(target)));
        let node = self.find_link(&parts(target)?, self.is_layered)?;
        let node = node.ok_or_else(|| wrong("is no member before it"))?;
        if self.is_dir(node) {
            return Err(wrong("is a directory"));
        }
        let Some((name, dirs)) = name.split_last() else {
            return Err(wrong("would be the root"));
        };
        let dir = self.make_dirs(dirs, time)?;
        let there = self.nodes[dir].names.get(*name).copied();
        match there {
            Some(there) if there == node => return Ok(()),
            there => there.map_or(Ok(()), |there| self.replace(there))?,
        }
        self.nodes[node].meta.nlink += 1;
        self.nodes[dir].names.insert(name.to_vec(), node);
        Ok(())
    }
}

/// Reads a member's attributes.
fn described(member: &Entry, kind: FileKind) -> Result<Node> {
    let header = &member.header;
    let mode = low16(header.mode()? & 0o7777);
    let mtime = match member.mtime {
        Some(mtime) => mtime,
        None => (i64::try_from(header.mtime()?).unwrap_or(i64::MAX), 0),
    };
    let mut node = Node::new(kind, mode, mtime);
    let id = |id: u64| u32::try_from(id).map_err(|_| Failure::new("has an owner beyond 32 bits"));
    node.meta.uid = id(member.uid)?;
    node.meta.gid = id(member.gid)?;
    if matches!(kind, FileKind::Char | FileKind::Block) {
        let number = |number: Option<u32>| number.unwrap_or(0);
        node.meta.rdev = (
            number(header.device_major()?),
            number(header.device_minor()?),
        );
    }
    node.xattrs.clone_from(&member.xattrs);
    Ok(node)
}

/// The parts of a member's name.
fn parts(name: &[u8]) -> Result<Vec<&[u8]>> {
    let parts = name.split(|byte| *byte == b'/');
    let parts: Vec<&[u8]> = parts.filter(|part| !matches!(*part, b"" | b".")).collect();
    if parts.contains(&&b".."[..]) {
        return Err(Failure::new("leads out of the archive"));
    }
    for part in &parts {
        check_part(part)?;
    }
    Ok(parts)
}

impl Tree for Archive {
    fn shown(&self, path: &[u8]) -> String {
        format!("{}:{}", self.path, shown(path))
    }

    fn at(&self, path: &[u8], follow: bool) -> Result<Option<Box<dyn Item + '_>>> {
        let names = parts(path)?;
        let node = if follow {
            self.find(&names, true)?
        } else {
            self.find_link(&names, true)?
        };
        Ok(node.map(|node| -> Box<dyn Item> {
            Box::new(Member {
                archive: self,
                node,
                path: path.to_vec(),
                way: Vec::new(),
            })
        }))
    }

    /// Every directory has one name, and that in one directory.
    fn is_image(&self) -> bool {
        false
    }

    fn capacity(&self) -> Result<u64> {
        Ok(u64::MAX)
    }
}

/// A file in an archive.
struct Member<'a> {
    archive: &'a Archive,
    node: usize,
    path: Vec<u8>,
    way: Vec<Vec<u8>>,
}

impl Member<'_> {
    fn node(&self) -> &Node {
        &self.archive.nodes[self.node]
    }
}

fn only_read<T>() -> Result<T> {
    Err(Failure::new("an archive is only read"))
}

impl Item for Member<'_> {
    fn shown(&self) -> String {
        self.archive.shown(&self.path)
    }

    fn meta(&self) -> Result<Meta> {
        Ok(self.node().meta)
    }

    fn names(&self) -> Result<Vec<Vec<u8>>> {
        Ok(self.node().names.keys().cloned().collect())
    }

    fn child(&self, name: &[u8]) -> Result<Option<Box<dyn Item + '_>>> {
        let found = self.node().names.get(name).copied();
        Ok(found.map(|node| -> Box<dyn Item> {
            let mut way = self.way.clone();
            way.push(name.to_vec());
            Box::new(Member {
                archive: self.archive,
                node,
                path: join(&self.path, name),
                way,
            })
        }))
    }

    fn followed(&self, name: &[u8]) -> Result<Option<Box<dyn Item + '_>>> {
        self.child(name)
    }

    fn check_parent(&self, _: &dyn Item) -> Result<()> {
        Ok(())
    }

    fn way(&self) -> &[Vec<u8>] {
        &self.way
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn make_file(&self, _: &[u8], _: u16) -> Result<Box<dyn Item + '_>> {
        only_read()
    }

    fn make_dir(&self, _: &[u8], _: u16) -> Result<Box<dyn Item + '_>> {
        only_read()
    }

    fn make_symlink(&self, _: &[u8], _: &[u8]) -> Result<Box<dyn Item + '_>> {
        only_read()
    }

    fn make_node(
        &self,
        _: &[u8],
        _: FileKind,
        _: u16,
        _: (u32, u32),
    ) -> Result<Box<dyn Item + '_>> {
        only_read()
    }

    fn make_link(&self, _: &[u8], _: &dyn Item) -> Result<()> {
        only_read()
    }

    fn remove_file(&self, _: &[u8]) -> Result<()> {
        only_read()
    }

    fn remove_dir(&self, _: &[u8]) -> Result<()> {
        only_read()
    }

    fn read_link(&self) -> Result<Vec<u8>> {
        Ok(self.node().target.clone())
    }

    fn open(&self) -> Result<Box<dyn Source + '_>> {
        let node = self.node();
        Ok(Box::new(Content {
            file: &self.archive.files[node.layer],
            pieces: &node.pieces,
            size: node.meta.size,
        }))
    }

    fn open_to_write(&self) -> Result<Box<dyn Item + '_>> {
        only_read()
    }

    fn write(&self, _: u64, _: &[u8]) -> Result<()> {
        only_read()
    }

    fn set_len(&self, _: u64) -> Result<()> {
        only_read()
    }

    fn xattrs(&self) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        Ok(self.node().xattrs.clone())
    }

    fn set_xattr(&self, _: &[u8], _: &[u8]) -> Result<()> {
        only_read()
    }

    fn remove_xattr(&self, _: &[u8]) -> Result<()> {
        only_read()
    }

    fn set_owner(&self, _: u32, _: u32) -> Result<bool> {
        only_read()
    }

    fn set_mode(&self, _: u16) -> Result<()> {
        only_read()
    }

    fn set_times(&self, _: Stamp, _: Stamp) -> Result<()> {
        only_read()
    }
}

/// The bytes of a member.
struct Content<'a> {
    file: &'a File,
    pieces: &'a [Piece],
    size: u64,
}

impl Content<'_> {
    /// The first piece that ends behind an offset.
    fn piece(&self, offset: u64) -> Option<&Piece> {
        let before = self.pieces.partition_point(|piece| piece.end() <= offset);
        self.pieces.get(before)
    }
}

impl Source for Content<'_> {
    fn next_data(&mut self, from: u64) -> Result<Option<(u64, u64)>> {
        let piece = self.piece(from);
        Ok(piece.map(|piece| (piece.offset.max(from), piece.end())))
    }

    fn read(&mut self, offset: u64, out: &mut [u8]) -> Result<usize> {
        let Some(piece) = self.piece(offset).filter(|piece| piece.offset <= offset) else {
            return Ok(0);
        };
        let want = out.len().min(u64_as_usize(piece.end() - offset));
        let at = piece.start.saturating_add(offset - piece.offset);
        match self.file.read_at(&mut out[..want], at)? {
            0 => Err(Failure::new("the archive ends inside of it")),
            got => Ok(got),
        }
    }

    fn size(&self) -> Result<u64> {
        Ok(self.size)
    }
}
