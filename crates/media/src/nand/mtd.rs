//! A real part behind Linux's MTD layer, `/dev/mtdN`, as a [`Nand`].
//!
//! How it keeps the contract:
//!
//! | | |
//! |---|---|
//! | page and its spare area together | one MEMREAD, one MEMWRITE. MEMREAD came with Linux 6.1; an older kernel is refused with that reason |
//! | wrong bits | MEMREAD reports how many were corrected in the worst codeword ([`Corrected`]: EUCLEAN or not), and EBADMSG ([`NandError::Uncorrectable`]) |
//! | a failed program or erase | EIO ([`NandError::ProgramFailed`], [`NandError::EraseFailed`]); any other errno is an error of the device |
//! | bad blocks | MEMGETBADBLOCK, MEMSETBADBLOCK: the driver's table or marks. The driver keeps its mark out of the spare area; a read of a first page fills in the mark of this contract. |
//! | durable | when the call returns: neither MTD nor the part has a cache |
//! | in order, once | not checked here (the kernel does not either); a translation layer that breaks it loses data |
//!
//! **The spare area** that this part offers has 16 bytes: one for the mark, 15 for the manager of
//! the part. MTD's out-of-band area also holds the codes of its error correction. These codes
//! usually do *not* cover the free rest (`oobavail` in sysfs, placed by MTD_OPS_AUTO_OOB). So a
//! 16th byte holds a code of our own over the 15 bytes: it corrects one wrong bit and detects two.
//! A part therefore needs 16 free bytes:
//!
//! | part | out-of-band | error correction | free | |
//! |---|---|---|---|---|
//! | 512 B pages | 16 | Hamming, 6 bytes | 8 | refused by name |
//! | 2 KiB pages | 64 | Hamming, 24 bytes | 38 | fits |
//! | 2 KiB pages | 64 | BCH of 4 bits, 28 bytes | 34 | fits |
//! | 2 KiB pages | 64 | BCH of 8 bits, 52 bytes | 10 | refused by name |
//!
//! Writing 512 B pages raw (MTD_OPS_RAW) would make room, but leave the data without any
//! correction.
//!
//! Opening a part locks its node (flock) and checks that neither UBI nor a mounted file system has
//! it; MTD itself excludes nobody.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Instant;

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::{Errno, retry_on_intr};
use stetfs_format::nand::{NandEcc, NandGeometry};
use stetfs_format::num::{BlockAddr, PageNo};
use stetfs_format::width::{low8, must_fit, usize_as_u64};
use stetfs_sys::mtd::{Info, Kind, Mtd};

use super::contract::{Corrected, Nand};
use super::error::NandError;
use crate::error::{MediaError, Op};
use crate::meter::Meter;
use crate::tag::{Cause, Tag};

/// Bytes of a spare area that the caller can use, besides the mark.
const RECORD: usize = 15;
/// Bytes that the part stores for them.
const STORED: usize = RECORD + 1;
/// Where in the spare area the caller sees the bad block mark.
const BAD_MARK: usize = 0;

/// A part behind `/dev/mtdN`, locked as long as this lives.
pub struct MtdNand {
    mtd: Mtd,
    path: PathBuf,
    geometry: NandGeometry,
    ecc: NandEcc,
    meter: Meter,
}

impl MtdNand {
    /// Whether there is a node of an MTD device at `path`.
    pub fn is_at(path: &Path) -> bool {
        let is_char = |meta: &fs::Metadata| meta.file_type().is_char_device();
        fs::metadata(path).is_ok_and(|meta| is_char(&meta)) && open(path, true).is_ok()
    }

    /// Opens the part, for reading only or for reading and writing.
    ///
    /// # Errors
    /// [`MediaError::Open`] with `NODEV`: no MTD device; [`MediaError::Busy`];
    /// [`NandError::NotUsable`] with the reason.
    pub fn open(path: impl AsRef<Path>, read_only: bool) -> Result<Self, NandError> {
        let path = path.as_ref();
        let failed = |source| MediaError::Open {
            path: path.to_owned(),
            source,
        };
        let mtd = open(path, read_only).map_err(failed)?;
        let how = if read_only {
            FlockOperation::NonBlockingLockShared
        } else {
            FlockOperation::NonBlockingLockExclusive
        };
        retry_on_intr(|| flock(&mtd, how)).map_err(|e| match e {
            Errno::WOULDBLOCK => busy(path, String::new()),
            e => failed(e),
        })?;
        if let Some(by) = user(mtd.number()) {
            return Err(busy(path, format!(" (by {by})")).into());
        }
        let info = mtd.info().map_err(failed)?;
        let not_usable = |why: String| NandError::NotUsable {
            path: path.to_owned(),
            why,
        };
        if let Kind::Other(kind) = info.kind {
            return Err(not_usable(format!(
                "it is flash of MTD type {kind}, not NAND"
            )));
        }
        if !info.writable && !read_only {
            return Err(not_usable("it is write-protected".to_owned()));
        }
        let (geometry, ecc) = shape(&mtd, &info).map_err(not_usable)?;
        let part = Self {
            mtd,
            path: path.to_owned(),
            geometry,
            ecc,
            meter: Meter::new(),
        };
        let mut stored = [0; STORED];
        if let (Err(Errno::NOTTY), _) = part.mtd.read(0, &mut [], &mut stored) {
            return Err(not_usable(
                "pages are read by MEMREAD, which came with Linux 6.1".to_owned(),
            ));
        }
        Ok(part)
    }

    fn start(&self, page: PageNo) -> u64 {
        assert!(
            page.0 < self.geometry.pages(),
            "misuse of the NAND part: page {page} of {}",
            self.geometry.pages()
        );
        u64::from(page.0) * u64::from(self.geometry.page_bytes)
    }

    fn block_start(&self, block: BlockAddr) -> u64 {
        assert!(
            block.0 < self.geometry.blocks,
            "misuse of the NAND part: erase block {block} of {}",
            self.geometry.blocks
        );
        self.start(self.geometry.page_at(block, 0))
    }

    fn block_bytes(&self) -> u64 {
        u64::from(self.geometry.page_bytes) * u64::from(self.geometry.pages_per_block)
    }

    fn read_page(
        &self,
        page: PageNo,
        data: &mut [u8],
        spare: &mut [u8],
        tag: Tag,
    ) -> Result<Corrected, NandError> {
        let start = self.start(page);
        assert_eq!(spare.len(), self.geometry.spare_len(), "a spare area");
        let began = Instant::now();
        let mut stored = [0; STORED];
        let (done, statistics) = self.mtd.read(start, data, &mut stored);
        let record = unprotect(&mut stored);
        spare[BAD_MARK] = 0xff;
        spare[BAD_MARK + 1..].copy_from_slice(&stored[..RECORD]);
        let is_first = self.geometry.index_of(page) == 0;
        if is_first && self.is_bad(self.geometry.block_of(page))? {
            spare[BAD_MARK] = 0;
        }
        match done {
            Ok(()) | Err(Errno::UCLEAN) => {}
            Err(Errno::BADMSG) => return Err(NandError::Uncorrectable { page }),
            Err(e) => return Err(self.failed(Op::Read, start, usize_as_u64(data.len()), e)),
        }
        let Some(record) = record else {
            return Err(NandError::Uncorrectable { page });
        };
        let counted = if data.is_empty() {
            spare.len()
        } else {
            data.len()
        };
        self.meter.count_read(tag, usize_as_u64(counted));
        self.meter.count_busy(tag, busy_ns(began));
        Ok(Corrected {
            bits: statistics.max_bitflips.max(record),
        })
    }

    fn failed(&self, op: Op, offset: u64, len: u64, source: Errno) -> NandError {
        NandError::File(MediaError::Io {
            op,
            offset,
            len,
            source,
        })
    }
}

impl Nand for MtdNand {
    fn describe(&self) -> String {
        let mib = self.geometry.data_bytes() >> 20;
        format!("{}, NAND, {mib} MiB", self.path.display())
    }

    fn geometry(&self) -> NandGeometry {
        self.geometry
    }

    fn ecc(&self) -> NandEcc {
        self.ecc
    }

    fn read(
        &self,
        page: PageNo,
        data: &mut [u8],
        spare: &mut [u8],
        tag: Tag,
    ) -> Result<Corrected, NandError> {
        assert_eq!(data.len(), self.geometry.page_len(), "a page");
        self.read_page(page, data, spare, tag)
    }

    fn read_spare(&self, page: PageNo, spare: &mut [u8], tag: Tag) -> Result<Corrected, NandError> {
        self.read_page(page, &mut [], spare, tag)
    }

    fn program(&self, page: PageNo, data: &[u8], spare: &[u8], tag: Tag) -> Result<(), NandError> {
        let start = self.start(page);
        assert_eq!(data.len(), self.geometry.page_len(), "a page");
        assert_eq!(spare.len(), self.geometry.spare_len(), "a spare area");
        let mut stored = [0; STORED];
        stored[..RECORD].copy_from_slice(&spare[BAD_MARK + 1..]);
        protect(&mut stored);
        let began = Instant::now();
        match self.mtd.write(start, data, &stored) {
            Ok(()) => {}
            Err(Errno::IO) => return Err(NandError::ProgramFailed { page }),
            Err(e) => return Err(self.failed(Op::Write, start, usize_as_u64(data.len()), e)),
        }
        self.meter.count_write(tag, usize_as_u64(data.len()));
        self.meter.count_busy(tag, busy_ns(began));
        Ok(())
    }

    fn erase(&self, block: BlockAddr, cause: Cause) -> Result<(), NandError> {
        let (start, len) = (self.block_start(block), self.block_bytes());
        let began = Instant::now();
        match retry_on_intr(|| self.mtd.erase(start, len)) {
            Ok(()) => {}
            Err(Errno::IO) => return Err(NandError::EraseFailed { block }),
            Err(e) => return Err(self.failed(Op::Erase, start, len, e)),
        }
        self.meter.count_erase(cause);
        self.meter.count_cause_busy(cause, busy_ns(began));
        Ok(())
    }

    fn is_bad(&self, block: BlockAddr) -> Result<bool, NandError> {
        let start = self.block_start(block);
        let bad = retry_on_intr(|| self.mtd.is_bad(start));
        bad.map_err(|e| self.failed(Op::Read, start, 0, e))
    }

    fn mark_bad(&self, block: BlockAddr, cause: Cause) -> Result<(), NandError> {
        let start = self.block_start(block);
        let began = Instant::now();
        let marked = retry_on_intr(|| self.mtd.mark_bad(start));
        marked.map_err(|e| self.failed(Op::Write, start, 0, e))?;
        self.meter.count_cause_busy(cause, busy_ns(began));
        Ok(())
    }

    fn meter(&self) -> &Meter {
        &self.meter
    }
}

fn open(path: &Path, read_only: bool) -> Result<Mtd, Errno> {
    let mut options = OpenOptions::new();
    let options = options.read(true).write(!read_only);
    let file = options
        .custom_flags(OFlags::CLOEXEC.bits().cast_signed())
        .open(path)
        .map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))?;
    Mtd::new(file.into())
}

fn busy(path: &Path, by: String) -> MediaError {
    MediaError::Busy {
        path: path.to_owned(),
        by,
    }
}

fn busy_ns(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// Returns who else in the kernel has the part: UBI, or a file system that is mounted from it.
fn user(number: u32) -> Option<String> {
    let ubi = fs::read_dir("/sys/class/ubi")
        .into_iter()
        .flatten()
        .flatten();
    for device in ubi {
        let attached = fs::read_to_string(device.path().join("mtd_num")).unwrap_or_default();
        if attached.trim() == number.to_string() {
            return Some(device.file_name().to_string_lossy().into_owned());
        }
    }
    let names = [format!("mtd{number}"), format!("/dev/mtdblock{number}")];
    let mounts = fs::read("/proc/self/mounts").unwrap_or_default();
    let mounts = String::from_utf8_lossy(&mounts);
    mounts.lines().find_map(|line| {
        let mut words = line.split(' ');
        let source = words.next()?;
        let dir = words.next()?;
        names
            .iter()
            .any(|name| name == source)
            .then(|| format!("a mount on {dir}"))
    })
}

/// Returns geometry and error correction of the part, or the reason why it cannot be used.
fn shape(mtd: &Mtd, info: &Info) -> Result<(NandGeometry, NandEcc), String> {
    let number = |name: &str| -> Result<u64, String> {
        let path = format!("/sys/class/mtd/mtd{}/{name}", mtd.number());
        let text = fs::read_to_string(&path).map_err(|e| format!("{path}: {e}"))?;
        text.trim()
            .parse()
            .map_err(|_| format!("{path} holds no number"))
    };
    // sysfs has 64 bits, unlike the ioctl.
    let size = number("size")?;
    let free = number("oobavail")?;
    let (page, block) = (info.write_size, info.erase_size);
    if !page.is_power_of_two() || !(512..=65_536).contains(&page) || !block.is_multiple_of(page) {
        return Err(format!("pages of {page} bytes in erase blocks of {block}"));
    }
    if free < usize_as_u64(STORED) {
        return Err(format!(
            "beside the codes of its error correction {free} out-of-band bytes of a page are free, \
                and {STORED} are needed"
        ));
    }
    let blocks = u32::try_from(size / u64::from(block));
    let pages_per_block = block / page;
    let fits = |blocks: &u32| {
        (1..=4080).contains(&pages_per_block) && blocks.checked_mul(pages_per_block).is_some()
    };
    let Some(blocks) = blocks.ok().filter(fits) else {
        return Err(format!(
            "{size} bytes in erase blocks of {block} and pages of {page}"
        ));
    };
    let step = u32::try_from(number("ecc_step_size")?).unwrap_or(0);
    Ok((
        NandGeometry {
            page_bytes: page,
            spare_bytes: must_fit(STORED),
            pages_per_block,
            blocks,
            planes: 1,
            bad_mark: must_fit(BAD_MARK),
        },
        NandEcc {
            codeword_bytes: if step == 0 { page } else { step },
            strength_bits: u32::try_from(number("ecc_strength")?).unwrap_or(0),
        },
    ))
}

/// The place of each bit of a record in a Hamming code: the 120 numbers from 1 to 127 that are not
/// powers of two.
fn places() -> impl Iterator<Item = u8> {
    (1..=127).filter(|n: &u8| !n.is_power_of_two())
}

/// Returns the code of a record. Seven bits are the exclusive or of the places of all its zeros;
/// the last bit makes the number of zeros in record and code even. The code of an erased record is
/// all ones, like erased cells.
fn code(record: &[u8]) -> u8 {
    let (mut sum, mut odd) = (0u8, 0u8);
    for (n, place) in places().enumerate() {
        if record[n / 8] & 1 << (n % 8) == 0 {
            sum ^= place;
            odd ^= 1;
        }
    }
    // The sum counts zeros, and the code is its complement: all ones match all ones.
    odd ^= low8(sum.count_ones()) & 1;
    !(sum | odd << 7)
}

fn protect(stored: &mut [u8; STORED]) {
    stored[RECORD] = code(&stored[..RECORD]);
}

/// Corrects a wrong bit. Returns how many bits were wrong; `None` if they cannot be corrected.
fn unprotect(stored: &mut [u8; STORED]) -> Option<u32> {
    let wrong = code(&stored[..RECORD]) ^ stored[RECORD];
    let (place, is_odd) = (wrong & 0x7f, (wrong.count_ones() & 1) == 1);
    if wrong == 0 {
        return Some(0);
    }
    // One wrong bit changes an odd number of code bits: a bit of the code itself changes one; a bit
    // of the record changes those of its place, and the last bit if needed to make the number odd.
    // Two wrong bits change an even number.
    if !is_odd {
        return None;
    }
    if place == 0 || place.is_power_of_two() {
        // The wrong bit is in the code itself.
        return Some(1);
    }
    let n = places().position(|p| p == place)?;
    stored[n / 8] ^= 1 << (n % 8);
    Some(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_wrong_bit_is_corrected_and_two_are_seen() {
        for seed in 0..40u64 {
            let mut right = [0; STORED];
            for (n, byte) in right.iter_mut().enumerate() {
                *byte = crate::sim::scramble(seed << 8 | n as u64) as u8;
            }
            protect(&mut right);
            assert_eq!(unprotect(&mut right.clone()), Some(0));
            for a in 0..STORED * 8 {
                let mut one = right;
                one[a / 8] ^= 1 << (a % 8);
                let mut corrected = one;
                assert_eq!(unprotect(&mut corrected), Some(1), "bit {a}");
                assert_eq!(corrected[..RECORD], right[..RECORD], "bit {a}");
                for b in 0..a {
                    let mut two = one;
                    two[b / 8] ^= 1 << (b % 8);
                    assert_eq!(unprotect(&mut two), None, "bits {a} and {b}");
                }
            }
        }
    }

    #[test]
    fn erased_cells_are_an_erased_record() {
        assert_eq!(unprotect(&mut [0xff; STORED]), Some(0));
    }

    #[test]
    fn what_is_no_mtd_device_is_refused() {
        assert!(!MtdNand::is_at(Path::new("/dev/null")));
        let opened = MtdNand::open("/dev/null", true);
        let is_named = |e: &NandError| match e {
            NandError::File(MediaError::Open { source, .. }) => *source == Errno::NODEV,
            _ => false,
        };
        assert!(opened.err().as_ref().is_some_and(is_named));
    }
}
