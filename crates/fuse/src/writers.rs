//! Which programs write how much and to which files: what somebody asks whose device wears out.
//!
//! Pages from the page cache come whole and in nobody's name, with the handle of one of the file's
//! writers. They count for the program that has opened it. What counts is what was asked for, not
//! what the device then takes: a sync commits what others did as well.
//!
//! The tables have a fixed size, and keep the heaviest by the idea of the Space-Saving algorithm
//! (Metwally, Agrawal, El Abbadi: Efficient Computation of Frequent and Top-k Elements in Data
//! Streams, ICDT 2005): when a table is full, the lightest entries make room, and whatever comes
//! then inherits the weight of the heaviest of them. So what has more than one part in `limit` of
//! all weight is there. An entry's counts are only what came while it was there.
//!
//! A write costs a lock and a look at its handle: what comes through a handle gets into the tables
//! when it is closed, or when somebody asks.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs;
use std::hash::Hash;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use smallvec::SmallVec;
use stetfs_format::InodeNo;

use crate::attr::inode;
use crate::opens::How;
use crate::status::Status;
use crate::wire::abi::{CopyFileRangeIn, WriteKind};
use crate::wire::{Request, What};
use crate::wrote::{Count, Known, OfFile, Program, Wrote};

const FILES: usize = 512;
const PROGRAMS: usize = 128;
/// Programs that are told apart for one file; further ones count for the last.
const PROGRAMS_OF_FILE: usize = 8;
/// How many of each table are told.
const TOLD: usize = 32;
/// How long a process is taken for the program that it was.
const TRUSTED: Duration = Duration::from_secs(1);

/// The name of a program: that of its process.
type Name = Arc<str>;

/// The programs that write to a file.
type Programs = SmallVec<[(Name, Count); 1]>;

/// A table of the heaviest.
struct Heaviest<K, V> {
    limit: usize,
    entries: HashMap<K, Entry<V>>,
    /// What a newcomer inherits.
    lost: u64,
}

#[derive(Default)]
struct Entry<V> {
    weight: u64,
    value: V,
}

impl<K: Eq + Hash, V: Default> Heaviest<K, V> {
    fn new(limit: usize) -> Self {
        Self {
            limit,
            entries: HashMap::new(),
            lost: 0,
        }
    }

    /// Makes an entry heavier, and returns it.
    fn add(&mut self, key: K, weight: u64) -> &mut V {
        if self.entries.len() >= 2 * self.limit {
            self.make_room();
        }
        let lost = self.lost;
        let entry = self.entries.entry(key).or_insert_with(|| Entry {
            weight: lost,
            value: V::default(),
        });
        entry.weight = entry.weight.saturating_add(weight);
        &mut entry.value
    }

    /// Leaves the heavier half: all at once is quicker than one by one.
    fn make_room(&mut self) {
        let mut weights: Vec<u64> = self.entries.values().map(|entry| entry.weight).collect();
        let (heavier, &mut limit, _) =
            weights.select_nth_unstable_by_key(self.limit, |weight| Reverse(*weight));
        let mut as_heavy = heavier.iter().filter(|weight| **weight == limit).count();
        self.entries.retain(|_, entry| {
            let stays = entry.weight > limit || entry.weight == limit && as_heavy > 0;
            as_heavy -= usize::from(stays && entry.weight == limit);
            stays
        });
        self.lost = limit;
    }

    /// Returns the heaviest, the heaviest first.
    fn told(&self) -> Vec<(&K, &V)> {
        let mut all: Vec<_> = self.entries.iter().collect();
        all.sort_by_key(|(_, entry)| Reverse(entry.weight));
        let told = all.into_iter().take(TOLD);
        told.map(|(key, entry)| (key, &entry.value)).collect()
    }
}

/// A file as the tables have it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum File {
    /// One that was there.
    Inode(InodeNo),
    /// One that was made: the directory and the name in it. Files that programs make again and
    /// again, and journals of databases that way, are one.
    Made(InodeNo, Arc<str>),
}

/// A handle that was opened for writing.
struct Opener {
    file: File,
    /// The thread that has opened it.
    pid: u32,
    /// The last one that has used it, and what it has asked for that is in no table.
    user: Option<(u32, Name)>,
    count: Count,
}

struct Tables {
    all: Count,
    programs: Heaviest<Name, Count>,
    files: Heaviest<File, Programs>,
    openers: HashMap<u64, Opener>,
    /// The last process that was looked at.
    recent: Option<(u32, Instant, Name)>,
}

fn of_program((name, count): (&Name, &Count)) -> Program {
    Program {
        name: name.to_string(),
        count: *count,
    }
}

fn of_file((file, programs): (&File, &Programs)) -> OfFile {
    let file = match file {
        File::Inode(InodeNo(inode)) => Known::Inode { inode: *inode },
        File::Made(InodeNo(dir), name) => Known::Made {
            dir: *dir,
            name: name.to_string(),
        },
    };
    let programs = programs.iter().map(|(name, count)| (name, count));
    OfFile {
        file,
        programs: programs.map(of_program).collect(),
    }
}

pub(crate) struct Writers(Mutex<Tables>);

impl Default for Writers {
    fn default() -> Self {
        Self(Mutex::new(Tables {
            all: Count::default(),
            programs: Heaviest::new(PROGRAMS),
            files: Heaviest::new(FILES),
            openers: HashMap::new(),
            recent: None,
        }))
    }
}

impl Writers {
    /// Notes a handle, if it was opened for writing.
    pub(crate) fn opened(&self, handle: u64, pid: u32, ino: InodeNo) {
        if writes(handle) {
            self.0.lock().opened(handle, pid, File::Inode(ino));
        }
    }

    /// Notes a handle of a new file, and the file's name if it has one.
    pub(crate) fn made(&self, handle: u64, pid: u32, ino: InodeNo, at: Option<(InodeNo, &OsStr)>) {
        let file = at.map_or(File::Inode(ino), |(dir, name)| {
            File::Made(dir, name.to_string_lossy().into())
        });
        let mut tables = self.0.lock();
        tables.files.entries.remove(&File::Inode(ino));
        if writes(handle) {
            tables.opened(handle, pid, file);
        }
    }

    /// Forgets the file that had the number of a new one.
    pub(crate) fn is_new(&self, ino: InodeNo) {
        self.0.lock().files.entries.remove(&File::Inode(ino));
    }

    /// Counts what a request asks for.
    pub(crate) fn note(&self, request: &Request<'_>) {
        let (ino, pid) = (inode(request.header.nodeid), request.header.pid);
        match &request.what {
            What::Write(from, _) => {
                let kind = WriteKind::from_bits_retain(from.write_flags);
                let is_cached = kind.contains(WriteKind::CACHE);
                // After one through the page cache the kernel sends an FSYNC.
                let is_direct = How::from_bits_truncate(from.fh).contains(How::DIRECT)
                    || from.flags & libc::O_DIRECT != 0;
                let count = Count {
                    bytes: from.size.into(),
                    syncs: u64::from(is_direct && from.flags & libc::O_DSYNC != 0),
                };
                self.count(ino, from.fh, (!is_cached).then_some(pid), count);
            }
            What::FSync(from) | What::FSyncDir(from) => {
                self.count(ino, from.fh, Some(pid), Count { bytes: 0, syncs: 1 });
            }
            What::Release(from) if writes(from.fh) => self.0.lock().closed(from.fh),
            _ => {}
        }
    }

    /// Counts what a thread has copied.
    pub(crate) fn copied(&self, pid: u32, to: &CopyFileRangeIn, bytes: u64) {
        let count = Count { bytes, syncs: 0 };
        self.count(inode(to.nodeid_out), to.fh_out, Some(pid), count);
    }

    /// Counts for a thread; in nobody's name, for the one who has opened the handle.
    fn count(&self, ino: InodeNo, handle: u64, pid: Option<u32>, count: Count) {
        let mut tables = self.0.lock();
        let opener = tables.openers.get_mut(&handle);
        let pid = pid
            .or(opener.as_ref().map(|opener| opener.pid))
            .unwrap_or(0);
        if let Some(opener) = opener
            && opener.user.as_ref().is_some_and(|(user, _)| *user == pid)
        {
            opener.count += count;
            return;
        }
        let name = match tables.recent(pid) {
            Some(name) => name,
            None => {
                // Nobody waits for /proc.
                drop(tables);
                let name: Name = program(pid).into();
                tables = self.0.lock();
                tables.recent = Some((pid, Instant::now(), name.clone()));
                name
            }
        };
        tables.count_for(ino, handle, (pid, name), count);
    }

    /// Returns the heaviest.
    pub(crate) fn told(&self) -> Wrote {
        let mut tables = self.0.lock();
        tables.settle();
        let programs = tables.programs.told();
        let files = tables.files.told();
        Wrote {
            all: tables.all,
            programs: programs.into_iter().map(of_program).collect(),
            files: files.into_iter().map(of_file).collect(),
        }
    }
}

impl Tables {
    fn opened(&mut self, handle: u64, pid: u32, file: File) {
        let opener = Opener {
            file,
            pid,
            user: None,
            count: Count::default(),
        };
        self.openers.insert(handle, opener);
    }

    fn closed(&mut self, handle: u64) {
        if let Some(Opener {
            file,
            user: Some((_, name)),
            count,
            ..
        }) = self.openers.remove(&handle)
        {
            self.count(file, name, count);
        }
    }

    /// Counts for somebody who was not the last one to use the handle.
    fn count_for(&mut self, ino: InodeNo, handle: u64, user: (u32, Name), count: Count) {
        let Some(opener) = self.openers.get_mut(&handle) else {
            return self.count(File::Inode(ino), user.1, count);
        };
        let before = opener.user.replace(user);
        let counted = std::mem::replace(&mut opener.count, count);
        if let Some((_, name)) = before {
            let file = opener.file.clone();
            self.count(file, name, counted);
        }
    }

    /// Brings what came through open handles into the tables.
    fn settle(&mut self) {
        let mut openers = std::mem::take(&mut self.openers);
        for opener in openers.values_mut() {
            if let Some((_, name)) = &opener.user {
                let count = std::mem::take(&mut opener.count);
                self.count(opener.file.clone(), name.clone(), count);
            }
        }
        self.openers = openers;
    }

    fn recent(&self, pid: u32) -> Option<Name> {
        let (of, since, name) = self.recent.as_ref()?;
        (*of == pid && since.elapsed() < TRUSTED).then(|| name.clone())
    }

    fn count(&mut self, file: File, name: Name, count: Count) {
        if count == Count::default() {
            return;
        }
        self.all += count;
        *self.programs.add(name.clone(), count.weight()) += count;
        let programs = self.files.add(file, count.weight());
        let at = match programs.iter().position(|(there, _)| *there == name) {
            Some(at) => at,
            None if programs.len() == PROGRAMS_OF_FILE => PROGRAMS_OF_FILE - 1,
            None => {
                programs.push((name, Count::default()));
                programs.len() - 1
            }
        };
        programs[at].1 += count;
    }
}

/// True for a handle that was opened for writing.
fn writes(handle: u64) -> bool {
    How::from_bits_truncate(handle).contains(How::WRITES)
}

/// Returns the name of the process that a thread belongs to; `?` if it cannot be seen from here.
fn program(pid: u32) -> String {
    let name_of = |pid: u32| fs::read(format!("/proc/{pid}/comm"));
    let leader = || Status::of(pid)?.field("Tgid")?.parse().ok();
    let name = name_of(leader().unwrap_or(pid)).unwrap_or_else(|_| b"?".to_vec());
    String::from_utf8_lossy(name.trim_ascii_end()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn wrote(bytes: u64) -> Count {
        Count { bytes, syncs: 0 }
    }

    /// One writes a little, again and again, between others that each write more, once.
    #[test]
    fn the_heaviest_stay() {
        let writers = Writers::default();
        let count = |ino: u32, name: &str, count| {
            writers
                .0
                .lock()
                .count(File::Inode(InodeNo(ino)), name.into(), count)
        };
        let others = 20 * u32::try_from(FILES).unwrap();
        for n in 0..others {
            count(
                12,
                "log",
                Count {
                    bytes: 100,
                    syncs: 1,
                },
            );
            count(100 + n, &format!("p{n}"), wrote(8192));
        }
        let told = writers.told();
        assert_eq!(told.all.bytes, u64::from(others) * 8292);
        let log = &told.files[0];
        assert_eq!(log.file, Known::Inode { inode: 12 });
        assert_eq!(log.programs[0].count.syncs, u64::from(others));
        assert_eq!(told.programs[0], log.programs[0]);
        assert_eq!(told.files.len(), TOLD);
        assert!(writers.0.lock().files.entries.len() <= 2 * FILES);

        writers.is_new(InodeNo(12));
        assert_ne!(writers.told().files[0].file, Known::Inode { inode: 12 });
    }

    #[test]
    fn programs_of_a_file_are_told_apart() {
        let mut tables = Writers::default().0.into_inner();
        for n in 0..PROGRAMS_OF_FILE + 3 {
            tables.count(File::Inode(InodeNo(12)), format!("p{n}").into(), wrote(10));
        }
        let programs = tables.files.add(File::Inode(InodeNo(12)), 0);
        let bytes: Vec<u64> = programs.iter().map(|(_, count)| count.bytes).collect();
        assert_eq!(bytes, [10, 10, 10, 10, 10, 10, 10, 40]);
    }

    #[test]
    fn a_thread_has_the_name_of_its_process() {
        let process = program(std::process::id());
        let thread = std::thread::Builder::new().name("a-thread".to_owned());
        let of_thread = thread.spawn(|| {
            program(
                rustix::thread::gettid()
                    .as_raw_nonzero()
                    .get()
                    .cast_unsigned(),
            )
        });
        assert_eq!(of_thread.unwrap().join().unwrap(), process);
        assert_eq!(program(0), "?");
    }
}
