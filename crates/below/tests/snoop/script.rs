//! Random journals: records in any order within a transaction, laps, revokes, homes that get
//! another content, requests that touch half a block, power cuts.

use std::sync::Arc;

use stetfs_format::jbd2::{
    CommitBlock, DescriptorWriter, JournalSuperblock, LogFormat, RevokeWriter, escape, needs_escape,
};
use stetfs_format::{BlockNo, SUPERBLOCK_OFFSET, Superblock, Tid, Time};
use stetfs_ftl::{Ftl, MountOptions};
use stetfs_media::nand::NandSim;
use stetfs_media::sim::Rig;
use stetfs_media::{Block, BlockDev, Cause};

use super::support::{has, volume};
use super::{Bed, Beside, KINDS, TAG};

/// Blocks of the log: few, for many laps.
const LOG_BLOCKS: u32 = 60;

struct Chance(u64);

impl Chance {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (x ^ x >> 31) % n
    }
}

/// A writer of transactions.
struct Writer<'a> {
    dev: Beside<'a>,
    chance: Chance,
    format: LogFormat,
    /// The journal's blocks in order.
    places: Vec<u64>,
    first: u32,
    end: u32,
    at: u32,
    tid: Tid,
    /// The homes in use, few enough to meet again.
    homes: Vec<u64>,
    /// Committed content that has not come home yet, by home.
    due: Vec<(u64, Vec<u8>)>,
}

impl<'a> Writer<'a> {
    fn new(bed: &'a Bed, seed: u64) -> Self {
        let mut raw = [0; 1024];
        bed.plain.read_at(SUPERBLOCK_OFFSET, &mut raw, TAG).unwrap();
        let sb = Superblock::decode(&raw).unwrap();
        let extents = stetfs::journal_extents(&bed.plain, &sb).unwrap();
        let places: Vec<u64> = extents
            .iter()
            .flat_map(|e| e.start.0..e.start.0 + u64::from(e.len))
            .collect();
        let dev = Beside(bed);
        let mut raw = Block::zeroed(sb.block_size());
        let at = sb.block.offset_of(places[0]);
        dev.read_at(at, raw.bytes_mut(), TAG).unwrap();
        let mut head = JournalSuperblock::decode(raw.bytes(), sb.block).unwrap();
        head.maxlen -= head.log_end() - (head.first + LOG_BLOCKS);
        head.encode_into(raw.bytes_mut());
        dev.write_at(at, raw.bytes(), TAG).unwrap();
        let last = sb.blocks_count - 1;
        Self {
            dev,
            chance: Chance(seed),
            format: head.log_format(),
            first: head.first,
            end: head.first + LOG_BLOCKS,
            at: head.first,
            tid: Tid(77),
            homes: (0..40).map(|n| last - n).collect(),
            due: Vec::new(),
            places,
        }
    }

    fn write(&self, block: u64, content: &[u8]) {
        let at = self.format.block_size.offset_of(block);
        self.dev.write_at(at, content, TAG).unwrap();
    }

    fn next(&mut self) -> u64 {
        let place = self.places[self.at as usize];
        self.at += 1;
        if self.at == self.end {
            self.at = self.first;
        }
        place
    }

    /// Returns one of a few contents, so that the same comes again.
    fn content(&mut self) -> Vec<u8> {
        let mut content = vec![self.chance.below(5) as u8; self.format.block_size.bytes()];
        if self.chance.below(6) == 0 {
            content[..4].copy_from_slice(&0xc03b_3998_u32.to_be_bytes());
        }
        content
    }

    fn transaction(&mut self) {
        let n = 1 + self.chance.below(8);
        let mut writes = Vec::new();
        let mut block = vec![0; self.format.block_size.bytes()];
        let format = self.format;
        let descriptor_at = self.next();
        let mut descriptor = DescriptorWriter::new(&mut block, self.tid, &format);
        let mut logged = Vec::new();
        for _ in 0..n {
            let home = self.homes[self.chance.below(self.homes.len() as u64) as usize];
            let content = self.content();
            let mut copy = content.clone();
            let escaped = needs_escape(&content);
            if escaped {
                escape(&mut copy);
            }
            descriptor.push(
                BlockNo(home),
                escaped,
                format.data_checksum(self.tid, &copy),
            );
            writes.push((self.next(), copy));
            logged.push((home, content));
        }
        descriptor.finish();
        writes.push((descriptor_at, block.clone()));
        if self.chance.below(3) == 0 {
            let mut revoke = RevokeWriter::new(&mut block, self.tid, &format);
            revoke.push(BlockNo(self.homes[0]));
            revoke.finish();
            writes.push((self.next(), block.clone()));
        }
        for i in (1..writes.len()).rev() {
            writes.swap(i, self.chance.below(i as u64 + 1) as usize);
        }
        for (place, content) in writes {
            self.write(place, &content);
        }
        let commit_at = self.next();
        if self.chance.below(8) == 0 {
            // The transaction was never committed: the next one begins behind it.
            self.tid = self.tid.next();
            return;
        }
        self.dev.flush(Cause::Log).unwrap();
        let commit = CommitBlock {
            tid: self.tid,
            time: Time { sec: 0, nsec: 0 },
            transaction_crc: None,
        };
        commit.encode(&mut block, &format);
        self.write(commit_at, &block);
        self.tid = self.tid.next();
        self.due.extend(logged);
    }

    /// Writes some homes: neighbours in one request, some with another content.
    fn checkpoint(&mut self) {
        let mut due = std::mem::take(&mut self.due);
        // The newest content of each.
        due.reverse();
        due.sort_by_key(|(home, _)| *home);
        due.dedup_by_key(|(home, _)| *home);
        let mut run: Vec<u8> = Vec::new();
        let mut start = 0;
        for (home, mut content) in due {
            match self.chance.below(10) {
                0 => continue,
                1 => content = self.content(),
                _ => {}
            }
            if !run.is_empty()
                && start + (run.len() / self.format.block_size.bytes()) as u64 != home
            {
                self.write(start, &run);
                run.clear();
            }
            if run.is_empty() {
                start = home;
            }
            run.extend(content);
        }
        if !run.is_empty() {
            self.write(start, &run);
        }
    }

    /// Does what no journaling file system does.
    fn disturb(&mut self) {
        let size = self.format.block_size.offset_of(1);
        let home = self.homes[self.chance.below(self.homes.len() as u64) as usize];
        let log = self.places[(self.first + self.chance.below(LOG_BLOCKS.into()) as u32) as usize];
        let block = if self.chance.below(2) == 0 { home } else { log };
        let sector = block * size + self.chance.below(size / 512) * 512;
        match self.chance.below(6) {
            0 => self.dev.write_at(sector, &[9; 512], TAG).unwrap(),
            1 => self.dev.discard(sector, 512).unwrap(),
            2 => self.dev.write_zeros(block * size, size, TAG).unwrap(),
            3 => self.dev.read_at(sector, &mut [0; 512], TAG).unwrap(),
            4 => self.write(block, &vec![3; size as usize]),
            _ => self.dev.flush(Cause::Home).unwrap(),
        }
    }
}

#[test]
fn whatever_is_written_is_read() {
    if !has(&["mke2fs"]) {
        return;
    }
    for (kind, args) in KINDS.into_iter().enumerate() {
        let volume = volume(8, args);
        // A table shorter than the log, too.
        for (seed, table) in [(1, 4096), (2, 17), (3, 1)] {
            let bed = Bed::new(&volume, table);
            let mut writer = Writer::new(&bed, seed);
            for round in 0..150 {
                writer.transaction();
                if writer.chance.below(3) == 0 {
                    writer.checkpoint();
                }
                if writer.chance.below(4) == 0 {
                    writer.disturb();
                }
                if round % 50 == 49 {
                    bed.compare(&format!("kind {kind}, seed {seed}, round {round}"));
                }
            }
            let seen = bed.stats().0;
            assert!(table < 9 || seen.remapped > 20, "kind {kind} {seen:?}");
            assert!(table < 9 || seen.changed > 0, "kind {kind} {seen:?}");
        }
    }
}

/// A cut loses at most what came after the last flush, and leaves each sector old or new.
#[test]
fn what_was_flushed_survives_a_cut() {
    if !has(&["mke2fs"]) {
        return;
    }
    let volume = volume(8, KINDS[0]);
    let bed = Bed::new(&volume, 4096);
    let mut writer = Writer::new(&bed, 5);
    let read = |dev: &dyn BlockDev| {
        let mut all = vec![0; bed.plain.size() as usize];
        dev.read_at(0, &mut all, TAG).unwrap();
        all
    };
    for round in 0..40 {
        writer.transaction();
        writer.dev.flush(Cause::Log).unwrap();
        let before = read(&bed.plain);
        writer.checkpoint();
        let after = read(&bed.plain);
        let nand = NandSim::from_image(&Rig::default(), bed.nand.image()).unwrap();
        let ftl = Ftl::mount(Arc::new(nand), MountOptions::default()).unwrap();
        let found = read(&ftl);
        let sectors = before
            .chunks(512)
            .zip(after.chunks(512))
            .zip(found.chunks(512));
        let torn = sectors
            .into_iter()
            .position(|((old, new), found)| found != old && found != new);
        assert_eq!(torn, None, "round {round}");
    }
    assert!(bed.stats().0.remapped > 20, "{:?}", bed.stats());
}
