//! Every entry of every directory: its form, its name, its inode.
//!
//! Counts how often each inode is named, and notes for [`tree`](crate::tree) which directory names
//! each directory.

use stetfs_format::bytes::{read_u16le, read_u32le};
use stetfs_format::inode::ROOT_INO;
use stetfs_format::width::{must_fit, u32_as_usize, u64_as_usize, usize_as_u64};
use stetfs_format::{Corrupt, DirBlock, DirHash, FileType, Hasher, InodeNo, LBlock, Place};

use crate::finding::{Fault, Name};
use crate::state::{BlockKind, Check, Dir, HashRange, NameAt, Record};

const HEADER: usize = 8;
const MIN_REC_LEN: usize = 12;
/// Bytes of the entry that holds the checksum.
const TAIL: usize = 12;
/// Most bytes of a directory that are read at once.
const CHUNK: usize = 64 << 10;

/// The part of an entry before its name.
#[derive(Clone, Copy)]
pub(crate) struct Entry<'a> {
    pub(crate) ino: InodeNo,
    file_type: u8,
    pub(crate) rec_len: usize,
    pub(crate) name: &'a [u8],
}

impl Check<'_> {
    pub(crate) fn check_directories(&mut self) {
        for at in 0..self.s.dirs.len() {
            self.check_directory(at);
        }
    }

    fn check_directory(&mut self, at: usize) {
        let dir = self.s.dirs[at];
        let first = dir.first_run;
        let end = self
            .s
            .dirs
            .get(at + 1)
            .map_or(self.s.runs.len(), |next| next.first_run);
        let whole: u64 = self.s.runs[first..end]
            .iter()
            .map(|run| u64::from(run.len))
            .sum();
        let mut names = std::mem::take(&mut self.s.names);
        names.clear();
        // A hole in a directory has been reported; the hash tree of such a directory cannot be
        // followed.
        let mut hasher = None;
        let has_tree = dir.indexed && whole == dir.blocks && whole > 0;
        if has_tree {
            self.begin_htree(u64_as_usize(whole));
        }
        let mut raw = std::mem::take(&mut self.s.table);
        let size = self.g.block_size();
        for run in first..end {
            let run = self.s.runs[run];
            let mut done = 0;
            while done < run.len {
                let count = run.len.min(done + must_fit::<_, u32>(CHUNK / size)) - done;
                raw.resize(u32_as_usize(count) * size, 0);
                if self.read(run.pblk.plus(done.into()), &mut raw) {
                    for (lblk, block) in (run.lblk + done..).zip(raw.chunks_exact(size)) {
                        if has_tree && lblk == 0 {
                            hasher = self.htree_root(&dir, block);
                        }
                        self.check_block(at, &dir, lblk, block, hasher.as_ref(), &mut names);
                    }
                }
                done += count;
            }
        }
        self.s.table = raw;
        if hasher.is_some() {
            self.end_htree(&dir);
        }
        self.check_duplicates(&dir, first..end, &mut names);
        self.s.names = names;
    }

    fn check_block(
        &mut self,
        at: usize,
        dir: &Dir,
        lblk: u32,
        raw: &[u8],
        hasher: Option<&Hasher>,
        names: &mut Vec<NameAt>,
    ) {
        let place = Place::FileBlock(dir.ino, LBlock(lblk));
        let kind = self.kind_of(lblk, raw, hasher.is_some());
        let mut body = raw.len();
        if kind == BlockKind::Leaf && self.g.metadata_csum {
            let g = self.g;
            match DirBlock::decode(raw, &g) {
                Ok(block) => {
                    body -= TAIL;
                    if let Err(corrupt) = block.check_checksum(dir.seed) {
                        self.push(place, corrupt);
                    }
                }
                Err(corrupt) => self.push(place, corrupt),
            }
        }
        let mut range = HashRange { min: !0, max: 0 };
        // The position of the entry in the directory: the first two are `.` and `..`.
        let mut position = if lblk == 0 { 0 } else { 2 };
        let mut offset = 0;
        while offset < body {
            let entry = match parse(&raw[..body], offset) {
                Ok(entry) => entry,
                Err(corrupt) => {
                    self.push(place, corrupt);
                    break;
                }
            };
            match position {
                0 => self.check_dot(place, dir, &entry, &raw[offset..]),
                1 => self.check_dotdot(place, at, &entry, &raw[offset..]),
                _ => {}
            }
            if entry.ino.0 != 0 && self.check_entry(place, dir, &entry, position) {
                if let Some(hasher) = hasher {
                    let DirHash { major, .. } = hasher.hash(entry.name);
                    range.min = range.min.min(major);
                    range.max = range.max.max(major);
                }
                names.push(NameAt {
                    hash: hash_of(entry.name),
                    lblk,
                    offset: must_fit(offset),
                });
            }
            offset += entry.rec_len;
            position += 1;
        }
        if hasher.is_some() {
            self.htree_block(dir, lblk, kind, raw, range);
        }
    }

    fn check_dot(&mut self, place: Place, dir: &Dir, entry: &Entry<'_>, raw: &[u8]) {
        if entry.ino.0 == 0 || entry.name != b"." {
            self.push(place, Fault::DotMissing("."));
        } else if raw[HEADER + 1] != 0 {
            self.push(place, Fault::DotUnended("."));
        }
        if entry.ino != dir.ino {
            self.push(place, Fault::DotInode(entry.ino));
        }
        if entry.rec_len > 2 * MIN_REC_LEN {
            self.push(place, Fault::DotLarge(entry.rec_len));
        }
    }

    fn check_dotdot(&mut self, place: Place, at: usize, entry: &Entry<'_>, raw: &[u8]) {
        if entry.ino.0 == 0 || entry.name != b".." {
            self.push(place, Fault::DotMissing(".."));
            return;
        }
        if raw[HEADER + 2] != 0 {
            self.push(place, Fault::DotUnended(".."));
        }
        self.s.dirs[at].dotdot = entry.ino;
    }

    /// Checks an entry in use. Returns false if its inode cannot be counted.
    fn check_entry(&mut self, place: Place, dir: &Dir, entry: &Entry<'_>, position: usize) -> bool {
        let (ino, name) = (entry.ino, entry.name);
        let named = || Name(name.into());
        let is_dot = position < 2;
        if !is_dot && ino == dir.ino {
            self.push(place, Fault::EntrySelf(named()));
        }
        let is_reserved = ino != ROOT_INO && ino.0 < self.g.first_ino;
        if is_reserved || !self.g.is_valid_inode(ino) {
            let name = named();
            self.push(place, Fault::EntryInode { name, ino });
            return false;
        }
        if !is_dot {
            if name == b"." || name == b".." {
                self.push(place, Fault::EntryDotAgain(named()));
            } else if ino == ROOT_INO {
                self.push(place, Fault::EntryRoot(named()));
            } else if name.is_empty() {
                self.push(place, Fault::EntryNameEmpty(ino));
            }
        }
        if name.iter().any(|&byte| byte == b'/' || byte == 0) {
            self.push(place, Fault::EntryName(named()));
        }
        let Some(record) = self.record(ino) else {
            let name = named();
            self.push(place, Fault::EntryUninit { name, ino });
            return true;
        };
        record.counted += 1;
        let kind = record.kind;
        if kind == 0 {
            let name = named();
            self.push(place, Fault::EntryUnused { name, ino });
            return true;
        }
        let expected = if self.g.filetype { kind } else { 0 };
        if entry.file_type != expected && kind != Record::BAD {
            let (name, found) = (named(), entry.file_type);
            let expected = FileType::of_dirent_code(expected);
            self.push(
                place,
                Fault::EntryType {
                    name,
                    ino,
                    found,
                    expected,
                },
            );
        }
        if !is_dot && kind == Record::DIRECTORY {
            self.note_parent(place, dir, entry);
        }
        true
    }

    fn note_parent(&mut self, place: Place, dir: &Dir, entry: &Entry<'_>) {
        let ino = entry.ino;
        // The root is its own parent.
        let Some(at) = self.dir_index(ino).filter(|_| ino != ROOT_INO) else {
            return;
        };
        let parent = self.s.dirs[at].parent;
        if parent.0 == 0 {
            self.s.dirs[at].parent = dir.ino;
            return;
        }
        let name = Name(entry.name.into());
        self.push(place, Fault::DirectoryLink { name, ino, parent });
    }

    /// Finds duplicate names. Equal names have equal hashes, so only names with equal hashes are
    /// read again.
    fn check_duplicates(&mut self, dir: &Dir, runs: std::ops::Range<usize>, names: &mut [NameAt]) {
        names.sort_unstable();
        for alike in names.chunk_by(|a, b| a.hash == b.hash) {
            if alike.len() == 1 {
                continue;
            }
            let mut read: Vec<(Box<[u8]>, u32)> = alike
                .iter()
                .filter_map(|&at| Some((self.name_at(&runs, at)?, at.lblk)))
                .collect();
            read.sort_unstable();
            for pair in read.windows(2) {
                if pair[0].0 == pair[1].0 {
                    let (name, lblk) = pair[1].clone();
                    let place = Place::FileBlock(dir.ino, LBlock(lblk));
                    self.push(place, Fault::DuplicateName(Name(name)));
                }
            }
        }
    }

    fn name_at(&mut self, runs: &std::ops::Range<usize>, at: NameAt) -> Option<Box<[u8]>> {
        let runs = &self.s.runs[runs.clone()];
        let run = runs[runs
            .partition_point(|run| run.lblk <= at.lblk)
            .checked_sub(1)?];
        let mut raw = std::mem::take(&mut self.s.block);
        let block = run.pblk.plus((at.lblk - run.lblk).into());
        let name = if self.read(block, &mut raw) {
            parse(&raw, at.offset.into())
                .ok()
                .map(|entry| entry.name.into())
        } else {
            None
        };
        self.s.block = raw;
        name
    }
}

/// Parses the entry at `offset`; an error unless entry and name lie inside `body`.
#[inline]
pub(crate) fn parse(body: &[u8], offset: usize) -> Result<Entry<'_>, Corrupt> {
    let rest = &body[offset..];
    if rest.len() < MIN_REC_LEN {
        return Err(Corrupt::DirentOverrun { offset });
    }
    let rec_len = usize::from(read_u16le(rest, 4));
    let name_len = usize::from(rest[6]);
    if rec_len < MIN_REC_LEN || !rec_len.is_multiple_of(4) || HEADER + name_len > rec_len {
        return Err(Corrupt::DirentRecLen {
            offset,
            rec_len,
            name_len,
        });
    }
    if rec_len > rest.len() {
        return Err(Corrupt::DirentOverrun { offset });
    }
    Ok(Entry {
        ino: InodeNo(read_u32le(rest, 0)),
        file_type: rest[7],
        rec_len,
        name: &rest[HEADER..HEADER + name_len],
    })
}

/// Hashes eight bytes per step; good only for telling names apart.
#[inline]
fn hash_of(name: &[u8]) -> u64 {
    const K: u64 = 0x9e37_79b9_7f4a_7c15;
    let mix = |hash: u64, word: u64| (hash ^ word).wrapping_mul(K).rotate_left(29);
    let mut words = name.chunks_exact(8);
    let mut hash = usize_as_u64(name.len());
    for word in &mut words {
        hash = mix(
            hash,
            u64::from_le_bytes(word.try_into().unwrap_or_default()),
        );
    }
    let mut rest = [0; 8];
    rest[..words.remainder().len()].copy_from_slice(words.remainder());
    mix(hash, u64::from_le_bytes(rest))
}
