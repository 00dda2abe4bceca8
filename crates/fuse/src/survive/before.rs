//! What the log of a server that has died tells.

use std::collections::HashMap;
use std::fs::File;
use std::io;

use stetfs::InUse;
use stetfs_format::InodeNo;

use super::answered::{note, opened};
use super::log::{self, Kind, Record, Start};
use super::records::{self, Begun, Ended, Forgot, Released};
use super::uses::Uses;
use crate::opens::How;
use crate::wire::Request;

/// What a server that has died has left.
pub(crate) struct Before {
    /// What was in use where the log begins, and where it ends.
    pub(super) start: Uses,
    pub(super) end: Uses,
    pub(super) records: Vec<Record>,
    /// The requests that have begun and not ended, each with its record: where the log begins, and
    /// where it ends.
    pub(super) begun_at_start: HashMap<u64, (Begun, Vec<u8>)>,
    pub(super) begun: HashMap<u64, (Begun, Vec<u8>)>,
    /// The answers, in their order.
    pub(super) answers: Vec<(u64, log::Answered)>,
    /// Everything before the record of this number is durable.
    pub(super) durable: u64,
    pub(super) next_handle: u64,
}

/// Why nobody goes on.
fn wrong(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

impl Before {
    /// Reads a log.
    ///
    /// # Errors
    /// It is none, or a transaction was open.
    pub(crate) fn read(file: &File) -> io::Result<Self> {
        let (start, records) = log::read(file)?;
        let Start {
            uses,
            begun,
            answers,
            mut is_bound,
        } = start;
        let mut before = Self {
            start: uses.clone(),
            end: uses,
            records: Vec::new(),
            begun_at_start: HashMap::new(),
            begun: HashMap::new(),
            answers,
            durable: 0,
            next_handle: 0,
        };
        for (_, bytes) in begun {
            before.begins(&bytes)?;
        }
        before.begun_at_start = before.begun.clone();
        for record in &records {
            match record.kind {
                Kind::Bound => is_bound = record.bytes.first() == Some(&1),
                _ => before.look_at(record)?,
            }
        }
        if is_bound {
            return Err(wrong("a transaction was open, which has died with it"));
        }
        let handles = before.start.all().chain(before.end.all());
        let numbers = handles.flat_map(|(_, one)| one.handles.iter());
        let last = numbers.map(|handle| How::number(*handle)).max();
        before.next_handle = before.next_handle.max(last.map_or(0, |last| last + 1));
        before.records = records;
        Ok(before)
    }

    fn begins(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        let begun: Begun = records::take(&mut bytes).ok_or_else(cut)?;
        self.begun.insert(begun.unique, (begun, bytes.to_vec()));
        Ok(())
    }

    fn look_at(&mut self, record: &Record) -> io::Result<()> {
        let mut bytes = &record.bytes[..];
        match record.kind {
            // A half goes on where the other one has ended.
            Kind::Start | Kind::Bound => {}
            Kind::Began => self.begins(bytes)?,
            Kind::Done => {
                let (ended, answer) = records::ended(bytes).ok_or_else(cut)?;
                self.begun.remove(&ended.unique);
                let kept = answer.map(<[u8]>::to_vec);
                self.answers.push((ended.unique, kept));
                if let (Ok(answer), Some(request)) = (answer, decode(&ended)) {
                    note(&mut self.end, &request, &ended, answer);
                    if let Some((_, _, handle)) = opened(&request, &ended, answer) {
                        self.next_handle = self.next_handle.max(How::number(handle) + 1);
                    }
                }
            }
            Kind::Released => {
                let one: Released = records::take(&mut bytes).ok_or_else(cut)?;
                self.end.closes(InodeNo(one.ino), one.handle);
            }
            Kind::Forgot => {
                let one: Forgot = records::take(&mut bytes).ok_or_else(cut)?;
                self.end.forgets(InodeNo(one.ino));
            }
            Kind::Synced => self.durable = records::take(&mut bytes).ok_or_else(cut)?,
        }
        Ok(())
    }

    /// Returns what the volume must have in use when it is mounted, so that nothing is lost which
    /// was open at the death: until [`FsServer::go_on`] it may be counted once too often.
    pub(crate) fn in_use(&self) -> Vec<InUse> {
        let mut all: Vec<InUse> = self.start.in_use().collect();
        let mut more = |ino: InodeNo, generation| {
            let is_it = |one: &&mut InUse| one.ino == ino.0 && one.generation == generation;
            match all.iter_mut().find(is_it) {
                Some(one) => one.opens += 1,
                None => all.push(InUse {
                    ino: ino.0,
                    generation,
                    opens: 1,
                    is_held: false,
                    is_nameable: false,
                    places_on_close: false,
                }),
            }
        };
        for (ino, one) in self.end.all() {
            more(ino, one.generation);
        }
        for (begun, _) in self.begun.values().filter(|(begun, _)| begun.victim != 0) {
            more(InodeNo(begun.victim), begun.victim_generation);
        }
        for one in &mut all {
            // It may be about to get the name that it has.
            one.is_nameable = true;
        }
        all
    }
}

pub(super) fn cut() -> io::Error {
    wrong("a record of the log is not whole")
}

pub(super) fn decode<'a>(ended: &Ended<'a>) -> Option<Request<'a>> {
    Request::decode(ended.request).ok()
}
