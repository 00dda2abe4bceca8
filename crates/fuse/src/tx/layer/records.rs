//! The records from which a layer is made that is not on the volume: bytes <-> types, no I/O
//! (`crates/ffi/include/stetfs_ioctl.h`, FILL_LAYER).
//!
//! A batch is a row of records. Each is a [`Head`], a name, data, and padding to a multiple of 8
//! bytes. A batch ends with a record of kind 0, or where there is no room for a head. A record is
//! valid if and only if
//!
//! 1. its kind is one of those below;
//! 2. its name and its data end before the batch does;
//! 3. the data of MAKE begin with a [`File`] that has a mode of 16 bits and less than 1,000,000,000
//!    nanoseconds in each time; only a symbolic link's target follows.
//!
//! All numbers are the machine's own.

use bytemuck::{Pod, Zeroable};
use stetfs::mode;
use stetfs_format::width::{low16, must_fit_u32, u32_as_usize, usize_as_u64};

use super::plan::About;

/// Bytes of records in a batch.
pub const BATCH_LEN: usize = 15_344;

/// A step in making a tree. The file that was made last and is not done is *open*.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Record<'a> {
    /// Makes a file in the open directory, and opens it. The first record has no name and opens the
    /// layer itself.
    Make {
        /// Its name.
        name: &'a [u8],
        /// Type, owner and device; and its permissions and times, which it gets when it is done.
        about: About,
        /// [`Record::Link`] gives it more names.
        has_links: bool,
        /// The target of a symbolic link; otherwise empty.
        target: &'a [u8],
    },
    /// Gives a file another name, in the open directory.
    Link {
        /// The name.
        name: &'a [u8],
        /// The file's number among those with `has_links`, from 0 on.
        number: u64,
    },
    /// Writes to the open file. Without bytes, sets its length to the offset.
    Data {
        /// The offset in bytes.
        offset: u64,
        /// The bytes to write.
        bytes: &'a [u8],
    },
    /// Gives an extended attribute to what is open.
    Xattr {
        /// The name.
        name: &'a [u8],
        /// The value, or a part of it.
        value: &'a [u8],
        /// True if the next record has more of the value.
        goes_on: bool,
    },
    /// Finishes what is open.
    Done,
}

/// A record that is not valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Invalid;

const MAKE: u16 = 1;
const LINK: u16 = 2;
const DATA: u16 = 3;
const XATTR: u16 = 4;
const DONE: u16 = 5;

/// `struct stetfs_record`.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Head {
    kind: u16,
    name_len: u16,
    data_len: u32,
    number: u64,
}

const HEAD: usize = size_of::<Head>();

/// `struct stetfs_record_file`.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct File {
    mode: u32,
    uid: u32,
    gid: u32,
    major: u32,
    minor: u32,
    has_links: u32,
    atime: i64,
    mtime: i64,
    atime_ns: u32,
    mtime_ns: u32,
}

const FILE: usize = size_of::<File>();

impl File {
    fn new(about: &About, has_links: bool) -> Self {
        Self {
            mode: about.mode.into(),
            uid: about.uid,
            gid: about.gid,
            major: about.rdev.0,
            minor: about.rdev.1,
            has_links: has_links.into(),
            atime: about.atime.0,
            mtime: about.mtime.0,
            atime_ns: about.atime.1,
            mtime_ns: about.mtime.1,
        }
    }

    fn about(&self) -> Result<About, Invalid> {
        const SECOND: u32 = 1_000_000_000;
        if self.mode > u16::MAX.into() || self.atime_ns >= SECOND || self.mtime_ns >= SECOND {
            return Err(Invalid);
        }
        Ok(About {
            mode: low16(self.mode),
            uid: self.uid,
            gid: self.gid,
            rdev: (self.major, self.minor),
            atime: (self.atime, self.atime_ns),
            mtime: (self.mtime, self.mtime_ns),
        })
    }
}

/// Writes a record to the beginning of `room`. Returns its length in bytes; `None` if it has no
/// room.
pub fn encode(record: &Record<'_>, room: &mut [u8]) -> Option<usize> {
    let file;
    let ((kind, number), name, data): (_, &[u8], [&[u8]; 2]) = match *record {
        Record::Make {
            name,
            ref about,
            has_links,
            target,
        } => {
            file = File::new(about, has_links);
            ((MAKE, 0), name, [bytemuck::bytes_of(&file), target])
        }
        Record::Link { name, number } => ((LINK, number), name, [b"", b""]),
        Record::Data { offset, bytes } => ((DATA, offset), b"", [bytes, b""]),
        Record::Xattr {
            name,
            value,
            goes_on,
        } => ((XATTR, goes_on.into()), name, [value, b""]),
        Record::Done => ((DONE, 0), b"", [b"", b""]),
    };
    let data_len = data[0].len() + data[1].len();
    let len = whole(HEAD + name.len() + data_len);
    let room = room.get_mut(..len)?;
    let head = Head {
        kind,
        name_len: u16::try_from(name.len()).ok()?,
        data_len: must_fit_u32(data_len),
        number,
    };
    let mut rest = room;
    for part in [bytemuck::bytes_of(&head), name, data[0], data[1]] {
        let (at, behind) = rest.split_at_mut(part.len());
        at.copy_from_slice(part);
        rest = behind;
    }
    rest.fill(0);
    Some(len)
}

/// Writes a record of data to the beginning of `room`; `read` reads the data straight into its
/// place. Returns the record's length and the number of data bytes; `None` if `read` reads nothing,
/// or there is no room.
///
/// # Errors
/// Those of `read`.
pub fn encode_data<E>(
    offset: u64,
    room: &mut [u8],
    read: impl FnOnce(&mut [u8]) -> Result<usize, E>,
) -> Result<Option<(usize, u64)>, E> {
    let most = room.len() / 8 * 8;
    let Some((head, data)) = room[..most].split_at_mut_checked(HEAD) else {
        return Ok(None);
    };
    let n = if data.is_empty() { 0 } else { read(data)? };
    if n == 0 {
        return Ok(None);
    }
    head.copy_from_slice(bytemuck::bytes_of(&Head {
        kind: DATA,
        name_len: 0,
        data_len: must_fit_u32(n),
        number: offset,
    }));
    let len = whole(HEAD + n);
    room[HEAD + n..len].fill(0);
    Ok(Some((len, usize_as_u64(n))))
}

/// Returns how many bytes a record of data can have in a batch of which the first `len` bytes are
/// filled.
pub fn data_room(len: usize) -> usize {
    BATCH_LEN.saturating_sub(len + HEAD)
}

/// Ends a batch whose first `len` bytes are records.
pub fn end(batch: &mut [u8], len: usize) {
    if let Some(head) = batch.get_mut(len..len + HEAD) {
        head.fill(0);
    }
}

fn whole(len: usize) -> usize {
    len.next_multiple_of(8)
}

/// Takes the next record of a batch; `None` at its end.
///
/// # Errors
/// It is not valid.
pub(super) fn decode<'a>(batch: &mut &'a [u8]) -> Result<Option<Record<'a>>, Invalid> {
    let Some((head, rest)) = batch.split_at_checked(HEAD) else {
        return Ok(None);
    };
    let head: Head = bytemuck::pod_read_unaligned(head);
    if head.kind == 0 {
        return Ok(None);
    }
    let (name, behind) = rest.split_at_checked(head.name_len.into()).ok_or(Invalid)?;
    let (data, _) = behind
        .split_at_checked(u32_as_usize(head.data_len))
        .ok_or(Invalid)?;
    *batch = batch
        .get(whole(HEAD + name.len() + data.len())..)
        .unwrap_or_default();
    let record = match head.kind {
        MAKE => {
            let (file, target) = data.split_at_checked(FILE).ok_or(Invalid)?;
            let file: File = bytemuck::pod_read_unaligned(file);
            let about = file.about()?;
            if !target.is_empty() && !mode::is_lnk(about.mode) {
                return Err(Invalid);
            }
            Record::Make {
                name,
                about,
                has_links: file.has_links != 0,
                target,
            }
        }
        LINK => Record::Link {
            name,
            number: head.number,
        },
        DATA => Record::Data {
            offset: head.number,
            bytes: data,
        },
        XATTR => Record::Xattr {
            name,
            value: data,
            goes_on: head.number != 0,
        },
        DONE => Record::Done,
        _ => return Err(Invalid),
    };
    Ok(Some(record))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn about(mode: u16) -> About {
        About {
            mode,
            uid: 1,
            gid: 2,
            rdev: (3, 4),
            atime: (-5, 6),
            mtime: (7, 999_999_999),
        }
    }

    /// Returns a record of each kind.
    fn all() -> [Record<'static>; 6] {
        [
            Record::Make {
                name: b"name",
                about: about(0o100_644),
                has_links: true,
                target: b"",
            },
            Record::Data {
                offset: 1 << 40,
                bytes: b"bytes",
            },
            Record::Xattr {
                name: b"user.x",
                value: b"value",
                goes_on: true,
            },
            Record::Done,
            Record::Link {
                name: b"other",
                number: 9,
            },
            Record::Make {
                name: b"link",
                about: about(mode::S_IFLNK),
                has_links: false,
                target: b"target",
            },
        ]
    }

    fn batch() -> Vec<u8> {
        let mut batch = vec![0xff; 400];
        let mut len = 0;
        for record in all() {
            len += encode(&record, &mut batch[len..]).unwrap();
        }
        end(&mut batch, len);
        batch
    }

    #[test]
    fn sizes_are_those_of_the_header() {
        assert_eq!((HEAD, FILE), (16, 48));
    }

    #[test]
    fn what_was_encoded_is_decoded() {
        let batch = batch();
        let mut rest = &batch[..];
        for record in all() {
            assert_eq!(decode(&mut rest), Ok(Some(record)));
        }
        assert_eq!(decode(&mut rest), Ok(None));
        // Reading data into their place makes the same record.
        let mut room = [0xff; 64];
        let read = |to: &mut [u8]| -> Result<usize, ()> {
            assert_eq!(to.len(), 48);
            to[..5].copy_from_slice(b"bytes");
            Ok(5)
        };
        let (len, n) = encode_data(1 << 40, &mut room, read).unwrap().unwrap();
        assert_eq!((len, n), (24, 5));
        assert_eq!(decode(&mut &room[..len]), Ok(Some(all()[1])));
        assert_eq!(
            encode_data(0, &mut room[..16], |_| Ok::<_, ()>(1)),
            Ok(None)
        );
        assert_eq!(data_room(BATCH_LEN - 16), 0);
    }

    #[test]
    fn what_has_no_room_is_not_encoded() {
        let mut room = [0; 400];
        for record in all() {
            let len = encode(&record, &mut room).unwrap();
            assert_eq!(len % 8, 0);
            assert_eq!(encode(&record, &mut room[..len - 1]), None);
            assert_eq!(encode(&record, &mut room[..len]), Some(len));
        }
    }

    /// Decoding any batch comes to an end and reads nothing beyond it.
    #[test]
    fn damaged_batches_end() {
        let good = batch();
        let mut invalid = 0;
        for at in 0..good.len() {
            for byte in [0, 1, 2, 3, 4, 5, 6, 0x7f, 0x80, 0xff] {
                let mut bad = good.clone();
                bad[at] = byte;
                let mut rest = &bad[..];
                let mut left = rest.len();
                loop {
                    match decode(&mut rest) {
                        Ok(Some(_)) => assert!(rest.len() < left),
                        Ok(None) => break,
                        Err(Invalid) => {
                            invalid += 1;
                            break;
                        }
                    }
                    left = rest.len();
                }
            }
        }
        assert!(invalid > 200, "{invalid}");
        for len in 0..good.len() {
            let mut rest = &good[..len];
            while let Ok(Some(_)) = decode(&mut rest) {}
        }
    }
}
