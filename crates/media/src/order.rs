//! The order of a commit, held by types: [`Dirty`] -> [`InFlight`] -> [`Durable`] -> the commit
//! record.
//!
//! A record that says "this transaction is valid" must not reach the medium before the body that it
//! vouches for. This module writes such a record only in exchange for the body's [`Durable`], and
//! only a successful flush makes one. Each step consumes the value that allows it, and code outside
//! can neither make nor copy one. Each value knows its device, so no body of one device can stand
//! under the record of another.
//!
//! ```
//! use stetfs_media::{BlockDev, Cause, Class, Dirty, RamDev, Tag};
//!
//! # fn main() -> Result<(), stetfs_media::MediaError> {
//! let dev = RamDev::new(1 << 20);
//! let mut body = Dirty::on(&dev);
//! body.write(4096, &[&[1; 4096], &[2; 4096]], Tag::new(Class::Journal, Cause::Log))?;
//! let body = body.submit().flush(Cause::Log)?;
//! body.write_commit(12_288, &[&[3; 4096]], Tag::new(Class::Journal, Cause::CommitRecord))?;
//! # Ok(())
//! # }
//! ```
//!
//! Writing a commit record before the flush does not compile:
//!
//! ```compile_fail,E0599
//! # use stetfs_media::{Cause, Class, Dirty, RamDev, Tag};
//! # let dev = RamDev::new(1 << 20);
//! let body = Dirty::on(&dev).submit();
//! body.write_commit(0, &[&[3; 512]], Tag::new(Class::Journal, Cause::CommitRecord));
//! ```
//!
//! nor does a second commit of the same body:
//!
//! ```compile_fail,E0382
//! # use stetfs_media::{Cause, Class, Dirty, RamDev, Tag};
//! # let dev = RamDev::new(1 << 20);
//! # let tag = Tag::new(Class::Journal, Cause::CommitRecord);
//! let body = Dirty::on(&dev).submit().flush(Cause::Log).unwrap();
//! body.write_commit(0, &[&[3; 512]], tag);
//! body.write_commit(512, &[&[3; 512]], tag);
//! ```
//!
//! nor a body that nobody flushed but that claims to be durable:
//!
//! ```compile_fail,E0451
//! # use stetfs_media::{Durable, RamDev};
//! # let dev = RamDev::new(1 << 20);
//! let body = Durable { dev: &dev };
//! ```

use crate::dev::BlockDev;
use crate::error::{MediaError, Op};
use crate::range::Run;
use crate::tag::{Cause, Tag};

/// A body that is being written: the blocks of a transaction, descriptors, ordered data.
#[must_use = "a body that is not committed was written for nothing"]
pub struct Dirty<'d> {
    dev: &'d dyn BlockDev,
    /// No part of the body was written yet.
    is_empty: bool,
}

/// A body whose writes have all returned; none of them is durable for certain.
#[must_use = "a body that is not committed was written for nothing"]
pub struct InFlight<'d> {
    dev: &'d dyn BlockDev,
}

/// A body that no power cut can take away.
#[must_use = "a body that is not committed was written for nothing"]
pub struct Durable<'d> {
    dev: &'d dyn BlockDev,
}

/// Proof that a body is durable, on any medium. Only a flush or a fence makes one.
pub trait Proof {}

impl Proof for Durable<'_> {}

impl<'d> Dirty<'d> {
    /// An empty body on `dev`.
    pub fn on(dev: &'d dyn BlockDev) -> Self {
        Self {
            dev,
            is_empty: true,
        }
    }

    /// Whether no part of the body was written yet.
    pub fn is_empty(&self) -> bool {
        self.is_empty
    }

    /// Writes a part of the body: see [`BlockDev::write_vectored_at`].
    pub fn write(&mut self, offset: u64, parts: &[&[u8]], tag: Tag) -> Result<(), MediaError> {
        self.is_empty = false;
        self.dev.write_vectored_at(offset, parts, tag)
    }

    /// Writes parts of the body: see [`BlockDev::write_many`].
    pub fn write_many(&mut self, runs: &[Run<'_>]) -> Result<(), MediaError> {
        self.is_empty = false;
        self.dev.write_many(runs)
    }

    /// Writes a part of the body: see [`BlockDev::write_tagged_at`].
    pub fn write_tagged(&mut self, offset: u64, parts: &[(Tag, &[u8])]) -> Result<(), MediaError> {
        self.is_empty = false;
        self.dev.write_tagged_at(offset, parts)
    }

    /// Writes the last parts of the body and makes all of it durable: see
    /// [`BlockDev::write_flushed`].
    pub fn write_last(
        self,
        offset: u64,
        parts: &[(Tag, &[u8])],
        cause: Cause,
    ) -> Result<Durable<'d>, MediaError> {
        self.dev.write_tagged_flushed(offset, parts, cause)?;
        Ok(Durable { dev: self.dev })
    }

    /// Writes the last parts, which lie apart, and makes all of the body durable: see
    /// [`BlockDev::write_many`].
    pub fn write_last_many(
        mut self,
        runs: &[Run<'_>],
        cause: Cause,
    ) -> Result<Durable<'d>, MediaError> {
        if let [run] = runs {
            self.dev
                .write_flushed(run.offset, &run.parts, run.tag, cause)?;
            return Ok(Durable { dev: self.dev });
        }
        self.write_many(runs)?;
        self.submit().flush(cause)
    }

    /// Writes the last parts of the body and a commit record that carries a checksum over the whole
    /// body; the record is the last of `parts`. One flush instead of two makes everything durable.
    /// After a power cut the record may be there without the body: recovery must compute the
    /// checksum and drop a transaction whose body does not match.
    pub fn write_covering_commit(
        self,
        offset: u64,
        parts: &[(Tag, &[u8])],
    ) -> Result<(), MediaError> {
        if self.is_empty {
            return self.dev.write_tagged_durable(offset, parts);
        }
        self.dev
            .write_tagged_flushed(offset, parts, Cause::CommitRecord)
    }

    /// Writes the last parts of the body, a record among them, as a whole; everything is durable
    /// when it returns. A power cut before that leaves none of these parts.
    ///
    /// # Errors
    /// [`MediaError::Unsupported`]: the device has no [atomic writes](crate::AtomicWrite).
    pub fn write_whole_commit(self, runs: &[Run<'_>]) -> Result<(), MediaError> {
        let Some(atomic) = self.dev.atomic_write() else {
            return Err(MediaError::Unsupported { op: Op::Write });
        };
        atomic.write_whole(runs)
    }

    /// Ends the body: no part can be added any more.
    pub fn submit(self) -> InFlight<'d> {
        InFlight { dev: self.dev }
    }
}

impl<'d> InFlight<'d> {
    /// Makes the body durable. A failure consumes the body, and with it the right to commit.
    pub fn flush(self, cause: Cause) -> Result<Durable<'d>, MediaError> {
        self.dev.flush(cause)?;
        Ok(Durable { dev: self.dev })
    }
}

impl Durable<'_> {
    /// Writes the record that makes the body valid; durable on return.
    pub fn write_commit(self, offset: u64, parts: &[&[u8]], tag: Tag) -> Result<(), MediaError> {
        self.dev.write_durable(offset, parts, tag)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::Image;
    use crate::sim::{Fault, SimDev};
    use crate::tag::Class;

    const BODY: Tag = Tag::new(Class::Data, Cause::Log);
    const RECORD: Tag = Tag::new(Class::Journal, Cause::CommitRecord);

    /// In no state after a cut is the record there without the body.
    #[test]
    fn a_record_never_outlives_its_body() {
        let dev = SimDev::new(Image::new(8192));
        let mut body = Dirty::on(&dev);
        body.write(0, &[&[1; 1024]], BODY).expect("a write");
        body.write(2048, &[&[1; 512]], BODY).expect("a write");
        let body = body.submit().flush(Cause::Log).expect("a flush");
        body.write_commit(4096, &[&[1; 512]], RECORD)
            .expect("a commit");
        let mut committed = 0;
        for point in dev.tape().crash_points() {
            for states in 0..1u32 << point.pieces().len() {
                let bytes = point.image(|i| states >> i & 1 == 1).to_bytes();
                if bytes[4096] == 1 {
                    committed += 1;
                    assert_eq!((bytes[0], bytes[512], bytes[2048]), (1, 1, 1));
                }
            }
        }
        assert!(committed > 0);
        assert_eq!(dev.stable().to_bytes()[4096], 1);
    }

    #[test]
    fn a_failed_flush_takes_the_right_to_commit() {
        let dev = SimDev::new(Image::new(8192));
        dev.inject(Fault::nth(Op::Flush, 0));
        let mut body = Dirty::on(&dev);
        body.write(0, &[&[1; 1024]], BODY).expect("a write");
        assert!(body.submit().flush(Cause::Log).is_err());
    }

    #[test]
    fn a_covering_record_costs_one_flush_and_no_request() {
        for parts_before in [0, 1] {
            let dev = SimDev::new(Image::new(8192));
            let mut body = Dirty::on(&dev);
            for _ in 0..parts_before {
                body.write(0, &[&[1; 1024]], BODY).expect("a write");
            }
            body.write_covering_commit(4096, &[(BODY, &[1; 1024]), (RECORD, &[1; 512])])
                .expect("a commit");
            let account = dev.meter().snapshot();
            assert_eq!(account.total_flushes() + account.total_durable_writes(), 1);
            assert_eq!(account.total().writes, parts_before + 1);
            assert_eq!(account.of(RECORD).write_bytes, 512);
            assert_eq!(dev.crash_point().pieces().len(), 0);
        }
    }
}
