//! How long a block device of a certain kind takes: a function of its state and the request, so the
//! same requests take the same time on every machine.
//!
//! One request is served at a time, as a single caller sees it (queue depth 1). The models leave
//! out queues, the housekeeping of flash (our own translation layer simulates garbage collection),
//! zones of different speed on a disk, and the cost of a discard (none).
//!
//! | figure | hdd | sata_ssd | nvme_ssd | microsd |
//! |---|---|---|---|---|
//! | sequential read, MB/s | 129 (a) | 540 (d) | 3,400 (e) | 17.4 (f) |
//! | sequential write, MB/s | 129 (a) | 520 (d) | 2,500 (e) | 10.4 (f) |
//! | random read of 4 KiB | average seek 8.5 ms (b), to the next track 1.0 ms (c), turn 8.33 ms (a) | 1/10,000 s (d) | 1/15,000 s (e) | 4 KiB at 5.36 MB/s (f) |
//! | random write of 4 KiB | into the cache; on the disk 9.5 ms (b), 1.1 ms (c) | 1/40,000 s (d) | 1/50,000 s (e) | 4 KiB at 1.05 MB/s (f) |
//! | flush after a write | writes the content of the cache (32 MiB (b)) in ascending order | 1.64 ms (g) | 1.64 ms (g) | nothing: no cache (h) |
//! | durable write | past the cache | a write and a flush (i) | 4.0 ms (g) | a write |
//!
//! - (a) Seagate Constellation ES.3 product manual, 4.1: a drive of 1 TB with 7,200 turns a minute
//!   sustains 83 to 175 MB/s from inside to outside; the mean. Its interface moves 600 MB/s.
//! - (b) Hitachi Deskstar 7K1000.C specification, 4.5.2.1 (1 TB, two disks); its buffer.
//! - (c) Hitachi 7K320 specification, 4.4.2.3 (7,200 turns a minute). Between (c) and (b) the seek
//!   time grows with the root of the distance: Ruemmler, Wilkes, "An Introduction to Disk Drive
//!   Modeling", IEEE Computer 27(3), 1994, whose linear branch for long seeks needs more figures
//!   than the manuals give.
//! - (d) Samsung 850 EVO 1 TB, the maker's figures; random ones at queue depth 1.
//! - (e) Samsung 970 EVO 1 TB, the maker's figures; random ones at queue depth 1.
//! - (f) A 16 GB class 10 card (Samsung Evo) in a Raspberry Pi 2, measured by J. Geerling
//!   (pidramble.com, "microSD card benchmarks"): the card size with which Delta Journaling was
//!   measured, in a host of that time. The paper gives no figures for its card.
//! - (g) Samsung 990 PRO 2 TB, pg_test_fsync with 8 KiB by T. Poder (tanelpoder.com, 27 May 2025):
//!   fdatasync 1,643 us, O_DSYNC, which XFS turns into a write with forced unit access, 4,007 us.
//!   We found no such measurement with a stated method for a SATA drive; a SATA drive without power
//!   loss protection has to do the same work.
//! - (h) SD cards before version 6.0 of the specification have no cache to flush.
//! - (i) Linux uses forced unit access on SATA only if told to (`libata.fua`).

use std::collections::BTreeSet;
use std::fmt;

use stetfs_format::width::{must_fit, u64_as_usize, usize_as_u64};

use crate::dev::DISK_JUMP_BYTES;

/// The kind of device that a simulated one takes its time from. Without a volatile cache
/// ([`SimOptions::volatile_cache`](crate::sim::SimOptions::volatile_cache)) a disk writes every
/// block at once. A flash drive then has capacitors: writes take the same time as before, and
/// flushes and durable writes cost nothing more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Timing {
    /// No time at all.
    #[default]
    None,
    /// A disk of 1 TB with 7,200 turns a minute and a write cache.
    Hdd,
    /// A consumer's flash drive on SATA.
    SataSsd,
    /// A consumer's flash drive on PCI Express.
    NvmeSsd,
    /// A memory card of class 10.
    MicroSd,
}

impl Timing {
    /// Every kind.
    pub const ALL: [Self; 5] = [
        Self::None,
        Self::Hdd,
        Self::SataSsd,
        Self::NvmeSsd,
        Self::MicroSd,
    ];

    /// The name in reports and on command lines.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Hdd => "hdd",
            Self::SataSsd => "sata_ssd",
            Self::NvmeSsd => "nvme_ssd",
            Self::MicroSd => "microsd",
        }
    }

    /// [`BlockDev::jump_bytes`](crate::BlockDev::jump_bytes) of this kind; `None` if it takes no
    /// time.
    pub(crate) fn jump_bytes(self) -> Option<u64> {
        match self {
            Self::None => None,
            Self::Hdd => Some(DISK_JUMP_BYTES),
            Self::SataSsd => Some(SATA_SSD.jump_bytes()),
            Self::NvmeSsd => Some(NVME_SSD.jump_bytes()),
            Self::MicroSd => Some(MICROSD.jump_bytes()),
        }
    }

    /// Returns the model of a device of this kind at rest, of `size` bytes.
    pub(crate) fn model(self, size: u64, volatile_cache: bool) -> Model {
        match self {
            Self::None => Model::None,
            Self::Hdd => Model::Disk(Disk::new(size, volatile_cache)),
            Self::SataSsd => Model::Flash(Flash::new(SATA_SSD, volatile_cache)),
            Self::NvmeSsd => Model::Flash(Flash::new(NVME_SSD, volatile_cache)),
            Self::MicroSd => Model::Flash(Flash::new(MICROSD, volatile_cache)),
        }
    }
}

impl fmt::Display for Timing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The properties of a request on which its time depends. Offsets and lengths are bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Request {
    Read {
        offset: u64,
        len: u64,
    },
    Write {
        offset: u64,
        len: u64,
        /// Past the cache.
        durable: bool,
    },
    Flush,
    Discard {
        offset: u64,
        len: u64,
    },
}

/// The state of a device on which time depends.
pub(crate) enum Model {
    None,
    Disk(Disk),
    Flash(Flash),
}

impl Model {
    /// Returns the nanoseconds that a request takes when it begins at `now_ns`.
    pub(crate) fn busy_ns(&mut self, now_ns: u64, request: Request) -> u64 {
        match self {
            Self::None => 0,
            Self::Disk(disk) => disk.busy_ns(now_ns, request),
            Self::Flash(flash) => flash.busy_ns(request),
        }
    }
}

const MS: u64 = 1_000_000;
const SECOND: u64 = 1000 * MS;
/// The unit of the caches, and of the figures for random access.
const PAGE: u64 = 4096;

/// Time for `len` bytes at `rate` bytes a second.
fn transfer_ns(len: u64, rate: u64) -> u64 {
    must_fit(u128::from(len) * u128::from(SECOND) / u128::from(rate))
}

/// A disk: heads that seek, a platter that turns with the clock, a cache that is written back in
/// ascending order.
pub(crate) struct Disk {
    has_cache: bool,
    tracks: u64,
    /// Where the last transfer ended, in bytes.
    head: u64,
    /// The last transfer was a read, so the bytes behind it have been read ahead.
    was_read: bool,
    /// Pages in the cache that are not on the disk.
    dirty: BTreeSet<u64>,
}

/// Seek times.
struct Seek {
    to_next_track_ns: u64,
    /// Average over random pairs of tracks.
    average_ns: u64,
}

impl Disk {
    const CAPACITY: u64 = 1_000_000_000_000;
    const TURN_NS: u64 = 60 * SECOND / 7200;
    const RATE: u64 = 129_000_000;
    const INTERFACE_RATE: u64 = 600_000_000;
    const TRACK: u64 = Self::RATE * Self::TURN_NS / SECOND;
    const CACHE_PAGES: usize = (32 << 20) / u64_as_usize(PAGE);
    const READ_SEEK: Seek = Seek {
        to_next_track_ns: MS,
        average_ns: 85 * MS / 10,
    };
    const WRITE_SEEK: Seek = Seek {
        to_next_track_ns: 11 * MS / 10,
        average_ns: 95 * MS / 10,
    };

    fn new(size: u64, has_cache: bool) -> Self {
        Self {
            has_cache,
            tracks: size.max(Self::CAPACITY) / Self::TRACK,
            head: 0,
            was_read: false,
            dirty: BTreeSet::new(),
        }
    }

    fn busy_ns(&mut self, now_ns: u64, request: Request) -> u64 {
        match request {
            Request::Read { offset, len } => {
                let cached = pages_touched(offset, len).all(|page| self.dirty.contains(&page));
                if cached {
                    return transfer_ns(len, Self::INTERFACE_RATE);
                }
                let read_ahead = self.was_read && offset == self.head;
                let access_ns = if read_ahead {
                    0
                } else {
                    self.access_ns(now_ns, offset, &Self::READ_SEEK)
                };
                self.head = offset + len;
                self.was_read = true;
                access_ns + transfer_ns(len, Self::RATE)
            }
            Request::Write {
                offset,
                len,
                durable: false,
            } if self.has_cache => {
                self.dirty.extend(pages_touched(offset, len));
                let into_cache_ns = transfer_ns(len, Self::INTERFACE_RATE);
                if self.dirty.len() > Self::CACHE_PAGES {
                    return into_cache_ns + self.write_back_ns(now_ns + into_cache_ns);
                }
                into_cache_ns
            }
            Request::Write { offset, len, .. } => {
                self.forget(offset, len);
                self.write_ns(now_ns, offset, len)
            }
            Request::Flush => self.write_back_ns(now_ns),
            Request::Discard { offset, len } => {
                self.forget(offset, len);
                0
            }
        }
    }

    /// Drops the pages that lie wholly in the range: they need no write-back any more.
    fn forget(&mut self, offset: u64, len: u64) {
        let inside = offset.div_ceil(PAGE)..(offset + len) / PAGE;
        if !inside.is_empty() {
            let gone: Vec<u64> = self.dirty.range(inside).copied().collect();
            gone.iter().for_each(|page| _ = self.dirty.remove(page));
        }
    }

    /// Writes the cache back, from the head upwards and then the rest, each run of pages in one
    /// request.
    fn write_back_ns(&mut self, now_ns: u64) -> u64 {
        let mut above = std::mem::take(&mut self.dirty);
        let mut order = above
            .split_off(&(self.head / PAGE))
            .into_iter()
            .collect::<Vec<_>>();
        order.extend(above);
        let mut busy_ns = 0;
        for run in order.chunk_by(|a, b| a + 1 == *b) {
            let (offset, len) = (run[0] * PAGE, usize_as_u64(run.len()) * PAGE);
            busy_ns += self.write_ns(now_ns + busy_ns, offset, len);
        }
        busy_ns
    }

    fn write_ns(&mut self, now_ns: u64, offset: u64, len: u64) -> u64 {
        let access_ns = self.access_ns(now_ns, offset, &Self::WRITE_SEEK);
        self.head = offset + len;
        self.was_read = false;
        access_ns + transfer_ns(len, Self::RATE)
    }

    /// Returns the time of the seek and of the wait until the byte passes under the head.
    fn access_ns(&self, now_ns: u64, offset: u64, seek: &Seek) -> u64 {
        let distance = (offset / Self::TRACK).abs_diff(self.head / Self::TRACK);
        let seek_ns = if offset == self.head {
            0
        } else {
            seek.time_ns(distance, self.tracks)
        };
        let comes_at_ns = transfer_ns(offset % Self::TRACK, Self::RATE);
        let angle_ns = (now_ns + seek_ns) % Self::TURN_NS;
        let wait_ns = (comes_at_ns + Self::TURN_NS - angle_ns) % Self::TURN_NS;
        // The byte is just under the head: a wait of nearly a whole turn is a rounding error.
        if wait_ns > Self::TURN_NS - transfer_ns(512, Self::RATE) {
            return seek_ns;
        }
        seek_ns + wait_ns
    }
}

impl Seek {
    /// Returns `a + b * sqrt(distance / all)`. The mean of the root over random pairs is 8/15,
    /// which gives b.
    fn time_ns(&self, distance: u64, all: u64) -> u64 {
        if distance == 0 {
            return 0;
        }
        let growth_ns = u128::from(self.average_ns - self.to_next_track_ns) * 15 / 8;
        let root = (u128::from(distance) << 64)
            .div_ceil(u128::from(all))
            .isqrt();
        self.to_next_track_ns + must_fit::<_, u64>((growth_ns * root) >> 32)
    }
}

fn pages_touched(offset: u64, len: u64) -> std::ops::Range<u64> {
    offset / PAGE..(offset + len).div_ceil(PAGE)
}

/// The figures of a flash device.
struct FlashFigures {
    /// Bytes a second.
    read_rate: u64,
    write_rate: u64,
    /// A read or write of 4 KiB that does not continue the last one.
    random_read_ns: u64,
    random_write_ns: u64,
    /// Whether a write that continues the last one avoids the cost of a random write. Where writes
    /// go into a cache, both cost the same.
    has_cheap_appends: bool,
    flush_ns: u64,
    /// A durable write of 4 KiB; `None`: it is a write and a flush.
    durable_write_ns: Option<u64>,
}

impl FlashFigures {
    /// Returns the extra time of a write that does not continue the last one. Where no write avoids
    /// that time, it is what each write takes beyond its transfer.
    fn jump_ns(&self) -> u64 {
        self.random_write_ns - transfer_ns(PAGE, self.write_rate)
    }

    fn jump_bytes(&self) -> u64 {
        self.jump_ns() * (self.write_rate / MS) / (SECOND / MS)
    }
}

const SATA_SSD: FlashFigures = FlashFigures {
    read_rate: 540_000_000,
    write_rate: 520_000_000,
    random_read_ns: SECOND / 10_000,
    random_write_ns: SECOND / 40_000,
    has_cheap_appends: false,
    flush_ns: 1_643_000,
    durable_write_ns: None,
};

const NVME_SSD: FlashFigures = FlashFigures {
    read_rate: 3_400_000_000,
    write_rate: 2_500_000_000,
    random_read_ns: SECOND / 15_000,
    random_write_ns: SECOND / 50_000,
    has_cheap_appends: false,
    flush_ns: 1_643_000,
    durable_write_ns: Some(4_007_000),
};

const MICROSD: FlashFigures = FlashFigures {
    read_rate: 17_390_000,
    write_rate: 10_400_000,
    random_read_ns: PAGE * SECOND / 5_360_000,
    random_write_ns: PAGE * SECOND / 1_050_000,
    has_cheap_appends: true,
    flush_ns: 0,
    durable_write_ns: None,
};

/// A flash device: transfer time, plus extra time for a request that does not continue the last
/// one.
pub(crate) struct Flash {
    figures: FlashFigures,
    has_cache: bool,
    /// Where the last read and the last write ended.
    read_end: u64,
    write_end: u64,
    /// Something was written since the last flush.
    is_dirty: bool,
}

impl Flash {
    fn new(figures: FlashFigures, has_cache: bool) -> Self {
        Self {
            figures,
            has_cache,
            read_end: 0,
            write_end: 0,
            is_dirty: false,
        }
    }

    fn busy_ns(&mut self, request: Request) -> u64 {
        let figures = &self.figures;
        match request {
            Request::Read { offset, len } => {
                let jump_ns = figures.random_read_ns - transfer_ns(PAGE, figures.read_rate);
                let continues = offset == self.read_end;
                self.read_end = offset + len;
                transfer_ns(len, figures.read_rate) + if continues { 0 } else { jump_ns }
            }
            Request::Write {
                offset,
                len,
                durable,
            } => {
                let page_ns = transfer_ns(PAGE, figures.write_rate);
                let spared = figures.has_cheap_appends && offset == self.write_end;
                let jump_ns = if spared { 0 } else { figures.jump_ns() };
                self.write_end = offset + len;
                let write_ns = jump_ns + transfer_ns(len, figures.write_rate);
                match (durable, figures.durable_write_ns) {
                    _ if !self.has_cache => write_ns,
                    (false, _) => {
                        self.is_dirty = true;
                        write_ns
                    }
                    (true, None) => {
                        self.is_dirty = false;
                        write_ns + figures.flush_ns
                    }
                    (true, Some(page_durable_ns)) => {
                        page_durable_ns - page_ns + transfer_ns(len, figures.write_rate)
                    }
                }
            }
            Request::Flush => {
                let was_dirty = std::mem::replace(&mut self.is_dirty, false);
                if was_dirty { figures.flush_ns } else { 0 }
            }
            Request::Discard { .. } => 0,
        }
    }
}
