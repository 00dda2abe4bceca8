//! Requests: decodes the bytes that the kernel sent.
//!
//! A request is a header, a record of fixed size, and perhaps names (each ended by a NUL) or data.
//! The kernel is trusted, and still nothing here reads past what was received: a request that is
//! too short is an error.

use std::ffi::{CStr, OsStr};
use std::os::unix::ffi::OsStrExt;

use bytemuck::Pod;
use rustix::io::Errno;
use stetfs_format::width::u32_as_usize;

use super::abi::{self, InHeader, Opcode};

/// A request, with its caller and its inode.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Request<'a> {
    /// The header as received.
    pub header: InHeader,
    /// What is asked.
    pub what: What<'a>,
    /// All of it, as received.
    pub bytes: &'a [u8],
}

/// The content of a request. Names and data lie in the buffer that it was received in. Where the
/// fields have no names, they are those of the request in their order: the record of `abi`, then a
/// name or data.
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs, reason = "fields are the records of `abi`")]
pub(crate) enum What<'a> {
    Lookup {
        name: &'a OsStr,
    },
    Forget,
    BatchForget(&'a [abi::ForgetOne]),
    GetAttr(abi::GetAttrIn),
    StatX,
    SetAttr(abi::SetAttrIn),
    ReadLink,
    SymLink {
        name: &'a OsStr,
        target: &'a OsStr,
    },
    MkNod(abi::MkNodIn, &'a OsStr),
    MkDir(abi::MkDirIn, &'a OsStr),
    Unlink {
        name: &'a OsStr,
    },
    RmDir {
        name: &'a OsStr,
    },
    Rename {
        name: &'a OsStr,
        new_dir: u64,
        new_name: &'a OsStr,
        flags: u32,
    },
    Link {
        ino: u64,
        name: &'a OsStr,
    },
    Access(abi::AccessIn),
    Open(abi::OpenIn),
    Create(abi::CreateIn, &'a OsStr),
    TmpFile(abi::CreateIn),
    Read(abi::ReadIn),
    Write(abi::WriteIn, &'a [u8]),
    StatFs,
    Release(abi::ReleaseIn),
    FSync(abi::FSyncIn),
    FSyncDir(abi::FSyncIn),
    SyncFs,
    SetXattr {
        name: &'a OsStr,
        value: &'a [u8],
        flags: i32,
    },
    GetXattr {
        name: &'a OsStr,
        size: u32,
    },
    ListXattr {
        size: u32,
    },
    RemoveXattr {
        name: &'a OsStr,
    },
    Flush,
    OpenDir,
    ReadDir(abi::ReadIn),
    ReadDirPlus(abi::ReadIn),
    ReleaseDir,
    Ioctl(abi::IoctlIn, &'a [u8]),
    FAllocate(abi::FAllocateIn),
    LSeek(abi::LSeekIn),
    CopyFileRange {
        from: abi::CopyFileRangeIn,
        is_64: bool,
    },
    Init(abi::InitIn),
    Destroy,
    Interrupt,
    /// A request that this server does not know.
    Unknown,
}

/// A request that is shorter than its kind must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BadRequest {
    /// Less than a header, or another length than the header says.
    #[error("a request of {received} bytes whose header says {said}")]
    Length {
        /// Bytes that were received.
        received: usize,
        /// What the header says; 0 without a header.
        said: u32,
    },
    /// The record or the names of this kind of request are not complete.
    #[error("a request of kind {opcode} lacks what it must have")]
    Short {
        /// The kind.
        opcode: u32,
        /// The number of the request, for the answer.
        unique: u64,
    },
}

impl<'a> Request<'a> {
    /// Decodes a received request. The buffer must be aligned to 8 bytes.
    ///
    /// # Errors
    /// It is too short.
    pub(crate) fn decode(bytes: &'a [u8]) -> Result<Self, BadRequest> {
        let mut body = Body(bytes);
        let header: InHeader = body.record().ok_or(BadRequest::Length {
            received: bytes.len(),
            said: 0,
        })?;
        if u32_as_usize(header.len) != bytes.len() {
            return Err(BadRequest::Length {
                received: bytes.len(),
                said: header.len,
            });
        }
        let what = match Opcode::from_number(header.opcode) {
            None => Some(What::Unknown),
            Some(opcode) => body.what(opcode),
        };
        let what = what.ok_or(BadRequest::Short {
            opcode: header.opcode,
            unique: header.unique,
        })?;
        Ok(Self {
            header,
            what,
            bytes,
        })
    }

    /// Returns whether the kernel waits for an answer.
    pub(crate) fn is_answered(&self) -> bool {
        !matches!(self.what, What::Forget | What::BatchForget { .. })
    }
}

/// The rest of a request's bytes.
struct Body<'a>(&'a [u8]);

impl<'a> Body<'a> {
    fn record<T: Pod>(&mut self) -> Option<T> {
        let (record, rest) = self.0.split_at_checked(size_of::<T>())?;
        self.0 = rest;
        Some(bytemuck::pod_read_unaligned(record))
    }

    fn name(&mut self) -> Option<&'a OsStr> {
        let name = CStr::from_bytes_until_nul(self.0).ok()?;
        self.0 = &self.0[name.count_bytes() + 1..];
        Some(OsStr::from_bytes(name.to_bytes()))
    }

    fn data(&mut self, len: u32) -> Option<&'a [u8]> {
        let (data, rest) = self.0.split_at_checked(u32_as_usize(len))?;
        self.0 = rest;
        Some(data)
    }

    fn forgets(&mut self) -> Option<&'a [abi::ForgetOne]> {
        let head: abi::BatchForgetIn = self.record()?;
        let len = u32_as_usize(head.count).checked_mul(size_of::<abi::ForgetOne>())?;
        bytemuck::try_cast_slice(self.0.get(..len)?).ok()
    }

    fn what(&mut self, opcode: Opcode) -> Option<What<'a>> {
        Some(match opcode {
            Opcode::Lookup => What::Lookup { name: self.name()? },
            Opcode::Forget => self.record::<abi::ForgetIn>().map(|_| What::Forget)?,
            Opcode::BatchForget => What::BatchForget(self.forgets()?),
            Opcode::GetAttr => What::GetAttr(self.record()?),
            Opcode::StatX => self.record::<abi::StatXIn>().map(|_| What::StatX)?,
            Opcode::SetAttr => What::SetAttr(self.record()?),
            Opcode::ReadLink => What::ReadLink,
            Opcode::SymLink => What::SymLink {
                name: self.name()?,
                target: self.name()?,
            },
            Opcode::MkNod => What::MkNod(self.record()?, self.name()?),
            Opcode::MkDir => What::MkDir(self.record()?, self.name()?),
            Opcode::Unlink => What::Unlink { name: self.name()? },
            Opcode::RmDir => What::RmDir { name: self.name()? },
            Opcode::Rename => self.rename()?,
            Opcode::Rename2 => self.rename2()?,
            Opcode::Link => What::Link {
                ino: self.record::<abi::LinkIn>()?.oldnodeid,
                name: self.name()?,
            },
            Opcode::Access => What::Access(self.record()?),
            Opcode::Open => What::Open(self.record()?),
            Opcode::Create => What::Create(self.record()?, self.name()?),
            // A name without meaning follows: no directory has it.
            Opcode::TmpFile => What::TmpFile(self.record()?),
            Opcode::Read => What::Read(self.record()?),
            Opcode::Write => self.write()?,
            Opcode::StatFs => What::StatFs,
            Opcode::Release => What::Release(self.record()?),
            Opcode::FSync => What::FSync(self.record()?),
            Opcode::FSyncDir => What::FSyncDir(self.record()?),
            Opcode::SyncFs => What::SyncFs,
            Opcode::SetXattr => self.set_xattr()?,
            Opcode::GetXattr => What::GetXattr {
                size: self.record::<abi::GetXattrIn>()?.size,
                name: self.name()?,
            },
            Opcode::ListXattr => What::ListXattr {
                size: self.record::<abi::GetXattrIn>()?.size,
            },
            Opcode::RemoveXattr => What::RemoveXattr { name: self.name()? },
            Opcode::Flush => What::Flush,
            Opcode::OpenDir => What::OpenDir,
            Opcode::ReadDir => What::ReadDir(self.record()?),
            Opcode::ReadDirPlus => What::ReadDirPlus(self.record()?),
            Opcode::ReleaseDir => What::ReleaseDir,
            Opcode::Ioctl => self.ioctl()?,
            Opcode::FAllocate => What::FAllocate(self.record()?),
            Opcode::LSeek => What::LSeek(self.record()?),
            Opcode::CopyFileRange | Opcode::CopyFileRange64 => What::CopyFileRange {
                from: self.record()?,
                is_64: opcode == Opcode::CopyFileRange64,
            },
            Opcode::Init => What::Init(self.record()?),
            Opcode::Destroy => What::Destroy,
            Opcode::Interrupt => What::Interrupt,
        })
    }

    fn rename(&mut self) -> Option<What<'a>> {
        let from: abi::RenameIn = self.record()?;
        Some(What::Rename {
            name: self.name()?,
            new_dir: from.newdir,
            new_name: self.name()?,
            flags: 0,
        })
    }

    fn rename2(&mut self) -> Option<What<'a>> {
        let from: abi::Rename2In = self.record()?;
        Some(What::Rename {
            name: self.name()?,
            new_dir: from.newdir,
            new_name: self.name()?,
            flags: from.flags,
        })
    }

    fn write(&mut self) -> Option<What<'a>> {
        let from: abi::WriteIn = self.record()?;
        let data = self.data(from.size)?;
        Some(What::Write(from, data))
    }

    fn set_xattr(&mut self) -> Option<What<'a>> {
        let from: abi::CompatSetXattrIn = self.record()?;
        Some(What::SetXattr {
            name: self.name()?,
            value: self.data(from.size)?,
            flags: from.flags,
        })
    }

    fn ioctl(&mut self) -> Option<What<'a>> {
        let from: abi::IoctlIn = self.record()?;
        let data = self.data(from.in_size)?;
        Some(What::Ioctl(from, data))
    }
}

/// The answer to a request that could not be decoded.
pub(crate) const BAD: Errno = Errno::IO;

#[cfg(test)]
mod tests {
    use super::*;

    fn request(opcode: u32, body: &[u8]) -> Vec<u8> {
        let header = InHeader {
            len: (size_of::<InHeader>() + body.len()) as u32,
            opcode,
            unique: 7,
            nodeid: 12,
            ..InHeader::default()
        };
        [bytemuck::bytes_of(&header), body].concat()
    }

    #[test]
    fn a_rename_has_two_names() {
        let from = abi::Rename2In {
            newdir: 5,
            flags: 1,
            padding: 0,
        };
        let bytes = request(45, &[bytemuck::bytes_of(&from), b"a\0bc\0"].concat());
        let decoded = Request::decode(&bytes).unwrap();
        let What::Rename {
            name,
            new_dir,
            new_name,
            flags,
        } = decoded.what
        else {
            panic!("{decoded:?}");
        };
        assert_eq!(
            (name.as_bytes(), new_name.as_bytes()),
            (&b"a"[..], &b"bc"[..])
        );
        assert_eq!((new_dir, flags), (5, 1));
    }

    /// Every kind of request, cut at every length, and with a header that says another length.
    #[test]
    fn what_is_too_short_is_refused_and_never_read_past_its_end() {
        for opcode in 0..64 {
            let body = vec![1; 200];
            for len in 0..=body.len() {
                let bytes = request(opcode, &body[..len]);
                // Either outcome will do; decoding must only return.
                let _ = Request::decode(&bytes);
                let cut = &bytes[..bytes.len() - 1];
                assert!(matches!(
                    Request::decode(cut),
                    Err(BadRequest::Length { .. })
                ));
            }
            // With 1 in every byte, a length field says 16,843,009.
            let short = matches!(opcode, 16 | 21 | 39 | 42);
            let whole = request(opcode, &body);
            assert_eq!(
                matches!(Request::decode(&whole), Err(BadRequest::Short { .. })),
                short || matches!(opcode, 1 | 6 | 8..=13 | 22 | 24 | 35 | 45),
                "{opcode}"
            );
        }
    }

    #[test]
    fn several_inodes_are_forgotten_at_once() {
        let head = abi::BatchForgetIn { count: 2, dummy: 0 };
        let ones = [
            abi::ForgetOne {
                nodeid: 3,
                nlookup: 1,
            },
            abi::ForgetOne {
                nodeid: 4,
                nlookup: 9,
            },
        ];
        let body = [bytemuck::bytes_of(&head), bytemuck::cast_slice(&ones)].concat();
        let mut aligned = vec![0_u64; 16];
        let bytes = request(42, &body);
        let place: &mut [u8] = bytemuck::cast_slice_mut(&mut aligned);
        place[..bytes.len()].copy_from_slice(&bytes);
        let decoded = Request::decode(&place[..bytes.len()]).unwrap();
        let What::BatchForget(all) = decoded.what else {
            panic!("{decoded:?}");
        };
        assert_eq!((all[1].nodeid, all[1].nlookup), (4, 9));
        assert!(!decoded.is_answered());
    }
}
