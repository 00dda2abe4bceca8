//! Writing tar archives: files of a tree as members.
//!
//! The format is `pax` (POSIX.1-2017, pax, "pax Interchange Format"): what a header has no room for
//! is in an extended header before it. Owners are numbers, since names are those of some machine.
//! Extended attributes are written as GNU tar and star write them, and files with holes as GNU tar
//! does (its manual, "PAX Format, Version 1.0"). So the bytes depend on the files alone, on nothing
//! of this machine and on no time but theirs.

use std::collections::HashMap;
use std::io::Write;

use indicatif::ProgressBar;
use stetfs_format::width::{u64_as_usize, usize_as_u64};
use tar::{EntryType, Header};

use super::acl;
use super::members::XATTR;
use super::sparse::BLOCK;
use crate::failure::{DAMAGED, Explain, Failure, Result};
use crate::owners::Owners;
use crate::place::join;
use crate::tree::{FileKind, Item, Meta, Source, Stamp, Tree, Walk, shown_below};

/// Bytes that are copied at once.
const CHUNK: usize = 1 << 20;
/// The largest number in a field of eight bytes: seven octal digits.
const SHORT_MAX: u64 = 0o777_7777;
/// The largest number in a field of twelve bytes: eleven octal digits.
const LONG_MAX: u64 = 0o777_7777_7777;
/// Holes of fewer bytes in a file are written as zeros.
const HOLES_MIN: u64 = 4096;

/// An archive that is written.
pub(crate) struct Packer<'a, W> {
    out: W,
    owners: &'a Owners,
    /// For each file with several names: the name of the member that has its content.
    links: HashMap<(u64, u64), Vec<u8>>,
    bar: &'a ProgressBar,
    /// Files that were not packed, or only in part.
    left_out: u32,
    buffer: Vec<u8>,
    /// Bytes that the files yet to come can hold.
    left: u64,
}

/// What an extended header says of a member.
#[derive(Default)]
struct Records(Vec<u8>);

impl Records {
    /// Adds a record: `LENGTH KEY=VALUE\n`, where LENGTH counts all of it.
    fn add(&mut self, key: &[u8], value: &[u8]) {
        let body = key.len() + value.len() + 3;
        let digits = |len: usize| len.to_string().len();
        let mut len = body + digits(body);
        if digits(len) > digits(body) {
            len = body + digits(len);
        }
        self.0.extend(format!("{len} ").bytes());
        self.0.extend(key);
        self.0.push(b'=');
        self.0.extend(value);
        self.0.push(b'\n');
    }
}

impl<'a, W: Write> Packer<'a, W> {
    pub(crate) fn new(out: W, owners: &'a Owners, bar: &'a ProgressBar) -> Self {
        Self {
            out,
            owners,
            links: HashMap::new(),
            bar,
            left_out: 0,
            buffer: vec![0; CHUNK],
            left: 0,
        }
    }

    /// Adds a file under this name, and everything in it.
    ///
    /// # Errors
    /// The archive cannot be written. What cannot be read is told, and left out.
    pub(crate) fn add(&mut self, tree: &dyn Tree, item: &dyn Item, name: &[u8]) -> Result<()> {
        self.left = tree.capacity()?;
        // Numbers of files are those of the tree.
        self.links.clear();
        self.add_one(&mut Walk::new(tree), item, None, name)
    }

    /// Writes the archive's end: two blocks of zeros. Returns how many files are not in it as they
    /// are.
    pub(crate) fn end(mut self) -> Result<u32> {
        self.put(&[0; 2 * BLOCK])?;
        self.out.flush().during(of_archive)?;
        Ok(self.left_out)
    }

    fn add_one(
        &mut self,
        walk: &mut Walk,
        item: &dyn Item,
        parent: Option<&dyn Item>,
        name: &[u8],
    ) -> Result<()> {
        let read = || {
            let meta = item.meta()?;
            let names = match meta.kind {
                FileKind::Dir => item.names()?,
                _ => Vec::new(),
            };
            Ok::<_, Failure>((meta, names))
        };
        let (meta, names) = match read() {
            Ok(read) => read,
            Err(e) => {
                self.tell(e.context(item.shown()));
                return Ok(());
            }
        };
        if meta.kind != FileKind::Dir {
            return self.add_file(item, &meta, name);
        }
        if let Err(e) = walk.enter(item, parent) {
            self.tell(e.context(item.shown()));
            return Ok(());
        }
        self.add_file(item, &meta, &[name, b"/"].concat())?;
        for part in &names {
            match item.child(part) {
                Ok(Some(child)) => self.add_one(walk, &*child, Some(item), &join(name, part))?,
                Ok(None) => {}
                Err(e) => self.tell(e.context(shown_below(item, part))),
            }
        }
        walk.leave();
        Ok(())
    }

    fn tell(&mut self, failure: Failure) {
        self.left_out += 1;
        self.bar.suspend(|| failure.tell());
    }

    fn add_file(&mut self, item: &dyn Item, meta: &Meta, name: &[u8]) -> Result<()> {
        if !self.bar.is_hidden() {
            self.bar.set_message(item.shown());
        }
        let kind = match meta.kind {
            FileKind::File => EntryType::Regular,
            FileKind::Dir => EntryType::Directory,
            FileKind::Symlink => EntryType::Symlink,
            FileKind::Fifo => EntryType::Fifo,
            FileKind::Char => EntryType::Char,
            FileKind::Block => EntryType::Block,
            FileKind::Socket => {
                let failure = Failure::new("is a socket, which no archive can hold");
                self.tell(failure.context(item.shown()));
                return Ok(());
            }
        };
        let has_names = meta.kind != FileKind::Dir && meta.nlink > 1;
        if has_names && let Some(first) = self.links.get(&meta.id).cloned() {
            let header = self.header(EntryType::Link, meta);
            return self.member(header, Records::default(), name, &first, meta.mtime);
        }
        let mut records = Records::default();
        let described = self.describe(item, &mut records).and_then(|target| {
            let content = match meta.kind {
                FileKind::File => Some(Content::of(item, meta.size)?),
                _ => None,
            };
            Ok((target, content))
        });
        let (target, content) = match described {
            Ok(described) => described,
            Err(e) => {
                self.tell(e.context(item.shown()));
                return Ok(());
            }
        };
        if has_names {
            self.links.insert(meta.id, name.to_vec());
        }
        let mut header = self.header(kind, meta);
        if kind.is_character_special() || kind.is_block_special() {
            header.set_device_major(meta.rdev.0)?;
            header.set_device_minor(meta.rdev.1)?;
        }
        let Some(content) = content else {
            return self.member(header, records, name, &target, meta.mtime);
        };
        let in_archive = content.describe(&mut records, name);
        let size = content.len();
        if size > LONG_MAX {
            records.add(b"size", size.to_string().as_bytes());
        }
        header.set_size(if size > LONG_MAX { 0 } else { size });
        self.member(header, records, &in_archive, b"", meta.mtime)?;
        self.content(item, content)
    }

    /// Adds the records of a file's attributes; returns the target of a symbolic link.
    fn describe(&self, item: &dyn Item, records: &mut Records) -> Result<Vec<u8>> {
        let meta = item.meta()?;
        let (uid, gid) = self.owners.of(meta.uid, meta.gid);
        for (key, id) in [(b"uid", uid), (b"gid", gid)] {
            if u64::from(id) > SHORT_MAX {
                records.add(key, id.to_string().as_bytes());
            }
        }
        let mut xattrs = item.xattrs()?;
        xattrs.sort();
        for (name, mut value) in xattrs {
            self.owners.adapt(&name, &mut value);
            if let Some((record, _)) = acl::KINDS.iter().find(|(_, acl)| *acl == name)
                && let Some(text) = acl::to_text(&value)
            {
                // Unpacked by `tar --acls`; the attribute itself by `tar --xattrs`.
                records.add(record, text.as_bytes());
            }
            // An equals sign would end the key.
            let name = name.iter().flat_map(|byte| match byte {
                b'=' => b"%3D".to_vec(),
                b'%' => b"%25".to_vec(),
                byte => vec![*byte],
            });
            let key: Vec<u8> = XATTR.iter().copied().chain(name).collect();
            records.add(&key, &value);
        }
        match meta.kind {
            FileKind::Symlink => item.read_link(),
            _ => Ok(Vec::new()),
        }
    }

    fn header(&self, kind: EntryType, meta: &Meta) -> Header {
        let mut header = Header::new_ustar();
        header.set_entry_type(kind);
        header.set_mode(meta.mode.into());
        let (uid, gid) = self.owners.of(meta.uid, meta.gid);
        let short = |id: u32| u64::from(id).min(SHORT_MAX);
        header.set_uid(short(uid));
        header.set_gid(short(gid));
        header.set_size(0);
        let seconds = u64::try_from(meta.mtime.0).unwrap_or(0);
        header.set_mtime(seconds.min(LONG_MAX));
        header
    }

    /// Writes a member's headers.
    fn member(
        &mut self,
        mut header: Header,
        mut records: Records,
        name: &[u8],
        target: &[u8],
        mtime: Stamp,
    ) -> Result<()> {
        let fields = header
            .as_ustar_mut()
            .ok_or_else(|| Failure::new("no header of the format ustar"))?;
        if !set_field(&mut fields.name, name) {
            records.add(b"path", name);
        }
        if !set_field(&mut fields.linkname, target) {
            records.add(b"linkpath", target);
        }
        if mtime.1 != 0 || !(0..=LONG_MAX.cast_signed()).contains(&mtime.0) {
            records.add(b"mtime", decimal(mtime).as_bytes());
        }
        if !records.0.is_empty() {
            let mut extended = Header::new_ustar();
            extended.set_entry_type(EntryType::XHeader);
            extended.set_mode(0o644);
            extended.set_uid(0);
            extended.set_gid(0);
            extended.set_mtime(0);
            extended.set_size(usize_as_u64(records.0.len()));
            if let Some(fields) = extended.as_ustar_mut() {
                set_field(&mut fields.name, &[b"PaxHeaders/", last(name)].concat());
            }
            extended.set_cksum();
            self.put(extended.as_bytes())?;
            self.put(&records.0)?;
            self.pad(usize_as_u64(records.0.len()))?;
        }
        header.set_cksum();
        self.put(header.as_bytes())
    }

    /// Writes a file's content.
    fn content(&mut self, item: &dyn Item, content: Content<'_>) -> Result<()> {
        if let Some(e) = self.bytes(content)? {
            let failure = Failure::new(format!("{e}; the archive has zeros instead"));
            self.tell(failure.context(item.shown()));
        }
        Ok(())
    }

    /// Writes bytes; returns why some could not be read, if so. They become zeros: the header has
    /// promised them.
    fn bytes(&mut self, mut content: Content<'_>) -> Result<Option<Failure>> {
        self.put(&content.map)?;
        let len = content.len();
        let mut failure = None;
        for (start, end) in std::mem::take(&mut content.ranges) {
            let mut at = start;
            while at < end {
                let want = self.buffer.len().min(u64_as_usize(end - at));
                let chunk = &mut self.buffer[..want];
                if failure.is_none() {
                    failure = content.read(at, chunk, &mut self.left).err();
                }
                if failure.is_some() {
                    chunk.fill(0);
                }
                self.out.write_all(chunk).during(of_archive)?;
                at += usize_as_u64(want);
                self.bar.inc(usize_as_u64(want));
            }
        }
        self.pad(len)?;
        Ok(failure)
    }

    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.out.write_all(bytes).during(of_archive)
    }

    /// Fills the last block behind so many bytes.
    fn pad(&mut self, len: u64) -> Result<()> {
        let block = usize_as_u64(BLOCK);
        let rest = u64_as_usize(len.next_multiple_of(block) - len);
        self.put(&[0; BLOCK][..rest])
    }
}

fn of_archive() -> String {
    "the archive".to_owned()
}

/// The content of a file, and how it is written.
struct Content<'a> {
    source: Box<dyn Source + 'a>,
    size: u64,
    /// What may hold data.
    ranges: Vec<(u64, u64)>,
    /// Of a file with holes: where the ranges are, as it is written before them.
    map: Vec<u8>,
}

impl<'a> Content<'a> {
    fn of(item: &'a dyn Item, size: u64) -> Result<Self> {
        let mut source = item.open()?;
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        let mut at = 0;
        while let Some((start, end)) = source.next_data(at)? {
            let end = end.min(size);
            if start >= end {
                break;
            }
            match ranges.last_mut() {
                Some(last) if last.1 == start => last.1 = end,
                _ => ranges.push((start, end)),
            }
            at = end;
        }
        let data: u64 = ranges.iter().map(|(start, end)| end - start).sum();
        let mut map = Vec::new();
        if size - data < HOLES_MIN {
            ranges = (size > 0).then_some((0, size)).into_iter().collect();
        } else {
            map.extend(format!("{}\n", ranges.len() + 1).bytes());
            // The last one is the file's end, which may be one of a hole.
            for (start, end) in ranges.iter().copied().chain([(size, size)]) {
                map.extend(format!("{start}\n{}\n", end - start).bytes());
            }
            map.resize(map.len().next_multiple_of(BLOCK), 0);
        }
        Ok(Self {
            source,
            size,
            ranges,
            map,
        })
    }

    /// Bytes in the archive.
    fn len(&self) -> u64 {
        if self.map.is_empty() {
            return self.size;
        }
        let data: u64 = self.ranges.iter().map(|(start, end)| end - start).sum();
        usize_as_u64(self.map.len()) + data
    }

    /// Adds the records of a file with holes; returns the member's name.
    fn describe(&self, records: &mut Records, name: &[u8]) -> Vec<u8> {
        if self.map.is_empty() {
            return name.to_vec();
        }
        records.add(b"GNU.sparse.major", b"1");
        records.add(b"GNU.sparse.minor", b"0");
        records.add(b"GNU.sparse.name", name);
        records.add(b"GNU.sparse.realsize", self.size.to_string().as_bytes());
        // Who does not know the format must not take this for the file.
        [b"GNUSparseFile.0/", last(name)].concat()
    }

    /// Reads all of `out`. A hole reads as zeros.
    fn read(&mut self, at: u64, out: &mut [u8], left: &mut u64) -> Result<()> {
        let mut done = 0;
        while done < out.len() {
            let from = at + usize_as_u64(done);
            let (start, end) = match self.source.next_data(from)? {
                Some((start, end)) => (start - from, end - from),
                None if self.source.size()? <= from => return Err(ends_early()),
                None => (u64::MAX, u64::MAX),
            };
            let rest = &mut out[done..];
            if start > 0 {
                let hole = rest.len().min(u64_as_usize(start));
                rest[..hole].fill(0);
                done += hole;
                continue;
            }
            let want = rest.len().min(u64_as_usize(end));
            let got = self.source.read(from, &mut rest[..want])?;
            if got == 0 {
                return Err(ends_early());
            }
            *left = left.checked_sub(usize_as_u64(got)).ok_or_else(|| {
                Failure::new("the files hold more bytes than the image: some share blocks")
                    .advise(DAMAGED)
            })?;
            done += got;
        }
        Ok(())
    }
}

fn ends_early() -> Failure {
    Failure::new("ends before its size")
}

/// Sets a field to a name that fits in; otherwise to its beginning, and returns false.
fn set_field(field: &mut [u8], name: &[u8]) -> bool {
    let len = name.len().min(field.len());
    field[..len].copy_from_slice(&name[..len]);
    field[len..].fill(0);
    len == name.len()
}

/// The last part of a name.
fn last(name: &[u8]) -> &[u8] {
    let name = name.strip_suffix(b"/").unwrap_or(name);
    name.rsplit(|byte| *byte == b'/').next().unwrap_or(name)
}

/// Writes a time as seconds with a fraction.
fn decimal((seconds, nanoseconds): Stamp) -> String {
    let (sign, seconds, nanoseconds) = if seconds < 0 && nanoseconds > 0 {
        ("-", -(seconds + 1), 1_000_000_000 - nanoseconds)
    } else {
        ("", seconds, nanoseconds)
    };
    let text = format!("{sign}{seconds}.{nanoseconds:09}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_counts_its_own_length() {
        for len in 0..1100 {
            let mut records = Records::default();
            records.add(b"key", &vec![b'x'; len]);
            let text = String::from_utf8(records.0).unwrap();
            let said: usize = text.split(' ').next().unwrap().parse().unwrap();
            assert_eq!(said, text.len());
        }
    }

    #[test]
    fn times_are_written_as_they_are_read() {
        for (time, text) in [
            ((12, 0), "12"),
            ((12, 500_000_000), "12.5"),
            ((12, 1), "12.000000001"),
            ((-2, 750_000_000), "-1.25"),
            ((-1, 500_000_000), "-0.5"),
            ((-5, 0), "-5"),
        ] {
            assert_eq!(decimal(time), text);
        }
    }

    /// A file that ends before its size.
    struct Short(u64);

    impl Source for Short {
        fn next_data(&mut self, from: u64) -> Result<Option<(u64, u64)>> {
            Ok((from < self.0).then_some((from, self.0)))
        }

        fn read(&mut self, offset: u64, out: &mut [u8]) -> Result<usize> {
            let n = out.len().min(u64_as_usize(self.0 - offset));
            out[..n].fill(b'x');
            Ok(n)
        }

        fn size(&self) -> Result<u64> {
            Ok(self.0)
        }
    }

    #[test]
    fn what_cannot_be_read_becomes_zeros() {
        let of = |has: u64, left: u64| {
            let (mut out, owners) = (Vec::new(), Owners::default());
            let bar = ProgressBar::hidden();
            let mut packer = Packer::new(&mut out, &owners, &bar);
            packer.left = left;
            let content = Content {
                source: Box::new(Short(has)),
                size: 5000,
                ranges: vec![(0, 5000)],
                map: Vec::new(),
            };
            let failure = packer.bytes(content).unwrap();
            assert_eq!(out.len(), 5120);
            (failure.map(|failure| failure.to_string()), out)
        };
        let (failure, out) = of(5000, 5000);
        assert!(failure.is_none() && out[..5000] == [b'x'; 5000]);
        let (failure, out) = of(1000, 5000);
        assert_eq!(failure.unwrap(), "ends before its size");
        assert!(out.iter().all(|byte| *byte == 0));
        let (failure, _) = of(5000, 4999);
        assert!(failure.unwrap().contains("some share blocks"));
    }
}
