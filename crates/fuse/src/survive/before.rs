//! What the log of a server that has died tells.

use std::collections::HashMap;
use std::fs::File;
use std::io;

use stetfs::InUse;
use stetfs_format::InodeNo;

use super::answered::{note, opened};
use super::log::{self, Record, Start};
use super::records::{self, Begun, Ended, Event};
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
    /// A transaction is open.
    is_bound: bool,
    /// The number of the next open file.
    pub(super) next_handle: u64,
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
            is_bound,
        } = start;
        let mut before = Self {
            start: uses.clone(),
            end: uses,
            records: Vec::new(),
            begun_at_start: HashMap::new(),
            begun: HashMap::new(),
            answers,
            durable: 0,
            is_bound,
            next_handle: 0,
        };
        for (_, bytes) in begun {
            let mut bytes = &bytes[..];
            let begun = records::take(&mut bytes).ok_or_else(records::cut)?;
            before.begins(begun, bytes);
        }
        before.begun_at_start = before.begun.clone();
        let handles = before.start.all().flat_map(|(_, one)| &one.handles);
        let last = handles.map(|handle| How::number(*handle)).max();
        before.next_handle = last.map_or(0, |last| last + 1);
        for record in &records {
            before.look_at(record)?;
        }
        if before.is_bound {
            let why = "a transaction was open, which has died with it";
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        before.records = records;
        Ok(before)
    }

    /// Notes a request that begins, with its record.
    fn begins(&mut self, begun: Begun, request: &[u8]) {
        self.begun.insert(begun.unique, (begun, request.to_vec()));
    }

    fn look_at(&mut self, record: &Record) -> io::Result<()> {
        match records::event(record)? {
            Event::Start => {}
            Event::Began(begun, request) => self.begins(begun, request),
            Event::Done(ended, answer) => {
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
            Event::Released(one) => drop(self.end.closes(InodeNo(one.ino), one.handle)),
            Event::Forgot(one) => drop(self.end.forgets(InodeNo(one.ino))),
            Event::Synced(durable) => self.durable = durable,
            Event::Bound(is_bound) => self.is_bound = is_bound,
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

/// Returns the request; `None`: it need not be done once more.
pub(super) fn decode<'a>(ended: &Ended<'a>) -> Option<Request<'a>> {
    Request::decode(ended.request).ok()
}
