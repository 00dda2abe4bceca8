//! The members of a tar archive: each header, with what the extended headers before it say.
//!
//! The crate `tar` reads the fields of a header. The walk from one header to the next is here,
//! since that crate takes each newline for the end of a record of an extended header. A record ends
//! where its length says: names, and the values of extended attributes, may contain newlines, and
//! a value could pass for a record of its own, as for a size.
//!
//! Sources: POSIX.1-2017, pax, "pax Extended Header"; GNU tar's manual, "Basic Tar Format", and its
//! `xheader.c` for names of attributes.

use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::FileExt;

use stetfs_format::width::{u64_as_usize, usize_as_u64};
use tar::{EntryType, Header};

use super::acl::{self, Said};
use super::sparse::{BLOCK, Piece, bad_sparse_map, old_sparse_map, sparse_map};
use crate::failure::{Failure, Result};
use crate::shown::shown;
use crate::tree::Stamp;

/// The prefix of extended attributes, as GNU tar and star have it.
pub(super) const XATTR: &[u8] = b"SCHILY.xattr.";

/// The longest extended header: more than all attributes that a file of Linux can have.
const EXTENDED_MAX: u64 = 16 << 20;

/// A member: its header, and what counts instead of the header's fields.
pub(super) struct Entry {
    pub(super) header: Header,
    pub(super) name: Vec<u8>,
    /// Of a link.
    pub(super) target: Vec<u8>,
    pub(super) uid: u64,
    pub(super) gid: u64,
    /// More exact than the header's.
    pub(super) mtime: Option<Stamp>,
    /// In ascending order, each name once.
    pub(super) xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// Somebody without a number in an ACL that is left out.
    pub(super) acl_of: Option<String>,
    pub(super) content: Content,
}

/// The content of a member.
pub(super) struct Content {
    /// Bytes of the file.
    pub(super) size: u64,
    /// Its bytes, in ascending order; what is between is a hole.
    pub(super) pieces: Vec<Piece>,
}

/// What extended headers say of a member. `None`: they say nothing, and the header counts.
#[derive(Clone, Debug, Default, PartialEq)]
struct Pax {
    path: Option<Vec<u8>>,
    linkpath: Option<Vec<u8>>,
    size: Option<u64>,
    uid: Option<u64>,
    gid: Option<u64>,
    mtime: Option<Stamp>,
    xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// Of a sparse file in GNU's format 1.0: its length. The content begins with a map of the
    /// pieces.
    sparse_size: Option<u64>,
    sparse_name: Option<Vec<u8>>,
    /// Whether it is a sparse file in this format, or in one that is not known here.
    sparse_is_known: Option<bool>,
    /// Somebody without a number in an ACL, which counts for nothing then.
    acl_of: Option<String>,
}

impl Pax {
    /// Takes over what the records of an extended header say.
    fn read(&mut self, mut records: &[u8]) -> Result<()> {
        while !matches!(records, [] | [0, ..]) {
            let (key, value, rest) = record(records)
                .ok_or_else(|| Failure::new("has an extended header with a malformed record"))?;
            self.take(key, value)?;
            records = rest;
        }
        Ok(())
    }

    fn take(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        match key {
            b"path" => self.path = filled(value),
            b"linkpath" => self.linkpath = filled(value),
            b"size" => self.size = number(key, value)?,
            b"uid" => self.uid = number(key, value)?,
            b"gid" => self.gid = number(key, value)?,
            b"mtime" => self.mtime = filled(value).map(|value| stamp(&value)).transpose()?,
            b"GNU.sparse.name" => self.sparse_name = filled(value),
            b"GNU.sparse.realsize" => {
                let size = number(key, value).map_err(|_| bad_sparse_map())?;
                self.sparse_size = size;
            }
            b"GNU.sparse.major" => self.sparse_is_known = Some(value == b"1"),
            key if key.starts_with(b"GNU.sparse.") => {
                self.sparse_is_known = self.sparse_is_known.or(Some(false));
            }
            key => {
                if let Some((_, name)) = acl::KINDS.iter().find(|(record, _)| *record == key) {
                    match acl::to_attribute(name, value)? {
                        Said::Mode => {}
                        Said::Is(value) => self.take_xattr(name.to_vec(), value),
                        Said::Of(who) => self.acl_of = Some(who),
                    }
                } else if let Some(name) = key.strip_prefix(XATTR) {
                    self.take_xattr(attribute_name(name), value.to_vec());
                }
            }
        }
        Ok(())
    }

    fn take_xattr(&mut self, name: Vec<u8>, value: Vec<u8>) {
        let found = self.xattrs.binary_search_by(|(there, _)| there.cmp(&name));
        match found {
            Ok(at) => self.xattrs[at].1 = value,
            Err(at) => self.xattrs.insert(at, (name, value)),
        }
    }

    fn check_sparse_format(&self) -> Result<()> {
        match (self.sparse_is_known, self.sparse_size) {
            (None, _) | (Some(true), Some(_)) => Ok(()),
            _ => Err(
                Failure::new("is a sparse file in a format that is not known here")
                    .advise("archive it without `--sparse`, or by a newer tar"),
            ),
        }
    }
}

/// Takes the first record off: `LENGTH KEY=VALUE\n`, where LENGTH counts all of it.
fn record(bytes: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let blank = bytes.iter().take(20).position(|byte| *byte == b' ')?;
    let len = decimal(&bytes[..blank])?;
    let (record, rest) = bytes.split_at_checked(usize::try_from(len).ok()?)?;
    let body = record.get(blank + 1..)?.strip_suffix(b"\n")?;
    let equals = body.iter().position(|byte| *byte == b'=')?;
    Some((&body[..equals], &body[equals + 1..], rest))
}

/// GNU tar writes `%3D` and `%25` for `=` and `%` in an attribute's name.
fn attribute_name(coded: &[u8]) -> Vec<u8> {
    let mut name = Vec::with_capacity(coded.len());
    let mut rest = coded;
    while let [first, behind @ ..] = rest {
        let (byte, behind) = match rest {
            [b'%', b'3', b'D' | b'd', behind @ ..] => (b'=', behind),
            [b'%', b'2', b'5', behind @ ..] => (b'%', behind),
            _ => (*first, behind),
        };
        name.push(byte);
        rest = behind;
    }
    name
}

/// A value; an empty one takes back what was said before.
fn filled(value: &[u8]) -> Option<Vec<u8>> {
    (!value.is_empty()).then(|| value.to_vec())
}

fn number(key: &[u8], value: &[u8]) -> Result<Option<u64>> {
    if value.is_empty() {
        return Ok(None);
    }
    let wrong = || Failure::new(format!("has the {} `{}`", shown(key), shown(value)));
    decimal(value).map(Some).ok_or_else(wrong)
}

fn decimal(digits: &[u8]) -> Option<u64> {
    let is_number = digits.iter().all(u8::is_ascii_digit);
    let digits = is_number.then(|| str::from_utf8(digits).ok())??;
    digits.parse().ok()
}

/// Reads a time: seconds since 1970, perhaps with a fraction.
fn stamp(value: &[u8]) -> Result<Stamp> {
    let wrong = || Failure::new(format!("has the time `{}`", shown(value)));
    let text = str::from_utf8(value).map_err(|_| wrong())?;
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let seconds: i64 = whole.parse().map_err(|_| wrong())?;
    if !fraction.bytes().all(|digit| digit.is_ascii_digit()) {
        return Err(wrong());
    }
    let digits: String = fraction
        .chars()
        .chain("000000000".chars())
        .take(9)
        .collect();
    let nanoseconds: u32 = digits.parse().map_err(|_| wrong())?;
    Ok(if whole.starts_with('-') && nanoseconds > 0 {
        (seconds - 1, 1_000_000_000 - nanoseconds)
    } else {
        (seconds, nanoseconds)
    })
}

/// The members of an archive, in its order.
pub(super) struct Entries<'a> {
    file: &'a File,
    /// Where the next header is.
    at: u64,
    end: u64,
    /// What global headers say of all members behind them.
    global: Pax,
}

/// What the headers before a member say of it.
#[derive(Default)]
struct Before {
    pax: Option<Vec<u8>>,
    name: Option<Vec<u8>>,
    target: Option<Vec<u8>>,
}

impl Before {
    fn place(&mut self, kind: EntryType) -> Option<&mut Option<Vec<u8>>> {
        match kind {
            EntryType::XHeader => Some(&mut self.pax),
            EntryType::GNULongName => Some(&mut self.name),
            EntryType::GNULongLink => Some(&mut self.target),
            _ => None,
        }
    }
}

impl<'a> Entries<'a> {
    pub(super) fn of(mut file: &'a File) -> Result<Self> {
        Ok(Self {
            file,
            at: 0,
            end: file.seek(SeekFrom::End(0))?,
            global: Pax::default(),
        })
    }

    /// Returns the next member; `None` at the archive's end.
    pub(super) fn next(&mut self) -> Result<Option<Entry>> {
        let mut before = Before::default();
        let mut is_described = false;
        loop {
            let Some(header) = self.header()? else {
                if is_described {
                    return Err(Failure::new("ends behind an extended header"));
                }
                return Ok(None);
            };
            let kind = header.entry_type();
            if kind == EntryType::XGlobalHeader {
                let records = self.content(&header)?;
                self.global.read(&records)?;
            } else if let Some(place) = before.place(kind) {
                if place.replace(self.content(&header)?).is_some() {
                    return Err(Failure::new("has two extended headers for one member"));
                }
                is_described = true;
            } else {
                return self.member(header, before).map(Some);
            }
        }
    }

    /// Reads the header that comes next; `None` where the archive ends.
    fn header(&mut self) -> Result<Option<Header>> {
        let mut header = Header::new_old();
        if self.at >= self.end {
            return Ok(None);
        }
        let is_whole = self.end - self.at >= usize_as_u64(BLOCK);
        if is_whole {
            self.file.read_exact_at(header.as_mut_bytes(), self.at)?;
            if header.as_bytes().iter().all(|byte| *byte == 0) {
                return Ok(None);
            }
        }
        // The sum of all bytes, with blanks in its own place.
        let bytes = header.as_bytes();
        let others = bytes[..148].iter().chain(&bytes[156..]);
        let sum = others.fold(8 * 32, |sum, byte| sum + u32::from(*byte));
        if !is_whole || header.cksum().ok() != Some(sum) {
            return Err(
                Failure::new(format!("has no header of tar at byte {}", self.at)).advise(
                    "it is to be a tar archive, which may be compressed by gzip, xz and zstd",
                ),
            );
        }
        self.at += usize_as_u64(BLOCK);
        Ok(Some(header))
    }

    /// Goes on behind a content of this size, and returns where it began; `None` if the archive
    /// ends before.
    fn pass(&mut self, size: u64) -> Option<u64> {
        let start = self.at;
        if size > self.end.checked_sub(start)? {
            return None;
        }
        self.at = start + size.next_multiple_of(usize_as_u64(BLOCK));
        Some(start)
    }

    /// Reads the content of a header that describes a member.
    fn content(&mut self, header: &Header) -> Result<Vec<u8>> {
        let size = header.entry_size()?;
        if size > EXTENDED_MAX {
            return Err(Failure::new(format!(
                "has an extended header of {size} bytes, which is too long"
            )));
        }
        let start = self.pass(size);
        let start = start.ok_or_else(|| Failure::new("ends inside of an extended header"))?;
        let mut content = vec![0; u64_as_usize(size)];
        self.file.read_exact_at(&mut content, start)?;
        Ok(content)
    }

    fn member(&mut self, header: Header, before: Before) -> Result<Entry> {
        let mut pax = self.global.clone();
        let read = before.pax.map_or(Ok(()), |records| pax.read(&records));
        let names = [
            pax.sparse_name.take(),
            pax.path.take(),
            before.name.map(cut),
        ];
        let name = names.into_iter().flatten().next();
        let name = name.unwrap_or_else(|| header.path_bytes().into_owned());
        let in_header = || header.link_name_bytes().unwrap_or_default().into_owned();
        let target = pax.linkpath.take().or_else(|| before.target.map(cut));
        let target = target.unwrap_or_else(in_header);
        let described = read.and_then(|()| self.described(&header, &pax));
        let (uid, gid, content) =
            described.map_err(|e| e.context(format!("member {}", shown(&name))))?;
        Ok(Entry {
            header,
            name,
            target,
            uid,
            gid,
            mtime: pax.mtime,
            xattrs: pax.xattrs,
            acl_of: pax.acl_of,
            content,
        })
    }

    /// Returns a member's owner, group and content.
    fn described(&mut self, header: &Header, pax: &Pax) -> Result<(u64, u64, Content)> {
        pax.check_sparse_format()?;
        let len = pax.size.map_or_else(|| header.entry_size(), Ok)?;
        let old_map = match header.entry_type() {
            EntryType::GNUSparse => {
                let map = old_sparse_map(self.file, header, self.at, len)?;
                self.at = map.content;
                Some(map)
            }
            _ => None,
        };
        let start = self.pass(len);
        let start = start.ok_or_else(|| Failure::new("the archive ends inside of it"))?;
        let content = match (old_map, pax.sparse_size) {
            (Some(map), _) => Content {
                size: map.size,
                pieces: map.pieces,
            },
            (None, Some(size)) => Content {
                size,
                pieces: sparse_map(self.file, start, len, size)?,
            },
            (None, None) => Content {
                size: len,
                pieces: Piece::whole(start, len).into_iter().collect(),
            },
        };
        let uid = pax.uid.map_or_else(|| header.uid(), Ok)?;
        let gid = pax.gid.map_or_else(|| header.gid(), Ok)?;
        Ok((uid, gid, content))
    }
}

/// A long name, which ends before the first NUL.
fn cut(mut name: Vec<u8>) -> Vec<u8> {
    if let Some(nul) = name.iter().position(|byte| *byte == 0) {
        name.truncate(nul);
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A record with its length.
    fn coded(key: &str, value: &[u8]) -> Vec<u8> {
        let len = 3 + key.len() + value.len();
        let len = (1..20).map(|digits| len + digits);
        let len = len.clone().find(|len| {
            let own = len.to_string().len();
            *len == 3 + key.len() + value.len() + own
        });
        let mut record = format!("{} {key}=", len.unwrap()).into_bytes();
        record.extend(value);
        record.push(b'\n');
        record
    }

    #[test]
    fn a_record_ends_where_its_length_says() {
        let long = vec![b'\n'; 300];
        let records = [
            coded("path", b"a\nb"),
            coded("SCHILY.xattr.user.a%3Db%25", b"\n11 size=99\n\0="),
            coded("SCHILY.xattr.user.\nname", &long),
            coded("size", b"5"),
            coded("comment", b""),
            vec![0, 0],
        ];
        let mut pax = Pax::default();
        pax.read(&records.concat()).unwrap();
        let expected = Pax {
            path: Some(b"a\nb".to_vec()),
            size: Some(5),
            xattrs: vec![
                (b"user.\nname".to_vec(), long),
                (b"user.a=b%".to_vec(), b"\n11 size=99\n\0=".to_vec()),
            ],
            ..Pax::default()
        };
        assert_eq!(pax, expected);
        // What comes later counts, and an empty value takes back.
        pax.read(&[coded("path", b""), coded("size", b"6")].concat())
            .unwrap();
        assert_eq!((pax.path, pax.size), (None, Some(6)));
    }

    #[test]
    fn malformed_records_are_refused() {
        for records in [
            "x",
            "5",
            " a=b\n",
            "+6 a=b\n",
            "-6 a=b\n",
            "7 a=b\n",
            "5 a=b\n",
            "2 a=b\n",
            "0 a=b\n",
            "6 a-b\n",
            "6 a=bc",
            "99999999999999999999 a=b\n",
            "6 a=b\n6 a=b",
        ] {
            assert!(
                Pax::default().read(records.as_bytes()).is_err(),
                "{records:?}"
            );
        }
        for (key, value) in [
            ("size", "x"),
            ("uid", "-1"),
            ("gid", " 1"),
            ("mtime", "now"),
        ] {
            let records = coded(key, value.as_bytes());
            assert!(Pax::default().read(&records).is_err(), "{key}");
        }
    }

    #[test]
    fn times_of_a_header() {
        for (text, expected) in [
            ("12", (12, 0)),
            ("12.5", (12, 500_000_000)),
            ("12.1234567899", (12, 123_456_789)),
            ("-1.25", (-2, 750_000_000)),
            ("-0.5", (-1, 500_000_000)),
        ] {
            assert_eq!(stamp(text.as_bytes()).unwrap(), expected);
        }
        for text in ["", "x", "1.x", "1.-5", "99999999999999999999"] {
            assert!(stamp(text.as_bytes()).is_err(), "{text}");
        }
    }
}
