//! A tar archive as a tree that is only read.
//!
//! Opening it reads all headers; contents stay in the archive. What an archive says is hostile:
//! - a name may not have a part `..`; slashes at its beginning are left out, as tar(1) does;
//! - no name leads through a symbolic link or another file that is no directory;
//! - a hard link names a member that came before, and no directory.
//!
//! Nothing of this reaches the host: the tree lives in memory, and its root is its boundary.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

use stetfs_format::width::{low16, u64_as_usize, usize_as_u64};
use tar::EntryType;

use super::members::{Entries, Entry};
use super::sparse::Piece;
use crate::failure::{Failure, Result};
use crate::place::join;
use crate::shown::shown;
use crate::tree::{FileKind, Item, Meta, Source, Stamp, Tree, check_part};

const ROOT: usize = 0;

pub(super) struct Archive {
    file: File,
    path: String,
    nodes: Vec<Node>,
}

struct Node {
    meta: Meta,
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
            names: BTreeMap::new(),
            target: Vec::new(),
            pieces: Vec::new(),
            xattrs: Vec::new(),
        }
    }
}

impl Archive {
    /// Reads the headers. Directories that have none are root's, and as old as `time`.
    pub(super) fn open(path: &Path, time: Stamp) -> Result<Self> {
        let file = File::open(path)?;
        let reader = file.try_clone()?;
        let mut archive = Self {
            file,
            path: path.display().to_string(),
            nodes: Vec::new(),
        };
        archive.push(Node::new(FileKind::Dir, 0o755, time));
        let mut members = Entries::of(&reader)?;
        while let Some(member) = members.next()? {
            let added = archive.add(&member, time);
            added.map_err(|e| e.context(format!("member {}", shown(&member.name))))?;
        }
        Ok(archive)
    }

    fn push(&mut self, mut node: Node) -> usize {
        node.meta.id = (0, usize_as_u64(self.nodes.len()));
        self.nodes.push(node);
        self.nodes.len() - 1
    }

    fn add(&mut self, member: &Entry, time: Stamp) -> Result<()> {
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
            Some(there) if self.nodes[there].meta.kind == FileKind::Dir => {
                if node.meta.kind != FileKind::Dir {
                    return Err(Failure::new("would replace a directory"));
                }
                self.describe_dir(there, node)
            }
            there => {
                // As tar(1): the later member counts.
                if let Some(there) = there {
                    self.nodes[there].meta.nlink -= 1;
                }
                node.meta.nlink = 1;
                let node = self.push(node);
                self.nodes[dir].names.insert(name.to_vec(), node);
                Ok(())
            }
        }
    }

    fn describe_dir(&mut self, dir: usize, node: Node) -> Result<()> {
        let there = &mut self.nodes[dir];
        there.meta = Meta {
            id: there.meta.id,
            ..node.meta
        };
        there.xattrs = node.xattrs;
        Ok(())
    }

    /// Returns the directory of these names; makes those that are missing.
    fn make_dirs(&mut self, parts: &[&[u8]], time: Stamp) -> Result<usize> {
        let mut dir = ROOT;
        for part in parts {
            dir = match self.nodes[dir].names.get(*part) {
                Some(&there) => there,
                None => {
                    let made = self.push(Node::new(FileKind::Dir, 0o755, time));
                    self.nodes[dir].names.insert(part.to_vec(), made);
                    made
                }
            };
            if self.nodes[dir].meta.kind != FileKind::Dir {
                let kind = self.nodes[dir].meta.kind.word();
                return Err(Failure::new(format!(
                    "leads through {}, which is a {kind}",
                    shown(part)
                )));
            }
        }
        Ok(dir)
    }

    fn add_link(&mut self, target: &[u8], name: &[&[u8]], time: Stamp) -> Result<()> {
        let wrong =
            |why: &str| Failure::new(format!("is a link to {}, which {why}", shown(target)));
        let mut node = ROOT;
        for part in parts(target)? {
            let there = self.nodes[node].names.get(part);
            node = *there.ok_or_else(|| wrong("is no member before it"))?;
        }
        if self.nodes[node].meta.kind == FileKind::Dir {
            return Err(wrong("is a directory"));
        }
        let Some((name, dirs)) = name.split_last() else {
            return Err(wrong("would be the root"));
        };
        let dir = self.make_dirs(dirs, time)?;
        let there = self.nodes[dir].names.get(*name).copied();
        match there {
            Some(there) if there == node => return Ok(()),
            Some(there) if self.nodes[there].meta.kind == FileKind::Dir => {
                return Err(Failure::new("would replace a directory"));
            }
            Some(there) => self.nodes[there].meta.nlink -= 1,
            None => {}
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

    fn at(&self, path: &[u8], _: bool) -> Result<Option<Box<dyn Item + '_>>> {
        let mut node = ROOT;
        for part in parts(path)? {
            match self.nodes[node].names.get(part) {
                Some(&there) => node = there,
                None => return Ok(None),
            }
        }
        Ok(Some(Box::new(Member {
            archive: self,
            node,
            path: path.to_vec(),
            way: Vec::new(),
        })))
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
            file: &self.archive.file,
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
