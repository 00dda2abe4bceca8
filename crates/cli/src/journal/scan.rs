//! Reading the log as recovery does (kernel fs/jbd2/recovery.c), and beyond what it would replay.
//!
//! The live part is what recovery scans: from `s_start`, each record with the expected sequence
//! number, each transaction ended by its commit block. A logged block that begins with the
//! journal's magic is escaped, so outside the live part every block with the magic is a record of
//! an earlier lap.

use std::collections::{BTreeMap, HashMap};

use serde::Serialize;
use stetfs_format::checksum::crc32_be;
use stetfs_format::jbd2::{
    self, BlockType, ChecksumVersion, CommitBlock, DescriptorBlock, Header, LogFormat, RevokeBlock,
};
use stetfs_format::width::{must_fit, must_fit_u32, u32_as_usize};
use stetfs_format::{BlockNo, Tid};

use super::area::JournalArea;
use super::home::HomeMap;
use crate::failure::Result;

/// What recovery does with a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Fate {
    /// Committed, and not yet known to be at home: recovery replays it.
    Replayed,
    /// Recovery ends before it: there is no valid commit block.
    Uncommitted,
    /// From an earlier lap, or already at home.
    Old,
}

/// A transaction in the log.
#[derive(Debug, Serialize)]
pub(crate) struct Transaction {
    pub(crate) tid: u32,
    pub(crate) fate: Fate,
    /// When it was committed: seconds and nanoseconds since 1970.
    pub(crate) time: Option<(i64, u32)>,
    pub(crate) records: Vec<Record>,
    /// Why it does not count: the first damage that was found in its records.
    pub(crate) damage: Option<String>,
}

/// A record of the log.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum Record {
    /// Names the blocks that follow it.
    Descriptor { at: u32, blocks: Vec<Logged> },
    /// Names blocks that older transactions must not restore.
    Revoke { at: u32, blocks: Vec<u64> },
    /// Ends the transaction.
    Commit { at: u32 },
}

/// A logged block.
#[derive(Debug, Serialize)]
pub(crate) struct Logged {
    /// Block of the journal.
    pub(crate) at: u32,
    /// Block of the volume where it belongs.
    pub(crate) home: u64,
    /// What lives at that home.
    pub(crate) what: String,
    /// True if its content begins with the journal's magic, which is masked in the log.
    pub(crate) escaped: bool,
    /// True if its checksum fits or it has none.
    pub(crate) intact: bool,
    /// The transaction that revokes it; it is not replayed then.
    pub(crate) revoked_by: Option<u32>,
}

/// Reads records and keeps the transactions that they make.
pub(crate) struct Scan<'a> {
    area: &'a JournalArea<'a>,
    homes: &'a HomeMap<'a>,
    /// For each block of the journal: true if the live part takes it.
    live: Vec<bool>,
}

impl<'a> Scan<'a> {
    pub(crate) fn new(area: &'a JournalArea<'a>, homes: &'a HomeMap<'a>) -> Self {
        Self {
            area,
            homes,
            live: vec![false; u32_as_usize(area.superblock.log_end())],
        }
    }

    fn after(&self, at: u32, count: u32) -> u32 {
        let (first, end) = (self.area.superblock.first, self.area.superblock.log_end());
        let next = u64::from(at) + u64::from(count);
        if next < u64::from(end) {
            must_fit(next)
        } else {
            first + must_fit::<_, u32>((next - u64::from(end)) % u64::from(end - first))
        }
    }

    /// Returns the transactions that recovery sees, in order; the last may be uncommitted.
    pub(crate) fn live(&mut self) -> Result<Vec<Transaction>> {
        let sb = &self.area.superblock;
        let (mut at, mut tid) = (sb.start, sb.sequence);
        let mut all = Vec::new();
        if at == 0 {
            return Ok(all);
        }
        loop {
            let (transaction, next) = self.transaction(at, tid)?;
            let Some(transaction) = transaction else {
                break;
            };
            let ends = transaction.fate != Fate::Replayed;
            all.push(transaction);
            if ends {
                break;
            }
            at = next;
            tid = Tid(tid.0.wrapping_add(1));
        }
        mark_revoked(&mut all);
        Ok(all)
    }

    /// Reads the transaction `tid` that begins at `start`; returns it with the block behind it. The
    /// transaction is `None` if no record of it is there.
    fn transaction(&mut self, start: u32, tid: Tid) -> Result<(Option<Transaction>, u32)> {
        let mut found = Transaction {
            tid: tid.0,
            fate: Fate::Uncommitted,
            time: None,
            records: Vec::new(),
            damage: None,
        };
        let mut at = start;
        let mut crc = !0;
        loop {
            let block = self.area.read(at)?;
            let is_record = Header::decode(block.bytes()).is_some_and(|h| h.sequence == tid);
            // The live part has gone round the whole log.
            if !is_record || self.live[u32_as_usize(at)] {
                break;
            }
            self.live[u32_as_usize(at)] = true;
            match self.record(at, block.bytes(), &self.area.format, &mut crc) {
                Ok(Parsed::Record(record, length)) => {
                    for i in 1..length {
                        let logged = self.after(at, i);
                        self.live[u32_as_usize(logged)] = true;
                    }
                    at = self.after(at, length);
                    found.records.push(record);
                }
                Ok(Parsed::Commit(commit)) => {
                    found.records.push(Record::Commit { at });
                    found.time = Some(commit_time(&commit));
                    found.fate = Fate::Replayed;
                    if let Err(e) = commit.check_transaction(crc) {
                        found.fate = Fate::Uncommitted;
                        found.damage = Some(e.to_string());
                    }
                    return Ok((Some(found), self.after(at, 1)));
                }
                Err(e) => {
                    found.damage = Some(format!("journal block {at}: {e}"));
                    break;
                }
            }
        }
        let is_there = !found.records.is_empty() || found.damage.is_some();
        Ok((is_there.then_some(found), at))
    }

    /// Reads one record; `crc` is the running checksum of a v1 transaction.
    fn record(&self, at: u32, block: &[u8], format: &LogFormat, crc: &mut u32) -> Result<Parsed> {
        match Header::decode(block).and_then(|h| h.known_type()) {
            Some(BlockType::Descriptor) => {
                let has_v1 = format.checksum == ChecksumVersion::V1;
                if has_v1 {
                    *crc = crc32_be(*crc, block);
                }
                let blocks = self.descriptor(at, block, format, |logged| {
                    if has_v1 {
                        *crc = crc32_be(*crc, logged);
                    }
                })?;
                let length = 1 + must_fit_u32(blocks.len());
                Ok(Parsed::Record(Record::Descriptor { at, blocks }, length))
            }
            Some(BlockType::Revoke) => {
                let blocks = RevokeBlock::decode(block, format)?
                    .blocks()
                    .map(|b| b.0)
                    .collect();
                Ok(Parsed::Record(Record::Revoke { at, blocks }, 1))
            }
            Some(BlockType::Commit) => Ok(Parsed::Commit(CommitBlock::decode(block, format)?)),
            other => Err(crate::failure::Failure::new(format!(
                "a record of type {other:?} has no place in the log"
            ))),
        }
    }

    fn descriptor(
        &self,
        at: u32,
        block: &[u8],
        format: &LogFormat,
        mut each: impl FnMut(&[u8]),
    ) -> Result<Vec<Logged>> {
        let descriptor = DescriptorBlock::decode(block, format)?;
        let mut blocks = Vec::new();
        for tag in descriptor.tags() {
            let tag = tag?;
            let logged_at = self.after(at, 1 + must_fit_u32(blocks.len()));
            let mut content = self.area.read(logged_at)?;
            each(content.bytes());
            let intact = format.is_intact(&tag, descriptor.tid, content.bytes());
            if tag.escaped {
                jbd2::unescape(content.bytes_mut());
            }
            blocks.push(Logged {
                at: logged_at,
                home: tag.block.0,
                what: self.homes.describe(BlockNo(tag.block.0), content.bytes()),
                escaped: tag.escaped,
                intact,
                revoked_by: None,
            });
        }
        Ok(blocks)
    }

    /// Reads a record that may be older than the journal's present features, in the first format
    /// that makes sense of it.
    fn old_record(&self, at: u32, block: &[u8]) -> Result<Parsed> {
        let now = self.area.format;
        let is_sound = |parsed: &Result<Parsed>| match parsed {
            Ok(Parsed::Record(record, _)) => self.is_inside(record),
            Ok(Parsed::Commit(_)) => true,
            Err(_) => false,
        };
        let first = self.record(at, block, &now, &mut 0);
        if is_sound(&first) {
            return first;
        }
        let versions = [
            ChecksumVersion::V3,
            ChecksumVersion::V2,
            ChecksumVersion::None,
        ];
        versions
            .into_iter()
            .flat_map(|checksum| [true, false].map(|is_64bit| (checksum, is_64bit)))
            .map(|(checksum, is_64bit)| {
                let format = LogFormat {
                    checksum,
                    is_64bit,
                    ..now
                };
                self.record(at, block, &format, &mut 0)
            })
            .find(is_sound)
            .unwrap_or(first)
    }

    /// True if all blocks that a record names belong to the volume.
    fn is_inside(&self, record: &Record) -> bool {
        let is_valid = |block: u64| block < self.homes.blocks_count();
        match record {
            Record::Descriptor { blocks, .. } => blocks.iter().all(|b| is_valid(b.home)),
            Record::Revoke { blocks, .. } => blocks.iter().all(|b| is_valid(*b)),
            Record::Commit { .. } => true,
        }
    }

    /// Returns what is left of earlier laps, oldest transaction first. Call this after
    /// [`live`](Self::live).
    pub(crate) fn old(&self) -> Result<Vec<Transaction>> {
        let mut all: BTreeMap<u32, Transaction> = BTreeMap::new();
        for at in self.area.superblock.first..self.area.superblock.log_end() {
            if self.live[u32_as_usize(at)] {
                continue;
            }
            let block = self.area.read(at)?;
            let Some(header) = Header::decode(block.bytes()) else {
                continue;
            };
            let tid = header.sequence.0;
            let blank = || Transaction {
                tid,
                fate: Fate::Old,
                time: None,
                records: Vec::new(),
                damage: None,
            };
            match self.old_record(at, block.bytes()) {
                Ok(Parsed::Record(record, _)) => {
                    all.entry(tid).or_insert_with(blank).records.push(record)
                }
                Ok(Parsed::Commit(commit)) => {
                    let transaction = all.entry(tid).or_insert_with(blank);
                    transaction.records.push(Record::Commit { at });
                    transaction.time = Some(commit_time(&commit));
                }
                Err(e) => {
                    all.entry(tid).or_insert_with(blank).damage =
                        Some(format!("journal block {at}: {e}"));
                }
            }
        }
        Ok(all.into_values().collect())
    }
}

enum Parsed {
    /// A record, and the number of journal blocks that it takes together with the blocks that it
    /// names.
    Record(Record, u32),
    Commit(CommitBlock),
}

/// Returns the time of a commit block. debugfs 1.47 stores 32 bits of it where 64 belong (e2fsprogs
/// debugfs/journal.c), so its seconds are 2^32 times too large.
fn commit_time(commit: &CommitBlock) -> (i64, u32) {
    let sec = commit.time.sec;
    let is_shifted = sec >= 1 << 34 && sec & 0xffff_ffff == 0;
    (if is_shifted { sec >> 32 } else { sec }, commit.time.nsec)
}

/// Marks each block of a committed transaction that the same or a later transaction revokes.
fn mark_revoked(all: &mut [Transaction]) {
    let mut last: HashMap<u64, usize> = HashMap::new();
    for (i, transaction) in all
        .iter()
        .enumerate()
        .filter(|(_, t)| t.fate == Fate::Replayed)
    {
        for record in &transaction.records {
            if let Record::Revoke { blocks, .. } = record {
                last.extend(blocks.iter().map(|b| (*b, i)));
            }
        }
    }
    let tids: Vec<u32> = all.iter().map(|t| t.tid).collect();
    for (i, transaction) in all.iter_mut().enumerate() {
        for record in &mut transaction.records {
            let Record::Descriptor { blocks, .. } = record else {
                continue;
            };
            for block in blocks {
                block.revoked_by = last
                    .get(&block.home)
                    .filter(|by| **by >= i)
                    .map(|by| tids[*by]);
            }
        }
    }
}
