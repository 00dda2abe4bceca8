//! Everything visible in a tree, and the differences between two trees.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use anyhow::{Context, Result};
use rustix::fs::SeekFrom;
use rustix::io::Errno;

use super::sparse::PAGE;

/// Content by page: the hashes of the pages that are not all zeros.
pub type Pages = BTreeMap<u64, u64>;

/// A file of the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// File type and permission bits, as `st_mode`.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Links.
    pub nlink: u64,
    /// Major and minor number of a device, else zeros.
    pub device: (u32, u32),
    /// Length; 0 for directories, whose length depends on the implementation.
    pub size: u64,
    /// The target of a symbolic link.
    pub target: Option<Vec<u8>>,
    /// The content of a regular file.
    pub pages: Pages,
    /// Extended attributes and ACLs.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The first path, in order, of the same file.
    pub same_as: Vec<u8>,
    /// Time of the last access, if it is known.
    pub atime: Option<(i64, u32)>,
    /// Time of the last change of the content, if it is known.
    pub mtime: Option<(i64, u32)>,
    /// Time of the last change of the inode, if it is known.
    pub ctime: Option<(i64, u32)>,
    /// Time of creation, if it is known.
    pub btime: Option<(i64, u32)>,
    /// First block and length of each run of blocks that a regular file has, written or not; `None`
    /// if they are not known.
    pub blocks: Option<Vec<(u64, u64)>>,
}

/// Appends a run of blocks, by first block and length; extends the last run if the new one
/// continues it.
pub(super) fn add_run(runs: &mut Vec<(u64, u64)>, first: u64, len: u64) {
    match runs.last_mut() {
        Some((start, n)) if *start + *n == first => *n += len,
        _ => runs.push((first, len)),
    }
}

/// Files by path relative to the top; the top itself is the empty path.
pub type Tree = BTreeMap<Vec<u8>, Facts>;

/// Returns a 64-bit hash of bytes (FNV-1a over words, then mixed). Not safe against adversaries.
pub fn hash(bytes: &[u8]) -> u64 {
    let mut h = 0xcbf2_9ce4_8422_2325u64;
    for chunk in bytes.chunks(8) {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        h = (h ^ u64::from_le_bytes(word))
            .wrapping_mul(0x0000_0100_0000_01b3)
            .rotate_left(29);
    }
    (h ^ bytes.len() as u64 ^ h >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Notes the pages of `bytes` that are not zeros; `bytes` starts at page `first`. Zeros fill up the
/// last page.
pub fn note_pages(pages: &mut Pages, first: u64, bytes: &[u8]) {
    for (i, chunk) in bytes.chunks(PAGE as usize).enumerate() {
        if chunk.iter().any(|b| *b != 0) {
            let mut page = [0; PAGE as usize];
            page[..chunk.len()].copy_from_slice(chunk);
            pages.insert(first + i as u64, hash(&page));
        }
    }
}

/// Joins a path of a tree and a name.
pub fn join(path: &[u8], name: &[u8]) -> Vec<u8> {
    if path.is_empty() {
        name.to_vec()
    } else {
        [path, b"/", name].concat()
    }
}

/// Whether [`differences`] would find none; takes a fraction of the time.
pub fn are_alike(expected: &Tree, found: &Tree) -> bool {
    let same = |want, have| FIELDS.iter().all(|field| (field.same)(want, have));
    expected.len() == found.len()
        && std::iter::zip(expected, found)
            .all(|((path, want), (at, have))| path == at && same(want, have))
}

/// Returns the differences of `found` from `expected`, one per line; none if they are equal. Times
/// are compared if both are known.
pub fn differences(expected: &Tree, found: &Tree) -> Vec<String> {
    let mut out = Vec::new();
    for (path, want) in expected {
        let shown = path.escape_ascii();
        let Some(have) = found.get(path) else {
            out.push(format!("{shown}: missing ({:o})", want.mode));
            continue;
        };
        for field in FIELDS.iter().filter(|field| !(field.same)(want, have)) {
            let (want, have) = ((field.show)(want, have), (field.show)(have, want));
            out.push(format!(
                "{shown}: {} is {have}, expected {want}",
                field.name
            ));
        }
    }
    for (path, have) in found {
        if !expected.contains_key(path) {
            out.push(format!(
                "{}: should not be there ({:o})",
                path.escape_ascii(),
                have.mode
            ));
        }
    }
    out
}

/// A property that is compared.
struct Field {
    name: &'static str,
    same: fn(&Facts, &Facts) -> bool,
    /// Formats the first one's value, which differs from the second's.
    show: fn(&Facts, &Facts) -> String,
}

const fn field(
    name: &'static str,
    same: fn(&Facts, &Facts) -> bool,
    show: fn(&Facts, &Facts) -> String,
) -> Field {
    Field { name, same, show }
}

const FIELDS: [Field; 14] = [
    field(
        "mode",
        |a, b| a.mode == b.mode,
        |f, _| format!("{:o}", f.mode),
    ),
    field(
        "owner",
        |a, b| (a.uid, a.gid) == (b.uid, b.gid),
        |f, _| format!("{}:{}", f.uid, f.gid),
    ),
    field(
        "links",
        |a, b| a.nlink == b.nlink,
        |f, _| f.nlink.to_string(),
    ),
    field(
        "device",
        |a, b| a.device == b.device,
        |f, _| format!("{}:{}", f.device.0, f.device.1),
    ),
    field("size", |a, b| a.size == b.size, |f, _| f.size.to_string()),
    field(
        "target",
        |a, b| a.target == b.target,
        |f, _| {
            f.target
                .as_deref()
                .unwrap_or_default()
                .escape_ascii()
                .to_string()
        },
    ),
    field(
        "identity",
        |a, b| a.same_as == b.same_as,
        |f, _| f.same_as.escape_ascii().to_string(),
    ),
    field(
        "xattrs",
        |a, b| a.xattrs == b.xattrs,
        |f, _| {
            let xattrs = f.xattrs.iter();
            let each = xattrs.map(|(n, v)| format!("{}={}", n.escape_ascii(), v.escape_ascii()));
            each.collect::<Vec<_>>().join(" ")
        },
    ),
    field(
        "content",
        |a, b| a.pages == b.pages,
        |f, other| first_pages(&f.pages, &other.pages),
    ),
    field(
        "atime",
        |a, b| agree(&a.atime, &b.atime),
        |f, _| show(f.atime),
    ),
    field(
        "mtime",
        |a, b| agree(&a.mtime, &b.mtime),
        |f, _| show(f.mtime),
    ),
    field(
        "ctime",
        |a, b| agree(&a.ctime, &b.ctime),
        |f, _| show(f.ctime),
    ),
    field(
        "btime",
        |a, b| agree(&a.btime, &b.btime),
        |f, _| show(f.btime),
    ),
    field(
        "blocks",
        |a, b| agree(&a.blocks, &b.blocks),
        |f, _| {
            let runs = f.blocks.iter().flatten();
            let each = runs.map(|(first, len)| format!("{first}+{len}"));
            format!("[{}]", each.collect::<Vec<_>>().join(" "))
        },
    ),
];

/// Whether they are equal, or one of them is unknown.
fn agree<T: PartialEq>(a: &Option<T>, b: &Option<T>) -> bool {
    a.is_none() || b.is_none() || a == b
}

fn show(time: Option<(i64, u32)>) -> String {
    time.map_or_else(String::new, |time| format!("{time:?}"))
}

/// Lists the pages of `a` that differ in `b`, at most eight.
fn first_pages(a: &Pages, b: &Pages) -> String {
    let differ: Vec<_> = a.iter().filter(|(at, h)| b.get(at) != Some(h)).collect();
    let shown: Vec<_> = differ
        .iter()
        .take(8)
        .map(|(at, h)| format!("page {at} {h:016x}"))
        .collect();
    format!(
        "{} of {} pages [{}]",
        differ.len(),
        a.len(),
        shown.join(", ")
    )
}

/// Fills in `same_as` from each path's inode number.
pub fn name_links(tree: &mut Tree, inodes: &BTreeMap<Vec<u8>, u64>) {
    let mut first = BTreeMap::new();
    for (path, facts) in tree {
        let ino = inodes.get(path).copied().unwrap_or(0);
        facts.same_as = first.entry(ino).or_insert_with(|| path.clone()).clone();
    }
}

/// Returns the tree below a mounted directory.
///
/// # Errors
/// Anything that cannot be read: a tree that is there must be readable.
pub fn of_directory(top: &Path) -> Result<Tree> {
    let mut tree = Tree::new();
    let mut inodes = BTreeMap::new();
    let mut todo = vec![Vec::new()];
    while let Some(path) = todo.pop() {
        let full = top.join(std::ffi::OsStr::from_bytes(&path));
        let stat =
            fs::symlink_metadata(&full).with_context(|| format!("stat of {}", full.display()))?;
        if stat.is_dir() {
            for entry in
                fs::read_dir(&full).with_context(|| format!("listing {}", full.display()))?
            {
                todo.push(join(&path, &entry?.file_name().into_vec()));
            }
        }
        inodes.insert(path.clone(), stat.ino());
        tree.insert(path, facts_of(&full, &stat)?);
    }
    name_links(&mut tree, &inodes);
    Ok(tree)
}

fn facts_of(full: &Path, stat: &fs::Metadata) -> Result<Facts> {
    let kind = stat.file_type();
    let target = if kind.is_symlink() {
        Some(fs::read_link(full)?.into_os_string().into_vec())
    } else {
        None
    };
    let pages = if kind.is_file() {
        pages_of(full, stat.size()).with_context(|| format!("reading {}", full.display()))?
    } else {
        Pages::new()
    };
    Ok(Facts {
        mode: stat.mode(),
        uid: stat.uid(),
        gid: stat.gid(),
        nlink: stat.nlink(),
        device: (
            rustix::fs::major(stat.rdev()),
            rustix::fs::minor(stat.rdev()),
        ),
        size: if kind.is_file() || kind.is_symlink() {
            stat.size()
        } else {
            0
        },
        target,
        pages,
        xattrs: xattrs_of(full)?,
        same_as: Vec::new(),
        atime: Some((stat.atime(), stat.atime_nsec() as u32)),
        mtime: Some((stat.mtime(), stat.mtime_nsec() as u32)),
        ctime: Some((stat.ctime(), stat.ctime_nsec() as u32)),
        btime: None,
        blocks: None,
    })
}

/// Files up to this many bytes are read whole, so that ranges which SEEK_DATA skips are compared
/// too.
const WHOLE: u64 = 64 << 20;

/// Reads the content; of large files only what SEEK_DATA reports.
fn pages_of(full: &Path, size: u64) -> Result<Pages> {
    let file = File::open(full)?;
    let mut pages = Pages::new();
    if size <= WHOLE {
        read_pages(&file, 0, size, size, &mut pages)?;
        return Ok(pages);
    }
    let mut at = 0;
    while at < size {
        let start = match rustix::fs::seek(&file, SeekFrom::Data(at)) {
            Ok(start) => start.max(at),
            Err(Errno::NXIO) => break,
            Err(error) => return Err(error.into()),
        };
        let end = rustix::fs::seek(&file, SeekFrom::Hole(start))?.clamp(start + 1, size);
        at = read_pages(&file, start - start % PAGE, end, size, &mut pages)?;
    }
    Ok(pages)
}

/// Notes the pages from `at` to the one that holds the last byte before `end`. Returns where that
/// page ends.
fn read_pages(file: &File, mut at: u64, end: u64, size: u64, pages: &mut Pages) -> Result<u64> {
    let mut buffer = vec![0; 1 << 20];
    let stop = end.next_multiple_of(PAGE).min(size);
    while at < stop {
        let want = (buffer.len() as u64).min(stop - at) as usize;
        file.read_exact_at(&mut buffer[..want], at)?;
        note_pages(pages, at / PAGE, &buffer[..want]);
        at += want as u64;
    }
    Ok(at)
}

/// Returns the extended attributes of a path, without following links.
///
/// # Errors
/// Those of the calls.
pub fn xattrs_of(full: &Path) -> Result<BTreeMap<Vec<u8>, Vec<u8>>> {
    let mut names = vec![0; 65_536];
    let mut value = vec![0; 65_536];
    let len = match rustix::fs::llistxattr(full, &mut names[..]) {
        Ok(len) => len,
        Err(Errno::OPNOTSUPP) => 0,
        Err(error) => {
            return Err(error).with_context(|| format!("listxattr of {}", full.display()));
        }
    };
    let mut out = BTreeMap::new();
    for name in names[..len].split(|b| *b == 0).filter(|n| !n.is_empty()) {
        let len = rustix::fs::lgetxattr(full, std::ffi::OsStr::from_bytes(name), &mut value[..])
            .with_context(|| format!("getxattr {} of {}", name.escape_ascii(), full.display()))?;
        out.insert(name.to_vec(), value[..len].to_vec());
    }
    Ok(out)
}
