//! The map log: changes of the map that no spare area shows, in records that count as a whole.
//!
//! A remap is a record of its own, and durable before anything else happens with it. Changes that
//! nobody waits for are collected, each with the sequence number of its moment: trims, and the
//! further owners of a moved page (its spare area names the first one). They are written when they
//! fill a page, at a flush, and before any block that they freed may be erased.

use stetfs_format::ftl::{FtlLog, FtlRun, NO_PAGE, PageKind};
use stetfs_format::width::{must_fit, u32_as_usize};

use crate::core::{Core, MAP_TAG, Stream};
use crate::error::Stop;
use crate::ledger::Pending;

/// Combines changes of single logical pages into runs, in their order.
pub(crate) fn runs_of(changes: impl IntoIterator<Item = (u32, u32)>) -> Vec<FtlRun> {
    let mut runs = Vec::new();
    for (logical, page) in changes {
        extend_runs(&mut runs, logical, page);
    }
    runs
}

/// Adds a change of one logical page to the runs.
fn extend_runs(runs: &mut Vec<FtlRun>, logical: u32, page: u32) {
    if let Some(last) = runs.last_mut() {
        let follows = match last.page {
            NO_PAGE => page == NO_PAGE,
            first => page != NO_PAGE && page == first + last.count,
        };
        if follows && logical == last.logical + last.count {
            last.count += 1;
            return;
        }
    }
    runs.push(FtlRun {
        logical,
        page,
        count: 1,
        age: 0,
    });
}

impl Core {
    fn runs_a_page(&self) -> usize {
        u32_as_usize(FtlLog::room(self.geometry().page_bytes))
    }

    /// Notes a change that has been made in memory and that nobody waits for.
    pub(crate) fn note(&mut self, logical: u32, page: u32, count: u32) -> Result<(), Stop> {
        let seq = self.take_seq();
        self.log.pending.push(Pending {
            logical,
            page,
            count,
            seq,
        });
        if self.log.pending.len() < self.runs_a_page() {
            return Ok(());
        }
        self.flush_log()
    }

    /// Makes all changes durable.
    pub(crate) fn flush_log(&mut self) -> Result<(), Stop> {
        if self.log.pending.is_empty() {
            return Ok(());
        }
        let seq = self.take_seq();
        let runs = self.log.pending.iter().map(|change| FtlRun {
            logical: change.logical,
            page: change.page,
            count: change.count,
            age: must_fit(seq - change.seq),
        });
        // The changes stay in the list until they are written: opening a block for the record may
        // list free blocks, which needs these changes too.
        let runs: Vec<FtlRun> = runs.collect();
        self.write_record(seq, &runs)?;
        self.log.pending.clear();
        Ok(())
    }

    /// Writes a record. It is durable on return, and counts for nothing before.
    pub(crate) fn write_record(&mut self, seq: u64, runs: &[FtlRun]) -> Result<(), Stop> {
        let parts = runs.chunks(self.runs_a_page());
        let count = must_fit(parts.len());
        let mut data = vec![0; self.geometry().page_len()];
        for (part, runs) in (0..).zip(parts) {
            let page = FtlLog {
                seq,
                part,
                parts: count,
                runs: runs.to_vec(),
            };
            page.encode(&mut data);
            self.program(Stream::Map, PageKind::Log, 0, &data, MAP_TAG)?;
            self.log.pages += 1;
        }
        Ok(())
    }

    /// Takes the places of logical pages away: they read as zeros, durably after
    /// [`flush_log`](Self::flush_log).
    pub(crate) fn trim(&mut self, first: u32, count: u32) -> Result<(), Stop> {
        self.make_room()?;
        let end = first + count;
        let mut at = first;
        while at < end {
            let is_mapped = |logical: &u32| self.map.raw_place(*logical) != NO_PAGE;
            let Some(begin) = (at..end).find(is_mapped) else {
                break;
            };
            let len = must_fit((begin..end).take_while(is_mapped).count());
            self.assign((begin..begin + len).map(|logical| (logical, NO_PAGE)));
            self.note(begin, NO_PAGE, len)?;
            if self.is_checkpoint_due() {
                self.make_room()?;
            }
            at = begin + len;
        }
        Ok(())
    }
}
