//! Which home each block of the log stands for. The table's size is set when it is made, and it
//! allocates nothing later.

use hashbrown::HashMap;
use stetfs_format::width::{must_fit, u32_as_usize};

/// What the table knows of a block of the log.
#[derive(Clone, Copy, Default)]
struct Entry {
    /// Its number in the log; 0 for an unused entry, since the journal's superblock has that
    /// number.
    at: u32,
    state: State,
    /// The transaction whose descriptor names it.
    tid: u32,
    /// Checksum of its content.
    crc: u32,
    has_content: bool,
    home: u64,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum State {
    /// No descriptor has said what it is for.
    #[default]
    Unclaimed,
    /// A descriptor names its home.
    Claimed,
    /// A commit block follows too: the block may be found by its home.
    Committed,
}

/// A committed block that stands for a home.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Copy {
    /// Its number in the log.
    pub(super) at: u32,
    /// Checksum of its content.
    pub(super) crc: u32,
}

pub(super) struct Table {
    /// By number in the log, modulo the length: a longer log forgets its older blocks.
    entries: Box<[Entry]>,
    /// Places in `entries` of committed blocks, by home.
    by_home: HashMap<u64, u32>,
    /// Places in `entries` of claimed blocks.
    claimed: Vec<u32>,
}

impl Table {
    pub(super) fn new(blocks: u32) -> Self {
        let blocks = u32_as_usize(blocks.max(1));
        Self {
            entries: vec![Entry::default(); blocks].into(),
            // Twice the room, so that removed entries never make it grow.
            by_home: HashMap::with_capacity(2 * blocks),
            claimed: Vec::with_capacity(blocks),
        }
    }

    pub(super) fn clear(&mut self) {
        self.entries.fill(Entry::default());
        self.by_home.clear();
        self.claimed.clear();
    }

    pub(super) fn len(&self) -> u32 {
        must_fit(self.entries.len())
    }

    fn slot(&self, at: u32) -> u32 {
        at % self.len()
    }

    /// Returns the entry of a block of the log, emptied if it was another block's or is of no more
    /// use.
    fn fresh(&mut self, at: u32) -> &mut Entry {
        let slot = self.slot(at);
        let entry = &mut self.entries[u32_as_usize(slot)];
        let is_old = entry.state == State::Committed;
        if entry.at != at || is_old {
            if is_old && self.by_home.get(&entry.home) == Some(&slot) {
                self.by_home.remove(&entry.home);
            }
            *entry = Entry {
                at,
                ..Entry::default()
            };
        }
        entry
    }

    /// Notes that a block of the log is being overwritten: its old content is gone. A claim of the
    /// transaction that writes it stays.
    pub(super) fn written(&mut self, at: u32) {
        let slot = self.slot(at);
        if self.entries[u32_as_usize(slot)].at == at {
            self.fresh(at).has_content = false;
        }
    }

    /// Notes that a block of data was written into the log. Its descriptor may come before or
    /// after.
    pub(super) fn content(&mut self, at: u32, crc: u32) {
        let entry = self.fresh(at);
        (entry.crc, entry.has_content) = (crc, true);
    }

    /// Notes the home that a descriptor gives to a block of the log.
    pub(super) fn claim(&mut self, at: u32, home: u64, tid: u32) {
        let slot = self.slot(at);
        let entry = self.fresh(at);
        let is_new = entry.state != State::Claimed;
        (entry.state, entry.home, entry.tid) = (State::Claimed, home, tid);
        if is_new && self.claimed.len() < self.claimed.capacity() {
            self.claimed.push(slot);
        }
    }

    /// Notes that a transaction is committed.
    pub(super) fn commit(&mut self, tid: u32) {
        for slot in self.claimed.drain(..) {
            let entry = &mut self.entries[u32_as_usize(slot)];
            if entry.state != State::Claimed {
                continue;
            }
            if entry.tid != tid || !entry.has_content {
                // An older transaction that was never committed, or a claim without content.
                *entry = Entry::default();
                continue;
            }
            entry.state = State::Committed;
            let home = entry.home;
            if let Some(older) = self.by_home.insert(home, slot)
                && older != slot
            {
                self.entries[u32_as_usize(older)].state = State::Unclaimed;
            }
        }
    }

    /// Returns the newest committed copy of a home.
    pub(super) fn copy_of(&self, home: u64) -> Option<Copy> {
        let entry = &self.entries[u32_as_usize(*self.by_home.get(&home)?)];
        Some(Copy {
            at: entry.at,
            crc: entry.crc,
        })
    }

    /// Forgets the copy of a home that has its content, or needs it no more.
    pub(super) fn release(&mut self, home: u64) {
        if let Some(slot) = self.by_home.remove(&home) {
            self.entries[u32_as_usize(slot)].state = State::Unclaimed;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(table: &Table, home: u64) -> Option<(u32, u32)> {
        table.copy_of(home).map(|copy| (copy.at, copy.crc))
    }

    #[test]
    fn data_and_descriptor_come_in_any_order_and_count_with_the_commit() {
        let mut table = Table::new(8);
        table.claim(2, 100, 7);
        table.content(2, 22);
        table.content(3, 33);
        table.claim(3, 101, 7);
        // Never written.
        table.claim(4, 102, 7);
        assert_eq!(found(&table, 100), None);
        table.commit(7);
        assert_eq!(found(&table, 100), Some((2, 22)));
        assert_eq!(found(&table, 101), Some((3, 33)));
        assert_eq!(found(&table, 102), None);
    }

    #[test]
    fn a_transaction_without_commit_is_forgotten_with_the_next() {
        let mut table = Table::new(8);
        table.claim(2, 100, 7);
        table.content(2, 22);
        table.claim(5, 200, 8);
        table.content(5, 55);
        table.commit(8);
        assert_eq!(found(&table, 100), None);
        assert_eq!(found(&table, 200), Some((5, 55)));
    }

    #[test]
    fn the_next_lap_takes_the_place() {
        let mut table = Table::new(8);
        table.claim(2, 100, 7);
        table.content(2, 22);
        table.commit(7);
        table.content(2, 23);
        assert_eq!(found(&table, 100), None);
        // A descriptor or a record of the next lap does the same.
        for again in [
            |t: &mut Table| t.claim(2, 101, 8),
            |t: &mut Table| t.written(2),
        ] {
            let mut table = Table::new(8);
            table.claim(2, 100, 7);
            table.content(2, 22);
            table.commit(7);
            again(&mut table);
            assert_eq!(found(&table, 100), None);
        }
    }

    #[test]
    fn the_newest_copy_counts_and_a_short_table_keeps_the_latest() {
        let mut table = Table::new(4);
        for (at, tid) in [(1, 1), (2, 2), (6, 3)] {
            table.claim(at, u64::from(100 + at % 2), tid);
            table.content(at, 10 + at);
            table.commit(tid);
        }
        // Block 6 has taken the place of 2; both stand for 100.
        assert_eq!(found(&table, 100), Some((6, 16)));
        assert_eq!(found(&table, 101), Some((1, 11)));
        table.release(101);
        assert_eq!(found(&table, 101), None);
        table.clear();
        assert_eq!(found(&table, 100), None);
    }
}
